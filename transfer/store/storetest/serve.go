package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func testCreate(t *testing.T, f Factory) {
	in := f(t, small())
	must(t, in.Store.Create(part, topicID))
	must(t, in.Store.Create(part, topicID)) // the same again
	refused(t, "a copy of another identity in the place", in.Store.Create(part, 99))
	c := find(t, in, part, store.Active)
	equal(t, "the copy", *c, store.Copy{Partition: part, Place: store.Active, Identity: topicID})
}

func testOpen(t *testing.T, f Factory) {
	in := f(t, small())
	_, err := in.Append(context.Background(), part, records(0, 1))
	wantReason(t, err, cluster.ReasonNotOwner)
	refused(t, "opening what is not there", in.Store.Open(part, 1))
	must(t, in.Store.Close(part)) // what is not open
	must(t, in.Store.Create(part, topicID))
	must(t, in.Store.Open(part, 1))
	must(t, in.Store.Open(part, 2)) // again
	all := fill(t, in, part, 0, 25)
	equal(t, "records", readAll(t, in, part, 0), all)
	if c := find(t, in, part, store.Active); !c.Open || c.Bytes == 0 {
		t.Fatalf("got copy %+v, want it open and with bytes", *c)
	}
	must(t, in.Store.Close(part))
	must(t, in.Store.Close(part))
	_, err = in.Append(context.Background(), part, records(25, 1))
	wantReason(t, err, cluster.ReasonNotOwner)
	must(t, in.Store.Open(part, 3))
	equal(t, "records after closing and opening", readAll(t, in, part, 0), all)
	fill(t, in, part, 25, 10)
}

// testRestart: I2, I3: what was acknowledged is visible after a restart and after a power cut.
func testRestart(t *testing.T, f Factory) {
	in, all := served(t, f, small(), 200)
	must(t, in.Commit(part, "g", 17))
	for i := range 4 {
		next := in.Restart
		if i%2 == 1 && in.Crash != nil {
			next = in.Crash
		}
		in = next(t)
		must(t, in.Store.Open(part, 2))
		equal(t, "records after a restart", readAll(t, in, part, 0), all)
		if off, ok := in.Committed(part, "g"); !ok || off != 17 {
			t.Fatalf("got committed offset %d, %v after a restart, want 17", off, ok)
		}
		all = append(all, fill(t, in, part, len(all), 30)...)
	}
}

func testManifest(t *testing.T, f Factory) {
	in, all := served(t, f, small(), 200)
	must(t, in.Commit(part, "b", 5))
	must(t, in.Commit(part, "a", 150))
	m := manifest(t, in, part)
	equal(t, "LEO", m.LEO, cluster.Offset(len(all)))
	equal(t, "HWM", m.HWM, cluster.Offset(len(all)))
	equal(t, "log start", m.LogStart, 0)
	equal(t, "groups", m.Groups, []store.GroupOffset{{Group: "a", Offset: 150}, {Group: "b", Offset: 5}})
	if len(m.Files) < 3 {
		t.Fatalf("got %d files, want several, for the rest of the suite to mean something", len(m.Files))
	}
	for i, file := range m.Files {
		last := i == len(m.Files)-1
		if file.Sealed == last {
			t.Fatalf("file %d of %d: sealed is %v", i, len(m.Files), file.Sealed)
		}
		if i > 0 && file.BaseOffset <= m.Files[i-1].BaseOffset {
			t.Fatalf("files are not ordered: %d after %d", file.BaseOffset, m.Files[i-1].BaseOffset)
		}
		equal(t, "digests of "+file.Name, file.Blocks, digests(content(t, in, part, file)))
	}
	end := all[len(all)-1].Time
	equal(t, "newest record time", m.Files[len(m.Files)-1].LastRecordTime, end)
	// Digests and identities of sealed files outlive a restart.
	in = in.Restart(t)
	must(t, in.Store.Open(part, 1))
	again := manifest(t, in, part)
	equal(t, "manifest after a restart", again, m)
}

func testManifestKnown(t *testing.T, f Factory) {
	in, _ := served(t, f, small(), 200)
	m := manifest(t, in, part)
	fill(t, in, part, 200, 1)
	k, err := in.Store.Manifest(part, m.Files)
	must(t, err)
	for i, file := range k.Files {
		if file.Sealed && file.Blocks != nil {
			t.Logf("file %s is known, and its digests are listed all the same", file.Name)
		}
		if i < len(m.Files) && file.Size != m.Files[i].Size && file.Blocks == nil {
			t.Fatalf("file %s has another size, and no digests", file.Name)
		}
		// The same name and size under another identity is another file.
		changed := file
		changed.Identity += "x"
		n, err := in.Store.Manifest(part, []store.File{changed})
		must(t, err)
		if n.Files[i].Blocks == nil {
			t.Fatalf("file %s of another identity has no digests", file.Name)
		}
	}
}

