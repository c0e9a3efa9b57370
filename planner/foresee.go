package planner

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Held is a move that should be made and that the limits hold back for now.
type Held struct {
	Move Move
	// Why names the limit, with its number.
	Why string
}

const (
	heldPaused = "rebalancing is paused"
	heldOnHold = "rebalancing is on hold"
)

// hold lists what the limits hold back, when that is asked for. Without a reason one of the limits is it.
func (a *round) hold(i int32, why string) {
	if !a.explain {
		return
	}
	h := Held{Why: why}
	if a.dest[i] == none {
		h.Move = a.cancellation(i)
	} else {
		h.Move = a.move(i)
	}
	if h.Why == "" {
		h.Why = a.limit(i)
	}
	a.Held = append(a.Held, h)
}

// limit says why the planned move of partition i does not fit.
func (a *round) limit(i int32) string {
	from, to := a.owner[i], a.dest[i]
	all, per := a.lim.MaxInFlight, int32(min(a.lim.MaxPerNode, len(a.owner)))
	has := a.holds(i)
	switch {
	case a.lim.Paused:
		return heldPaused
	case !has && all > 0 && a.slots.all >= all:
		return fmt.Sprintf("%d moves are in flight (max_in_flight_moves=%d)", a.slots.all, all)
	case !has && per > 0 && a.slots.src[from] >= per:
		return fmt.Sprintf("%s is the source of %d moves (max_moves_per_node=%d)", a.name(from), a.slots.src[from], a.lim.MaxPerNode)
	}
	return fmt.Sprintf("%s is the destination of %d moves (max_moves_per_node=%d)", a.name(to), a.slots.dst[to], a.lim.MaxPerNode)
}

// WhatIf changes the view before it is planned. The zero value changes nothing.
type WhatIf struct {
	// Drain are nodes that drain, beside those that do already.
	Drain []cluster.NodeID
	// Add is how many empty nodes join. They are alike: with the smallest disk of those that are known, each in
	// one of the present zones in turn.
	Add int
}

// MaxAdd bounds WhatIf.Add.
const MaxAdd = 1000

// Foresight is a plan with everything that it leads to.
type Foresight struct {
	// Moves would be proposed now, in this order. Held come after them, as slots get free.
	Moves []Move
	Held  []Held
	// Blocked is what should move and can't.
	Blocked []Blocked
	// Nodes are all nodes by id, those that were added included.
	Nodes []NodeForesight
	// Bytes is the size of Moves and Held; cancellations move nothing.
	Bytes cluster.Bytes
	// Paused and Settling say what keeps the planner from making moves that this plan may therefore lack:
	// the setting, and nodes that joined too recently to receive.
	Paused   bool
	Settling []cluster.NodeID
}

// NodeForesight is one node before and after a plan and the moves in flight.
type NodeForesight struct {
	Node cluster.NodeID
	// Added says that the node does not exist, but for WhatIf.Add.
	Added, Alive, Draining bool
	// Before counts what the node owns, After what it owns when all moves have ended.
	Before, After           int
	BytesBefore, BytesAfter cluster.Bytes
	// In and Out count planned moves; Inbound and Outbound moves in flight.
	In, Out           int
	Inbound, Outbound int
	// DiskTotal is zero when it is unknown. DiskAfter is what is used when all moves have ended and old
	// copies are reclaimed.
	DiskTotal, DiskBefore, DiskAfter cluster.Bytes
}

// Foresee plans a what-if and sums it up. The error is nil or a *cluster.Error: ReasonNotFound for an unknown
// node, ReasonInvalid for too many to add.
func Foresee(v View, lim Limits, w WhatIf) (Foresight, error) {
	nodes, err := w.apply(v.Nodes)
	if err != nil {
		return Foresight{}, err
	}
	s, r := foresee(View{Nodes: nodes, Partitions: v.Partitions}, lim)
	out := Foresight{Moves: r.Moves, Held: r.Held, Blocked: r.Blocked, Paused: lim.Paused}
	out.Nodes = s.foreseen(v.Nodes)
	for i := range s.nodes {
		if n := &s.nodes[i]; (n.Settling || n.Silent) && n.Alive && !n.Draining && !s.isRecv[i] {
			out.Settling = append(out.Settling, n.ID)
		}
	}
	for _, m := range out.Moves {
		if !m.Cancel() {
			out.Bytes += m.Bytes
		}
	}
	for _, h := range out.Held {
		if !h.Move.Cancel() {
			out.Bytes += h.Move.Bytes
		}
	}
	return out, nil
}

// foresee plans, and lists what the limits hold back.
func foresee(v View, lim Limits) (*state, Result) {
	b := NewBoard(v)
	b.memo.explain = true
	r := b.Plan(lim)
	return &b.memo.state, r
}

