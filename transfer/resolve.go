package transfer

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// notifyTimeout bounds the notice to the source, which learns the same from its watch.
const notifyTimeout = time.Second

func (r *run) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.m.cfg.CallTimeout)
}

// mine reports whether an outcome made this node the owner.
func (r *run) mine(o *cluster.Outcome) bool {
	return o != nil && o.Destination == r.m.cfg.Node && o.Kind != cluster.OutcomeCancelled
}

func (r *run) completeMove(ctx context.Context, eff move.CompleteMove) move.Event {
	call, cancel := r.call(ctx)
	defer cancel()
	o, err := r.m.cfg.Control.CompleteMove(call, r.p, r.move, eff.Handoff, eff.Nonce)
	if lost := r.hit(faults.MoveFlipReply, eff.Handoff); lost != nil {
		return move.OutcomeUnknown{Message: lost.Error()}
	}
	return r.flipResult(ctx, o, err)
}

func (r *run) forceComplete(ctx context.Context, eff move.ForceComplete) move.Event {
	call, cancel := r.call(ctx)
	defer cancel()
	o, err := r.m.cfg.Control.ForceCompleteMove(call, ForceRequest{
		Partition: r.p, MoveID: r.move, SourceIncarnation: eff.Incarnation, StagedLEO: eff.LEO, ReadHWM: eff.ReadHWM,
		AcceptLoss: eff.AcceptLoss,
	})
	if lost := r.hit(faults.MoveForceReply, 0); lost != nil {
		return move.OutcomeUnknown{Message: lost.Error()}
	}
	return r.flipResult(ctx, o, err)
}

// flipResult says what an answer to CompleteMove or ForceCompleteMove means. Invariant I8: only an answer of
// the state machine is final.
func (r *run) flipResult(ctx context.Context, o cluster.Outcome, err error) move.Event {
	if err == nil {
		if r.mine(&o) {
			return move.FlipAnswered{Epoch: o.Epoch, Forced: o.Kind == cluster.OutcomeForced}
		}
		return move.FlipRefused{Message: "the move ended " + o.Kind.String(), Ended: true}
	}
	if !Definite(err) {
		return move.OutcomeUnknown{Message: err.Error()}
	}
	if e := cluster.AsError(err); r.mine(e.Outcome) && e.Outcome.MoveID == r.move {
		return move.FlipAnswered{Epoch: e.Outcome.Epoch, Forced: e.Outcome.Kind == cluster.OutcomeForced}
	}
	switch cluster.ReasonOf(err) {
	case cluster.ReasonMoveMismatch, cluster.ReasonNotFound, cluster.ReasonStaleEpoch:
		// The move is not current. Whether it had flipped decides what becomes of the copy.
		view, rerr := r.readMove(ctx)
		if rerr != nil {
			return move.OutcomeUnknown{Message: rerr.Error()}
		}
		v, ok := view.(move.MoveRead)
		if ok && v.Mine {
			return move.FlipAnswered{Epoch: v.Epoch, Forced: v.Forced}
		}
		return move.FlipRefused{Message: err.Error(), Ended: ok && !v.Current}
	}
	return move.FlipRefused{Message: err.Error()}
}

func (r *run) revoke(ctx context.Context, eff move.RevokeHandoff) move.Event {
	call, cancel := r.call(ctx)
	defer cancel()
	v, err := r.m.cfg.Control.RevokeHandoff(call, r.p, r.move, eff.Handoff, "the destination resolves an installed copy")
	switch {
	case err != nil && !Definite(err):
		return move.OutcomeUnknown{Message: err.Error()}
	case err != nil:
		// The move is not current; whether it had flipped decides what becomes of the copy.
		e, rerr := r.readMove(ctx)
		if rerr != nil {
			return move.OutcomeUnknown{Message: rerr.Error()}
		}
		if read, ok := e.(move.MoveRead); ok && read.Mine {
			return move.FlipAnswered{Epoch: read.Epoch, Forced: read.Forced}
		}
		return move.Revoked{Ended: true}
	case r.mine(v.Outcome):
		return move.FlipAnswered{Epoch: v.Outcome.Epoch, Forced: v.Outcome.Kind == cluster.OutcomeForced}
	}
	return move.Revoked{Ended: v.Outcome != nil}
}