func testFreeze(t *testing.T, f Factory) {
	in, all := served(t, f, small(), 50)
	ctx := context.Background()
	token := store.FreezeToken{MoveID: 11, Handoff: 1}
	must(t, in.Store.Freeze(ctx, part, token))
	_, err := in.Append(ctx, part, records(50, 1))
	wantReason(t, err, cluster.ReasonFrozen)
	if e := cluster.AsError(err); e.MoveID != 11 || e.Handoff != 1 {
		t.Fatalf("got %+v, want move 11, handoff 1", e)
	}
	before := manifest(t, in, part)
	equal(t, "records during a freeze", readAll(t, in, part, 0), all)
	must(t, in.Commit(part, "g", 20)) // goes on
	after := manifest(t, in, part)
	equal(t, "groups", after.Groups, []store.GroupOffset{{Group: "g", Offset: 20}})
	before.Groups, after.Groups = nil, nil
	equal(t, "manifest", after, before)
	must(t, in.Store.Thaw(part, token))
	fill(t, in, part, 50, 5)
}

// testFreezeUnderLoad: C04: an append that is under way at the freeze is in the manifest, or refused.
func testFreezeUnderLoad(t *testing.T, f Factory) {
	in, _ := served(t, f, small(), 10)
	ctx := context.Background()
	for round := range 20 {
		var acked atomic.Uint64 // highest end of an acknowledged append
		var wg sync.WaitGroup
		started := make(chan struct{}, 8)
		for range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					off, err := in.Append(ctx, part, records(0, 3))
					if i == 0 {
						started <- struct{}{}
					}
					if err != nil {
						if cluster.ReasonOf(err) != cluster.ReasonFrozen {
							t.Errorf("append: %v", err)
						}
						return
					}
					for end := uint64(off) + 3; ; {
						old := acked.Load()
						if end <= old || acked.CompareAndSwap(old, end) {
							break
						}
					}
				}
			})
		}
		<-started
		token := store.FreezeToken{MoveID: 11, Handoff: cluster.Handoff(round + 1)}
		must(t, in.Store.Freeze(ctx, part, token))
		m := manifest(t, in, part)
		wg.Wait()
		if uint64(m.HWM) != acked.Load() || m.LEO != m.HWM {
			t.Fatalf("round %d: the manifest ends at %d (LEO %d), acknowledged is up to %d", round, m.HWM, m.LEO, acked.Load())
		}
		equal(t, "manifest after all appends returned", manifest(t, in, part), m)
		must(t, in.Store.Thaw(part, token))
	}
}

func testFreezeTokens(t *testing.T, f Factory) {
	in, _ := served(t, f, small(), 5)
	ctx := context.Background()
	first, second := store.FreezeToken{MoveID: 11, Handoff: 1}, store.FreezeToken{MoveID: 11, Handoff: 2}
	if in.Store.Frozen(part) != nil {
		t.Fatal("frozen from the start")
	}
	must(t, in.Store.Freeze(ctx, part, first))
	must(t, in.Store.Freeze(ctx, part, first))
	must(t, in.Store.Freeze(ctx, part, second)) // replaces
	must(t, in.Store.Thaw(part, first))         // Invariant I6: not the present one: changes nothing
	equal(t, "token", in.Store.Frozen(part), &second)
	_, err := in.Append(ctx, part, records(5, 1))
	wantReason(t, err, cluster.ReasonFrozen)
	must(t, in.Store.Open(part, 4)) // does not thaw
	equal(t, "token after Open", in.Store.Frozen(part), &second)
	must(t, in.Store.Thaw(part, second))
	fill(t, in, part, 5, 1)
	_, err = in.Store.Manifest(other, nil)
	wantReason(t, err, cluster.ReasonNotOwner)
	refused(t, "freezing what is not open", in.Store.Freeze(ctx, other, first))
	must(t, in.Store.Thaw(other, first))
	if in.Store.Frozen(other) != nil {
		t.Fatal("what is not open is frozen")
	}
}

