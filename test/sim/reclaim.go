package sim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// notified is told by the destination that it has opened the partition.
func (n *node) notified(k pm) {
	if o := n.outs[k]; o != nil {
		o.input(handoff.Hinted{})
	}
}

// checkedStore looks at every deletion at the instant at which it happens.
type checkedStore struct {
	store.PartitionStore
	n *node
}

// Delete implements store.PartitionStore.
func (s checkedStore) Delete(p cluster.PartitionID, place store.Place, id store.Identity) error {
	for _, c := range s.n.copiesOf(p) {
		if c.Place == place && c.Identity == id {
			s.n.w.checkDelete(s.n, c)
			s.n.w.log("%s deletes its %s copy %d of %s", s.n.id, c.Place, c.Identity, p)
		}
	}
	return s.PartitionStore.Delete(p, place, id)
}

// markers are the node's outbound markers as transfer.Reclaimer works on them.
type markers struct{ n *node }

// Marked implements transfer.Markers.
func (m markers) Marked() []transfer.Marker {
	var out []transfer.Marker
	for _, k := range sortedKeys(m.n.outs, comparePM) {
		out = append(out, m.n.outs[k].mark)
	}
	return out
}

// Latest implements transfer.Markers.
func (m markers) Latest(k transfer.Marker) transfer.Marker {
	if o := m.n.outs[pm{k.Partition, k.MoveID}]; o != nil {
		return o.mark
	}
	return k
}

// Update implements transfer.Markers.
func (m markers) Update(k transfer.Marker) error {
	if o := m.n.outs[pm{k.Partition, k.MoveID}]; o != nil {
		o.mark = k
	}
	m.n.saveMarker(k)
	return nil
}

// Forget implements transfer.Markers.
func (m markers) Forget(k transfer.Marker) error {
	m.n.dropMarker(pm{k.Partition, k.MoveID})
	return nil
}

// salvager is transfer.Producer of a node.
type salvager struct{ n *node }

// Produce implements transfer.Producer.
func (s salvager) Produce(ctx context.Context, topic cluster.TopicID, records []store.Record) error {
	return s.n.produceSalvaged(ctx, topic, records)
}

// newReclaimer makes the real one over this node's shells.
func (n *node) newReclaimer() *transfer.Reclaimer {
	return &transfer.Reclaimer{
		Node: n.id, Store: checkedStore{n.store, n}, Control: control{n}, Source: markers{n}, Producer: salvager{n},
		After: func() time.Duration { return n.view.Settings.ReclaimAfter },
		Now:   n.clk.now,
		Promoted: func(ctx context.Context, m transfer.Marker, owner cluster.NodeID) (cluster.Offset, []store.File, bool, error) {
			return n.askPromoted(procOf(ctx), pm{m.Partition, m.MoveID}, owner)
		},
	}
}

// askPromoted asks a promoted owner what its copy was made of.
func (n *node) askPromoted(p *proc, k pm, id cluster.NodeID) (cluster.Offset, []store.File, bool, error) {
	owner := n.w.node(id)
	raw, ok := call(p, n.host, owner.host, callTimeout, func(reply func([]byte)) {
		if !owner.up() || !owner.registered {
			return
		}
		if entries := owner.load(key("promoted", k)); len(entries) > 0 {
			reply(entries[0])
		} else {
			reply(nil)
		}
	})
	if !ok {
		return 0, nil, false, errUnknown
	}
	var rec promoted
	if raw == nil || json.Unmarshal(raw, &rec) != nil {
		return 0, nil, false, nil
	}
	return rec.LEO, rec.Files, true, nil
}

// reclaimAll has the reclaimer look at the markers whose moves have taken the copy away.
func (n *node) reclaimAll(p *proc) {
	for {
		p.sleep(p.w.between(300*time.Millisecond, time.Second))
		for _, k := range sortedKeys(n.outs, comparePM) {
			o := n.outs[k]
			if o == nil || o.st.Phase != handoff.Flipped || n.reclaimAt[k] > n.clk.now() {
				continue
			}
			done, after, err := n.reclaimer.Step(p.ctx(), o.mark)
			if err != nil {
				n.w.log("%s reclaims %v: %v", n.id, k, err)
			}
			if !done {
				n.reclaimAt[k] = n.clk.now() + min(after, time.Second)
			}
		}
	}
}

// reconcile brings partitions to what the view asks for, by the agent's decisions.
func (n *node) reconcile(p *proc) {
	for {
		p.sleep(p.w.between(100*time.Millisecond, 500*time.Millisecond))
		copies, err := n.store.Copies()
		if err != nil {
			n.w.violated("I2", "%s: list copies: %v", n.id, err)
			return
		}
		todo := map[cluster.PartitionID]bool{}
		for _, c := range copies {
			todo[c.Partition] = true
		}
		for _, a := range n.view.Owned(n.id) {
			todo[a.Partition] = true
		}
		for q := range n.view.Outcomes {
			todo[q] = true
		}
		for _, q := range sortedKeys(todo, cluster.PartitionID.Compare) {
			for _, a := range nodeagent.Decide(n.situation(q)) {
				if err := n.act(p, q, a); err != nil {
					break
				}
			}
		}
	}
}

