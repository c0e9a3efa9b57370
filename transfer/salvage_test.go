package transfer_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// promoteAway has b take over a's partition without a freeze, after a has acknowledged count records that b never
// got, and returns them. a is down at the end.
func promoteAway(t *testing.T, p *plane, a, b *node, id cluster.PartitionID, count, size int) (cluster.MoveID, []string) {
	t.Helper()
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n == "a" && method == "GrantHandoff" && !after {
			return errUnreachable
		}
		return nil
	})
	m := p.setTarget(id, "b")
	eventually(t, "everything is staged", func() bool {
		for _, m := range b.mover.Progress() {
			if m.Total > 0 && m.Done == m.Total && m.Attempt > 1 {
				return true
			}
		}
		return false
	})
	inc, _ := a.session()
	_ = a.server.Close()
	late := fill(t, a, id, "late", count, size)
	a.kill()
	p.markDead("a", inc)
	eventually(t, "promoted", func() bool { return p.assignment(id).Owner == "b" })
	p.setFault(nil)
	return m, late
}

func (n *node) salvagedValues() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.salvaged {
		out = append(out, string(r.Value))
	}
	return out
}

// C80, I9: what salvage leaves out is in the promoted copy alone, so the old copy stays until that one was opened.
func TestC80SalvagedCopyStaysUntilTheOwnerOpened(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "kept", 30, 100)
	b.observeError("Open", func() error { return errCrash })
	move, late := promoteAway(t, p, a, b, id, 2, 100)
	a.boot()
	a.register()
	eventually(t, "salvaged", func() bool { return slices.Equal(a.salvagedValues(), late) })
	for range 5 {
		if done, _, err := a.reclaim.Step(t.Context(), a.source.Ended()[0]); done || err != nil {
			t.Fatalf("reclaimed before b has opened: %t, %v", done, err)
		}
	}
	if copies, err := a.store.Copies(); err != nil || len(copies) != 1 || copies[0].Place != store.Quarantined {
		t.Fatalf("copies at a: %v, %v; want the one in quarantine", copies, err)
	}
	// The record of what the promoted copy is made of stays while the source may ask.
	prune(t, b, 1)
	b.observeError("nothing", nil)
	b.restart()
	eventually(t, "reclaimed", func() bool {
		copies, err := a.store.Copies()
		_, recorded := p.outcome(id, move)
		return err == nil && len(copies) == 0 && !recorded && len(a.source.Marked()) == 0
	})
	prune(t, b, 0)
}

func prune(t *testing.T, n *node, want int) {
	t.Helper()
	if err := n.mover.PrunePromotions(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := n.journal.Load("promoted/")
	if err != nil || len(left) != want {
		t.Fatalf("%d records of promotions, %v; want %d", len(left), err, want)
	}
}

// I2, I9: damage in the copy of a source that returns after a promotion hides what lies in it, and nothing around
// it. The copy is kept, through restarts too.
func TestI9DamagedCopyIsSalvagedAroundTheDamageAndKept(t *testing.T) {
	for name, failAfter := range map[string]int{"in one go": 0, "cut off behind the damage": 501} {
		t.Run(name, func(t *testing.T) { damagedCopyIsKept(t, failAfter) })
	}
}

func damagedCopyIsKept(t *testing.T, failAfter int) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "kept", 10, 100)
	_, late := promoteAway(t, p, a, b, id, 1500, 200)
	dir := "store/partitions/" + itoa(uint64(topic)) + "/0"
	names, err := a.fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".log") })
	if len(names) < 3 {
		t.Fatalf("%d segments: %v", len(names), names)
	}
	flipAt(t, a, dir+"/"+names[1], 5000)
	check := func() {
		t.Helper()
		var err error
		eventually(t, "salvaged around the damage", func() bool {
			for _, m := range a.source.Ended() {
				_, _, err = a.reclaim.Step(t.Context(), m)
			}
			got := a.salvagedValues()
			return cluster.ReasonOf(err) == cluster.ReasonCorrupt && len(got) > 0 && got[len(got)-1] == late[len(late)-1]
		})
		if copies, err := a.store.Copies(); err != nil || len(copies) != 1 || copies[0].Place != store.Quarantined {
			t.Fatalf("copies at a: %v, %v; want the one in quarantine", copies, err)
		}
	}
	a.boot()
	a.mu.Lock()
	a.failAfter = failAfter
	a.mu.Unlock()
	a.register()
	if failAfter > 0 {
		eventually(t, "salvage is cut off", func() bool { return len(a.salvagedValues()) >= failAfter })
		a.kill()
		a.mu.Lock()
		a.failAfter = 0
		a.mu.Unlock()
		a.start()
	}
	check()
	got := a.salvagedValues()
	if len(got) < len(late)*2/3 || !slices.Contains(got, late[0]) {
		t.Fatalf("salvaged %d of %d records", len(got), len(late))
	}
	a.restart()
	check()
}

