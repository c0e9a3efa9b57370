package planner

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// options steers what a drawn cluster contains.
type options struct {
	disks, inFlight, draining, dead, settling, weights, cooling bool
}

var anything = options{disks: true, inFlight: true, draining: true, dead: true, settling: true, weights: true, cooling: true}

func drawWorld(t *rapid.T, o options) *world {
	w := &world{}
	nodes := rapid.IntRange(1, 9).Draw(t, "nodes")
	rare := func(on bool, label string) bool { return on && rapid.IntRange(0, 3).Draw(t, label) == 0 }
	for i := range nodes {
		n := Node{
			ID:       cluster.NodeID(fmt.Sprintf("n%d", i)),
			Alive:    !rare(o.dead, "dead"),
			Draining: rare(o.draining, "draining"),
			Settling: rare(o.settling, "settling"),
			Zone:     rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone"),
			Silent:   rare(o.settling, "silent"),
		}
		if o.weights {
			n.Weight = rapid.IntRange(0, 5).Draw(t, "weight")
		}
		if o.disks && rapid.Bool().Draw(t, "disk") {
			n.DiskTotal = 1000
			n.DiskFree = cluster.Bytes(rapid.IntRange(0, 1000).Draw(t, "free"))
		}
		w.Nodes = append(w.Nodes, n)
	}
	topics := rapid.IntRange(1, 6).Draw(t, "topics")
	// A few favourites make skewed clusters.
	favourite := rapid.IntRange(0, nodes-1).Draw(t, "favourite")
	skew := rapid.IntRange(0, 3).Draw(t, "skew")
	node := func(label string) cluster.NodeID {
		if rapid.IntRange(0, 3).Draw(t, label+" skewed") < skew {
			return w.Nodes[favourite].ID
		}
		return w.Nodes[rapid.IntRange(0, nodes-1).Draw(t, label)].ID
	}
	for topic := range topics {
		parent := cluster.TopicID(0)
		if topic > 0 && rapid.Bool().Draw(t, "child") {
			parent = cluster.TopicID(rapid.IntRange(1, topic).Draw(t, "parent"))
		}
		for index := range rapid.IntRange(1, 12).Draw(t, "partitions") {
			p := Partition{
				ID:     cluster.PartitionID{Topic: cluster.TopicID(topic + 1), Index: uint32(index)},
				Owner:  node("owner"),
				Parent: parent,
				Bytes:  cluster.Bytes(rapid.IntRange(0, 200).Draw(t, "bytes")),
				Epoch:  1,
			}
			p.Cooling = rare(o.cooling, "cooling")
			if rare(o.inFlight, "moving") {
				if target := node("target"); target != p.Owner {
					p.Target = target
					p.Stuck = rare(true, "stuck")
				}
			}
			w.Partitions = append(w.Partitions, p)
		}
	}
	return w
}

func drawLimits(t *rapid.T) Limits {
	return Limits{
		MaxInFlight:     rapid.IntRange(1, 10).Draw(t, "max in flight"),
		MaxPerNode:      rapid.IntRange(1, 5).Draw(t, "max per node"),
		HighDiskPercent: rapid.IntRange(50, 100).Draw(t, "high"),
	}
}

func (w *world) clone() *world {
	return &world{View{Nodes: slices.Clone(w.Nodes), Partitions: slices.Clone(w.Partitions)}}
}

// receivers lists the nodes that may receive, by the rule in the package comment.
func (w *world) receivers() []cluster.NodeID {
	var settled, all []cluster.NodeID
	for _, n := range w.Nodes {
		if n.Alive && !n.Draining {
			all = append(all, n.ID)
			if !n.Settling && !n.Silent {
				settled = append(settled, n.ID)
			}
		}
	}
	if len(settled) > 0 {
		return settled
	}
	return all
}

// leastMoves is the smallest number of moves after which T movable partitions over receivers are floor or ceil of
// their quota each (T times their part of all weight), by a formula that knows nothing of the planner: what drains, and
// what is above floor, less one for each of the ceil slots that a node above its floor may keep.
func (w *world) leastMoves() int {
	recv := w.receivers()
	if len(recv) == 0 {
		return 0
	}
	counts := make([]int, len(recv))
	leaving, total := 0, 0
	for _, p := range w.Partitions {
		n := w.node(p.Owner)
		if k := slices.Index(recv, p.Owner); k >= 0 {
			counts[k]++
			total++
		} else if n.Alive && n.Draining {
			leaving++
			total++
		}
	}
	floors, ceils := w.quotas(total)
	slots, keep, moves := total, 0, leaving
	for k, c := range counts {
		slots -= floors[k]
		moves += max(0, c-floors[k])
		if c > floors[k] && ceils[k] > floors[k] {
			keep++
		}
	}
	return moves - min(slots, keep)
}