func (w WhatIf) apply(nodes []Node) ([]Node, error) {
	out := slices.Clone(nodes)
	for _, id := range w.Drain {
		k := slices.IndexFunc(out, func(n Node) bool { return n.ID == id })
		if k < 0 {
			return nil, cluster.NotFound("node %s is not a member", id)
		}
		out[k].Draining = true
	}
	if w.Add < 0 || w.Add > MaxAdd {
		return nil, cluster.Invalid("add_nodes", "must be 0 to %d, is %d", MaxAdd, w.Add)
	}
	var zones []string
	var disk cluster.Bytes
	taken := map[cluster.NodeID]bool{}
	for _, n := range nodes {
		zones = append(zones, n.Zone)
		taken[n.ID] = true
		if n.DiskTotal > 0 && (disk == 0 || n.DiskTotal < disk) {
			disk = n.DiskTotal
		}
	}
	slices.Sort(zones)
	zones = slices.Compact(zones)
	for i, k := 0, 1; i < w.Add; k++ {
		id := cluster.NodeID("new-" + strconv.Itoa(k))
		if taken[id] {
			continue
		}
		n := Node{ID: id, Alive: true, DiskTotal: disk, DiskFree: disk}
		if len(zones) > 0 {
			n.Zone = zones[i%len(zones)]
		}
		out = append(out, n)
		i++
	}
	return out, nil
}

// foreseen sums up the desired placement by node.
func (s *state) foreseen(present []Node) []NodeForesight {
	// Who is no member owns something all the same, and is shown.
	out := make([]NodeForesight, len(s.nodes))
	known := map[cluster.NodeID]bool{}
	for _, n := range present {
		known[n.ID] = true
	}
	for i, n := range s.nodes {
		used := n.DiskTotal - min(n.DiskFree, n.DiskTotal)
		out[i] = NodeForesight{
			Node: n.ID, Added: i < s.members && !known[n.ID], Alive: n.Alive, Draining: n.Draining,
			DiskTotal: n.DiskTotal, DiskBefore: used, DiskAfter: used,
		}
	}
	for k := range s.owner {
		i := int32(k)
		owner, to, bytes := s.owner[i], s.owner[i], s.bytes[i]
		switch {
		case s.dest[i] != none:
			to = s.dest[i]
		case s.target[i] != none && !s.unsettled[i]:
			to = s.target[i]
		}
		out[owner].Before++
		out[owner].BytesBefore += bytes
		out[to].After++
		out[to].BytesAfter += bytes
		if owner == to {
			continue
		}
		from, dest := &out[owner], &out[to]
		add := bytes
		if s.dest[i] != none {
			from.Out++
			dest.In++
		} else {
			from.Outbound++
			dest.Inbound++
			add = cluster.Bytes(s.coming(i))
		}
		from.DiskAfter -= min(bytes, from.DiskAfter)
		dest.DiskAfter += add
	}
	return out
}

// Placement says why a partition is where it is.
type Placement uint8

// The values of Placement.
const (
	// Settled: it is where it should be.
	Settled Placement = iota + 1
	// Moving: a move is in flight.
	Moving
	// Planned: the planner would begin a move now.
	Planned
	// HeldBack: it should move, and a limit holds it back for now.
	HeldBack
	// Stuck: it should move and can't.
	Stuck
	// Pinned: it can't be moved where it is, and need not.
	Pinned
)

// Explanation says why a partition moves, or why not.
type Explanation struct {
	Placement Placement
	// Why is a sentence, without the partition's name.
	Why string
	// Move is the planned or held one; nil otherwise.
	Move *Move
}

// Explain says why a partition does not move, or that it does; false when the view does not have it.
func Explain(v View, lim Limits, p cluster.PartitionID) (Explanation, bool) {
	if !slices.ContainsFunc(v.Partitions, func(a Partition) bool { return a.ID == p }) {
		return Explanation{}, false
	}
	s, r := foresee(v, lim)
	for k := range r.Moves {
		if r.Moves[k].Partition == p {
			return Explanation{Planned, r.Moves[k].Reason, &r.Moves[k]}, true
		}
	}
	for k := range r.Held {
		if h := &r.Held[k]; h.Move.Partition == p {
			return Explanation{HeldBack, h.Move.Reason + "; waits: " + h.Why, &h.Move}, true
		}
	}
	for _, b := range r.Blocked {
		if b.Partition == p {
			return Explanation{Stuck, b.Reason, nil}, true
		}
	}
	return s.whyStays(s.at(s.findTopic(p.Topic), p.Index)), true
}

// whyStays explains a partition that is not in the plan.
func (s *state) whyStays(i int32) Explanation {
	o := s.owner[i]
	owner := string(s.name(o))
	switch {
	case s.target[i] != none:
		return Explanation{Moving, "it is moving to " + string(s.name(s.target[i])), nil}
	case int(o) >= s.members:
		return Explanation{Pinned, "its owner " + owner + " is not a member", nil}
	case !s.nodes[o].Alive:
		return Explanation{Pinned, "its owner " + owner + " is dead, and nobody else has its data", nil}
	case s.kinds[i] == fixed && s.nodes[o].Silent:
		return Explanation{Pinned, "its owner " + owner + " is silent; what it owns stays meanwhile", nil}
	case s.kinds[i] == fixed:
		return Explanation{Pinned, "its owner " + owner + " joined or came back too recently (rebalance_delay); what it owns stays meanwhile", nil}
	case s.kinds[i] == resting:
		return Explanation{Settled, "it moved a moment ago and rests; it would only move to leave a draining node", nil}
	}
	return Explanation{Settled, fmt.Sprintf("it is at its desired place: %s is to hold %d of %d movable partitions on %d receivers, and holds %d",
		owner, s.cnt[o], s.total, len(s.recv), s.start.cnt[o]), nil}
}
