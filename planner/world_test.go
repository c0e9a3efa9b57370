package planner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// fataler is what *testing.T and *rapid.T have in common here.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a cluster that carries plans out: targets are set, moves flip, disks fill.
type world struct {
	View
}

func (w *world) node(id cluster.NodeID) *Node {
	for i := range w.Nodes {
		if w.Nodes[i].ID == id {
			return &w.Nodes[i]
		}
	}
	return nil
}

func (w *world) partition(id cluster.PartitionID) *Partition {
	i, ok := slices.BinarySearchFunc(w.Partitions, id, func(p Partition, id cluster.PartitionID) int {
		return p.ID.Compare(id)
	})
	if !ok {
		return nil
	}
	return &w.Partitions[i]
}

// apply sets the targets that r asks for, with the precondition checked.
func (w *world) apply(t fataler, r Result) {
	t.Helper()
	for _, m := range r.Moves {
		p := w.partition(m.Partition)
		if p == nil || p.Owner != m.From || p.Target != m.OldTarget || p.Epoch != m.Epoch {
			t.Fatalf("precondition of %+v does not hold: %+v", m, p)
		}
		p.Target, p.Stuck, p.Staged = m.To, false, 0
		p.Epoch++
	}
}

// flip ends the current move of p, if there is one and its nodes live. The source keeps its copy on
// disk until the reclaim, which happens at once here.
func (w *world) flip(p *Partition) bool {
	if p.Target == "" || p.Stuck {
		return false
	}
	from, to := w.node(p.Owner), w.node(p.Target)
	if from == nil || to == nil || !from.Alive || !to.Alive {
		return false
	}
	if from.DiskTotal > 0 {
		from.DiskFree = min(from.DiskTotal, from.DiskFree+p.Bytes)
	}
	if to.DiskTotal > 0 {
		to.DiskFree -= min(to.DiskFree, p.Bytes-min(p.Staged, p.Bytes))
	}
	p.Owner, p.Target, p.Staged = p.Target, "", 0
	p.Epoch++
	return true
}

// owned counts partitions by owner, in the order of nodes.
func (w *world) owned() []int {
	out := make([]int, len(w.Nodes))
	for i, n := range w.Nodes {
		for _, p := range w.Partitions {
			if p.Owner == n.ID {
				out[i]++
			}
		}
	}
	return out
}

// parseNodes reads lines of "id [dead] [draining] [settling] [silent] [zone=z] [weight=w] [disk=total] [free=bytes]".
func parseNodes(t fataler, in string) []Node {
	t.Helper()
	var out []Node
	for _, line := range strings.Split(strings.TrimSpace(in), "\n") {
		f := strings.Fields(line)
		n := Node{ID: cluster.NodeID(f[0]), Alive: true}
		for _, a := range f[1:] {
			setNode(t, &n, a)
		}
		out = append(out, n)
	}
	return out
}

func setNode(t fataler, n *Node, arg string) {
	t.Helper()
	key, val, _ := strings.Cut(arg, "=")
	switch key {
	case "dead":
		n.Alive = false
	case "alive":
		n.Alive = true
	case "draining":
		n.Draining = true
	case "serving":
		n.Draining = false
	case "settling":
		n.Settling = true
	case "settled":
		n.Settling = false
	case "silent":
		n.Silent = true
	case "heard":
		n.Silent = false
	case "zone":
		n.Zone = val
	case "weight":
		n.Weight, _ = strconv.Atoi(val)
	case "disk":
		n.DiskTotal = parseBytes(t, val)
		n.DiskFree = n.DiskTotal
	case "free":
		n.DiskFree = parseBytes(t, val)
	default:
		t.Fatalf("unknown node attribute %q", arg)
	}
}

