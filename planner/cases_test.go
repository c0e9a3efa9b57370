package planner

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestC30FlapsMoveNothing: in a balanced cluster a node that dies and comes back causes no move, at no
// point of its way, however often it does so.
func TestC30FlapsMoveNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{})
		w.settle(t, Limits{}, nil)
		for range rapid.IntRange(1, 4).Draw(t, "flaps") {
			n := &w.Nodes[rapid.IntRange(0, len(w.Nodes)-1).Draw(t, "node")]
			for _, change := range []func(){
				func() { n.Alive = false },
				func() { n.Alive, n.Settling = true, true },
				func() { n.Settling = false },
			} {
				change()
				if r := Plan(w.View, Limits{}); len(r.Moves)+r.Waiting > 0 {
					t.Fatalf("%+v flaps and something moves:\n%s%s", *n, w.show(), formatResult(r))
				}
			}
		}
	})
}

// TestC30FlapsWithMovesUnderWay: however often a node that has joined dies and comes back while moves
// towards it run, no partition returns to a node that it has left.
func TestC30FlapsWithMovesUnderWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{})
		left := make(map[cluster.PartitionID]map[cluster.NodeID]bool)
		w.settle(t, Limits{}, nil)
		w.Nodes = append(w.Nodes, Node{ID: "n9", Alive: true})
		n := &w.Nodes[len(w.Nodes)-1]
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			w.apply(t, Plan(w.View, Limits{MaxInFlight: 4}))
			switch {
			case n.Alive && !n.Settling:
				n.Alive = false
			case n.Alive:
				n.Settling = false
			default:
				n.Alive, n.Settling = true, true
			}
			for i := range w.Partitions {
				p := &w.Partitions[i]
				from := p.Owner
				if !rapid.Bool().Draw(t, "flips") || !w.flip(p) {
					continue
				}
				if left[p.ID] == nil {
					left[p.ID] = make(map[cluster.NodeID]bool)
				}
				left[p.ID][from] = true
				if left[p.ID][p.Owner] {
					t.Fatalf("%s went back to %s", p.ID, p.Owner)
				}
			}
		}
	})
}

// TestC31TargetsGone: when targets die or drain, no move stays pointed at them unless its owner is dead.
func TestC31TargetsGone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{inFlight: true})
		n := &w.Nodes[rapid.IntRange(0, len(w.Nodes)-1).Draw(t, "node")]
		if len(w.Nodes) == 1 {
			return
		}
		if rapid.Bool().Draw(t, "dies") {
			n.Alive = false
		} else {
			n.Draining = true
		}
		w.apply(t, Plan(w.View, Limits{}))
		for _, p := range w.Partitions {
			if p.Target == n.ID && w.node(p.Owner).Alive {
				t.Fatalf("%+v still goes to %+v", p, *n)
			}
		}
	})
}

// TestC39NoReceivers: with every node draining or dead nothing is placed, silently or otherwise.
func TestC39NoReceivers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{})
		for i := range w.Nodes {
			w.Nodes[i].Draining = rapid.Bool().Draw(t, "draining")
			w.Nodes[i].Alive = w.Nodes[i].Draining
		}
		r := Plan(w.View, Limits{})
		blocked := make(map[cluster.PartitionID]string)
		for _, b := range r.Blocked {
			blocked[b.Partition] = b.Reason
		}
		for _, p := range w.Partitions {
			if w.node(p.Owner).Draining && blocked[p.ID] != BlockedNoReceivers {
				t.Fatalf("%+v: want %q, got %q", p, BlockedNoReceivers, blocked[p.ID])
			}
		}
		if len(r.Moves) > 0 {
			t.Fatalf("moves without receivers: %s", formatResult(r))
		}
		if _, err := Place(w.View, Limits{}, Request{Count: 1}); !errors.Is(err, &cluster.Error{Reason: cluster.ReasonBlocked}) {
			t.Fatalf("placed without receivers: %v", err)
		}
	})
}

// TestC41StuckHoldsNothingUp: moves that never end do not keep the others from ending, even when one
// move at a time is allowed.
func TestC41StuckHoldsNothingUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{inFlight: true, draining: true})
		for i := range w.Partitions {
			w.Partitions[i].Stuck = w.Partitions[i].Target != ""
		}
		w.settle(t, Limits{MaxInFlight: 1, MaxPerNode: 1}, nil)
		if r := Plan(w.View, Limits{MaxInFlight: 1, MaxPerNode: 1}); r.Waiting > 0 {
			t.Fatalf("%d moves wait for stuck ones:\n%s", r.Waiting, w.show())
		}
	})
}

// TestC42NeverAboveTheHighMark: whatever is carried out, in whatever steps, no destination gets fuller
// than the mark.
func TestC42NeverAboveTheHighMark(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{disks: true, draining: true})
		lim := drawLimits(t)
		received := make(map[cluster.NodeID]bool)
		w.settle(t, lim, func(r Result) {
			for _, m := range r.Moves {
				received[m.To] = true
			}
			for _, n := range w.Nodes {
				used := n.DiskTotal - n.DiskFree
				if received[n.ID] && used*100 > n.DiskTotal*cluster.Bytes(lim.HighDiskPercent) {
					t.Fatalf("%s received partitions and is at %d of %d, the mark is %d%%", n.ID, used, n.DiskTotal, lim.HighDiskPercent)
				}
			}
		})
	})
}

func TestRoomDoesNotOverflow(t *testing.T) {
	huge := cluster.Bytes(1<<64 - 1)
	v := View{
		Nodes: []Node{
			{ID: "a", Alive: true, Draining: true},
			{ID: "b", Alive: true, DiskTotal: huge, DiskFree: huge},
			{ID: "c", Alive: true, DiskTotal: 1 << 40, DiskFree: huge},
		},
		Partitions: []Partition{
			{ID: cluster.PartitionID{Topic: 1}, Owner: "a", Bytes: huge},
			{ID: cluster.PartitionID{Topic: 1, Index: 1}, Owner: "a", Bytes: huge},
			{ID: cluster.PartitionID{Topic: 1, Index: 2}, Owner: "a", Bytes: 1 << 40},
		},
	}
	r := Plan(v, Limits{HighDiskPercent: 100})
	got := make(map[cluster.NodeID]int)
	for _, m := range r.Moves {
		got[m.To]++
	}
	if got["b"] != 1 || got["c"] != 1 || len(r.Blocked) != 1 {
		t.Fatalf("one huge partition fits b and the small one c:\n%s", formatResult(r))
	}
}

func TestFormatBytes(t *testing.T) {
	for in, want := range map[cluster.Bytes]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1023.9 KiB",
		10 << 30: "10 GiB", 1<<64 - 1: "15.9 EiB",
	} {
		if got := formatBytes(in); got != want {
			t.Errorf("formatBytes(%d) = %q, want %q", in, got, want)
		}
	}
}