func testOpenFrozen(t *testing.T, f Factory) {
	in, all := served(t, f, small(), 20)
	in = in.Restart(t)
	token := store.FreezeToken{MoveID: 12}
	must(t, in.Store.OpenFrozen(part, 2, token))
	_, err := in.Append(context.Background(), part, records(20, 1))
	wantReason(t, err, cluster.ReasonFrozen)
	equal(t, "records", readAll(t, in, part, 0), all)
	equal(t, "token", in.Store.Frozen(part), &token)
	must(t, in.Store.Thaw(part, token))
	fill(t, in, part, 20, 1)
}

// testLease: I10: with an outbound marker nothing is acknowledged without a lease; what was written stays hidden.
func testLease(t *testing.T, f Factory) {
	var lease atomic.Int64 // how many more checks succeed
	o := small()
	o.Lease = func() bool { return lease.Add(-1) >= 0 }
	in, all := served(t, f, o, 20) // no marker: the lease is not asked for
	ctx := context.Background()
	in.Store.SetOutbound(part, true)
	_, err := in.Append(ctx, part, records(20, 1))
	wantReason(t, err, cluster.ReasonNoLeader)
	lease.Store(1 << 40)
	all = append(all, fill(t, in, part, 20, 1)...)
	// However the store asks: with k successes before the lease runs out, an append is acknowledged and
	// visible, or neither.
	for k := range int64(4) {
		lease.Store(k)
		_, err = in.Append(ctx, part, records(len(all), 1))
		acked := err == nil
		lease.Store(1 << 40)
		if acked {
			all = append(all, records(len(all), 1)...)
		}
		equal(t, "visible records", readAll(t, in, part, 0), all)
	}
	in.Store.SetOutbound(part, false)
	lease.Store(0)
	all = append(all, fill(t, in, part, len(all), 1)...)
	equal(t, "visible records", readAll(t, in, part, 0), all)
}

// hideTail leaves one synced record above the HWM, by a lease that runs out during the append.
func hideTail(t *testing.T, f Factory, n int) (*Instance, []store.Record) {
	t.Helper()
	var checks, valid atomic.Int64
	o := small()
	o.Lease = func() bool { return checks.Add(1) <= valid.Load() }
	in, all := served(t, f, o, n)
	for k := range int64(8) {
		in.Store.SetOutbound(part, true)
		checks.Store(0)
		valid.Store(k)
		_, err := in.Append(context.Background(), part, records(n, 1))
		in.Store.SetOutbound(part, false)
		if err == nil {
			break
		}
		if m := manifest(t, in, part); m.LEO > m.HWM {
			return in, all
		}
	}
	t.Fatal("no append was synced and then refused for the lease: is it checked after the sync?")
	return nil, nil
}

// testHiddenTail: I3: a hidden tail stays hidden through restarts and moves, and its offsets are given anew.
func testHiddenTail(t *testing.T, f Factory) {
	src, all := hideTail(t, f, 60)
	n := cluster.Offset(len(all))
	was := manifest(t, src, part)
	equal(t, "HWM", was.HWM, n)
	src = src.Restart(t)
	must(t, src.Store.Open(part, 2))
	equal(t, "visible after a restart", readAll(t, src, part, 0), all)
	dst := f(t, small())
	m := move(t, src, dst, 21)
	equal(t, "LEO and HWM", []cluster.Offset{m.LEO, m.HWM}, []cluster.Offset{n + 1, n})
	must(t, dst.Store.ConfirmFlip(part, 21))
	dst = dst.Restart(t)
	must(t, dst.Store.Open(part, 3))
	equal(t, "visible after the move", readAll(t, dst, part, 0), all)
	next := store.Record{Offset: n, Time: 5, Value: []byte("in its place")}
	off, err := dst.Append(context.Background(), part, []store.Record{next})
	must(t, err)
	equal(t, "offset", off, n)
	all = append(all, next)
	dst = dst.Restart(t)
	must(t, dst.Store.Open(part, 3))
	equal(t, "visible after the tail was cut", readAll(t, dst, part, 0), all)

	// At the source, too; and the file is another one then.
	must(t, src.Store.Thaw(part, store.FreezeToken{MoveID: 21, Handoff: 1}))
	_, err = src.Append(context.Background(), part, []store.Record{next})
	must(t, err)
	now := manifest(t, src, part)
	if a, b := was.Files[len(was.Files)-1], now.Files[len(now.Files)-1]; a.Name == b.Name && a.Identity == b.Identity {
		t.Fatalf("file %s has the identity %s before and after its tail was cut and written anew", a.Name, a.Identity)
	}
}

