package transfer_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

var errCrash = errors.New("crash")

// fill appends n records of a size and returns them.
func fill(t *testing.T, n *node, id cluster.PartitionID, name string, count, size int) []string {
	t.Helper()
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d-%s", name, i, strings.Repeat("z", size))
	}
	for i := 0; i < count; i += 10 {
		if err := n.append(id, out[i:min(i+10, count)]...); err != nil {
			t.Fatalf("append to %s at %s: %v", id, n.id, err)
		}
	}
	return out
}

func moved(t *testing.T, p *plane, id cluster.PartitionID, to cluster.NodeID) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s at %s: %+v", id, to, p.assignment(id)), func() bool { return p.settled(id, to) })
}

// C07, I5, I7, I8: the destination dies before every single effect of a move, and loses what it had not synced.
// Exactly one owner serves afterwards, nothing acknowledged is lost, and the source lets its copy go.
func TestC07DestinationDiesBeforeEveryEffect(t *testing.T) {
	for k := 0; ; k++ {
		var at atomic.Int64
		var where atomic.Value
		died := make(chan struct{}, 1)
		p := newPlane(t)
		a, b := newNode(t, p, "a"), newNode(t, p, "b")
		b.observe = func(_ cluster.PartitionID, effect string) error {
			if at.Add(1) == int64(k)+1 {
				where.Store(effect)
				died <- struct{}{}
				return errCrash
			}
			return nil
		}
		a.start()
		b.start()
		topic := p.createTopic("t", "a")
		id := cluster.PartitionID{Topic: topic}
		eventually(t, "open", func() bool { return p.assignment(id).Opened })
		want := fill(t, a, id, "r", 150, 1000)
		p.setTarget(id, "b")
		ended := false
		eventually(t, "death or end", func() bool {
			select {
			case <-died:
				ended = true
				return true
			default:
				return p.settled(id, "b") && len(b.mover.Progress()) == 0
			}
		})
		if !ended {
			t.Logf("%d effects", k)
			if k < 12 {
				t.Fatalf("only %d effects", k)
			}
			return
		}
		b.observe = nil
		b.restart()
		moved(t, p, id, "b")
		checkHolds(t, b, id, want)
		if err := b.append(id, "later"); err != nil {
			t.Fatalf("after a death before %v: %v", where.Load(), err)
		}
		eventually(t, "the source lets go", func() bool { return len(a.openPartitions()) == 0 && len(a.source.Marked()) == 0 })
		a.kill()
		b.kill()
	}
}

// C06, C07, I7: the source dies right before and right after it has got its grant, and when frozen. It stays
// frozen until it has registered and read, and the move completes.
func TestC06SourceDiesAroundTheFreeze(t *testing.T) {
	for _, after := range []bool{false, true} {
		p, a, b, topic := pair(t, 1)
		id := cluster.PartitionID{Topic: topic}
		want := fill(t, a, id, "r", 50, 1000)
		struck := make(chan struct{})
		var once atomic.Bool
		p.setFault(func(n cluster.NodeID, method string, aft bool) error {
			if n == "a" && method == "GrantHandoff" && aft == after && once.CompareAndSwap(false, true) {
				close(struck)
				return errUnreachable
			}
			return nil
		})
		p.setTarget(id, "b")
		<-struck
		a.kill()
		a.boot()
		if err := a.append(id, "unfenced"); err == nil {
			t.Fatal("the source accepted an append before it had registered")
		}
		a.register()
		moved(t, p, id, "b")
		checkHolds(t, b, id, want)
	}
}

// C01, I8: the flip commits and its reply is lost, several times. The destination asks again with the same token
// and both copies are kept until it knows.
func TestC01AmbiguousFlip(t *testing.T) {
	for _, after := range []bool{false, true} {
		p, a, b, topic := pair(t, 1)
		id := cluster.PartitionID{Topic: topic}
		want := fill(t, a, id, "r", 50, 100)
		var lost atomic.Int64
		p.setFault(func(n cluster.NodeID, method string, aft bool) error {
			if n == "b" && method == "CompleteMove" && aft == after && lost.Add(1) <= 3 {
				return errUnreachable
			}
			return nil
		})
		p.setTarget(id, "b")
		moved(t, p, id, "b")
		checkHolds(t, b, id, want)
		if lost.Load() < 4 {
			t.Errorf("%d calls of CompleteMove, want the lost ones and one more", lost.Load())
		}
	}
}

