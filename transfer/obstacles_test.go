package transfer_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// C03: a flip that fails for a while, whatever the error, is sent again and the move completes; also when the errors
// outlast the freeze.
func TestC03FlipErrorsPass(t *testing.T) {
	for name, fail := range map[string]error{
		"unreachable": errUnreachable,
		"no leader":   cluster.Errorf(cluster.ReasonNoLeader, "an election"),
		"limit":       cluster.Errorf(cluster.ReasonLimit, "too much at once"),
		"bug":         cluster.Errorf(cluster.ReasonBug, "a handler panicked"),
	} {
		for _, long := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, outlasts the freeze: %t", name, long), func(t *testing.T) {
				p, a, b, topic := pair(t, 1)
				id := cluster.PartitionID{Topic: topic}
				want := fill(t, a, id, "r", 20, 100)
				var asked atomic.Int64
				p.setFault(func(n cluster.NodeID, method string, after bool) error {
					if n != "b" || method != "CompleteMove" || after {
						return nil
					}
					k := asked.Add(1)
					if g := p.assignment(id); k <= 2 || long && g.Granted && g.Handoff == 1 {
						return fail
					}
					return nil
				})
				p.setTarget(id, "b")
				moved(t, p, id, "b")
				checkHolds(t, b, id, want)
				if asked.Load() < 3 {
					t.Errorf("the flip was asked for %d times, and failed twice", asked.Load())
				}
			})
		}
	}
}

// C10, I2: appends that are larger than a segment and slow to sync go on across freezes and the flip. Each is at the
// new owner as a whole when it was acknowledged, and not at all when it was refused; never half.
func TestC10LargeSlowAppendAcrossAFreeze(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileSyncData {
				<-time.After(20 * time.Millisecond)
			}
			return nil
		}))
	}
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	const size = 60 // records of 4 KiB, in segments of 64 KiB
	type attempt struct {
		name string
		err  error
	}
	var mu sync.Mutex
	var attempts []attempt
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				values := make([]string, size)
				name := fmt.Sprintf("big-%d-%d", w, i)
				for k := range values {
					values[k] = fmt.Sprintf("%s-%d-%s", name, k, strings.Repeat("z", 4<<10))
				}
				err := a.append(id, values...)
				mu.Lock()
				attempts = append(attempts, attempt{name, err})
				mu.Unlock()
				if cluster.ReasonOf(err) == cluster.ReasonNotOwner {
					return
				}
				if err != nil {
					<-time.After(time.Millisecond)
				}
			}
		})
	}
	eventually(t, "some are in", func() bool { mu.Lock(); defer mu.Unlock(); return len(attempts) > 4 })
	firstFlipLost(p, id) // so that there are two freezes
	p.setTarget(id, "b")
	moved(t, p, id, "b")
	close(stop)
	wg.Wait()
	checkHolds(t, b, id, nil)
	got, err := b.read(id)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, v := range got {
		count[strings.Join(strings.SplitN(v, "-", 4)[:3], "-")]++
	}
	acked, refused := 0, 0
	for _, x := range attempts {
		switch n, reason := count[x.name], cluster.ReasonOf(x.err); {
		case x.err == nil && n != size:
			t.Errorf("%s was acknowledged and %d of its %d records are there", x.name, n, size)
		case (reason == cluster.ReasonFrozen || reason == cluster.ReasonNotOwner) && n != 0:
			t.Errorf("%s was refused (%v) and %d of its records are there", x.name, x.err, n)
		case n != 0 && n != size:
			t.Errorf("%s (%v): half of it is there, %d of %d", x.name, x.err, n, size)
		case x.err == nil:
			acked++
		default:
			refused++
		}
	}
	if acked == 0 || refused == 0 {
		t.Errorf("%d acknowledged, %d refused: the test showed nothing", acked, refused)
	}
}