func parseBytes(t fataler, s string) cluster.Bytes {
	t.Helper()
	mul := cluster.Bytes(1)
	for i, u := range []string{"K", "M", "G", "T"} {
		if strings.HasSuffix(s, u) {
			s, mul = strings.TrimSuffix(s, u), 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("bytes %q: %v", s, err)
	}
	return cluster.Bytes(n) * mul
}

// parsePartitions reads lines of "topic [parent=topic] [size=bytes]: place …". A place is the owner of the next
// index, with ">target" when it moves, "!" when the move is stuck, "~" when it cools down, "#bytes" for its own
// size and "*n" to repeat it.
func parsePartitions(t fataler, in string) []Partition {
	t.Helper()
	var out []Partition
	for _, line := range strings.Split(strings.TrimSpace(in), "\n") {
		head, places, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("line %q has no colon", line)
		}
		f := strings.Fields(head)
		proto := Partition{ID: cluster.PartitionID{Topic: topicID(t, f[0])}, Epoch: 1}
		for _, a := range f[1:] {
			key, val, _ := strings.Cut(a, "=")
			switch key {
			case "parent":
				proto.Parent = topicID(t, val)
			case "size":
				proto.Bytes = parseBytes(t, val)
			default:
				t.Fatalf("unknown topic attribute %q", a)
			}
		}
		var index uint32
		for _, place := range strings.Fields(places) {
			p, n := proto, 1
			if rest, times, ok := strings.Cut(place, "*"); ok {
				place = rest
				n, _ = strconv.Atoi(times)
			}
			if rest, size, ok := strings.Cut(place, "#"); ok {
				place, p.Bytes = rest, parseBytes(t, size)
			}
			place, p.Cooling = strings.TrimSuffix(place, "~"), strings.HasSuffix(place, "~")
			place, p.Stuck = strings.TrimSuffix(place, "!"), strings.HasSuffix(place, "!")
			owner, target, _ := strings.Cut(place, ">")
			p.Owner, p.Target = cluster.NodeID(owner), cluster.NodeID(target)
			for ; n > 0; n-- {
				p.ID.Index = index
				index++
				out = append(out, p)
			}
		}
	}
	return out
}

func topicID(t fataler, s string) cluster.TopicID {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("topic %q: %v", s, err)
	}
	return cluster.TopicID(n)
}

func formatMove(m Move) string {
	to := string(m.To)
	if m.Cancel() {
		to = "stay"
	}
	return fmt.Sprintf("%s: %s -> %s (%s)\n", m.Partition, m.From, to, m.Reason)
}

func formatResult(r Result) string {
	var b strings.Builder
	for _, m := range r.Moves {
		b.WriteString(formatMove(m))
	}
	for _, x := range r.Blocked {
		fmt.Fprintf(&b, "%s: blocked on %s: %s\n", x.Partition, x.Owner, x.Reason)
	}
	if r.Waiting > 0 {
		fmt.Fprintf(&b, "waiting: %d (%s)\n", r.Waiting, formatBytes(r.WaitingBytes))
	}
	if r.OnHold > 0 {
		fmt.Fprintf(&b, "held: %d\n", r.OnHold)
	}
	if r.Cooling > 0 {
		fmt.Fprintf(&b, "cooling down: %d\n", r.Cooling)
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

// settle plans and carries out until nothing is left to do, and returns the number of moves per
// partition order. It fails when that takes more plans than there can be moves.
func (w *world) settle(t fataler, lim Limits, each func(Result)) (moves int) {
	t.Helper()
	for round := 0; ; round++ {
		if round > 4*len(w.Partitions)+8 {
			t.Fatalf("no fixpoint after %d plans", round)
		}
		r := Plan(w.View, lim)
		if each != nil {
			each(r)
		}
		w.apply(t, r)
		for _, m := range r.Moves {
			if !m.Cancel() {
				moves++
			}
		}
		flipped := false
		for i := range w.Partitions {
			flipped = w.flip(&w.Partitions[i]) || flipped
		}
		if len(r.Moves) == 0 && !flipped {
			return moves
		}
	}
}