// quotas returns floor and ceil of each receiver's part of total.
func (w *world) quotas(total int) (floors, ceils []int) {
	recv, weighs := w.receivers(), 0
	for _, id := range recv {
		weighs += max(1, w.node(id).Weight)
	}
	for _, id := range recv {
		q := total * max(1, w.node(id).Weight)
		floors = append(floors, q/weighs)
		ceils = append(ceils, (q+weighs-1)/weighs)
	}
	return floors, ceils
}

func TestPlanIsBalancedAndMinimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{draining: true, dead: true, settling: true, weights: rapid.Bool().Draw(t, "weights")})
		before := w.clone()
		r := Plan(w.View, Limits{})
		if got, want := len(r.Moves), before.leastMoves(); got != want {
			t.Fatalf("preferences never cost a move: planned %d, the least is %d\n%s%s", got, want, before.show(), formatResult(r))
		}
		w.apply(t, r)
		for i := range w.Partitions {
			w.flip(&w.Partitions[i])
		}
		assertBalanced(t, w)
		assertNothingToDo(t, w, Limits{})
	})
}

func assertBalanced(t *rapid.T, w *world) {
	recv := w.receivers()
	counts, total := make([]int, len(recv)), 0
	for _, p := range w.Partitions {
		if k := slices.Index(recv, p.Owner); k >= 0 {
			counts[k]++
			total++
		}
	}
	floors, ceils := w.quotas(total)
	for k, c := range counts {
		if c < floors[k] || c > ceils[k] {
			t.Fatalf("every receiver ends at floor or ceil of its quota: %s has %d, not %d or %d\n%s", recv[k], c, floors[k], ceils[k], w.show())
		}
	}
}

func assertNothingToDo(t *rapid.T, w *world, lim Limits) {
	if r := Plan(w.View, lim); len(r.Moves)+r.Waiting > 0 {
		t.Fatalf("planning on the planned state yields nothing, got\n%s%s", w.show(), formatResult(r))
	}
}

func TestPlanningInStepsEndsInTheSameNumberOfMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{draining: true, dead: true, settling: true, weights: true})
		want := w.leastMoves()
		lim := drawLimits(t)
		if got := w.settle(t, lim, nil); got != want {
			t.Fatalf("planning again while moves run adds none: made %d, the least is %d", got, want)
		}
		assertBalanced(t, w)
	})
}

func TestPlanNeverOscillatesAndEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		lim := drawLimits(t)
		arrived := make(map[string]bool)
		w.settle(t, lim, func(r Result) {
			for _, m := range r.Moves {
				key := fmt.Sprint(m.Partition, m.To)
				if !m.Cancel() && arrived[key] {
					t.Fatalf("no partition is sent to the same node twice: %s", formatMove(m))
				}
				arrived[key] = true
			}
		})
		assertNothingToDo(t, w, lim)
	})
}

func TestPlanKeepsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		lim := drawLimits(t)
		was := w.clone()
		r := Plan(w.View, lim)
		all0, per0 := was.inFlight()
		w.apply(t, r)
		all, per := w.inFlight()
		if all > max(lim.MaxInFlight, all0) {
			t.Fatalf("at most %d moves in flight, or as many as there were (%d): %d", lim.MaxInFlight, all0, all)
		}
		for k, n := range per {
			if n > max(lim.MaxPerNode, per0[k]) {
				t.Fatalf("at most %d moves of %s, or as many as there were (%d): %d", lim.MaxPerNode, k, per0[k], n)
			}
		}
	})
}

// inFlight counts moves that hold a slot, in all and by role and node.
func (w *world) inFlight() (int, map[string]int) {
	all, per := 0, make(map[string]int)
	for _, p := range w.Partitions {
		if p.Target == "" || p.Stuck || !w.node(p.Owner).Alive || !w.node(p.Target).Alive {
			continue
		}
		all++
		per["source "+string(p.Owner)]++
		per["destination "+string(p.Target)]++
	}
	return all, per
}

func TestPlanMovesOnlyWhereAllowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		lim := drawLimits(t)
		lim.MaxInFlight, lim.MaxPerNode = 0, 0
		checkAllowed(t, w, lim, Plan(w.View, lim))
	})
}