// C13, C25: the destination's disk is full, and the controllers can't be reached either while the failure is dealt with.
// The source goes on as the owner, the move says that it is blocked, and it completes by itself when there is room.
func TestC13FullDestinationAndNoLeader(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	var full, leaderless atomic.Bool
	b.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if full.Load() && strings.Contains(op.Path, "staging") &&
				(op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpCreate) {
				leaderless.Store(true)
				return syscall.ENOSPC
			}
			return nil
		}))
	}
	p.setFault(func(n cluster.NodeID, _ string, after bool) error {
		if n == "b" && leaderless.Load() && !after {
			return errUnreachable
		}
		return nil
	})
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want := fill(t, a, id, "r", 50, 1000)
	full.Store(true)
	p.setTarget(id, "b")
	eventually(t, "the move is blocked and says why", func() bool {
		for _, m := range b.mover.Progress() {
			if m.Phase == cluster.PhaseBlocked && strings.Contains(m.LastError, syscall.ENOSPC.Error()) {
				return true
			}
		}
		return false
	})
	want = append(want, fill(t, a, id, "meanwhile", 10, 100)...)
	if got := p.assignment(id); got.Owner != "a" || got.Granted {
		t.Errorf("nothing was copied, and the assignment is %+v", got)
	}
	full.Store(false)
	leaderless.Store(false)
	moved(t, p, id, "b")
	exactly(t, b, id, want)
}

// C13: the install fails on a read-only disk and the controllers are gone when it does: the freeze stays until they are
// back, and then ends without a flip.
func TestC13InstallFailsWithoutALeader(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	var broken, leaderless atomic.Bool
	b.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind == errorfs.OpRename && strings.Contains(op.Path, "staging") {
				leaderless.Store(true)
				return syscall.EROFS
			}
			return nil
		}))
	}
	p.setFault(func(_ cluster.NodeID, _ string, after bool) error {
		if leaderless.Load() && !after {
			return errUnreachable
		}
		return nil
	})
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want := fill(t, a, id, "r", 50, 1000)
	broken.Store(true)
	p.setTarget(id, "b")
	eventually(t, "the install fails", leaderless.Load)
	if err := a.append(id, "frozen"); cluster.ReasonOf(err) != cluster.ReasonFrozen {
		t.Errorf("append while nobody can say whether the flip will come: %v, want FROZEN", err)
	}
	broken.Store(false)
	leaderless.Store(false)
	moved(t, p, id, "b")
	exactly(t, b, id, want)
}

// C14, C09, I6: the destination's disk hangs inside the freeze. What makes no progress keeps no freeze: the source accepts
// again within the TTL and the time to revoke, and the move ends when the disk works again.
func TestC14StuckDrainLetsGo(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	var armed atomic.Bool
	hangs, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed.Load() && strings.Contains(op.Path, "staging") && (op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
				once.Do(func() { close(hangs) })
				<-release
			}
			return nil
		}))
	}
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want := fill(t, a, id, "r", 20, 1000)
	b.observeStart(func(effect string) {
		if effect == "Drain" {
			armed.Store(true)
		}
	})
	p.setTarget(id, "b")
	<-hangs
	stuck := time.Now()
	eventually(t, "the source accepts again", func() bool { return a.append(id, "meanwhile") == nil })
	if took := time.Since(stuck); took > 10*b.settings.HandoffTTL {
		t.Errorf("it took %s, the TTL is %s", took, b.settings.HandoffTTL)
	}
	if g := p.assignment(id); g.Granted && g.Handoff == 1 {
		t.Errorf("it accepts while the grant is live: %+v", g)
	}
	armed.Store(false)
	close(release)
	moved(t, p, id, "b")
	exactly(t, b, id, append(want, "meanwhile"))
}

