package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const group = "g"

// ledger keeps what was acknowledged, where, and what was delivered. A record is known by its key.
type ledger struct {
	w *World
	// logs has the records that an owner acknowledged, of each partition by offset.
	logs map[cluster.PartitionID]map[cluster.Offset]entry
	// owed are records that a promotion left behind at a node, which salvages them when it is back.
	owed map[string]cluster.NodeID
	// acked are the records that a producer has an acknowledgement for; queue says at which node each was queued last.
	acked map[string]bool
	queue map[string]*node
	topic map[string]cluster.TopicID
	// inLog are the records that an owner acknowledged ever, expired those that retention removed since.
	inLog, expired map[string]bool
	delivered      map[string]int
	// settled are the records that a consumer has sent an acknowledgement for; checked is up to where that was looked at.
	settled map[string]bool
	checked map[cluster.PartitionID]cluster.Offset
	// orphaned are partitions whose owner was lost with its disk.
	orphaned map[cluster.PartitionID]bool
	deleted  map[cluster.TopicID]bool

	frozen       map[frozenKey]frozenAt
	arrived      map[pm]bool
	promotedFrom map[pm]cluster.Incarnation
	seq          int
}

// entry is a record in a log.
type entry struct {
	id string
	at time.Duration
}

type frozenKey struct {
	k pm
	h cluster.Handoff
}

type frozenAt struct{ start, hwm, leo, committed cluster.Offset }

func newLedger(w *World) *ledger {
	return &ledger{
		w: w, logs: map[cluster.PartitionID]map[cluster.Offset]entry{}, owed: map[string]cluster.NodeID{}, acked: map[string]bool{},
		queue: map[string]*node{}, topic: map[string]cluster.TopicID{}, inLog: map[string]bool{}, expired: map[string]bool{},
		delivered: map[string]int{}, settled: map[string]bool{}, checked: map[cluster.PartitionID]cluster.Offset{},
		orphaned: map[cluster.PartitionID]bool{}, deleted: map[cluster.TopicID]bool{},
		frozen: map[frozenKey]frozenAt{}, arrived: map[pm]bool{}, promotedFrom: map[pm]cluster.Incarnation{},
	}
}

// id makes a new record of a topic.
func (b *ledger) id(t cluster.Topic) string {
	b.seq++
	id := fmt.Sprintf("r%d", b.seq)
	b.topic[id] = t.ID
	return id
}

// queued notes that a node has a record in its queue, acknowledged that a producer was told so.
func (b *ledger) queued(n *node, id string) { b.queue[id] = n }

func (b *ledger) acknowledged(id string) { b.acked[id] = true }

// appended notes an acknowledgement at the instant at which the owner's log gives it.
func (b *ledger) appended(n *node, p cluster.PartitionID, off cluster.Offset, r store.Record) {
	w, id := b.w, string(r.Key)
	switch a, known := w.truth.view.Assignments[p]; {
	case !known:
		return // deleted meanwhile: nobody is owed anything
	case a.Owner != n.id:
		w.violated("I1", "%s acknowledges %s at %d of %s, whose owner is %s", n.id, id, off, p, a.Owner)
	case len(n.outsOf(p)) == 0:
	case !n.registered:
		w.violated("I7", "%s acknowledges %s at %d of %s, which is marked, before it has registered", n.id, id, off, p)
	case w.truth.view.Nodes[n.id].Status == cluster.NodeDead:
		w.violated("I10", "%s acknowledges %s at %d of %s, and is declared dead", n.id, id, off, p)
	}
	if b.logs[p] == nil {
		b.logs[p] = map[cluster.Offset]entry{}
	}
	if old, ok := b.logs[p][off]; ok {
		w.violated("I2", "%s acknowledges %s at %d of %s, where %s was acknowledged", n.id, id, off, p, old.id)
	}
	b.logs[p][off] = entry{id, time.Duration(r.Time) * time.Millisecond}
	b.inLog[id] = true
	delete(b.owed, id)
}

// committing holds whenever a committed offset moves: every record below it was acknowledged by a consumer (I4).
func (b *ledger) committing(n *node, p cluster.PartitionID, to cluster.Offset) {
	start := cluster.Offset(0)
	if l, err := n.store.Log(p); err == nil {
		start = l.LogStart()
	}
	for off := max(b.checked[p], start); off < to; off++ {
		if e, ok := b.logs[p][off]; ok && !b.settled[e.id] {
			b.w.violated("I4", "%s commits %d of %s; %s at %d was never acknowledged", n.id, to, p, e.id, off)
			return
		}
	}
	b.checked[p] = max(b.checked[p], to)
}

// froze notes what a handoff froze.
func (b *ledger) froze(n *node, k pm, h cluster.Handoff) {
	if l, err := n.store.Log(k.p); err == nil {
		off, _ := l.CommittedOffset(group)
		b.frozen[frozenKey{k, h}] = frozenAt{l.LogStart(), l.HWM(), l.LEO(), off}
	}
}

