package sim

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
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

// reclaimAll looks after the markers whose moves have taken the copy away, with the rules of
// transfer.Reclaimer: everything that is destroyed was named by a linearizable read just before.
func (n *node) reclaimAll(p *proc) {
	for {
		p.sleep(p.w.between(300*time.Millisecond, time.Second))
		for _, k := range sortedKeys(n.outs, comparePM) {
			if o := n.outs[k]; o != nil && o.st.Phase == handoff.Flipped {
				n.reclaim(p, o)
			}
		}
	}
}

func (n *node) copyOf(m transfer.Marker) (store.Copy, bool) {
	for _, c := range n.copiesOf(m.Partition) {
		if c.Identity == m.Identity && c.Place != store.Staged {
			return c, true
		}
	}
	return store.Copy{}, false
}

func (n *node) reclaim(p *proc, o *outbound) {
	v, err := n.readMove(p, o.k)
	if err != nil {
		return
	}
	c, ok := n.copyOf(o.mark)
	switch {
	case v.Assignment == nil:
		n.dropMarker(o.k)
	case v.State == transfer.MoveEnded && v.Outcome.Kind == cluster.OutcomeForced:
		n.reclaimForced(p, o, *v.Outcome, c, ok)
	case v.State == transfer.MoveEnded && v.Outcome.Kind == cluster.OutcomeFlipped:
		a := v.Assignment
		home := a.Owner == n.id || a.Target == n.id
		if ok && (!v.Outcome.Opened || (home && (c.Place == store.Active || a.Owner != n.id || !a.Opened))) {
			delete(n.confirmed, o.k)
			return
		}
		since, seen := n.confirmed[o.k]
		if !seen {
			since = n.clk.now()
			n.confirmed[o.k] = since
		}
		if ok && n.clk.now()-since < n.view.Settings.ReclaimAfter {
			return
		}
		n.finishReclaim(p, o, true)
	case v.State == transfer.MoveForgotten && o.mark.Salvaged:
		n.finishReclaim(p, o, false)
	case v.State != transfer.MoveCurrent && !ok:
		n.dropMarker(o.k)
	}
}

func (n *node) finishReclaim(p *proc, o *outbound, report bool) {
	if c, ok := n.copyOf(o.mark); ok {
		n.w.checkDelete(n, o.k, c)
		if err := n.store.Delete(o.k.p, c.Place, o.mark.Identity); err != nil {
			return
		}
		n.w.log("%s deletes its %s copy %d of %s after move %d", n.id, c.Place, c.Identity, o.k.p, o.k.m)
	}
	if report {
		if err := n.reportReclaimed(p, o.k); err != nil && !transfer.Definite(err) {
			return
		}
	}
	delete(n.confirmed, o.k)
	n.dropMarker(o.k)
	for _, k := range sortedKeys(n.outs, comparePM) {
		if m := n.outs[k].mark; k.p == o.k.p && m.Identity == o.mark.Identity {
			n.dropMarker(k)
		}
	}
}

func (n *node) reclaimForced(p *proc, o *outbound, out cluster.Outcome, c store.Copy, ok bool) {
	if !ok {
		n.finishReclaim(p, o, true)
		return
	}
	if c.Place == store.Active {
		if err := n.store.Quarantine(o.k.p, o.mark.Identity); err != nil {
			return
		}
	}
	if !o.mark.Salvaged && n.salvage(p, o, out) != nil {
		return
	}
	n.finishReclaim(p, o, true)
}

