package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// writer appends numbered records to whichever agent accepts them, and remembers what was acknowledged.
type writer struct {
	acked []string
	n     atomic.Int64
	stop  func()
}

func startWriter(t *testing.T, p cluster.PartitionID, agents ...*testAgent) *writer {
	t.Helper()
	w := &writer{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; {
			for _, a := range agents {
				l, err := a.logs.Log(p)
				if err != nil {
					continue
				}
				v := fmt.Sprintf("%d %s", i, strings.Repeat("x", 200))
				if _, err := l.Append(ctx, []store.Record{{Time: 1, Value: []byte(v)}}); err == nil {
					w.acked = append(w.acked, v)
					w.n.Add(1)
					i++
				}
			}
		}
	})
	w.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(w.stop)
	return w
}

func (w *writer) waitFor(t *testing.T, more int64) {
	t.Helper()
	target := w.n.Load() + more
	eventually(t, "acknowledged records", func() error {
		if n := w.n.Load(); n < target {
			return fmt.Errorf("%d of %d", n, target)
		}
		return nil
	})
}

// lost returns which of acked are not among got.
func lost(acked, got []string) (missing []string) {
	have := map[string]bool{}
	for _, v := range got {
		have[v] = true
	}
	for _, v := range acked {
		if !have[v] {
			missing = append(missing, v[:min(len(v), 12)])
		}
	}
	return missing
}

func waitOwner(t *testing.T, c *testController, p cluster.PartitionID, owner cluster.NodeID) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s at %s", p, owner), func() error {
		if a := c.assignment(p); a.Owner != owner || !a.Opened {
			return fmt.Errorf("assignment is %+v", a)
		}
		return nil
	})
}

// A partition is moved away and back home while it is written to. Nothing acknowledged is lost, and the
// stale copies go once they may.
func TestI2MoveAndReturnHomeWhileWriting(t *testing.T) {
	c := startController(t)
	a := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}})
	a.waitReady(t)
	topic := c.createTopic(t, "orders", 2)
	p := pid(topic.ID, 1)
	waitOwner(t, c, p, "n1")
	b := startAgent(t, agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}})
	b.waitReady(t)
	w := startWriter(t, p, a, b)
	w.waitFor(t, 200)
	c.move(t, "orders", 1, "n2")
	waitOwner(t, c, p, "n2")
	w.waitFor(t, 200)
	c.move(t, "orders", 1, "n1")
	waitOwner(t, c, p, "n1")
	w.waitFor(t, 200)
	w.stop()
	got, err := a.values(p)
	if err != nil {
		t.Fatal(err)
	}
	if l := lost(w.acked, got); len(l) > 0 {
		t.Fatalf("I2: %d of %d acknowledged records are lost: %v", len(l), len(w.acked), l[:min(10, len(l))])
	}
	eventually(t, "stale copies reclaimed", func() error {
		if o := c.outcomes(); len(o) > 0 {
			return fmt.Errorf("outcomes %+v", o)
		}
		if n := len(a.copiesOf(t, p)); n != 1 {
			return fmt.Errorf("n1 has %v", a.copiesOf(t, p))
		}
		if left := b.copiesOf(t, p); len(left) != 0 {
			return fmt.Errorf("n2 has %v", left)
		}
		return nil
	})
	if n := len(a.source.Marked()) + len(b.source.Marked()); n != 0 {
		t.Fatalf("%d outbound markers are left", n)
	}
}

// Without a control plane a restarted agent serves what it owned and had not begun to give away.
func TestI7RestartWithoutControlPlaneServesUnmarkedPartitions(t *testing.T) {
	c := startController(t)
	dir := t.TempDir()
	o := agentOptions{id: "n1", dir: dir, controllers: []string{c.address}}
	a := startAgent(t, o)
	a.waitReady(t)
	topic := c.createTopic(t, "orders", 2)
	free, marked := pid(topic.ID, 0), pid(topic.ID, 1)
	a.append(t, free, "before")
	a.append(t, marked, "before")
	// The destination is known and never starts again, so that the move begins and stays.
	b := startAgent(t, agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}})
	b.waitReady(t)
	saveMarkerOf(t, a, marked, c, "n2", b)
	waitMarker(t, a, marked)
	a.stop()
	c.stop()

	a = startAgent(t, o)
	a.append(t, free, "after")
	if got, err := a.values(free); err != nil || !slices.Equal(got, []string{"before", "after"}) {
		t.Fatalf("got %q, %v", got, err)
	}
	// Invariant I7: who owns the marked one can't be known now.
	if l, err := a.logs.Log(marked); err == nil {
		if _, err := l.Append(t.Context(), []store.Record{{Time: 1, Value: []byte("x")}}); err == nil {
			t.Fatal("I7: a marked partition accepted a write before anybody said who owns it")
		}
		if got, err := a.values(marked); err != nil || !slices.Equal(got, []string{"before"}) {
			t.Fatalf("reads of a frozen partition go on: got %q, %v", got, err)
		}
	}
	if r := a.Ready(); len(r) == 0 {
		t.Fatal("ready without a session")
	}
}

