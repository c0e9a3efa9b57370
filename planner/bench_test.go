package planner

import (
	"fmt"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// largeView has nodes nodes and parts partitions in topics of 1000, each with a child topic; where
// says which node owns the k-th.
func largeView(nodes, parts int, where func(k int) int) View {
	v := View{}
	for i := range nodes {
		v.Nodes = append(v.Nodes, Node{
			ID: cluster.NodeID(fmt.Sprintf("agent-%05d", i)), Alive: true, Zone: fmt.Sprintf("zone-%d", i%3),
			DiskTotal: 8 << 40, DiskFree: 6 << 40,
		})
	}
	v.Partitions = make([]Partition, parts)
	for k := range parts {
		p := &v.Partitions[k]
		topic := k / 1000
		p.ID = cluster.PartitionID{Topic: cluster.TopicID(topic + 1), Index: uint32(k % 1000)}
		if topic%2 == 1 {
			p.Parent = cluster.TopicID(topic)
		}
		p.Owner = v.Nodes[where(k)].ID
		p.Bytes = cluster.Bytes(k%977) << 10
		p.Epoch = 1
	}
	return v
}

// hash spreads k like a random placement would, the same in every run.
func hash(k int) int {
	x := uint64(k)*0x9e3779b97f4a7c15 + 0x632be59bd9b4e019
	x ^= x >> 31
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 29
	return int(x >> 1)
}

var shapes = []struct {
	name  string
	where func(nodes int) func(k int) int
}{
	{"balanced", func(n int) func(int) int { return func(k int) int { return (k + k/1000) % n } }},
	{"join", func(n int) func(int) int { return func(k int) int { return (k + k/1000) % (n - 1) } }},
	{"half-empty", func(n int) func(int) int { return func(k int) int { return (k + k/1000) % (n / 2) } }},
	{"random", func(n int) func(int) int { return func(k int) int { return hash(k) % n } }},
}

// BenchmarkPlan plans a whole placement, with all moves admitted. It reports moves ÷ minimum.
func BenchmarkPlan(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		for _, parts := range []int{100_000, 1_000_000} {
			for _, shape := range shapes {
				b.Run(fmt.Sprintf("%s/nodes=%d/partitions=%d", shape.name, nodes, parts), func(b *testing.B) {
					v := largeView(nodes, parts, shape.where(nodes))
					least := leastMovesOf(v)
					b.ReportAllocs()
					for b.Loop() {
						r := Plan(v, Limits{HighDiskPercent: 90})
						if len(r.Moves) != least {
							b.Fatalf("planned %d moves, the least is %d", len(r.Moves), least)
						}
					}
					b.ReportMetric(float64(least), "moves")
				})
			}
		}
	}
}

// BenchmarkPlanOneDrains is what a controller does when one node starts to drain: the first moves.
func BenchmarkPlanOneDrains(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d/partitions=1000000", nodes), func(b *testing.B) {
			v := largeView(nodes, 1_000_000, shapes[0].where(nodes))
			v.Nodes[nodes/2].Draining = true
			b.ReportAllocs()
			for b.Loop() {
				if r := Plan(v, Limits{MaxInFlight: 8, MaxPerNode: 4}); len(r.Moves) == 0 {
					b.Fatal("no moves")
				}
			}
		})
	}
}

func leastMovesOf(v View) int {
	byID := make(map[cluster.NodeID]int)
	counts := make([]int, len(v.Nodes))
	for i, n := range v.Nodes {
		byID[n.ID] = i
	}
	for i := range v.Partitions {
		counts[byID[v.Partitions[i].Owner]]++
	}
	floor, ceils, moves := len(v.Partitions)/len(v.Nodes), len(v.Partitions)%len(v.Nodes), 0
	for _, c := range counts {
		if c > floor {
			moves += c - floor
			if ceils > 0 {
				ceils--
				moves--
			}
		}
	}
	return moves
}
