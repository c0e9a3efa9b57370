package sim

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// truth folds every revision at the instant at which the first controller has applied it, and checks it.
type truth struct {
	w    *World
	view *nodeagent.View
	// deadSince says since when a verdict stands.
	deadSince map[cluster.NodeID]time.Duration
	flips     int
	forced    int
}

func newTruth(w *World) *truth {
	return &truth{w: w, view: nodeagent.NewView(), deadSince: map[cluster.NodeID]time.Duration{}}
}

func (t *truth) owner(p cluster.PartitionID) cluster.NodeID { return t.view.Assignments[p].Owner }

func (t *truth) observe(c *controller) {
	var rev cluster.Revision
	c.machine.Read(func(r fsm.Reader) { rev = r.Revision() })
	if rev <= t.view.Revision {
		return
	}
	list, err := c.machine.Changes(t.view.Revision, 10_000)
	if err != nil {
		t.w.violated("watch", "%s at revision %d: changes after %d: %v", c.host, rev, t.view.Revision, err)
		return
	}
	for _, rc := range list {
		if rc.Revision != t.view.Revision+1 {
			t.w.violated("watch", "%s: revision %d follows %d", c.host, rc.Revision, t.view.Revision)
			return
		}
		t.revision(rc)
	}
	if t.view.Revision != rev {
		t.w.violated("watch", "%s: changes end at revision %d, the state is at %d", c.host, t.view.Revision, rev)
	}
}

func (t *truth) revision(rc cluster.RevisionChanges) {
	type taken struct {
		before cluster.Assignment
		o      cluster.Outcome
	}
	var flips []taken
	for _, c := range rc.Changes {
		switch {
		case c.Assignment != nil:
			old, known := t.view.Assignments[c.Assignment.Partition]
			if !known {
				t.placed(rc.Revision, *c.Assignment)
			}
			if !known || old.Owner == c.Assignment.Owner {
				if known && c.Assignment.Epoch < old.Epoch {
					t.w.violated("I1", "epoch of %s goes from %d to %d", old.Partition, old.Epoch, c.Assignment.Epoch)
				}
				break
			}
			o, ok := outcomeIn(rc, old)
			if !ok {
				// Invariant I1: an owner changes by a flip and by nothing else.
				t.w.violated("I1", "revision %d: owner of %s goes from %s to %s without a flip", rc.Revision, old.Partition, old.Owner, c.Assignment.Owner)
				break
			}
			flips = append(flips, taken{old, o})
		case c.Node != nil:
			t.node(*c.Node)
		case c.Topic != nil:
			for _, other := range t.view.Topics {
				if other.Name == c.Topic.Name && other.ID != c.Topic.ID {
					t.w.violated("C34", "revision %d makes topic %s again, which is topic %d", rc.Revision, other.Name, other.ID)
				}
			}
		case c.NodeRemoved != "":
			t.removed(c.NodeRemoved)
		case c.TopicRemoved != 0:
			t.w.log("topic %d is deleted", c.TopicRemoved)
			t.w.book.deleted[c.TopicRemoved] = true
		}
	}
	t.view.Fold(false, rc.Revision, rc.Changes)
	t.w.watches.Commit(uint64(rc.Revision), digest(rc))
	for _, f := range flips {
		t.w.log("revision %d: %s flips from %s to %s, move %d %s h=%d", rc.Revision, f.o.Partition, f.o.Source, f.o.Destination, f.o.MoveID, f.o.Kind, f.o.Handoff)
		if f.o.Kind == cluster.OutcomeForced {
			t.forced++
			t.w.checkForced(f.before, f.o)
		} else {
			t.flips++
			t.w.checkFlipped(f.o)
		}
	}
}