func (r *run) readMove(ctx context.Context) (move.Event, error) {
	call, cancel := r.call(ctx)
	defer cancel()
	v, err := r.m.cfg.Control.ReadMove(call, r.p, r.move)
	if err != nil {
		return nil, fmt.Errorf("read move %d of %s: %w", r.move, r.p, err)
	}
	e := move.MoveRead{Current: v.State == MoveCurrent, OwnerDead: v.Owner != nil && v.Owner.Status == cluster.NodeDead}
	switch {
	case r.mine(v.Outcome):
		e.Mine, e.Epoch, e.Forced = true, v.Outcome.Epoch, v.Outcome.Kind == cluster.OutcomeForced
	case v.State == MoveForgotten && v.Assignment != nil && v.Assignment.Owner == r.m.cfg.Node:
		c, ok, err := activeCopy(r.m.cfg.Store, r.p)
		if err != nil {
			return nil, err
		}
		if ok && c.Identity > store.Identity(r.move) {
			// The partition came by a later move, which began after this one was over.
			break
		}
		// A flip is forgotten only after this node had reported the partition open.
		e.Mine, e.Epoch = true, v.Assignment.OwnerEpoch
	}
	return e, nil
}

// promote finalizes the staged copy without its source, and records what it is made of.
func (r *run) promote(ctx context.Context, eff move.Promote) (move.Event, error) {
	m := r.work.manifest
	if r.work.staging == nil || r.work.incarnation == 0 {
		var err error
		if m, err = decodeMeta(eff.Meta); err != nil {
			return nil, err
		}
	}
	if err := r.stage(ctx); err != nil {
		return nil, err
	}
	leo, err := r.work.staging.FinalizeForced(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("finalize without the source: %w", err)
	}
	staged := map[string]bool{}
	for _, f := range r.work.staging.Files() {
		staged[f.Name] = true
	}
	var files []store.File
	for _, f := range m.Files {
		if staged[f.Name] {
			files = append(files, f)
		}
	}
	b, err := encodePromoted(leo, files)
	if err == nil {
		err = r.m.cfg.Journal.Save(journalKey(promotedPrefix, r.p, r.move), b)
	}
	if err != nil {
		return nil, fmt.Errorf("record the promotion: %w", err)
	}
	return move.Promotable{LEO: leo}, nil
}

// report tells the control plane, then the source. A refusal means that the ownership has changed again,
// and that nobody waits for the report.
func (r *run) report(ctx context.Context, st move.State, eff move.Report) (move.Event, error) {
	call, cancel := r.call(ctx)
	defer cancel()
	stats := eff.Stats
	if err := r.m.cfg.Control.ReportOpened(call, r.p, eff.Epoch, r.move, &stats); err != nil {
		if !Definite(err) {
			return nil, fmt.Errorf("report opened: %w", err)
		}
		r.m.cfg.Log.Info("report of an opened partition refused", append(logFields(r.p, r.move), zap.Error(err))...)
	}
	if err := r.hit(faults.MoveReported, 0); err != nil {
		return nil, err
	}
	if st.Forced {
		return move.Reported{}, nil
	}
	c, err := r.client()
	if err == nil {
		notify, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		_, err = c.NotifyOpened(notify, &nodev1.NotifyOpenedRequest{Move: moveRef(r.p, r.move)})
	}
	if err != nil {
		r.m.cfg.Log.Debug("notify the source", append(logFields(r.p, r.move), zap.Error(err))...)
	}
	return move.Reported{}, nil
}