func (b *ledger) promoting(n *node, k pm, inc cluster.Incarnation) {
	b.promotedFrom[k] = inc
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

func sortedOffsets(m map[cluster.Offset]entry) []cluster.Offset {
	return sortedKeys(m, func(a, b cluster.Offset) int { return cmp.Compare(a, b) })
}

// compare wants every acknowledged record in a log that serves, and every one below the committed offset
// acknowledged. Retention may have removed what is old enough by the records' own times.
func (b *ledger) compare(n *node, p cluster.PartitionID, l *partitionlog.Log) {
	have := b.read(p, l)
	committed, _ := l.CommittedOffset(group)
	keep := b.w.truth.view.Topics[p.Topic].Retention
	for _, off := range sortedOffsets(b.logs[p]) {
		e := b.logs[p][off]
		switch {
		case off < l.LogStart():
			if !b.expired[e.id] && (keep == 0 || b.w.now-e.at < keep-retentionSlack) {
				b.w.violated("I2", "%s begins %s at %d; %s at %d is %s old, retention is %s", n.id, p, l.LogStart(), e.id, off, b.w.now-e.at, keep)
				return
			}
			b.expired[e.id] = true
		case have[off] != e.id:
			b.w.violated("I2", "%s has %q at %d of %s; %s was acknowledged there (HWM %d, LEO %d)", n.id, have[off], off, p, e.id, l.HWM(), l.LEO())
			return
		case off < committed && !b.settled[e.id]:
			b.w.violated("I4", "%s begins %s at %d; %s at %d was never acknowledged", n.id, p, committed, e.id, off)
			return
		}
	}
}

// retentionSlack is for the drift of clocks.
const retentionSlack = time.Second

// expire notes what retention has removed from a node's open log.
func (b *ledger) expire(n *node, p cluster.PartitionID) {
	if l, err := n.store.Log(p); err == nil && b.w.truth.owner(p) == n.id && l.LogStart() > 0 {
		b.compare(n, p, l)
	}
}

// owe notes what a promotion leaves behind: it is for the source to salvage.
func (b *ledger) owe(source cluster.NodeID, p cluster.PartitionID, l *partitionlog.Log) {
	have := b.read(p, l)
	b.checked[p] = 0
	for _, off := range sortedOffsets(b.logs[p]) {
		e := b.logs[p][off]
		if have[off] == e.id || off < l.LogStart() {
			continue
		}
		delete(b.logs[p], off)
		b.owed[e.id] = source
		b.w.log("promotion of %s: %s at %d is for %s to salvage", p, e.id, off, source)
	}
}

func (b *ledger) lostOwner(p cluster.PartitionID) { b.orphaned[p] = true }

// missing lists the acknowledged records that nobody delivered and that neither a lost disk, nor retention, nor the
// deletion of their topic excuses.
func (b *ledger) missing() []string {
	lost := map[string]bool{}
	for p, log := range b.logs {
		if n := b.w.node(b.w.truth.owner(p)); b.orphaned[p] || n == nil || n.lost {
			for _, e := range log {
				lost[e.id] = true
			}
		}
	}
	for id, source := range b.owed {
		if b.w.node(source).lost {
			lost[id] = true
		}
	}
	// A queued record of a topic that has no other partition waits for its owner.
	served := map[cluster.TopicID]bool{}
	for p, a := range b.w.truth.view.Assignments {
		served[p.Topic] = served[p.Topic] || !b.w.lost(a.Owner)
	}
	var out []string
	for id := range b.acked {
		queued := b.queue[id]
		if !b.inLog[id] && (queued.lost || !served[b.topic[id]]) {
			continue
		}
		if b.delivered[id] > 0 || lost[id] || b.expired[id] || b.deleted[b.topic[id]] {
			continue
		}
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// whereabouts says what is known of a record.
func (b *ledger) whereabouts(id string) string {
	s := fmt.Sprintf("%s of topic %d, queued at %s, owed by %q", id, b.topic[id], b.queue[id].id, b.owed[id])
	for _, p := range sortedKeys(b.logs, cluster.PartitionID.Compare) {
		for _, off := range sortedOffsets(b.logs[p]) {
			if b.logs[p][off].id == id {
				s += fmt.Sprintf(", at %d of %s", off, p)
			}
		}
	}
	return s
}

// checkLeft holds when a node was decommissioned and its disks may be wiped: its queue has nothing that is owed to
// anybody, and no copy of it is needed.
func (w *World) checkLeft(n *node) {
	if records, _ := n.plane.Depth(); records > 0 {
		w.violated("I2", "%s has left with %d records in its queue", n.id, records)
	}
	for _, id := range slices.Sorted(maps.Keys(w.book.owed)) {
		if w.book.owed[id] == n.id && !w.book.deleted[w.book.topic[id]] {
			w.violated("I2", "%s has left; %s was for it to salvage", n.id, id)
			return
		}
	}
}