// placed holds at the first assignment of a partition: its owner may receive, and its topic is new (C33, C34).
func (t *truth) placed(rev cluster.Revision, a cluster.Assignment) {
	if n := t.view.Nodes[a.Owner]; n.Status != cluster.NodeAlive || n.Draining {
		t.w.violated("C33", "revision %d places %s on %s, which is %s, draining %t", rev, a.Partition, a.Owner, n.Status, n.Draining)
	}
	if cluster.Revision(a.Partition.Topic) != rev {
		t.w.violated("C34", "revision %d makes %s of topic %d", rev, a.Partition, a.Partition.Topic)
	}
}

func outcomeIn(rc cluster.RevisionChanges, old cluster.Assignment) (cluster.Outcome, bool) {
	for _, c := range rc.Changes {
		if c.Outcome != nil && c.Outcome.Partition == old.Partition && c.Outcome.MoveID == old.MoveID &&
			c.Outcome.Kind != cluster.OutcomeCancelled && c.Outcome.Destination == old.Target {
			return *c.Outcome, true
		}
	}
	return cluster.Outcome{}, false
}

func (t *truth) node(n cluster.Node) {
	old, known := t.view.Nodes[n.ID]
	if known && n.Incarnation < old.Incarnation {
		t.w.violated("I7", "incarnation of %s goes from %d to %d", n.ID, old.Incarnation, n.Incarnation)
	}
	if known && n.Draining != old.Draining && n.Incarnation != old.Incarnation {
		t.w.violated("C36", "the registration of %s as %d sets draining to %t", n.ID, n.Incarnation, n.Draining)
	}
	if n.Status == cluster.NodeDead && old.Status != cluster.NodeDead {
		t.deadSince[n.ID] = t.w.now
		t.w.log("%s incarnation %d is declared dead", n.ID, n.Incarnation)
	} else if n.Status != cluster.NodeDead {
		delete(t.deadSince, n.ID)
	}
}

func (t *truth) removed(id cluster.NodeID) {
	t.w.log("%s is removed", id)
	for _, p := range sortedKeys(t.view.Assignments, cluster.PartitionID.Compare) {
		if a := t.view.Assignments[p]; a.Owner == id || a.Target == id {
			t.w.violated("C32", "%s is removed as owner %q or target %q of %s", id, a.Owner, a.Target, p)
		}
	}
}

