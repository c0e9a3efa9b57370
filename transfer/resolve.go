package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Resolver asks the control plane about one move to this node, as its destination, and says what the answers mean for the
// step function (I8). It keeps nothing; it is safe for concurrent use.
type Resolver struct {
	Node      cluster.NodeID
	Store     store.PartitionStore
	Control   ControlPlane
	Partition cluster.PartitionID
	Move      cluster.MoveID
	// CallTimeout bounds a call to the control plane.
	CallTimeout time.Duration
}

func (r Resolver) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.CallTimeout)
}

// mine reports whether an outcome made this node the owner.
func (r Resolver) mine(o *cluster.Outcome) bool {
	return o != nil && o.Destination == r.Node && o.Kind != cluster.OutcomeCancelled
}

// Complete asks for the flip of an installed copy.
func (r Resolver) Complete(ctx context.Context, eff move.CompleteMove) move.Event {
	call, cancel := r.call(ctx)
	defer cancel()
	o, err := r.Control.CompleteMove(call, r.Partition, r.Move, eff.Handoff, eff.Nonce)
	if lost := hit(faults.MoveFlipReply, r.Partition, r.Move, eff.Handoff); lost != nil {
		return move.OutcomeUnknown{Message: lost.Error()}
	}
	return r.flipResult(ctx, o, err)
}

// Force asks for the promotion of an installed copy.
func (r Resolver) Force(ctx context.Context, eff move.ForceComplete) move.Event {
	call, cancel := r.call(ctx)
	defer cancel()
	o, err := r.Control.ForceCompleteMove(call, ForceRequest{
		Partition: r.Partition, MoveID: r.Move, SourceIncarnation: eff.Incarnation, StagedLEO: eff.LEO, ReadHWM: eff.ReadHWM,
	})
	if lost := hit(faults.MoveForceReply, r.Partition, r.Move, 0); lost != nil {
		return move.OutcomeUnknown{Message: lost.Error()}
	}
	return r.flipResult(ctx, o, err)
}

// flipResult says what an answer to CompleteMove or ForceCompleteMove means. Invariant I8: only an answer of
// the state machine is final.
func (r Resolver) flipResult(ctx context.Context, o cluster.Outcome, err error) move.Event {
	if err == nil {
		if r.mine(&o) {
			return move.FlipAnswered{Epoch: o.Epoch, Forced: o.Kind == cluster.OutcomeForced}
		}
		return move.FlipRefused{Message: "the move ended " + o.Kind.String(), Ended: true}
	}
	if !Definite(err) {
		return move.OutcomeUnknown{Message: err.Error()}
	}
	if e := cluster.AsError(err); r.mine(e.Outcome) && e.Outcome.MoveID == r.Move {
		return move.FlipAnswered{Epoch: e.Outcome.Epoch, Forced: e.Outcome.Kind == cluster.OutcomeForced}
	}
	switch cluster.ReasonOf(err) {
	case cluster.ReasonMoveMismatch, cluster.ReasonNotFound, cluster.ReasonStaleEpoch:
		// The move is not current. Whether it had flipped decides what becomes of the copy.
		view, rerr := r.Read(ctx)
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

// Revoke makes a flip impossible, or says that it took place.
func (r Resolver) Revoke(ctx context.Context, eff move.RevokeHandoff) move.Event {
	call, cancel := r.call(ctx)
	defer cancel()
	v, err := r.Control.RevokeHandoff(call, r.Partition, r.Move, eff.Handoff, "the destination resolves an installed copy")
	switch {
	case err != nil && !Definite(err):
		return move.OutcomeUnknown{Message: err.Error()}
	case err != nil:
		// The move is not current; whether it had flipped decides what becomes of the copy.
		e, rerr := r.Read(ctx)
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

// Read says what became of the move.
func (r Resolver) Read(ctx context.Context) (move.Event, error) {
	call, cancel := r.call(ctx)
	defer cancel()
	v, err := r.Control.ReadMove(call, r.Partition, r.Move)
	if err != nil {
		return nil, fmt.Errorf("read move %d of %s: %w", r.Move, r.Partition, err)
	}
	e := move.MoveRead{Current: v.State == MoveCurrent, OwnerDead: v.Owner != nil && v.Owner.Status == cluster.NodeDead}
	switch {
	case r.mine(v.Outcome):
		e.Mine, e.Epoch, e.Forced = true, v.Outcome.Epoch, v.Outcome.Kind == cluster.OutcomeForced
	case v.State == MoveForgotten && v.Assignment != nil && v.Assignment.Owner == r.Node:
		c, ok, err := activeCopy(r.Store, r.Partition)
		if err != nil {
			return nil, err
		}
		if ok && c.Identity > store.Identity(r.Move) {
			// The partition came by a later move, which began after this one was over.
			break
		}
		// A flip is forgotten only after this node had reported the partition open.
		e.Mine, e.Epoch = true, v.Assignment.OwnerEpoch
	}
	return e, nil
}
