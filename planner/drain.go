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

// Drain plans as if the nodes ids were draining, without limits on concurrency and without pause. The
// error is nil or a *cluster.Error with ReasonNotFound for an unknown node.
func Drain(v View, lim Limits, ids []cluster.NodeID) (DrainPlan, error) {
	nodes := slices.Clone(v.Nodes)
	for _, id := range ids {
		k := slices.IndexFunc(nodes, func(n Node) bool { return n.ID == id })
		if k < 0 {
			return DrainPlan{}, cluster.NotFound("node %s is not a member", id)
		}
		nodes[k].Draining = true
	}
	lim.MaxInFlight, lim.MaxPerNode, lim.Paused = 0, 0, false
	s := newState(View{Nodes: nodes, Partitions: v.Partitions}, lim)
	s.desire()
	full := s.admit()

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