// salvage produces every durable record from the first offset where the copies may differ.
func (n *node) salvage(p *proc, o *outbound, out cluster.Outcome) error {
	from := o.mark.SalvageAt
	if from == 0 {
		mine, err := n.store.QuarantinedManifest(o.k.p, o.mark.Identity)
		if err != nil {
			return err
		}
		from = mine.LogStart
		owner := n.w.node(out.Destination)
		raw, ok := call(p, n.host, owner.host, callTimeout, func(reply func([]byte)) {
			if owner.up() && owner.registered {
				reply(owner.journal.values[key("promoted", o.k)])
			}
		})
		if !ok {
			return errUnknown
		}
		var rec promoted
		if raw != nil && json.Unmarshal(raw, &rec) == nil {
			rec.LEO = min(rec.LEO, out.PromotedLEO)
			from = firstDifference(mine, rec)
		}
	}
	var records []store.Record
	err := n.store.ReadQuarantined(o.k.p, o.mark.Identity, from, func(r store.Record) error {
		records = append(records, store.Record{Offset: r.Offset, Time: r.Time, Key: append([]byte(nil), r.Key...), Value: append([]byte(nil), r.Value...)})
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range records {
		if !n.w.produce(p, n.host, o.k.p, r) {
			return errors.New("not produced")
		}
		o.mark.SalvageAt = r.Offset + 1
		n.saveMarker(o.mark)
	}
	o.mark.Salvaged = true
	n.saveMarker(o.mark)
	n.w.log("%s salvages %d records of %s after move %d, from %d", n.id, len(records), o.k.p, o.k.m, from)
	return nil
}

func firstDifference(mine store.Manifest, r promoted) cluster.Offset {
	from := r.LEO
	have := map[string]store.File{}
	for _, f := range mine.Files {
		have[f.Name] = f
	}
	for _, f := range r.Files {
		h, ok := have[f.Name]
		if !ok && f.BaseOffset < mine.LogStart {
			continue
		}
		if !ok || h.Identity != f.Identity || h.BaseOffset != f.BaseOffset {
			from = min(from, f.BaseOffset)
		}
	}
	return from
}

// reconcile brings unmarked partitions to what the view asks for, with the rules of the agent's decisions.
func (n *node) reconcile(p *proc) {
	for {
		p.sleep(p.w.between(100*time.Millisecond, 500*time.Millisecond))
		if !n.synced || !n.resumed {
			continue
		}
		copies, err := n.store.Copies()
		if err != nil {
			n.w.violated("I2", "%s: list copies: %v", n.id, err)
			return
		}
		todo := map[cluster.PartitionID]bool{}
		for _, c := range copies {
			todo[c.Partition] = true
			if c.Place == store.Staged && !n.busyWith(c.Partition) {
				n.dropOrphan(p, pm{c.Partition, cluster.MoveID(c.Identity)})
			}
		}
		for q, a := range n.view.Assignments {
			if a.Owner == n.id {
				todo[q] = true
			}
		}
		for _, q := range sortedKeys(todo, cluster.PartitionID.Compare) {
			n.look(p, q)
		}
	}
}

func (n *node) dropOrphan(p *proc, k pm) {
	v, err := n.readMove(p, k)
	if err != nil || n.busyWith(k.p) {
		return
	}
	if v.State == transfer.MoveCurrent || v.Owner == nil || v.Owner.Status != cluster.NodeAlive || !v.Assignment.Opened {
		return
	}
	n.w.checkDrop(n, k)
	_ = n.store.DropStaging(k.p, k.m)
}

func (n *node) look(p *proc, q cluster.PartitionID) {
	a, known := n.view.Assignments[q]
	if n.busyWith(q) || !known || a.Epoch < n.epochs[q] {
		return
	}
	c, have := n.activeCopy(q)
	outs := n.outsOf(q)
	marked := false
	for _, o := range outs {
		marked = marked || have && o.mark.Identity == c.Identity
	}
	switch {
	case a.Owner != n.id:
		if have && c.Open && !marked && c.Pending == nil {
			_ = n.store.Close(q)
		}
	case !have:
		if a.Opened || len(outs) > 0 || n.view.Arrived(q, n.id) {
			// The view may be behind; the truth is not.
			if n.w.truth.owner(q) == n.id {
				n.w.violated("I9", "%s owns %s and has no copy of it", n.id, q)
			}
			return
		}
		if err := n.store.Create(q, store.Identity(q.Topic)); err != nil {
			n.w.violated("I2", "%s: create %s: %v", n.id, q, err)
		}
	case c.Pending != nil:
	default:
		n.serve(p, q, a, c, marked)
	}
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

func (n *node) serve(p *proc, q cluster.PartitionID, a cluster.Assignment, c store.Copy, marked bool) {
	if n.held(q) {
		return
	}
	if !c.Open || (!marked && a.OwnerEpoch != n.epochs[q]) {
		if err := n.store.Open(q, a.OwnerEpoch); err != nil {
			n.w.violated("I2", "%s: open %s: %v", n.id, q, err)
			return
		}
		n.epochs[q] = max(n.epochs[q], a.OwnerEpoch)
		n.w.checkOpened(n, q)
	}
	if !a.Opened {
		_ = n.reportOpened(p, pm{p: q}, a.OwnerEpoch)
	}
}
