package transfer_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// checkHolds wants every value at the owner.
func checkHolds(t *testing.T, n *node, id cluster.PartitionID, want []string) {
	t.Helper()
	var got []string
	eventually(t, fmt.Sprintf("%s is open at %s", id, n.id), func() (ok bool) {
		_, err := n.store.Log(id)
		return err == nil
	})
	got, err := n.read(id)
	if err != nil {
		t.Fatalf("read %s at %s: %v", id, n.id, err)
	}
	have := map[string]bool{}
	for _, v := range got {
		have[v] = true
	}
	for _, v := range want {
		if !have[v] {
			t.Fatalf("acknowledged record %q is not at %s: it has %d records, %d were acknowledged", v, n.id, len(got), len(want))
		}
	}
}

// writer appends to whoever accepts, until stop; it returns what was acknowledged.
func writer(p *plane, id cluster.PartitionID, name string, size int, stop <-chan struct{}, nodes ...*node) func() []string {
	var acked []string
	var wg sync.WaitGroup
	pad := strings.Repeat("x", size)
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			v := fmt.Sprintf("%s-%d-%s", name, i, pad)
			for done := false; !done; {
				for _, n := range nodes {
					if !done && n.append(id, v) == nil {
						acked = append(acked, v)
						done = true
					}
				}
				select {
				case <-stop:
					return
				case <-tick.C:
				}
			}
		}
	})
	return func() []string { wg.Wait(); return acked }
}

// A partition with several segments moves while two producers write; every acknowledged record is at the
// new owner, the old copy is gone, and the freeze cost the tail only.
func TestMoveUnderLoad(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	pad := strings.Repeat("y", 1000)
	var want []string
	for i := range 40 {
		values := make([]string, 20)
		for k := range values {
			values[k] = fmt.Sprintf("pre-%d-%d-%s", i, k, pad)
		}
		if err := a.append(id, values...); err != nil {
			t.Fatal(err)
		}
		want = append(want, values...)
	}
	l, err := a.store.Log(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CommitOffset("g", 17); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	w1 := writer(p, id, "w1", 100, stop, a, b)
	w2 := writer(p, id, "w2", 10, stop, a, b)
	move := p.setTarget(id, "b")
	eventually(t, "flip to b", func() bool { return p.settled(id, "b") })
	eventually(t, "b accepts", func() bool { return b.append(id, "after") == nil })
	close(stop)
	want = append(append(append(want, w1()...), w2()...), "after")
	checkHolds(t, b, id, want)
	lb, err := b.store.Log(id)
	if err != nil {
		t.Fatal(err)
	}
	if off, ok := lb.CommittedOffset("g"); !ok || off != 17 {
		t.Errorf("committed offset at b: %d, %t; want 17", off, ok)
	}
	eventually(t, "a reclaimed", func() bool {
		copies, err := a.store.Copies()
		return err == nil && len(copies) == 0 && len(a.source.Marked()) == 0
	})
	if _, ok := p.outcome(id, move); ok {
		t.Error("the outcome is still there after the reclaim")
	}
	rec := p.record(move)
	if rec.Kind != cluster.OutcomeFlipped || rec.Stats.Bytes < 800_000 || rec.Stats.Freeze <= 0 || rec.Stats.FrozenReadBytes > 600_000 {
		t.Errorf("history: %+v", rec)
	}
	t.Logf("stats %+v", rec.Stats)
	if p := b.mover.Progress(); len(p) != 0 {
		t.Errorf("moves left: %+v", p)
	}
}

// C23: empty partitions, and partitions of which nothing was ever written, move like others, and fast.
func TestC23EmptyPartitions(t *testing.T) {
	const n = 100
	p, a, b, topic := pair(t, n)
	start := time.Now()
	for i := range n {
		p.setTarget(cluster.PartitionID{Topic: topic, Index: uint32(i)}, "b")
	}
	eventually(t, "all at b", func() bool {
		return !slices.ContainsFunc(a.openPartitions(), func(cluster.PartitionID) bool { return true }) &&
			p.settled(cluster.PartitionID{Topic: topic, Index: n - 1}, "b")
	})
	t.Logf("%d empty moves in %s", n, time.Since(start))
	for i := range n {
		id := cluster.PartitionID{Topic: topic, Index: uint32(i)}
		eventually(t, "settled", func() bool { return p.settled(id, "b") })
		if err := b.append(id, "first"); err != nil {
			t.Fatalf("append to %s: %v", id, err)
		}
		checkHolds(t, b, id, []string{"first"})
	}
}

func (n *node) openPartitions() (out []cluster.PartitionID) {
	copies, err := n.store.Copies()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range copies {
		if c.Open {
			out = append(out, c.Partition)
		}
	}
	return out
}