// saveMarkerOf lets a move begin at a and loses its destination for good.
func saveMarkerOf(t *testing.T, a *testAgent, p cluster.PartitionID, c *testController, to cluster.NodeID, dest *testAgent) {
	t.Helper()
	dest.stop()
	c.move(t, "orders", p.Index, to)
	eventually(t, "begin", func() error {
		_, err := a.source.Begin(t.Context(), &nodev1.BeginRequest{
			Move:        &nodev1.MoveRef{TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(c.assignment(p).MoveID)},
			Destination: string(to),
		})
		return err
	})
}

func waitMarker(t *testing.T, a *testAgent, p cluster.PartitionID) {
	t.Helper()
	eventually(t, "outbound marker", func() error {
		if !a.source.HasMarker(p) {
			return errors.New("none")
		}
		return nil
	})
}

// The old owner of a deleted topic comes back after the topic was created again: the new data is intact,
// and the old copy goes aside and then away.
func TestC38TopicRecreatedWhileItsOwnerWasDown(t *testing.T) {
	c := startController(t)
	o := agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}}
	a := startAgent(t, o)
	a.waitReady(t)
	old := pid(c.createTopic(t, "orders", 1).ID, 0)
	a.append(t, old, "old")
	a.stop()
	c.deleteTopic(t, "orders")
	fresh := pid(c.createTopic(t, "orders", 1).ID, 0)
	if fresh == old {
		t.Fatal("a topic id was used again")
	}
	a = startAgent(t, o)
	a.append(t, fresh, "new")
	eventually(t, "old copy removed", func() error {
		if left := a.copiesOf(t, old); len(left) > 0 {
			return fmt.Errorf("%+v", left)
		}
		return nil
	})
	if got, err := a.values(fresh); err != nil || !slices.Equal(got, []string{"new"}) {
		t.Fatalf("got %q, %v", got, err)
	}
}

// Packets are dropped without a trace. The agent has its lease again within half of dead_after, through
// another controller, and its watch goes on.
func TestC60DroppedPacketsLeadToAnotherController(t *testing.T) {
	c := startController(t)
	one, two := startNetsplit(t, c.address), startNetsplit(t, c.address)
	a := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{one.address, two.address}, pinned: true})
	a.waitReady(t)
	for i, split := range []*netsplit{one, two, one} {
		split.drop(true)
		start := time.Now()
		topic := c.createTopic(t, fmt.Sprintf("t%d", i), 1)
		waitOwner(t, c, pid(topic.ID, 0), "n1")
		if d := time.Since(start); d > testDeadAfter/2 {
			t.Errorf("round %d: the watch took %s", i, d)
		}
		eventually(t, "lease", func() error {
			if !a.LeaseValid() {
				return errors.New(a.session.Problem())
			}
			return nil
		})
		if d := time.Since(start); d > testDeadAfter/2+testLease {
			t.Errorf("round %d: the lease took %s", i, d)
		}
		split.drop(false)
	}
	if inc, _ := a.Incarnation(); inc != 1 {
		t.Errorf("incarnation %d: the node was declared dead meanwhile", inc)
	}
}

// A node that was cut off for long is declared dead, and comes back with a new incarnation and all its data.
func TestC60LongOutageEndsInANewIncarnation(t *testing.T) {
	c := startController(t)
	split := startNetsplit(t, c.address)
	a := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{split.address}, pinned: true})
	a.waitReady(t)
	p := pid(c.createTopic(t, "orders", 1).ID, 0)
	a.append(t, p, "1")
	split.drop(true)
	eventually(t, "verdict", func() error {
		if c.node("n1").Status != cluster.NodeDead {
			return errors.New("alive")
		}
		return nil
	})
	if a.LeaseValid() {
		t.Fatal("I10: declared dead with a lease")
	}
	// Unmarked partitions go on without a control plane.
	a.append(t, p, "2")
	split.drop(false)
	start := time.Now()
	a.waitReady(t)
	if d := time.Since(start); d > testDeadAfter/2 {
		t.Errorf("back after %s", d)
	}
	if n := c.node("n1"); n.Status != cluster.NodeAlive || n.Incarnation != 2 {
		t.Fatalf("node is %+v", n)
	}
	a.append(t, p, "3")
	if got, err := a.values(p); err != nil || !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Fatalf("got %q, %v", got, err)
	}
}

