package planner

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestBoardPlansLikeItsView: a board that is told of every change plans as many moves as the plan of the same view
// does, and no other kind of moves, whatever happens meanwhile.
func TestBoardPlansLikeItsView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{inFlight: true, draining: true, dead: true, settling: true, weights: true})
		b := NewBoard(w.View)
		lim := drawLimits(t)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			disturb(t, w, b, false)
			lim.HoldRebalancing = rapid.IntRange(0, 5).Draw(t, "hold") == 0
			if diff := gocmp.Diff(w.View, b.View(), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("the board's view (-is +board):\n%s", diff)
			}
			got, want := b.Plan(lim), Plan(w.View, lim)
			if g, n := tally(got), tally(want); g != n {
				t.Fatalf("the board plans %s, its view %s:\n%s%s%s", g, n, w.show(), formatResult(got), formatResult(want))
			}
			carryOut(t, w, b, lim, got)
		}
		lim.HoldRebalancing = false
		for range 4 * (len(w.Partitions) + 2) {
			for i := range w.Partitions {
				w.Partitions[i].Stuck = false
				w.flip(&w.Partitions[i])
				b.Set(w.Partitions[i])
			}
			carryOut(t, w, b, lim, b.Plan(lim))
		}
		assertNothingToDo(t, w, lim)
	})
}

// TestBoardKeepsEveryRule: with disks and cool-downs as well, nothing that a board plans breaks a limit, whatever
// happens meanwhile.
func TestBoardKeepsEveryRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		b := NewBoard(w.View)
		lim := drawLimits(t)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			disturb(t, w, b, true)
			carryOut(t, w, b, lim, b.Plan(lim))
		}
	})
}

// tally sums a plan up: cancellations, what leaves, what moves for balance.
func tally(r Result) string {
	cancels := 0
	for _, m := range r.Moves {
		if m.Cancel() {
			cancels++
		}
	}
	return fmt.Sprintf("%d cancelled, %d moved or to be moved, %d held, %d blocked", cancels, len(r.Moves)-cancels+r.Waiting, r.OnHold, len(r.Blocked))
}

// carryOut checks a plan and sets its targets in both.
func carryOut(t *rapid.T, w *world, b *Board, lim Limits, r Result) {
	checkAllowed(t, w, lim, r)
	all0, per0 := w.inFlight()
	w.apply(t, r)
	for _, m := range r.Moves {
		b.Set(*w.partition(m.Partition))
	}
	all, per := w.inFlight()
	if all > max(lim.MaxInFlight, all0) {
		t.Fatalf("at most %d moves in flight, or as many as there were (%d): %d", lim.MaxInFlight, all0, all)
	}
	for k, n := range per {
		if n > max(lim.MaxPerNode, per0[k]) {
			t.Fatalf("at most %d moves of %s, or as many as there were (%d): %d", lim.MaxPerNode, k, per0[k], n)
		}
	}
}

// disturb changes something and tells the board.
func disturb(t *rapid.T, w *world, b *Board, disks bool) {
	node := func() *Node { return &w.Nodes[rapid.IntRange(0, len(w.Nodes)-1).Draw(t, "node")] }
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0:
		n := node()
		n.Alive = !n.Alive
		b.SetNodes(w.Nodes)
	case 1:
		n := node()
		n.Draining = !n.Draining
		b.SetNodes(w.Nodes)
	case 2:
		n := node()
		n.Settling, n.Weight = !n.Settling, rapid.IntRange(0, 5).Draw(t, "weight")
		if !b.SetNode(*n) {
			t.Fatalf("%s is no member", n.ID)
		}
	case 3:
		w.addTopic(t)
		for _, p := range w.Partitions {
			b.Set(p)
		}
	case 4:
		id := w.Partitions[rapid.IntRange(0, len(w.Partitions)-1).Draw(t, "dropped")].ID.Topic
		if id == w.Partitions[0].ID.Topic && id == w.Partitions[len(w.Partitions)-1].ID.Topic {
			return // the last one
		}
		w.Partitions = slices.DeleteFunc(w.Partitions, func(p Partition) bool { return p.ID.Topic == id })
		b.DropTopic(id)
	case 5:
		p := &w.Partitions[rapid.IntRange(0, len(w.Partitions)-1).Draw(t, "by hand")]
		target := node().ID
		if p.Target, p.Epoch = "", p.Epoch+1; target != p.Owner {
			p.Target = target
		}
		b.Set(*p)
	case 6:
		w.Nodes = append(w.Nodes, Node{ID: cluster.NodeID(fmt.Sprintf("m%d", len(w.Nodes))), Alive: true})
		slices.SortFunc(w.Nodes, func(a, b Node) int { return int(slices.Compare([]byte(a.ID), []byte(b.ID))) })
		b.SetNodes(w.Nodes)
	default:
		for i := range w.Partitions {
			p := &w.Partitions[i]
			if p.Target != "" && rapid.Bool().Draw(t, "flips") {
				p.Stuck = false
				if w.flip(p); disks {
					if n := w.node(p.Owner); p.Target == "" && n.DiskFree > 20 {
						p.Bytes += 20
						n.DiskFree -= 20
					}
					p.Cooling = p.Target == "" && rapid.Bool().Draw(t, "cools")
				}
				b.Set(*p)
			}
		}
		b.SetNodes(w.Nodes)
	}
}

// addTopic adds a topic with some partitions.
func (w *world) addTopic(t *rapid.T) {
	id := w.Partitions[len(w.Partitions)-1].ID.Topic + 1
	for k := range rapid.IntRange(1, 5).Draw(t, "more partitions") {
		w.Partitions = append(w.Partitions, Partition{
			ID:    cluster.PartitionID{Topic: id, Index: uint32(k)},
			Owner: w.Nodes[rapid.IntRange(0, len(w.Nodes)-1).Draw(t, "owner")].ID, Parent: 1, Epoch: 1,
		})
	}
}