// C70, I8: the flip times out and a read says that it is pending. Nothing is rolled back: when the request is
// applied later, the installed copy is there. It is applied here while the destination is dead.
func TestC70DelayedFlipIsApplied(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "r", 50, 100)
	var hold atomic.Bool
	hold.Store(true)
	asked := make(chan struct{}, 100)
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n == "b" && hold.Load() && !after && method != "ReadMove" {
			asked <- struct{}{}
			return errUnreachable
		}
		if n == "a" && method == "RevokeHandoff" && hold.Load() {
			return errUnreachable // I6: it stays frozen meanwhile
		}
		return nil
	})
	move := p.setTarget(id, "b")
	<-asked
	<-asked
	b.kill()
	if err := a.append(id, "during"); err == nil {
		t.Fatal("the source accepts while the flip may come")
	}
	// The request that was on its way is applied now.
	saved, err := b.journal.Load("move/")
	if err != nil || len(saved) != 1 {
		t.Fatalf("journal: %d entries, %v", len(saved), err)
	}
	a2 := p.assignment(id)
	for _, v := range saved {
		st := decodeState(t, v)
		p.must(&storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
			Partition: ref(id), MoveId: uint64(move), Handoff: uint32(a2.Handoff), Nonce: st.Nonce[:],
		}}})
	}
	hold.Store(false)
	b.start()
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	eventually(t, "a closed", func() bool { return len(a.openPartitions()) == 0 })
}

// C02, C05, C09, C81, I6: the destination is silent after the install; the freeze ends by a committed revocation
// and the source accepts again. The late flip is refused, rolled back, and the retry measures from disk.
func TestC05LateFlipIsRefused(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "r", 100, 1000)
	var hold atomic.Bool
	hold.Store(true)
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n == "b" && method == "CompleteMove" && !after && hold.Load() {
			return errUnreachable
		}
		return nil
	})
	move := p.setTarget(id, "b")
	eventually(t, "frozen", func() bool { return a.store.Frozen(id) != nil })
	eventually(t, "thawed after the TTL", func() bool { return a.append(id, "between") == nil })
	if g := p.assignment(id); g.Granted || g.Owner != "a" {
		t.Fatalf("accepted while a grant is live: %+v", g)
	}
	want = append(want, "between")
	hold.Store(false)
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	if o, ok := p.outcome(id, move); ok && o.Handoff < 2 {
		t.Errorf("flipped with handoff %d, want a later one", o.Handoff)
	}
}

// I6: without a control plane the source stays frozen, however long the TTL has passed.
func TestI6NoThawWithoutControlPlane(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "r", 10, 100)
	var down atomic.Bool
	var asked atomic.Int64
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n == "b" && method == "CompleteMove" && !after {
			down.Store(true)
		}
		if down.Load() {
			if n == "a" && method == "RevokeHandoff" && !after {
				asked.Add(1)
			}
			return errUnreachable
		}
		return nil
	})
	p.setTarget(id, "b")
	eventually(t, "several revocations without an answer", func() bool { return asked.Load() > 5 })
	if err := a.append(id, "x"); cluster.ReasonOf(err) != cluster.ReasonFrozen {
		t.Fatalf("append while nothing is known: %v, want FROZEN", err)
	}
	if _, err := a.read(id); err != nil {
		t.Errorf("reads stop in a freeze: %v", err)
	}
	p.setFault(nil)
	moved(t, p, id, "b")
	_ = b
}