// checkAllowed checks every move of a plan of w.
func checkAllowed(t *rapid.T, w *world, lim Limits, r Result) {
	t.Helper()
	recv := w.receivers()
	seen := make(map[cluster.PartitionID]bool)
	inbound := make(map[cluster.NodeID]cluster.Bytes)
	for _, p := range w.Partitions {
		inbound[p.Target] += p.Bytes
	}
	for _, m := range r.Moves {
		p := w.partition(m.Partition)
		if seen[m.Partition] {
			t.Fatalf("one change for each partition: %s", formatMove(m))
		}
		seen[m.Partition] = true
		if !w.node(p.Owner).Alive {
			t.Fatalf("a dead owner's partition is left where it is: %s", formatMove(m))
		}
		if p.Target != "" && w.node(p.Target).Alive && !w.node(p.Target).Draining {
			t.Fatalf("a partition in a move can't be picked: %s", formatMove(m))
		}
		if m.Cancel() {
			continue
		}
		if p.Cooling && !w.node(p.Owner).Draining {
			t.Fatalf("C30: what moved a moment ago only leaves a draining node: %s", formatMove(m))
		}
		if lim.HoldRebalancing && !w.node(p.Owner).Draining {
			t.Fatalf("while rebalancing holds only drains go on: %s", formatMove(m))
		}
		if !slices.Contains(recv, m.To) {
			t.Fatalf("never onto a dead, draining, silent or settling node: %s", formatMove(m))
		}
		n := w.node(m.To)
		inbound[m.To] += m.Bytes
		used := n.DiskTotal - n.DiskFree + inbound[m.To]
		if n.DiskTotal > 0 && used*100 > n.DiskTotal*cluster.Bytes(lim.HighDiskPercent) {
			t.Fatalf("never above the high mark: %s leaves %s with %d of %d", formatMove(m), m.To, used, n.DiskTotal)
		}
	}
	for _, b := range r.Blocked {
		if seen[b.Partition] {
			t.Fatalf("blocked and moved: %+v", b)
		}
	}
}

func TestPlanAccountsForEveryDrainingPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		r := Plan(w.View, Limits{HighDiskPercent: 90})
		named := make(map[cluster.PartitionID]bool)
		for _, m := range r.Moves {
			named[m.Partition] = true
		}
		for _, b := range r.Blocked {
			named[b.Partition] = true
		}
		for _, p := range w.Partitions {
			if w.node(p.Owner).Draining && p.Target == "" && !named[p.ID] {
				t.Fatalf("what a draining node owns moves or says why not: %+v", p)
			}
		}
	})
}

func TestPlanIgnoresOrderOfInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		lim := drawLimits(t)
		want := Plan(w.View, lim)
		mixed := View{
			Nodes:      rapid.Permutation(w.Nodes).Draw(t, "node order"),
			Partitions: rapid.Permutation(w.Partitions).Draw(t, "partition order"),
		}
		if diff := gocmp.Diff(want, Plan(mixed, lim)); diff != "" {
			t.Fatalf("shuffled input, other plan (-sorted +shuffled):\n%s", diff)
		}
		req := Request{Count: rapid.IntRange(0, 20).Draw(t, "count"), Parent: 1}
		a, errA := Place(w.View, lim, req)
		b, errB := Place(mixed, lim, req)
		if diff := gocmp.Diff(a, b); diff != "" || (errA == nil) != (errB == nil) {
			t.Fatalf("shuffled input, other placement: %v, %v\n%s", errA, errB, diff)
		}
	})
}

// TestSpreadIsKept: where every topic is spread evenly, it still is after nodes join or drain, at
// least as far as one greedy pass with repair can see in a small cluster.
func TestSpreadIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "nodes")
		w := &world{}
		for i := range n {
			w.Nodes = append(w.Nodes, Node{ID: cluster.NodeID(fmt.Sprintf("n%d", i)), Alive: true})
		}
		topics, each := rapid.IntRange(1, 5).Draw(t, "topics"), rapid.IntRange(1, 4).Draw(t, "each")
		for topic := range topics {
			for i := range n * (n + 1) * each {
				w.Partitions = append(w.Partitions, Partition{
					ID:    cluster.PartitionID{Topic: cluster.TopicID(topic + 1), Index: uint32(i)},
					Owner: w.Nodes[i%n].ID,
					Epoch: 1,
				})
			}
		}
		w.Nodes = append(w.Nodes, Node{ID: "n9", Alive: true})
		w.settle(t, Limits{}, nil)
		for topic := range topics {
			perNode := make(map[cluster.NodeID]int)
			for _, p := range w.Partitions {
				if p.ID.Topic == cluster.TopicID(topic+1) {
					perNode[p.Owner]++
				}
			}
			for _, node := range w.Nodes {
				if perNode[node.ID] != n*each {
					t.Fatalf("topic %d is spread %v, want %d each", topic+1, perNode, n*each)
				}
			}
		}
	})
}

