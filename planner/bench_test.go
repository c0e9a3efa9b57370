package planner

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

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

// BenchmarkBoard is what a controller does when one node changes, from the change to the first moves: with a board that
// is kept. refill is what it does whenever a move has ended.
func BenchmarkBoard(b *testing.B) {
	lim := Limits{MaxInFlight: 8, MaxPerNode: 4, HighDiskPercent: 90}
	for _, nodes := range []int{100, 10_000} {
		for _, parts := range []int{100_000, 1_000_000} {
			v := largeView(nodes, parts, func(k int) int { return (k + k/nodes*7) % nodes })
			board := NewBoard(v)
			name := func(what string) string { return fmt.Sprintf("%s/nodes=%d/partitions=%d", what, nodes, parts) }
			n := v.Nodes[nodes/2]
			event := func(b *testing.B, change func(on bool)) {
				board.Plan(lim)
				b.ReportAllocs()
				var busy time.Duration
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				for b.Loop() {
					start := cpuTime(b)
					change(true)
					if r := board.Plan(lim); len(r.Moves) == 0 {
						b.Fatal("no moves")
					}
					b.StopTimer()
					busy += cpuTime(b) - start
					change(false)
					if r := board.Plan(lim); len(r.Moves) != 0 {
						b.Fatal("moves without a reason")
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(busy.Microseconds())/float64(b.N)/1000, "cpu-ms/op")
			}
			b.Run(name("drain"), func(b *testing.B) {
				event(b, func(on bool) {
					n.Draining = on
					board.SetNode(n)
				})
			})
			b.Run(name("join"), func(b *testing.B) {
				event(b, func(on bool) {
					nodes := slices.Clone(v.Nodes)
					if on {
						nodes = append(nodes, Node{ID: "b", Alive: true, Zone: "zone-1", DiskTotal: 8 << 40, DiskFree: 8 << 40})
					}
					board.SetNodes(nodes)
				})
			})
			b.Run(name("refill"), func(b *testing.B) {
				n.Draining = true
				board.SetNode(n)
				b.ReportAllocs()
				var flight []Move
				for b.Loop() {
					r := board.Plan(lim)
					for _, m := range r.Moves {
						board.Set(Partition{ID: m.Partition, Owner: m.From, Target: m.To, Epoch: m.Epoch + 1, Parent: parentOf(m.Partition), Bytes: m.Bytes})
					}
					flight = append(flight, r.Moves...)
					if m := flight[0]; len(flight) > 1 || r.Waiting > 0 {
						board.Set(Partition{ID: m.Partition, Owner: m.To, Epoch: m.Epoch + 2, Parent: parentOf(m.Partition), Bytes: m.Bytes})
						flight = flight[1:]
						continue
					}
					b.StopTimer()
					board, flight = NewBoard(v), nil
					board.SetNode(n)
					board.Plan(lim)
					b.StartTimer()
				}
				n.Draining = false
				board = NewBoard(v)
			})
		}
	}
}

// cpuTime is the processor time of this thread: what a plan costs on a machine that does other things as well.
func cpuTime(b *testing.B) time.Duration {
	const thisThread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thisThread, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// parentOf is the parent of a partition's topic in a large view.
func parentOf(p cluster.PartitionID) cluster.TopicID {
	if p.Topic%2 == 0 {
		return p.Topic - 1
	}
	return 0
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