// C08, C82: a flip by hand is refused when nothing was granted, and with a guessed nonce.
func TestC08FlipByHand(t *testing.T) {
	p, a, _, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	var grants atomic.Int64
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if method == "CompleteMove" || method == "RevokeHandoff" {
			return errUnreachable
		}
		if method == "GrantHandoff" {
			grants.Add(1)
		}
		return nil
	})
	byHand := func(move cluster.MoveID, h uint32) *cluster.Error {
		return p.apply(&storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
			Partition: ref(id), MoveId: uint64(move), Handoff: h, Nonce: make([]byte, 16),
		}}}).Err
	}
	a.kill()
	move := p.setTarget(id, "b")
	if err := byHand(move, 1); cluster.ReasonOf(err) != cluster.ReasonHandoffRevoked {
		t.Errorf("C08: %v", err)
	}
	a.start()
	eventually(t, "granted", func() bool { return p.assignment(id).Granted })
	if err := byHand(move, 1); cluster.ReasonOf(err) != cluster.ReasonHandoffRevoked {
		t.Errorf("C82: %v", err)
	}
	p.setFault(nil)
	moved(t, p, id, "b")
}

// C12: the same target set, cancelled, and set again at changing points of the copy.
func TestC12SameTargetAgain(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "r", 100, 1000)
	for i := range 6 {
		move := p.setTarget(id, "b")
		var calls atomic.Int64
		eventually(t, "some way into the copy", func() bool {
			return calls.Add(1) > int64(i)
		})
		if p.assignment(id).MoveID != move {
			break // it was faster
		}
		p.cancel(id, move)
		if p.assignment(id).Owner != "a" {
			break // it flipped before the cancellation
		}
		eventually(t, "accepts after the cancellation", func() bool { return a.append(id, fmt.Sprintf("c-%d", i)) == nil })
		want = append(want, fmt.Sprintf("c-%d", i))
	}
	if p.assignment(id).Owner == "a" {
		p.setTarget(id, "b")
	}
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	eventually(t, "no staging is left", func() bool {
		copies, err := b.store.Copies()
		return err == nil && len(copies) == 1 && copies[0].Place == store.Active
	})
	eventually(t, "no marker is left", func() bool { return len(a.source.Marked()) == 0 })
}

// C14: a tail that takes longer than the TTL keeps its freeze, since the destination makes progress.
func TestC14LongDrainKeepsTheFreeze(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.segment = 4 << 20 // one file, so one stream
	b.settings.HandoffTTL = 500 * time.Millisecond
	b.settings.LagBytes = 64 << 20
	b.settings.MaxPasses, b.settings.StallPasses = 1, 1
	var frozen atomic.Bool
	a.wrap = func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if frozen.Load() && strings.HasPrefix(r.URL.Path, transfer.BulkPath) {
				w = &slowWriter{ResponseWriter: w, every: 60 * time.Millisecond}
			}
			h.ServeHTTP(w, r)
			if strings.HasSuffix(r.URL.Path, "/PrepareHandoff") {
				frozen.Store(true)
			}
		})
	}
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want := fill(t, a, id, "r", 10, 1000)
	// The first pass sees ten records; what comes while it runs is the tail.
	var once atomic.Bool
	b.observeStart(func(effect string) {
		if effect == "PrepareHandoff" && once.CompareAndSwap(false, true) {
			want = append(want, fill(t, a, id, "tail", 120, 10000)...)
		}
	})
	p.setTarget(id, "b")
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	rec := p.record(p.lastMove())
	if rec.Stats.Freeze < 2*b.settings.HandoffTTL {
		t.Errorf("the freeze took %s: the test did not stretch it beyond the TTL of %s", rec.Stats.Freeze, b.settings.HandoffTTL)
	}
	if rec.Stats.Attempts != 1 {
		t.Errorf("%d attempts, want 1: the freeze was lost", rec.Stats.Attempts)
	}
}

func (p *plane) lastMove() (id cluster.MoveID) {
	for i := cluster.MoveID(1); i < 1000; i++ {
		if p.record(i).MoveID == i {
			id = i
		}
	}
	return id
}

// slowWriter sends small pieces with pauses.
type slowWriter struct {
	http.ResponseWriter
	every time.Duration
}

func (w *slowWriter) Write(b []byte) (int, error) {
	total := 0
	for len(b) > 0 {
		n := min(len(b), 32<<10)
		<-time.After(w.every)
		k, err := w.ResponseWriter.Write(b[:n])
		total += k
		if err != nil {
			return total, err
		}
		b = b[n:]
	}
	return total, nil
}

// observeStart sets a hook for a running node, which reads it at every effect.
func (n *node) observeStart(f func(effect string)) { n.hook.Store(&f) }
