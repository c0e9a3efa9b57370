package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// retryAfter is what clients are told while there is no leader: about an election.
const retryAfter = 500 * time.Millisecond

// noLeader is a definite refusal: the request was not and will not be carried out.
func noLeader(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.ReasonNoLeader, format, args...)
	err.RetryAfter = retryAfter
	return err
}

// Propose orders cmd and waits until this member has applied it. A refusal by the state machine is in
// Result.Err, not in the error. Errors: ReasonNoLeader and ReasonLimit mean that the command will never be
// applied; everything else, errors.Is(err, consensus.ErrOutcomeUnknown) included, that it may have been
// or may yet be (invariant I8).
func (c *Controller) Propose(ctx context.Context, cmd *storagev1.Command) (fsm.Result, error) {
	cmd.NowUnixNano = c.now().UnixNano()
	b, err := fsm.Encode(cmd)
	if err != nil {
		return fsm.Result{}, cluster.Errorf(cluster.ReasonInvalid, "%v", err)
	}
	pctx, cancel := context.WithTimeout(ctx, c.cfg.ProposeTimeout)
	defer cancel()
	v, _, err := c.backend.Propose(pctx, b)
	switch {
	case err == nil:
	case errors.Is(err, consensus.ErrNotLeader):
		return fsm.Result{}, noLeader("controller %s does not lead", c.cfg.Name)
	case errors.Is(err, consensus.ErrBusy):
		busy := cluster.Errorf(cluster.ReasonLimit, "controller %s: too many requests wait", c.cfg.Name)
		busy.Field, busy.RetryAfter = "proposals", retryAfter
		return fsm.Result{}, busy
	case ctx.Err() != nil:
		return fsm.Result{}, fmt.Errorf("propose: %w", errors.Join(ctx.Err(), consensus.ErrOutcomeUnknown))
	default:
		return fsm.Result{}, fmt.Errorf("propose: %w: %w", consensus.ErrOutcomeUnknown, err)
	}
	r, ok := v.(fsm.Result)
	if !ok {
		return fsm.Result{}, fmt.Errorf("propose: the state machine answered %T", v)
	}
	if r.Err == nil && r.Changed {
		c.metrics.applied(cmd)
	}
	return r, nil
}

// do is Propose with refusals as errors.
func (c *Controller) do(ctx context.Context, cmd *storagev1.Command) (fsm.Result, error) {
	r, err := c.Propose(ctx, cmd)
	if err != nil {
		return r, err
	}
	if r.Err != nil {
		return r, r.Err
	}
	return r, nil
}

// Confirm returns when this member leads, with its state current as of the call. The soft state then
// belongs to the returned term. ReasonNoLeader otherwise.
func (c *Controller) Confirm(ctx context.Context) (term uint64, err error) {
	bctx, cancel := context.WithTimeout(ctx, c.cfg.BarrierTimeout)
	defer cancel()
	term, err = c.backend.LeaderBarrier(bctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, noLeader("no leader: %v", err)
	}
	c.adopt(term)
	return term, nil
}

// Barrier returns when this member's state is current as of the call, whether it leads or not.
// ReasonNoLeader when nobody confirms it.
func (c *Controller) Barrier(ctx context.Context) error {
	bctx, cancel := context.WithTimeout(ctx, c.cfg.BarrierTimeout)
	defer cancel()
	if err := c.backend.Barrier(bctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return noLeader("no leader: %v", err)
	}
	return nil
}
