// Package planrows measures the planner and the view that a controller keeps for it, by a model of a cluster: nodes and
// assignments without data. It starts no process and takes no disk.
//
// Times are processor time of the calling thread, the least of a few runs, so that other load on the machine matters
// little. It is not safe for concurrent use, since memory is measured by the whole heap.
package planrows

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// Figures is what was measured of one size of cluster.
type Figures struct {
	Nodes, Partitions int
	// BytesEach is what the kept view takes in memory for one partition, its plan included.
	BytesEach float64
	// Build is the view made from the assignments, as a new leader does it.
	Build time.Duration
	// Drain and Join are from the event to the first targets: one node begins to drain, one joins.
	Drain, Join time.Duration
	// Refill is from the end of one move to the next target.
	Refill time.Duration
	// Leave is a plan of all moves when one node of twenty leaves at once; Moves are its moves, Least the fewest there
	// could be.
	Leave        time.Duration
	Moves, Least int
	// Left is how many moves a plan of the outcome still has.
	Left int
}

// limits are the default settings'.
var limits = planner.LimitsOf(cluster.DefaultSettings())

const runs = 3

// Measure measures a cluster in balance with parts partitions on nodes nodes; half of the topics are children of
// the others. parts should be a multiple of nodes.
func Measure(nodes, parts int) (Figures, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := Figures{Nodes: nodes, Partitions: parts}
	v := planner.View{Nodes: model(nodes)}
	before := heap()
	b := planner.NewBoard(planner.View{Nodes: v.Nodes})
	f.Build = spent(func() {
		for k := range parts {
			b.Set(partition(v, k))
		}
		b.Plan(limits)
	})
	f.BytesEach = float64(heap()-before) / float64(parts)

	leaver := v.Nodes[nodes/2]
	joined := append(model(nodes), planner.Node{ID: "b", Alive: true, Zone: "zone-1", DiskTotal: 8 << 40, DiskFree: 8 << 40})
	for run := range runs {
		leaver.Draining = true
		var r planner.Result
		f.Drain = least(run, f.Drain, spent(func() {
			b.SetNode(leaver)
			r = b.Plan(limits)
		}))
		if len(r.Moves) != int(limits.MaxPerNode) {
			return f, fmt.Errorf("a drain begins with %d moves", len(r.Moves))
		}
		one, moved := refill(b, r.Moves)
		f.Refill = least(run, f.Refill, one)
		for _, m := range moved { // everything back as it was
			b.Set(owned(m, m.From))
		}
		leaver.Draining = false
		b.SetNode(leaver)
		b.Plan(limits)
		f.Join = least(run, f.Join, spent(func() {
			b.SetNodes(joined)
			r = b.Plan(limits)
		}))
		if len(r.Moves) == 0 {
			return f, fmt.Errorf("a node that joins gets nothing")
		}
		b.SetNodes(v.Nodes)
		b.Plan(limits)
	}
	f.leave(b, v)
	return f, nil
}

// leave drains one node of twenty and carries the whole plan out.
func (f *Figures) leave(b *planner.Board, v planner.View) {
	gone := 0
	for i := range v.Nodes {
		if i%20 == 0 {
			v.Nodes[i].Draining = true
			gone++
		}
	}
	f.Least = gone * (f.Partitions / f.Nodes)
	var r planner.Result
	f.Leave = spent(func() {
		b.SetNodes(v.Nodes)
		r = b.Plan(planner.Limits{HighDiskPercent: limits.HighDiskPercent})
	})
	f.Moves = len(r.Moves)
	for _, m := range r.Moves {
		b.Set(owned(m, m.To))
	}
	r = b.Plan(planner.Limits{HighDiskPercent: limits.HighDiskPercent})
	f.Left = len(r.Moves) + r.Waiting + len(r.Blocked)
}

// refill starts moves, ends one after the other, and returns what the plan of the next one costs.
func refill(b *planner.Board, moves []planner.Move) (time.Duration, []planner.Move) {
	const times = 50
	start := func(m planner.Move) {
		p := owned(m, m.From)
		p.Target = m.To
		b.Set(p)
	}
	for _, m := range moves {
		start(m)
	}
	d := spent(func() {
		for i := range times {
			b.Set(owned(moves[i], moves[i].To))
			r := b.Plan(limits)
			if len(r.Moves) != 1 {
				panic(fmt.Sprintf("invariant: one slot is free and %d moves are planned", len(r.Moves)))
			}
			start(r.Moves[0])
			moves = append(moves, r.Moves[0])
		}
	})
	return d / times, moves
}

// owned is the partition of m, stable at a node.
func owned(m planner.Move, at cluster.NodeID) planner.Partition {
	return planner.Partition{ID: m.Partition, Owner: at, Epoch: m.Epoch, Parent: parent(m.Partition.Topic), Bytes: m.Bytes}
}

const topicSize = 1000

func parent(t cluster.TopicID) cluster.TopicID {
	if t%2 == 0 {
		return t - 1
	}
	return 0
}

// partition is number k: topics of topicSize partitions in turn over the nodes, shifted with every turn.
func partition(v planner.View, k int) planner.Partition {
	n := len(v.Nodes)
	id := cluster.PartitionID{Topic: cluster.TopicID(k/topicSize + 1), Index: uint32(k % topicSize)}
	return planner.Partition{
		ID: id, Owner: v.Nodes[(k+k/n*7)%n].ID, Epoch: 1, Parent: parent(id.Topic), Bytes: cluster.Bytes(k%977) << 10,
	}
}

func model(nodes int) []planner.Node {
	out := make([]planner.Node, nodes, nodes+1)
	for i := range out {
		out[i] = planner.Node{
			ID: cluster.NodeID(fmt.Sprintf("agent-%05d", i)), Alive: true, Zone: fmt.Sprintf("zone-%d", i%3),
			DiskTotal: 8 << 40, DiskFree: 6 << 40,
		}
	}
	return out
}

// spent is the processor time of fn on this thread.
func spent(fn func()) time.Duration {
	start := threadTime()
	fn()
	return threadTime() - start
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(fmt.Sprintf("invariant: the clock of this thread: %v", err))
	}
	return time.Duration(ts.Nano())
}

func least(run int, a, b time.Duration) time.Duration {
	if run == 0 {
		a = math.MaxInt64
	}
	return min(a, b)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
