package planner

import (
	"slices"
	"strings"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Board is a view that is kept, and the plan made from it. Whoever plans again and again keeps one and tells it
// what changed: a plan then costs what changed, not what there is.
//
// It plans anew only when something changed that its plan does not account for. As long as what changes is
// what it asked for (targets set as planned, moves that flipped), the rest of the plan stands, and Plan only
// admits what the limits allow now. It is a memo, not a decision: a board that was made from the present view
// makes as many moves.
//
// A Board is not safe for concurrent use. What it returns is the caller's.
type Board struct {
	facts
	memo memo
}

// NewBoard returns a board of v, which it does not keep.
func NewBoard(v View) *Board {
	b := &Board{facts: facts{byID: map[cluster.NodeID]int32{}, staged: map[cluster.PartitionID]cluster.Bytes{}}}
	b.SetNodes(v.Nodes)
	parts := sortedBy(v.Partitions, func(a, b Partition) int { return a.ID.Compare(b.ID) })
	b.grow(len(parts))
	for i := range parts {
		b.Set(parts[i])
	}
	return b
}

// Len is the number of partitions.
func (b *Board) Len() int { return len(b.owner) }

// View returns what the board knows, for plans that are not carried out.
func (b *Board) View() View {
	v := View{Nodes: slices.Clone(b.nodes[:b.members]), Partitions: make([]Partition, 0, len(b.owner))}
	for _, t := range b.topics {
		for i := t.begin; i < t.end; i++ {
			p := Partition{
				ID: cluster.PartitionID{Topic: t.id, Index: b.index[i]}, Owner: b.name(b.owner[i]), Target: b.name(b.target[i]),
				Epoch: b.epoch[i], Parent: t.parentID, Bytes: b.bytes[i],
				Stuck: b.marks[i]&stuck != 0, Cooling: b.marks[i]&cooling != 0,
			}
			p.Staged = b.staged[p.ID]
			v.Partitions = append(v.Partitions, p)
		}
	}
	return v
}

// Plan decides what should move, like the function of this name.
func (b *Board) Plan(lim Limits) Result {
	if r, ok := b.recall(lim); ok {
		return r
	}
	b.remake(lim)
	r, _ := b.recall(lim) // of a plan that was made this moment all stands
	return r
}

// SetNodes replaces what is known of the nodes.
func (b *Board) SetNodes(nodes []Node) {
	nodes = sortedBy(nodes, func(a, b Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	if !slices.EqualFunc(nodes, b.nodes[:b.members], func(a, b Node) bool { return a.ID == b.ID }) {
		b.renumber(nodes)
		b.forget()
		return
	}
	for i := range nodes {
		b.setNode(i, nodes[i])
	}
}

// with returns the facts with changed nodes, for a plan that is not carried out.
func (f *facts) with(change func(n *Node)) *facts {
	out := *f
	out.nodes = slices.Clone(f.nodes)
	for i := range out.nodes[:out.members] {
		change(&out.nodes[i])
	}
	return &out
}

// setNode replaces what is known of one node, by its index.
func (b *Board) setNode(i int, n Node) {
	old := &b.nodes[i]
	if *old == n {
		return
	}
	disk := *old
	disk.DiskTotal, disk.DiskFree = n.DiskTotal, n.DiskFree
	if disk != n || b.memo.tight {
		b.forget()
	}
	*old = n
}

// SetNode replaces what is known of one member; it reports false for any other node, and changes nothing then.
func (b *Board) SetNode(n Node) bool {
	i, ok := b.byID[n.ID]
	if !ok || int(i) >= b.members {
		return false
	}
	b.setNode(int(i), n)
	return true
}

// Set adds or replaces one partition.
func (b *Board) Set(p Partition) {
	owner, target := b.intern(p.Owner), none
	if p.Target != "" {
		target = b.intern(p.Target)
	}
	i := b.locate(p)
	if b.memo.valid {
		b.follow(i, owner, target, p.Cooling)
	}
	if target != none && b.marks[i]&listed == 0 {
		b.marks[i] |= listed
		b.moving = append(b.moving, i)
	}
	b.owner[i], b.target[i], b.epoch[i], b.bytes[i] = owner, target, p.Epoch, p.Bytes
	b.marks[i] &= listed
	if p.Stuck {
		b.marks[i] |= stuck
	}
	if p.Cooling {
		b.marks[i] |= cooling
	}
	if target != none && p.Staged > 0 {
		b.staged[p.ID] = p.Staged
	} else {
		delete(b.staged, p.ID)
	}
}

// DropTopic forgets a topic and its partitions; it costs a pass over all.
func (b *Board) DropTopic(id cluster.TopicID) {
	k := b.findTopic(id)
	if k == none {
		return
	}
	t := b.topics[k]
	for i := t.begin; i < t.end; i++ {
		delete(b.staged, cluster.PartitionID{Topic: id, Index: b.index[i]})
	}
	from, to := int(t.begin), int(t.end)
	b.index = slices.Delete(b.index, from, to)
	b.owner = slices.Delete(b.owner, from, to)
	b.target = slices.Delete(b.target, from, to)
	b.epoch = slices.Delete(b.epoch, from, to)
	b.bytes = slices.Delete(b.bytes, from, to)
	b.marks = slices.Delete(b.marks, from, to)
	b.topics = slices.Delete(b.topics, int(k), int(k)+1)
	for j := int(k); j < len(b.topics); j++ {
		b.topics[j].begin -= int32(to - from)
		b.topics[j].end -= int32(to - from)
	}
	b.recount()
}

// locate returns the index of a partition, which it adds when there is none.
func (b *Board) locate(p Partition) int32 {
	k, known := b.searchTopic(p.ID.Topic)
	if !known {
		begin := int32(len(b.owner))
		if k < len(b.topics) {
			begin = b.topics[k].begin
		}
		b.topics = slices.Insert(b.topics, k, topic{id: p.ID.Topic, begin: begin, end: begin})
	}
	t := &b.topics[k]
	if t.parentID != p.Parent || !known {
		t.parentID, b.linked = p.Parent, false
		b.forget()
	}
	i, ok := b.search(t, p.ID.Index)
	if ok {
		return i
	}
	// New topics have the highest ids, so this is nearly always the end.
	b.index, b.owner, b.target = insert(b.index, i, p.ID.Index), insert(b.owner, i, none), insert(b.target, i, none)
	b.epoch, b.bytes, b.marks = insert(b.epoch, i, 0), insert(b.bytes, i, 0), insert(b.marks, i, 0)
	last := int(i) == len(b.owner)-1
	t.end++
	for j := k + 1; j < len(b.topics); j++ {
		b.topics[j].begin++
		b.topics[j].end++
	}
	if b.forget(); !last {
		b.recount()
	}
	return i
}

// insert is slices.Insert, and quick at the end.
func insert[T any](s []T, i int32, v T) []T {
	if int(i) == len(s) {
		return append(s, v)
	}
	return slices.Insert(s, int(i), v)
}

func (b *Board) grow(n int) {
	b.index, b.owner, b.target = slices.Grow(b.index, n), slices.Grow(b.owner, n), slices.Grow(b.target, n)
	b.epoch, b.bytes, b.marks = slices.Grow(b.epoch, n), slices.Grow(b.bytes, n), slices.Grow(b.marks, n)
}

// recount finds what moves after indices have shifted.
func (b *Board) recount() {
	b.moving = b.moving[:0]
	for i, t := range b.target {
		b.marks[i] &^= listed
		if t != none {
			b.marks[i] |= listed
			b.moving = append(b.moving, int32(i))
		}
	}
	b.linked = false
	b.forget()
}

// intern returns the index of a node. One that is no member gets a place behind them, as a dead node that
// receives nothing.
func (b *Board) intern(id cluster.NodeID) int32 {
	if i, ok := b.byID[id]; ok {
		return i
	}
	i := int32(len(b.nodes))
	b.nodes = append(b.nodes, Node{ID: id})
	b.byID[id] = i
	b.forget()
	return i
}

// renumber replaces the members. What owns or receives something and is no member any more stays behind them.
func (b *Board) renumber(nodes []Node) {
	old := b.nodes
	b.nodes, b.members = slices.Clone(nodes), len(nodes)
	clear(b.byID)
	for i := range b.nodes {
		b.byID[b.nodes[i].ID] = int32(i)
	}
	now := make([]int32, len(old))
	for i := range now {
		now[i] = none
	}
	to := func(i int32) int32 {
		if now[i] == none {
			now[i] = b.intern(old[i].ID)
		}
		return now[i]
	}
	for i := range b.owner {
		b.owner[i] = to(b.owner[i])
		if b.target[i] != none {
			b.target[i] = to(b.target[i])
		}
	}
}