// A known id with a wiped disk, and a second agent on a copy of the directory, are refused; the first goes on.
func TestC37WipedAndClonedDirectories(t *testing.T) {
	c := startController(t)
	dir := t.TempDir()
	a := startAgent(t, agentOptions{id: "n1", dir: dir, controllers: []string{c.address}})
	a.waitReady(t)
	wiped := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}})
	wantRefusal(t, <-wiped.ended, cluster.ReasonForeignStore, "n1")

	clone := t.TempDir()
	if err := os.CopyFS(filepath.Join(clone, dbDir), os.DirFS(filepath.Join(dir, dbDir))); err != nil {
		t.Fatal(err)
	}
	twin := startAgent(t, agentOptions{id: "n1", dir: clone, controllers: []string{c.address}})
	eventually(t, "refusal", func() error {
		if p := twin.session.Problem(); !strings.Contains(p, "is alive at "+a.address) {
			return errors.New(p)
		}
		return nil
	})
	if _, registered := twin.Incarnation(); registered {
		t.Fatal("the twin is registered")
	}
	if inc, ok := a.Incarnation(); inc != 1 || !ok || !a.LeaseValid() {
		t.Fatalf("the first agent lost its session: incarnation %d, %v", inc, ok)
	}
}

// A decommissioned agent stops for good, and a restart does not let it join again.
func TestC40DecommissionedAgentStops(t *testing.T) {
	c := startController(t)
	o := agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}}
	a := startAgent(t, o)
	a.waitReady(t)
	p := pid(c.createTopic(t, "orders", 1).ID, 0)
	a.append(t, p, "1")
	b := startAgent(t, agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}})
	b.waitReady(t)
	eventually(t, "resume planning", func() error {
		_, _, err := c.UpdateSettings(t.Context(), func(s cluster.Settings) cluster.Settings {
			s.RebalancePaused = false
			return s
		}, "")
		return err
	})
	if _, err := c.Decommission(t.Context(), []cluster.NodeID{"n1"}, "", false, ""); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-a.ended:
		if !errors.Is(err, ErrRemoved) {
			t.Fatalf("ended with %v", err)
		}
	case <-time.After(testPatience):
		t.Fatalf("still running; ready: %v, problems %v, node %+v", a.Ready(), a.Problems(), c.node("n1"))
	}
	if got, err := b.values(p); err != nil || !slices.Equal(got, []string{"1"}) {
		t.Fatalf("n2 has %q, %v", got, err)
	}
	a.stop()
	if _, ln, err := newAgent(t, o); !errors.Is(err, ErrRemoved) {
		t.Fatalf("a removed node starts again: %v", err)
	} else {
		_ = ln.Close()
	}
}

// recorder is a salvage's producer that keeps what it gets.
type recorder struct {
	mu  sync.Mutex
	got []string
}

func (r *recorder) Produce(_ context.Context, _ cluster.TopicID, recs []store.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range recs {
		r.got = append(r.got, string(rec.Value))
	}
	return nil
}

func (r *recorder) values() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

var _ transfer.Producer = (*recorder)(nil)

// The source is cut off and declared dead, its copy is force-promoted elsewhere, and it comes back without a
// restart: it serves nothing stale, and what only it has is produced again.
func TestC74C76CutOffSourceIsSalvaged(t *testing.T) {
	c := startController(t)
	split := startNetsplit(t, c.address)
	salvage := &recorder{}
	a := startAgent(t, agentOptions{
		id: "n1", dir: t.TempDir(), controllers: []string{split.address}, pinned: true, plane: Plane{Producer: salvage},
	})
	a.waitReady(t)
	p := pid(c.createTopic(t, "orders", 1).ID, 0)
	b := startAgent(t, agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}})
	b.waitReady(t)
	// The copy takes longer than the verdict, so that no handoff is granted before the split.
	slowly(t, c, a, p)
	w := startWriter(t, p, a, b)
	w.waitFor(t, 50)
	c.move(t, "orders", 0, "n2")
	waitMarker(t, a, p)
	split.drop(true)
	w.waitFor(t, 1)
	waitOwner(t, c, p, "n2")
	w.waitFor(t, 50)
	w.stop()
	split.drop(false)
	a.waitReady(t)
	eventually(t, "salvaged and reclaimed", func() error {
		if left := a.copiesOf(t, p); len(left) > 0 {
			return fmt.Errorf("n1 has %+v, problems %v", left, a.Problems())
		}
		if o := c.outcomes(); len(o) > 0 {
			return fmt.Errorf("outcomes %+v", o)
		}
		return nil
	})
	got, err := b.values(p)
	if err != nil {
		t.Fatal(err)
	}
	if l := lost(w.acked, append(got, salvage.values()...)); len(l) > 0 {
		t.Fatalf("I2: %d of %d acknowledged records are lost: %v", len(l), len(w.acked), l[:min(10, len(l))])
	}
}
