package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// perform does what was decided about one partition, in order, up to the first error.
func (r *reconciler) perform(ctx context.Context, k taskKey, actions []Action, confirmed map[store.Identity]time.Time) taskResult {
	res := taskResult{key: k}
	for _, act := range actions {
		r.a.log.Debug("reconciling", zap.Stringer("partition", k.p), zap.Stringer("action", act))
		if act.Kind == ActProblem {
			res.problem = act.Problem
			continue
		}
		after, problem, err := r.act(ctx, k.p, act, confirmed)
		if err != nil {
			res.err = fmt.Errorf("%s: %w", act.Kind, err)
			return res
		}
		if after > 0 && (res.retryAfter == 0 || after < res.retryAfter) {
			res.retryAfter = after
		}
		if problem != "" {
			res.problem = problem
		}
	}
	return res
}

// act performs one action. It returns when to look again, and what is in the way.
func (r *reconciler) act(ctx context.Context, p cluster.PartitionID, act Action, confirmed map[store.Identity]time.Time) (time.Duration, string, error) {
	switch act.Kind {
	case ActCreate:
		return 0, "", r.a.store.Create(p, act.Identity)
	case ActOpen:
		err := r.open(p, act.Epoch)
		if cluster.ReasonOf(err) == cluster.ReasonFrozen {
			// A move is being resolved; that is no problem of anybody's.
			return time.Second, "", nil
		}
		return 0, "", err
	case ActReport:
		return 0, "", r.a.control.ReportOpened(ctx, p, act.Epoch, 0, nil)
	case ActClose:
		return 0, "", r.close(p, act.Identity)
	case ActRetire:
		return r.retire(ctx, p, act.Identity)
	case ActRemove:
		return r.remove(ctx, p, act, confirmed)
	case ActStaging:
		return r.dropStaging(ctx, p, act.Identity)
	case ActUnbegun:
		return 0, "", r.unbegun(ctx, p, act.Move)
	}
	return 0, "", cluster.Errorf(cluster.ReasonBug, "no such action: %s", act)
}

// open serves an unmarked, owned partition. It goes through the source side, whose lock excludes a move
// that begins at this moment.
func (r *reconciler) open(p cluster.PartitionID, epoch cluster.Epoch) error {
	if err := r.a.source.Owned(p, epoch); err != nil {
		return err
	}
	r.setEpoch(p, epoch)
	r.a.configure(p)
	return nil
}

// close stops serving what the view says is another node's. It is decided anew, since the decision may have
// waited for a slot.
func (r *reconciler) close(p cluster.PartitionID, id store.Identity) error {
	open := store.Copy{Partition: p, Place: store.Active, Identity: id, Open: true}
	still := slices.ContainsFunc(Decide(r.situation(p, []store.Copy{open})), func(a Action) bool { return a.Kind == ActClose })
	if !still {
		return nil
	}
	return r.a.store.Close(p)
}

// retire sets the copy of a deleted topic aside. Setting aside destroys nothing, and yet it follows a
// linearizable read (I9): a view may be behind a topic that was just created.
func (r *reconciler) retire(ctx context.Context, p cluster.PartitionID, id store.Identity) (time.Duration, string, error) {
	v, err := r.a.control.ReadMove(ctx, p, 0)
	if err != nil {
		return 0, "", err
	}
	if v.Assignment != nil {
		return time.Second, "the view has no such topic and the controllers have", nil
	}
	if err := r.a.store.Quarantine(p, id); err != nil {
		return 0, "", err
	}
	r.a.log.Info("topic deleted, copy set aside", zap.Stringer("partition", p))
	r.touch(p)
	return 0, "", nil
}

// remove deletes a copy that lies aside, after a confirmation that is as old as the grace and another one
// now (I9).
func (r *reconciler) remove(ctx context.Context, p cluster.PartitionID, act Action, confirmed map[store.Identity]time.Time) (time.Duration, string, error) {
	v, err := r.a.control.ReadMove(ctx, p, 0)
	if err != nil {
		return 0, "", err
	}
	if ok, why := MayRemove(v); !ok {
		delete(confirmed, act.Identity)
		return 0, "quarantined copy kept: " + why, nil
	}
	first, ok := confirmed[act.Identity]
	if !ok {
		first = time.Now()
		confirmed[act.Identity] = first
	}
	if left := r.a.reclaimAfter() - time.Since(first); left > 0 {
		return left, "", nil
	}
	if err := r.a.store.Delete(p, act.Place, act.Identity); err != nil {
		return 0, "", err
	}
	delete(confirmed, act.Identity)
	r.a.log.Info("copy of a deleted topic removed", zap.Stringer("partition", p))
	return 0, "", nil
}

// dropStaging removes the staging of a move that has ended and that no one here works on.
func (r *reconciler) dropStaging(ctx context.Context, p cluster.PartitionID, id store.Identity) (time.Duration, string, error) {
	move := cluster.MoveID(id)
	v, err := r.a.control.ReadMove(ctx, p, move)
	if err != nil {
		return 0, "", err
	}
	if ok, why := MayDropStaging(v); !ok {
		return r.a.cfg.ResyncInterval, "", r.note(p, move, why)
	}
	if r.a.mover.Busy(p) {
		return r.a.cfg.ResyncInterval, "", nil
	}
	if err := r.a.store.DropStaging(p, move); err != nil {
		return 0, "", err
	}
	r.a.log.Info("staging of an ended move removed", zap.Stringer("partition", p), zap.Uint64("move_id", uint64(move)))
	return 0, "", nil
}

// unbegun reports a move that was cancelled before it reached this node, its source: nobody else would, and the record
// would stay.
func (r *reconciler) unbegun(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) error {
	v, err := r.a.control.ReadMove(ctx, p, move)
	if err != nil {
		return err
	}
	if v.State != transfer.MoveEnded || v.Outcome.Kind != cluster.OutcomeCancelled || r.a.source.Began(p, move) {
		return nil // the view is behind, or a marker is: whoever holds it reports
	}
	return r.a.control.ReportReclaimed(ctx, p, move)
}

// note logs why staging is kept; that is no problem of anybody's.
func (r *reconciler) note(p cluster.PartitionID, move cluster.MoveID, why string) error {
	r.a.log.Debug("staging kept", zap.Stringer("partition", p), zap.Uint64("move_id", uint64(move)), zap.String("why", why))
	return nil
}
