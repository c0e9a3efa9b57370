package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const group = "g"

// ledger keeps what was acknowledged, where, and what was delivered.
type ledger struct {
	w *World
	// logs has the acknowledged records of each partition by offset.
	logs map[cluster.PartitionID]map[cluster.Offset]string
	// owed are records that a promotion left behind at a node, which salvages them when it is back.
	owed      map[string]cluster.NodeID
	acked     map[string]bool
	delivered map[string]int
	// orphaned are partitions whose owner was lost with its disk.
	orphaned map[cluster.PartitionID]bool

	frozen       map[frozenKey]frozenAt
	arrived      map[pm]bool
	promotedFrom map[pm]cluster.Incarnation
	seq          int
}

type frozenKey struct {
	k pm
	h cluster.Handoff
}

type frozenAt struct{ hwm, leo, committed cluster.Offset }

func newLedger(w *World) *ledger {
	return &ledger{
		w: w, logs: map[cluster.PartitionID]map[cluster.Offset]string{}, owed: map[string]cluster.NodeID{}, acked: map[string]bool{},
		delivered: map[string]int{}, orphaned: map[cluster.PartitionID]bool{}, frozen: map[frozenKey]frozenAt{}, arrived: map[pm]bool{},
		promotedFrom: map[pm]cluster.Incarnation{},
	}
}

func (b *ledger) record() store.Record {
	b.seq++
	size := 10 + b.w.rng.IntN(300)
	return store.Record{Time: b.w.now.Milliseconds(), Key: fmt.Appendf(nil, "r%d", b.seq), Value: fmt.Appendf(nil, "%0*d", size, b.seq)}
}

// ack notes an acknowledgement at the instant at which the owner's log gives it.
func (b *ledger) ack(n *node, p cluster.PartitionID, off cluster.Offset, id string) {
	w := b.w
	switch a := w.truth.view.Assignments[p]; {
	case a.Owner != n.id:
		w.violated("I1", "%s acknowledges %s at %d of %s, whose owner is %s", n.id, id, off, p, a.Owner)
	case len(n.outsOf(p)) == 0:
	case !n.registered:
		w.violated("I7", "%s acknowledges %s at %d of %s, which is marked, before it has registered", n.id, id, off, p)
	case w.truth.view.Nodes[n.id].Status == cluster.NodeDead:
		w.violated("I10", "%s acknowledges %s at %d of %s, and is declared dead", n.id, id, off, p)
	}
	if b.logs[p] == nil {
		b.logs[p] = map[cluster.Offset]string{}
	}
	if old, ok := b.logs[p][off]; ok {
		w.violated("I2", "%s acknowledges %s at %d of %s, where %s was acknowledged", n.id, id, off, p, old)
	}
	b.logs[p][off] = id
	b.acked[id] = true
	delete(b.owed, id)
}

// froze notes what a handoff froze.
func (b *ledger) froze(n *node, k pm, h cluster.Handoff) {
	if l, err := n.store.Log(k.p); err == nil {
		off, _ := l.CommittedOffset(group)
		b.frozen[frozenKey{k, h}] = frozenAt{l.HWM(), l.LEO(), off}
	}
}

func (b *ledger) promoting(n *node, k pm, x move.ForceComplete) {
	b.promotedFrom[k] = x.Incarnation
	c, ok := n.activeCopy(k.p)
	if !ok || c.Identity != store.Identity(k.m) || c.Pending == nil {
		b.w.violated("I5", "%s asks for the promotion of %s by move %d with %+v in its place", n.id, k.p, k.m, c)
	}
}

// read returns the ids of all visible records.
func (b *ledger) read(p cluster.PartitionID, l *partitionlog.Log) map[cluster.Offset]string {
	out := map[cluster.Offset]string{}
	for from := l.LogStart(); ; {
		recs, err := l.Read(from, 100, 1<<20)
		if err != nil {
			b.w.violated("I2", "read %s at %d: %v", p, from, err)
			return out
		}
		if len(recs) == 0 {
			return out
		}
		for _, r := range recs {
			if r.Offset != from {
				b.w.violated("I2", "%s has record %d where %d should be", p, r.Offset, from)
				return out
			}
			out[from] = string(r.Key)
			from++
		}
	}
}

func sortedOffsets(m map[cluster.Offset]string) []cluster.Offset {
	return sortedKeys(m, func(a, b cluster.Offset) int { return cmp.Compare(a, b) })
}

// compare wants every acknowledged record in a log that serves, and every one below the committed offset
// delivered.
func (b *ledger) compare(n *node, p cluster.PartitionID, l *partitionlog.Log) {
	have := b.read(p, l)
	committed, _ := l.CommittedOffset(group)
	for _, off := range sortedOffsets(b.logs[p]) {
		id := b.logs[p][off]
		if off < l.LogStart() {
			continue
		}
		if have[off] != id {
			b.w.violated("I2", "%s has %q at %d of %s; %s was acknowledged there (HWM %d, LEO %d)", n.id, have[off], off, p, id, l.HWM(), l.LEO())
			return
		}
		if off < committed && b.delivered[id] == 0 {
			b.w.violated("I4", "%s begins %s at %d; %s at %d was never delivered", n.id, p, committed, id, off)
			return
		}
	}
}