func flipAt(t *testing.T, n *node, path string, off int64) {
	t.Helper()
	f, err := n.fs.OpenReadWrite(path, "")
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err = f.WriteAt(b, off); err == nil {
		err = f.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// I7: a fence holds from when it was set, and not from when the move's goroutine comes to it.
func TestI7NothingOpensBehindAFenceThatWasJustSet(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	gate, reached := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a.observeSource = func(effect string, after bool) error {
		if effect == "Grant" && !after {
			once.Do(func() { close(reached) })
			<-gate
		}
		return nil
	}
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("orders", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	fill(t, a, id, "r", 5, 100)
	p.setTarget(id, "b")
	<-reached
	defer close(gate)
	if err := a.store.Close(id); err != nil {
		t.Fatal(err)
	}
	unknown := func(cluster.PartitionID) (cluster.Epoch, bool) { return 0, false }
	if err := a.source.Fence(context.Background(), unknown); err != nil {
		t.Fatal(err)
	}
	_ = a.source.Owned(id, p.assignment(id).OwnerEpoch)
	if err := a.append(id, "behind the fence"); err == nil {
		t.Fatal("a fenced copy accepts an append")
	}
}

// A journal entry that came back after a crash, of a move that was over before the present copy came, must not hold
// the partition: nobody else may open it while a move is busy.
func TestJournalEntryOfALongEndedMoveLetsGo(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "r", 5, 100)
	first := p.setTarget(id, "b")
	moved(t, p, id, "b")
	eventually(t, "reclaimed at a", func() bool { _, ok := p.outcome(id, first); return !ok })
	second := p.setTarget(id, "a")
	moved(t, p, id, "a")
	eventually(t, "reclaimed at b", func() bool { _, ok := p.outcome(id, second); return !ok })
	st := move.New(id, first, "b")
	st.Phase = move.Reporting
	enc, err := st.Encode()
	if err != nil {
		t.Fatal(err)
	}
	a.kill()
	if err := a.journal.Save("move/"+itoa(uint64(topic))+"/0/"+itoa(uint64(first)), enc); err != nil {
		t.Fatal(err)
	}
	a.start()
	eventually(t, "served again", func() bool { return a.append(id, "again") == nil && !a.mover.Busy(id) })
	_ = b
}

// A marker whose move is not known any more, while its copy is still there, is somebody's to look at: it is kept, and
// it says so.
func TestI9CopyOfAForgottenMoveIsKeptAndReported(t *testing.T) {
	p, a, _, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "r", 5, 100)
	var hold atomic.Bool
	hold.Store(true)
	a.reclaim.After = func() time.Duration {
		if hold.Load() {
			return time.Hour
		}
		return 0
	}
	m := p.setTarget(id, "b")
	moved(t, p, id, "b")
	eventually(t, "a has let go", func() bool { return len(a.source.Ended()) == 1 })
	if err := (nodePlane{p, "a"}).ReportReclaimed(t.Context(), id, m); err != nil {
		t.Fatal(err)
	}
	hold.Store(false)
	var markers []transfer.Marker
	if markers = a.source.Ended(); len(markers) != 1 {
		t.Fatal(markers)
	}
	done, _, err := a.reclaim.Step(t.Context(), markers[0])
	if done || cluster.ReasonOf(err) != cluster.ReasonBlocked || !strings.Contains(err.Error(), "owner b") {
		t.Fatalf("%t, %v", done, err)
	}
	if copies, err := a.store.Copies(); err != nil || len(copies) != 1 {
		t.Fatalf("copies %v, %v", copies, err)
	}
}