// C21: retention removes segments, and the log rolls, while they are copied. The copy ends, without a hole, and nothing
// that was removed comes back.
func TestC21RetentionDuringTheCopy(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.segment = 8 << 10
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	fill(t, a, id, "old", 60, 1000)
	l, err := a.store.Log(id)
	if err != nil {
		t.Fatal(err)
	}
	l.SetRetention(time.Hour) // the records are of 1970
	var passes atomic.Int64
	var failed atomic.Value
	b.observeStart(func(effect string) {
		if effect != "CopyPass" && effect != "PrepareHandoff" || passes.Add(1) > 3 {
			return
		}
		_, err := l.Append(t.Context(), recent(30))
		if err := errors.Join(err, a.store.EnforceRetention()); err != nil {
			failed.Store(err)
		}
	})
	p.setTarget(id, "b")
	moved(t, p, id, "b")
	if err, _ := failed.Load().(error); err != nil {
		t.Fatal(err)
	}
	checkHolds(t, b, id, nil)
	lb, err := b.store.Log(id)
	if err != nil {
		t.Fatal(err)
	}
	if lb.LogStart() == 0 || lb.LogStart() != l.LogStart() || lb.HWM() != l.HWM() || passes.Load() < 2 {
		t.Errorf("[%d, %d) at b, [%d, %d) at a when it was frozen, %d passes", lb.LogStart(), lb.HWM(), l.LogStart(), l.HWM(), passes.Load())
	}
	if got, err := b.read(id); err != nil || len(got) != int(lb.HWM()-lb.LogStart()) {
		t.Errorf("%d records of [%d, %d) can be read: %v", len(got), lb.LogStart(), lb.HWM(), err)
	}
}

func recent(n int) []store.Record {
	out := records("recent-"+strings.Repeat("x", 1000), n)
	for i := range out {
		out[i].Time = time.Now().UnixMilli()
	}
	return out
}

// lateDelete is a store of which a deletion arrives late.
type lateDelete struct {
	store.PartitionStore
	asked, release chan struct{}
	once           sync.Once
}

func (s *lateDelete) Delete(p cluster.PartitionID, place store.Place, id store.Identity) error {
	s.once.Do(func() { close(s.asked); <-s.release })
	return s.PartitionStore.Delete(p, place, id)
}

// C77, I9: the source reads that it is neither owner nor target; before it deletes, the partition comes home. The old
// deletion, whenever it arrives, does not hit the new copy, and the old copy is not forgotten for it.
func TestC77DelayedDeletion(t *testing.T) {
	for _, arrived := range []bool{false, true} {
		p, a, b, topic := pair(t, 1)
		id := cluster.PartitionID{Topic: topic}
		want := fill(t, a, id, "r", 30, 100)
		var grace atomic.Int64
		grace.Store(int64(time.Hour))
		a.reclaim.After = func() time.Duration { return time.Duration(grace.Load()) }
		p.setTarget(id, "b")
		moved(t, p, id, "b")
		eventually(t, "closed at a", func() bool { return len(a.source.Ended()) == 1 })
		late := &lateDelete{PartitionStore: a.store, asked: make(chan struct{}), release: make(chan struct{})}
		reclaim := &transfer.Reclaimer{
			Node: "a", Store: late, Control: nodePlane{p, "a"}, Source: a.source, Producer: a,
			After: func() time.Duration { return 0 }, HTTP: a.client, Address: p.address,
			Errors: transfer.Errors{ToWire: apierr.ToConnect, FromWire: apierr.FromConnect},
		}
		done := make(chan error, 1)
		marker := a.source.Ended()[0]
		go func() { _, _, err := reclaim.Step(t.Context(), marker); done <- err }()
		<-late.asked
		want = append(want, fill(t, b, id, "at-b", 10, 100)...)
		if !arrived {
			// The old copy is set aside already, the new one not yet in its place.
			p.setFault(func(n cluster.NodeID, method string, after bool) error {
				if method == "GrantHandoff" && !after {
					return errUnreachable
				}
				return nil
			})
		}
		p.setTarget(id, "a")
		if arrived {
			moved(t, p, id, "a")
		} else {
			staged(t, a)
		}
		close(late.release)
		<-done // an error is right as well: it is tried again
		p.setFault(nil)
		moved(t, p, id, "a")
		exactly(t, a, id, want)
		grace.Store(0)
		eventually(t, "only the new copy is left at home", func() bool {
			copies, err := a.store.Copies()
			return err == nil && len(copies) == 1 && copies[0].Place == store.Active && copies[0].Open
		})
		if err := a.append(id, "still open"); err != nil {
			t.Error(err)
		}
	}
}
