package planner

import (
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestLargeClusterIsBalancedMinimalAndSpread plans with more receivers than are looked at one by one.
func TestLargeClusterIsBalancedMinimalAndSpread(t *testing.T) {
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			const nodes, parts = 600, 24_000
			w := &world{largeView(nodes, parts, shape.where(nodes))}
			least := leastMovesOf(w.View)
			r := Plan(w.View, Limits{HighDiskPercent: 90})
			if len(r.Moves) != least || len(r.Blocked) > 0 {
				t.Fatalf("planned %d moves, blocked %d; the least is %d", len(r.Moves), len(r.Blocked), least)
			}
			w.apply(t, r)
			for i := range w.Partitions {
				w.flip(&w.Partitions[i])
			}
			if again := leastMovesOf(w.View); again != 0 {
				t.Fatalf("after the plan %d moves are missing", again)
			}
		})
	}
}

// TestLargeDrain drains a third of 450 nodes: everything leaves, spread as evenly as the topics allow and
// apart from its relations, with destinations of which half have little room.
func TestLargeDrain(t *testing.T) {
	const nodes, parts = 450, 18_000
	w := &world{largeView(nodes, parts, shapes[0].where(nodes))}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		n.Draining = i%3 == 0
		if i%2 == 0 {
			n.DiskFree = n.DiskTotal/10 + 8<<20
		}
	}
	r := Plan(w.View, Limits{HighDiskPercent: 90})
	w.apply(t, r)
	for i := range w.Partitions {
		w.flip(&w.Partitions[i])
	}
	together, crowded := 0, 0
	for i := range w.Partitions {
		p := &w.Partitions[i]
		n := w.node(p.Owner)
		if n.Draining {
			t.Fatalf("%s is still on draining %s: %v", p.ID, n.ID, r.Blocked)
		}
		if used := n.DiskTotal - n.DiskFree; used > n.DiskTotal/100*90+90 {
			t.Fatalf("%s is at %d of %d", n.ID, used, n.DiskTotal)
		}
		if p.Parent != 0 && w.partition(cluster.PartitionID{Topic: p.Parent, Index: p.ID.Index}).Owner == p.Owner {
			together++
		}
	}
	perTopic := make(map[cluster.NodeID]int)
	for i := range w.Partitions {
		if i%1000 == 0 {
			clear(perTopic)
		}
		// 1000 partitions over 300 nodes: four each at the most.
		if perTopic[w.Partitions[i].Owner]++; perTopic[w.Partitions[i].Owner] > 4 {
			crowded++
		}
	}
	if together > 0 || crowded > parts/100 {
		t.Fatalf("%d pairs together, %d partitions above an even spread", together, crowded)
	}
}

func TestLimitsOfSettings(t *testing.T) {
	s := cluster.DefaultSettings()
	s.RebalancePaused = true
	if got, want := LimitsOf(s), (Limits{MaxInFlight: 8, MaxPerNode: 4, HighDiskPercent: 90, Paused: true}); got != want {
		t.Fatalf("LimitsOf(%+v) = %+v, want %+v", s, got, want)
	}
}