// owe notes what a promotion leaves behind: it is for the source to salvage.
func (b *ledger) owe(source cluster.NodeID, p cluster.PartitionID, l *partitionlog.Log) {
	have := b.read(p, l)
	for _, off := range sortedOffsets(b.logs[p]) {
		id := b.logs[p][off]
		if have[off] == id {
			continue
		}
		delete(b.logs[p], off)
		b.owed[id] = source
		b.w.log("promotion of %s: %s at %d is for %s to salvage", p, id, off, source)
	}
}

func (b *ledger) lostOwner(p cluster.PartitionID) { b.orphaned[p] = true }

// missing lists the acknowledged records that nobody delivered and that no lost disk excuses.
func (b *ledger) missing() []string {
	lost := map[string]bool{}
	for p, log := range b.logs {
		if n := b.w.node(b.w.truth.owner(p)); b.orphaned[p] || n == nil || n.lost {
			for _, id := range log {
				lost[id] = true
			}
		}
	}
	for id, source := range b.owed {
		if b.w.node(source).lost {
			lost[id] = true
		}
	}
	var out []string
	for id := range b.acked {
		if b.delivered[id] == 0 && !lost[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// serveAppend is a commit at a node: accepted if the log is open here.
func (n *node) serveAppend(p cluster.PartitionID, r store.Record) bool {
	l, err := n.store.Log(p)
	if err != nil {
		return false
	}
	frozen := l.Frozen()
	if n.w.permille(8) {
		n.fs.failSyncs = 1
	}
	off, err := l.Append(bg, []store.Record{r})
	n.fs.failSyncs = 0
	if err != nil {
		return false
	}
	if frozen != nil {
		n.w.violated("I6", "%s acknowledges %s of %s, which is frozen for move %d, handoff %d", n.id, r.Key, p, frozen.MoveID, frozen.Handoff)
	}
	n.w.book.ack(n, p, off, string(r.Key))
	return true
}

// produce sends a record to the owner and says whether it was acknowledged.
func (w *World) produce(p *proc, from host, q cluster.PartitionID, r store.Record) bool {
	to := w.node(w.truth.owner(q))
	if w.chance(8) || to == nil {
		to = pick(w, w.nodes)
	}
	ok, _ := call(p, from, to.host, callTimeout, func(reply func(bool)) {
		if to.up() {
			if to.serveAppend(q, r) {
				reply(true)
			}
		}
	})
	return ok
}

func (w *World) partitions() []cluster.PartitionID {
	return sortedKeys(w.truth.view.Assignments, cluster.PartitionID.Compare)
}

// producer appends records for as long as faults go on.
func (w *World) producer(from host) func(p *proc) {
	return func(p *proc) {
		for !w.calm {
			p.sleep(w.between(10*time.Millisecond, w.opts.pace))
			if ps := w.partitions(); len(ps) > 0 {
				w.produce(p, from, pick(w, ps), w.book.record())
			}
		}
	}
}

// batch is what a consumer reads: the epoch ties its commit to this very ownership.
type batch struct {
	from    cluster.Offset
	epoch   cluster.Epoch
	records []store.Record
}

// consumer reads from the committed offset, delivers, and commits.
func (w *World) consumer(from host) func(p *proc) {
	return func(p *proc) {
		for {
			p.sleep(w.between(20*time.Millisecond, 120*time.Millisecond))
			for _, q := range w.partitions() {
				if to := w.node(w.truth.owner(q)); to != nil && (w.calm || w.rng.IntN(3) == 0) {
					w.consume(p, from, to, q)
				}
			}
		}
	}
}

func (w *World) consume(p *proc, from host, to *node, q cluster.PartitionID) {
	b, ok := call(p, from, to.host, callTimeout, func(reply func(batch)) {
		if !to.up() {
			return
		}
		l, err := to.store.Log(q)
		if err != nil {
			return
		}
		at, err := l.EnsureGroup(group)
		if err != nil {
			return
		}
		recs, err := l.Read(at, 1+w.rng.IntN(20), 1<<16)
		if err == nil {
			reply(batch{at, l.Epoch(), recs})
		}
	})
	if !ok || len(b.records) == 0 {
		return
	}
	for _, r := range b.records {
		w.book.delivered[string(r.Key)]++
	}
	end := b.records[len(b.records)-1].Offset + 1
	call(p, from, to.host, callTimeout, func(reply func(bool)) {
		if !to.up() {
			return
		}
		if l, err := to.store.Log(q); err == nil && l.Epoch() == b.epoch {
			reply(l.CommitOffset(group, end) == nil)
		}
	})
}