func (n *node) situation(q cluster.PartitionID) nodeagent.Situation {
	s := nodeagent.Situation{Self: n.id, Partition: q, Synced: n.synced && n.resumed, Busy: n.busyWith(q), OpenEpoch: n.epochs[q]}
	if a, ok := n.view.Assignments[q]; ok {
		s.Assignment = &a
	}
	_, s.Topic = n.view.Topics[q.Topic]
	s.Arrived = n.view.Arrived(q, n.id)
	s.Cancelled = slices.DeleteFunc(n.view.Cancelled(q, n.id), func(m cluster.MoveID) bool { return n.outs[pm{q, m}] != nil })
	for _, o := range n.outsOf(q) {
		s.Marked = append(s.Marked, o.mark.Identity)
	}
	s.Copies = n.copiesOf(q)
	return s
}

// act performs one decision, with the rules of the agent's reconciler.
func (n *node) act(p *proc, q cluster.PartitionID, a nodeagent.Action) error {
	switch a.Kind {
	case nodeagent.ActCreate:
		return n.store.Create(q, a.Identity)
	case nodeagent.ActOpen:
		return n.serve(q, a.Epoch)
	case nodeagent.ActReport:
		return control{n}.ReportOpened(p.ctx(), q, a.Epoch, 0, nil)
	case nodeagent.ActClose:
		return n.store.Close(q)
	case nodeagent.ActProblem:
		// The view may be behind; the truth is not.
		if n.w.truth.owner(q) == n.id && len(n.copiesOf(q)) == 0 && n.view.Revision == n.w.truth.view.Revision {
			n.w.violated("I9", "%s owns %s: %s", n.id, q, a.Problem)
		}
		return nil
	}
	// What is left destroys something, or reports that nothing is left: a linearizable read comes first.
	move := a.Move
	if a.Kind == nodeagent.ActStaging {
		move = cluster.MoveID(a.Identity)
	}
	v, err := control{n}.ReadMove(p.ctx(), q, move)
	if err != nil {
		return err
	}
	switch a.Kind {
	case nodeagent.ActRetire:
		if v.Assignment == nil {
			return n.store.Quarantine(q, a.Identity)
		}
	case nodeagent.ActRemove:
		return n.removeAside(q, a, v)
	case nodeagent.ActStaging:
		if ok, _ := nodeagent.MayDropStaging(v); ok && !n.busyWith(q) {
			n.w.checkDrop(n, pm{q, move})
			return n.store.DropStaging(q, move)
		}
	case nodeagent.ActUnbegun:
		if v.State == transfer.MoveEnded && v.Outcome.Kind == cluster.OutcomeCancelled && n.outs[pm{q, move}] == nil {
			return control{n}.ReportReclaimed(p.ctx(), q, move)
		}
	}
	return nil
}

// removeAside deletes a copy of a deleted topic, after the grace.
func (n *node) removeAside(q cluster.PartitionID, a nodeagent.Action, v transfer.MoveView) error {
	k := pm{q, cluster.MoveID(a.Identity)}
	if ok, _ := nodeagent.MayRemove(v); !ok {
		delete(n.retired, k)
		return nil
	}
	since, ok := n.retired[k]
	if !ok {
		since = n.clk.now()
		n.retired[k] = since
	}
	if n.clk.now()-since < n.view.Settings.ReclaimAfter {
		return nil
	}
	delete(n.retired, k)
	return checkedStore{n.store, n}.Delete(q, a.Place, a.Identity)
}

// held says that the copy is closed and that a move away has a hold on it: only the source's side opens it.
func (n *node) held(p cluster.PartitionID) bool {
	c, ok := n.activeCopy(p)
	for _, o := range n.outsOf(p) {
		if ok && !c.Open && o.mark.Identity == c.Identity && o.st.Holds() {
			return true
		}
	}
	return false
}

func (n *node) serve(q cluster.PartitionID, epoch cluster.Epoch) error {
	if n.held(q) {
		return cluster.Errorf(cluster.ReasonFrozen, "%s waits for the end of a move", q)
	}
	if err := n.store.Open(q, epoch); err != nil {
		if !n.fs.full {
			n.w.violated("I2", "%s: open %s: %v", n.id, q, err)
		}
		return err
	}
	n.epochs[q] = max(n.epochs[q], epoch)
	n.w.checkOpened(n, q)
	return nil
}
