package planner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestWeightedPlanIsMinimalByBruteForce: of all placements in which every node has floor or ceil of its quota, none is
// nearer than the plan's. All of them are tried.
func TestWeightedPlanIsMinimalByBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			w.Nodes = append(w.Nodes, Node{
				ID: cluster.NodeID(fmt.Sprintf("n%d", i)), Alive: true, Weight: rapid.IntRange(1, 4).Draw(t, "weight"),
				Draining: i > 0 && rapid.IntRange(0, 3).Draw(t, "draining") == 0,
			})
		}
		n := len(w.Nodes)
		for i := range rapid.IntRange(1, 6).Draw(t, "partitions") {
			w.Partitions = append(w.Partitions, Partition{
				ID:    cluster.PartitionID{Topic: cluster.TopicID(1 + i/3), Index: uint32(i % 3)},
				Owner: w.Nodes[rapid.IntRange(0, n-1).Draw(t, "owner")].ID, Epoch: 1,
			})
		}
		floors, ceils := w.quotas(len(w.Partitions))
		least := len(w.Partitions) + 1
		places := 1
		for range w.Partitions {
			places *= n
		}
		for code := range places {
			counts, moves := map[cluster.NodeID]int{}, 0
			for i, c := 0, code; i < len(w.Partitions); i, c = i+1, c/n {
				at := w.Nodes[c%n].ID
				counts[at]++
				if at != w.Partitions[i].Owner {
					moves++
				}
			}
			fair := true
			for k, id := range w.receivers() {
				fair = fair && counts[id] >= floors[k] && counts[id] <= ceils[k]
				delete(counts, id)
			}
			if fair && len(counts) == 0 {
				least = min(least, moves)
			}
		}
		r := Plan(w.View, Limits{})
		if len(r.Moves) != least {
			t.Fatalf("planned %d moves, %d are enough:\n%s%s", len(r.Moves), least, w.show(), formatResult(r))
		}
	})
}