func (w *World) node(id cluster.NodeID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// durable opens what a power cut at this instant would leave of n's active copy of p, and hands its log over.
func (w *World) durable(n *node, k pm, invariant string, fn func(l *partitionlog.Log)) {
	s, err := partitionlog.Open(partitionlog.Options{
		Dir: "/data", FS: n.mem.CrashClone(vfs.CrashCloneCfg{}), SegmentBytes: w.opts.segment, RetentionInterval: -1,
		Lease: func() bool { return true }, Clock: func() time.Time { return time.Unix(0, 0) },
	})
	if err != nil {
		w.violated(invariant, "after a power cut %s does not open its store: %v", n.id, err)
		return
	}
	defer func() { _ = s.Shutdown() }()
	err = s.ConfirmFlip(k.p, k.m)
	if err == nil {
		err = s.Open(k.p, 1)
	}
	var l *partitionlog.Log
	if err == nil {
		l, err = s.Log(k.p)
	}
	if err != nil {
		w.violated(invariant, "after a power cut %s has no copy of %s by move %d to serve: %v", n.id, k.p, k.m, err)
		return
	}
	fn(l)
}

// checkFlipped holds at the revision of a flip.
func (w *World) checkFlipped(o cluster.Outcome) {
	k := pm{o.Partition, o.MoveID}
	fz, ok := w.book.frozen[frozenKey{k, o.Handoff}]
	if !ok {
		w.violated("I5", "move %d of %s flips by handoff %d, which was never frozen", o.MoveID, o.Partition, o.Handoff)
		return
	}
	if s := w.node(o.Source); s.up() {
		// Invariant I6: at the flip the source accepts nothing.
		if l, err := s.store.Log(k.p); err == nil && l.Frozen() == nil {
			w.violated("I6", "move %d of %s flips by handoff %d and %s accepts appends", o.MoveID, o.Partition, o.Handoff, s.id)
			return
		}
	}
	d := w.node(o.Destination)
	if d.lost {
		return
	}
	// Invariant I5: what was flipped to is durable and whole.
	w.durable(d, k, "I5", func(l *partitionlog.Log) {
		if l.LEO() != fz.leo || l.HWM() != fz.hwm || l.LogStart() != fz.start {
			w.violated("I3", "%s by move %d: %s frozen with log start %d, HWM %d, LEO %d; the copy has %d, %d, %d",
				k.p, k.m, o.Source, fz.start, fz.hwm, fz.leo, l.LogStart(), l.HWM(), l.LEO())
		}
		w.book.compare(d, k.p, l)
	})
}

// checkForced holds at the revision of a promotion.
func (w *World) checkForced(a cluster.Assignment, o cluster.Outcome) {
	k := pm{o.Partition, o.MoveID}
	source := w.truth.view.Nodes[o.Source]
	inc := w.book.promotedFrom[k]
	// Invariant I10: only the dead incarnation that the copy came from is passed over.
	if source.Status != cluster.NodeDead || source.Incarnation != inc {
		w.violated("I10", "%s is promoted over %s incarnation %d, which is %s; its copy is of incarnation %d", k.p, o.Source, source.Incarnation, source.Status, inc)
		return
	}
	s := w.node(o.Source)
	if s.up() && s.registered && s.clk.now() < s.lease && len(s.outsOf(k.p)) > 0 {
		w.violated("I10", "%s is promoted while %s holds a lease", k.p, s.id)
	}
	for _, h := range source.DeadHWMs {
		if h.Partition == k.p && h.Offset > o.PromotedLEO {
			w.violated("I10", "%s is promoted at %d; its verdict says %d", k.p, o.PromotedLEO, h.Offset)
		}
	}
	d := w.node(o.Destination)
	if d.lost {
		w.book.lostOwner(k.p)
		return
	}
	w.durable(d, k, "I5", func(l *partitionlog.Log) {
		if l.LEO() != o.PromotedLEO || l.HWM() != o.PromotedLEO {
			w.violated("I3", "%s is promoted at %d; the copy has HWM %d, LEO %d", k.p, o.PromotedLEO, l.HWM(), l.LEO())
		}
		w.book.owe(a.Owner, k.p, l)
	})
}

// checkThaw: Invariant I6: a thaw follows a committed revocation. Invariant I7: it follows the registration.
func (w *World) checkThaw(n *node, k pm, h cluster.Handoff) {
	if f := n.store.Frozen(k.p); f != nil && *f == (store.FreezeToken{MoveID: k.m, Handoff: h}) && !n.registered {
		w.violated("I7", "%s thaws %s for move %d before it has registered", n.id, k.p, k.m)
	}
	a := w.truth.view.Assignments[k.p]
	if a.MoveID == k.m && a.Granted && a.Handoff == h {
		w.violated("I6", "%s thaws %s for move %d while handoff %d is granted", n.id, k.p, k.m, h)
	}
}

// checkFlipAsked: Invariant I5: a flip is proposed for an installed copy alone.
func (w *World) checkFlipAsked(n *node, k pm, h cluster.Handoff) {
	c, ok := n.activeCopy(k.p)
	if !ok || c.Identity != store.Identity(k.m) || c.Pending == nil || c.Pending.Handoff != h {
		w.violated("I5", "%s asks for the flip of %s by move %d, handoff %d, with %+v in its place", n.id, k.p, k.m, h, c)
	}
}

func (w *World) mineByTruth(n *node, k pm) bool {
	o, ok := w.truth.view.Outcomes[k.p][k.m]
	return ok && o.Destination == n.id && o.Kind != cluster.OutcomeCancelled
}

// checkRollback: Invariant I8: a copy that owns is not rolled back.
func (w *World) checkRollback(n *node, k pm) {
	a := w.truth.view.Assignments[k.p]
	switch {
	case w.mineByTruth(n, k):
		w.violated("I8", "%s rolls back its copy of %s, to which move %d has flipped", n.id, k.p, k.m)
	case a.MoveID == k.m && a.Granted && a.Handoff == n.runs[k.p].st.Handoff && n.runs[k.p].st.Nonce.Hash() == a.NonceHash:
		w.violated("I8", "%s rolls back its copy of %s while handoff %d is granted", n.id, k.p, a.Handoff)
	}
}

// checkConfirm: Invariant I8: only a committed flip is confirmed.
func (w *World) checkConfirm(n *node, k pm) {
	if c, _ := n.activeCopy(k.p); c.Pending == nil {
		return // a repetition
	}
	if w.book.deleted[k.p.Topic] {
		return // the flip was forgotten with its topic
	}
	if a := w.truth.view.Assignments[k.p]; !w.mineByTruth(n, k) && (a.Owner != n.id || a.MoveID == k.m) {
		w.violated("I8", "%s confirms the flip of %s by move %d, which is not committed", n.id, k.p, k.m)
	}
}

// checkDrop: Invariant I9: staging goes when its move is over and the owner lives.
func (w *World) checkDrop(n *node, k pm) {
	a := w.truth.view.Assignments[k.p]
	since, dead := w.truth.deadSince[a.Owner]
	switch {
	case a.Owner == "":
	case a.MoveID == k.m:
		w.violated("I9", "%s drops the staging of the current move %d of %s", n.id, k.m, k.p)
	case dead && w.now-since > 15*time.Second:
		w.violated("I9", "%s drops the staging of move %d of %s, whose owner %s is dead", n.id, k.m, k.p, a.Owner)
	}
}

// checkDelete: Invariant I9: a copy goes when the owner by its move has opened its own, or with its topic.
func (w *World) checkDelete(n *node, c store.Copy) {
	a, exists := w.truth.view.Assignments[c.Partition]
	if exists && a.Owner == n.id && c.Place == store.Active {
		w.violated("I9", "%s deletes the copy of %s that it owns", n.id, c.Partition)
	}
	for _, o := range n.outsOf(c.Partition) {
		if o.mark.Identity != c.Identity {
			continue
		}
		if x, ok := w.truth.view.Outcomes[c.Partition][o.k.m]; ok && x.Kind != cluster.OutcomeCancelled && !x.Opened {
			w.violated("I9", "%s deletes its copy of %s, which %s has not opened after move %d", n.id, c.Partition, x.Destination, o.k.m)
		}
	}
}

// checkArrived holds when a moved copy is opened by its destination.
func (w *World) checkArrived(n *node, k pm, forced bool) {
	l, err := n.store.Log(k.p)
	if err != nil {
		return
	}
	o, ok := w.truth.view.Outcomes[k.p][k.m]
	if fz, known := w.book.frozen[frozenKey{k, o.Handoff}]; ok && known && !forced && !w.book.arrived[k] {
		// Invariant I3: the new owner exposes the source's HWM. Invariant I4: it begins at the offsets
		// that were captured, or later.
		if l.HWM() != fz.hwm {
			w.violated("I3", "%s opens %s with HWM %d; it was frozen with %d", n.id, k.p, l.HWM(), fz.hwm)
		}
		if got, _ := l.CommittedOffset(group); got < fz.committed {
			w.violated("I4", "%s opens %s with committed offset %d; it was frozen with %d", n.id, k.p, got, fz.committed)
		}
		w.book.arrived[k] = true
	}
	w.checkOpened(n, k.p)
}

// checkOpened holds whenever an owner opens its log: all that was acknowledged is there (I2, I3), and nothing
// that was not delivered is skipped (I4).
func (w *World) checkOpened(n *node, p cluster.PartitionID) {
	l, err := n.store.Log(p)
	if err != nil || w.truth.owner(p) != n.id {
		return
	}
	w.book.compare(n, p, l)
}
