package planner

import (
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// DrainPlan says what draining some nodes would do.
type DrainPlan struct {
	// Moves are all moves that would leave the nodes, or be turned away from them, in order and not
	// bounded by limits on concurrency.
	Moves []Move
	// Blocked is what could not leave, and why. The drain can finish when it is empty.
	Blocked []Blocked
	// Destinations sums up Moves by destination, by node id.
	Destinations []Destination
	// Bytes is the size of all Moves.
	Bytes cluster.Bytes
}

// Destination is what one node would receive.
type Destination struct {
	Node  cluster.NodeID
	Moves int
	Bytes cluster.Bytes
	// Unlimited says that the node's disk size is unknown. Otherwise Room is what it may receive before
	// the drain, moves in flight already counted.
	Unlimited bool
	Room      cluster.Bytes
}

// Drain is the dry run of a drain; see the function of this name.
func (b *Board) Drain(lim Limits, ids []cluster.NodeID) (DrainPlan, error) {
	for _, id := range ids {
		if i := b.find(id); i == none || int(i) >= b.members {
			return DrainPlan{}, cluster.NotFound("node %s is not a member", id)
		}
	}
	lim.MaxInFlight, lim.MaxPerNode, lim.Paused, lim.HoldRebalancing = 0, 0, false, false
	dry := Board{facts: *b.with(func(n *Node) { n.Draining = n.Draining || slices.Contains(ids, n.ID) })}
	full := dry.Plan(lim)
	b.linked, b.children, b.topics = dry.linked, dry.children, dry.topics
	s := &dry.memo.state

	var out DrainPlan
	sums := make([]Destination, len(s.nodes))
	for _, m := range full.Moves {
		if !slices.Contains(ids, m.From) && !slices.Contains(ids, m.OldTarget) {
			continue
		}
		out.Moves = append(out.Moves, m)
		if m.Cancel() {
			continue
		}
		out.Bytes += m.Bytes
		d := &sums[s.find(m.To)]
		d.Moves++
		d.Bytes += m.Bytes
	}
	for _, b := range full.Blocked {
		if slices.Contains(ids, b.Owner) || slices.Contains(ids, b.Target) {
			out.Blocked = append(out.Blocked, b)
		}
	}
	for n, d := range sums {
		if d.Moves == 0 {
			continue
		}
		d.Node = s.nodes[n].ID
		if room := s.start.room[n]; room == unlimited {
			d.Unlimited = true
		} else {
			d.Room = cluster.Bytes(max(room, 0))
		}
		out.Destinations = append(out.Destinations, d)
	}
	return out, nil
}