// testRetention: C21: what retention removes is gone from the manifest, and a reader that has it open goes on.
func testRetention(t *testing.T, f Factory) {
	now := int64(1000)
	o := small()
	o.Clock = func() time.Time { return time.UnixMilli(now) }
	in, all := served(t, f, o, 200)
	before := manifest(t, in, part)
	first := before.Files[0]
	b := content(t, in, part, first)
	open, err := in.Store.OpenFile(part, first.Name)
	must(t, err)
	// The first two files are older than half a second.
	now = before.Files[1].LastRecordTime + 501
	must(t, in.Commit(part, "g", 1))
	must(t, in.Expire(part, 500*time.Millisecond))
	m := manifest(t, in, part)
	equal(t, "log start", m.LogStart, before.Files[2].BaseOffset)
	equal(t, "files", m.Files, before.Files[2:])
	equal(t, "records", readAll(t, in, part, 0), all[m.LogStart:])
	equal(t, "a committed offset below the log start", m.Groups, []store.GroupOffset{{Group: "g", Offset: m.LogStart}})
	got := make([]byte, len(b))
	if n, err := open.ReadAt(got, 0); n < len(b) {
		t.Fatalf("read of a removed file: %d bytes, %v", n, err)
	}
	equal(t, "the removed file", got, b)
	must(t, open.Close())
	_, err = in.Store.OpenFile(part, first.Name)
	wantReason(t, err, cluster.ReasonNotFound)
	// The final manifest does not change.
	must(t, in.Store.Freeze(context.Background(), part, store.FreezeToken{MoveID: 5, Handoff: 1}))
	now += 1 << 30
	must(t, in.Expire(part, time.Millisecond))
	equal(t, "manifest during a freeze", manifest(t, in, part), m)
	dst := f(t, small())
	move(t, in, dst, 5)
	must(t, dst.Store.ConfirmFlip(part, 5))
	must(t, dst.Store.Open(part, 2))
	equal(t, "records at the destination", readAll(t, dst, part, 0), all[m.LogStart:])
	equal(t, "log start at the destination", manifest(t, dst, part).LogStart, m.LogStart)
	in = in.Restart(t)
	must(t, in.Store.Open(part, 2))
	equal(t, "log start after a restart", manifest(t, in, part).LogStart, m.LogStart)
}

// testRetentionClock: C22: records that are moved don't get younger.
func testRetentionClock(t *testing.T, f Factory) {
	src, all := served(t, f, small(), 200)
	o := small()
	o.Clock = func() time.Time { return time.UnixMilli(all[100].Time + 1000) }
	dst := f(t, o)
	m := move(t, src, dst, 9)
	must(t, dst.Store.ConfirmFlip(part, 9))
	must(t, dst.Store.Open(part, 2))
	must(t, dst.Expire(part, time.Second))
	got := manifest(t, dst, part)
	want := m.Files[0].BaseOffset
	for i := 0; i+1 < len(m.Files) && m.Files[i].LastRecordTime < all[100].Time; i++ {
		want = m.Files[i+1].BaseOffset
	}
	equal(t, "log start", got.LogStart, want)
	if want == 0 {
		t.Fatal("nothing was old")
	}
}

func testGroupsTravel(t *testing.T, f Factory) {
	src, _ := served(t, f, small(), 100)
	must(t, src.Commit(part, "a", 100))
	must(t, src.Commit(part, "b", 33))
	must(t, src.Commit(part, "c", 1000)) // beyond the HWM
	dst := f(t, small())
	m := move(t, src, dst, 9)
	want := []store.GroupOffset{{Group: "a", Offset: 100}, {Group: "b", Offset: 33}, {Group: "c", Offset: 100}}
	equal(t, "groups in the manifest", m.Groups, want)
	must(t, dst.Store.ConfirmFlip(part, 9))
	dst = dst.Restart(t)
	must(t, dst.Store.Open(part, 2))
	equal(t, "groups at the destination", manifest(t, dst, part).Groups, want)
}

// testCloseUnderLoad is part of testCopies: waiting appends end when the copy is closed.
func closeUnderLoad(t *testing.T, in *Instance) {
	t.Helper()
	var wg sync.WaitGroup
	started := make(chan struct{}, 4)
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				_, err := in.Append(context.Background(), part, records(0, 1))
				if i == 0 {
					started <- struct{}{}
				}
				if err != nil {
					if !errors.Is(err, &cluster.Error{Reason: cluster.ReasonNotOwner}) {
						t.Errorf("append to a closed copy: %v", err)
					}
					return
				}
			}
		})
	}
	<-started
	must(t, in.Store.Close(part))
	wg.Wait()
}
