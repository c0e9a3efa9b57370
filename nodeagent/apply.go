package nodeagent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// applyNode takes over what the node watch brings: it folds the view, tells the two sides of moves, and
// has what changed looked at. It is called from one goroutine, so that all see revisions in order.
func (a *Agent) applyNode(reset bool, rev cluster.Revision, changes []cluster.Change) {
	a.mu.Lock()
	before := a.mu.view.Revision
	touched := a.mu.view.Fold(reset, rev, changes)
	if a.mu.view.Revision == before && a.mu.synced {
		a.mu.Unlock()
		return
	}
	a.mu.synced = true
	if self, ok := a.mu.view.Nodes[a.cfg.NodeID]; ok {
		a.mu.self = self
	}
	a.mu.cacheDirty = a.mu.cacheDirty || len(changes) > 0 || reset
	settings := a.mu.view.Settings
	nodes := pick(a.mu.view.Nodes, touched.Nodes)
	assignments := pick(a.mu.view.Assignments, touched.Partitions)
	controllers := a.mu.view.ControllerAddresses()
	gone := missing(a.mu.view.Assignments, touched.Partitions)
	if touched.All {
		gone = a.absentMoves()
	}
	a.mu.Unlock()

	if touched.All || touched.Settings {
		a.mover.SetSettings(settings)
	}
	if a.cfg.FollowControllers && (touched.All || touched.Controllers) {
		a.client.Learn(controllers)
	}
	// Nodes first: a move that an assignment begins needs its source's address.
	for _, n := range nodes {
		a.mover.ObserveNode(n)
	}
	for _, as := range assignments {
		a.mover.Observe(as)
		a.source.Observe(as)
	}
	for _, p := range gone {
		a.mover.ObserveRemoved(p)
		a.source.ObserveRemoved(p)
	}
	if touched.All || len(touched.Topics) > 0 {
		a.rec.touchAll()
		return
	}
	for p := range touched.Partitions {
		a.rec.touch(p)
	}
}

// absentMoves lists the partitions that a side of a move works on and a snapshot does not have. Called with the
// view's lock held.
func (a *Agent) absentMoves() []cluster.PartitionID {
	var out []cluster.PartitionID
	for _, m := range a.mover.Progress() {
		if _, ok := a.mu.view.Assignments[m.Partition]; !ok {
			out = append(out, m.Partition)
		}
	}
	for _, m := range a.source.Marked() {
		if _, ok := a.mu.view.Assignments[m.Partition]; !ok {
			out = append(out, m.Partition)
		}
	}
	return out
}

// pick returns the values of the keys that are there, and missing the keys that are not.
func pick[K comparable, V any](m map[K]V, keys map[K]bool) []V {
	out := make([]V, 0, len(keys))
	for k := range keys {
		if v, ok := m[k]; ok {
			out = append(out, v)
		}
	}
	return out
}

func missing[K comparable, V any](m map[K]V, keys map[K]bool) []K {
	var out []K
	for k := range keys {
		if _, ok := m[k]; !ok {
			out = append(out, k)
		}
	}
	return out
}

// opened is called by the destination side when a moved partition is served here.
func (a *Agent) opened(p cluster.PartitionID, epoch cluster.Epoch) {
	a.rec.setEpoch(p, epoch)
	a.configure(p)
	a.rec.touch(p)
}

// configure tells the data plane of an open partition's topic.
func (a *Agent) configure(p cluster.PartitionID) {
	if a.deps.OnOpened == nil {
		return
	}
	a.mu.Lock()
	t, ok := a.mu.view.Topics[p.Topic]
	a.mu.Unlock()
	if ok {
		a.deps.OnOpened(p, t)
	}
}

// situation describes a partition as the view has it now.
func (a *Agent) situation(p cluster.PartitionID) Situation {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Situation{Self: a.cfg.NodeID, Partition: p, Synced: a.mu.synced && a.mu.resumed}
	if as, ok := a.mu.view.Assignments[p]; ok {
		s.Assignment = &as
	}
	_, s.Topic = a.mu.view.Topics[p.Topic]
	s.Arrived = a.mu.view.Arrived(p, a.cfg.NodeID)
	s.Cancelled = a.mu.view.Cancelled(p, a.cfg.NodeID)
	return s
}

// reclaimAfter is the grace before anything is removed.
func (a *Agent) reclaimAfter() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.view.Settings.ReclaimAfter
}

// pruneInterval is how often records that nobody needs any more are looked for.
const pruneInterval = 10 * time.Minute

// resume takes up journaled moves once the node is registered, and retries until that succeeded. Then it prunes now
// and then.
func (a *Agent) resume(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.registeredFirst:
	}
	b := newBackoff(100*time.Millisecond, 5*time.Second)
	for {
		err := a.mover.Resume(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		a.log.Warn("journaled moves not taken up yet, retrying", zap.Error(err))
		if !b.wait(ctx) {
			return
		}
	}
	a.mu.Lock()
	a.mu.resumed = true
	a.mu.Unlock()
	a.rec.touchAll()
	for {
		if err := a.mover.PrunePromotions(ctx); err != nil && ctx.Err() == nil {
			a.log.Debug("records of promotions not pruned, retrying later", zap.Error(err))
		}
		if !sleep(ctx, pruneInterval) {
			return
		}
	}
}