// TestAntiAffinityIsKept: a child whose partitions are apart from its parent's stays so through a
// drain and a join, when there are nodes enough.
func TestAntiAffinityIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(4, 8).Draw(t, "nodes")
		w := &world{}
		for i := range n {
			w.Nodes = append(w.Nodes, Node{ID: cluster.NodeID(fmt.Sprintf("n%d", i)), Alive: true})
		}
		parts := rapid.IntRange(1, 30).Draw(t, "partitions")
		for topic := 1; topic <= 2; topic++ {
			for i := range parts {
				p := Partition{ID: cluster.PartitionID{Topic: cluster.TopicID(topic), Index: uint32(i)}, Epoch: 1}
				p.Owner = w.Nodes[(i+topic)%n].ID
				if topic == 2 {
					p.Parent = 1
				}
				w.Partitions = append(w.Partitions, p)
			}
		}
		w.Nodes[rapid.IntRange(0, n-1).Draw(t, "drained")].Draining = true
		w.Nodes = append(w.Nodes, Node{ID: "n9", Alive: true})
		w.settle(t, Limits{}, nil)
		for i := range parts {
			if a, b := w.Partitions[i].Owner, w.Partitions[parts+i].Owner; a == b {
				t.Fatalf("partition %d of parent and child are both on %s", i, a)
			}
		}
	})
}

func TestPlaceIsBalancedAndAllowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, options{draining: true, dead: true, settling: true, weights: true})
		recv := w.receivers()
		count := rapid.IntRange(0, 30).Draw(t, "count")
		before := w.leastMoves()
		owners, err := Place(w.View, Limits{}, Request{Count: count, Parent: 1})
		if len(recv) == 0 {
			if cluster.ReasonOf(err) != cluster.ReasonBlocked || len(cluster.AsError(err).Blockers) != len(w.Nodes) {
				t.Fatalf("no receivers: got %v, want one blocker for each node", err)
			}
			return
		}
		if err != nil || len(owners) != count {
			t.Fatalf("placed %d of %d: %v", len(owners), count, err)
		}
		for k, o := range owners {
			if !slices.Contains(recv, o) {
				t.Fatalf("C33: new partition on %s", o)
			}
			w.Partitions = append(w.Partitions, Partition{
				ID: cluster.PartitionID{Topic: 99, Index: uint32(k)}, Owner: o, Parent: 1, Epoch: 1,
			})
		}
		if after := w.leastMoves(); after > before {
			t.Fatalf("a new topic adds no moves: the least was %d and is %d", before, after)
		}
	})
}

func TestDrainIsWhatPlanWouldDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, anything)
		id := w.Nodes[rapid.IntRange(0, len(w.Nodes)-1).Draw(t, "node")].ID
		was := w.clone()
		got, err := Drain(w.View, Limits{MaxInFlight: 1, HighDiskPercent: 90, Paused: true}, []cluster.NodeID{id})
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(was.View, w.View); diff != "" {
			t.Fatalf("a dry run changes its input:\n%s", diff)
		}
		w.node(id).Draining = true
		full := Plan(w.View, Limits{HighDiskPercent: 90})
		var want []Move
		for _, m := range full.Moves {
			if m.From == id || m.OldTarget == id {
				want = append(want, m)
			}
		}
		if diff := gocmp.Diff(want, got.Moves); diff != "" {
			t.Fatalf("dry run and plan differ (-plan +dry run):\n%s", diff)
		}
		sum := cluster.Bytes(0)
		for _, d := range got.Destinations {
			sum += d.Bytes
			if !d.Unlimited && d.Bytes > d.Room {
				t.Fatalf("%+v receives more than it has room for", d)
			}
		}
		if sum != got.Bytes {
			t.Fatalf("destinations receive %d, the plan moves %d", sum, got.Bytes)
		}
		if !slices.IsSortedFunc(got.Destinations, func(a, b Destination) int { return cmp.Compare(a.Node, b.Node) }) {
			t.Fatalf("destinations are not in order: %v", got.Destinations)
		}
	})
}
