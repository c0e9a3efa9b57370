package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func testInstall(t *testing.T, f Factory) {
	ctx := context.Background()
	src, all := served(t, f, small(), 100)
	dst := f(t, small())
	refused(t, "a rollback of nothing", dst.Store.Rollback(part, 5))
	refused(t, "a confirmation of nothing", dst.Store.ConfirmFlip(part, 5))
	m := move(t, src, dst, 5)
	for range 2 {
		c := find(t, dst, part, store.Active)
		if c == nil || c.Pending == nil || *c.Pending != (store.Pending{MoveID: 5, Handoff: 1}) || c.Identity != 5 || c.Open {
			t.Fatalf("got copy %+v, want the pending one of move 5", c)
		}
		refused(t, "opening a pending copy", dst.Store.Open(part, 2))
		refused(t, "opening a pending copy frozen", dst.Store.OpenFrozen(part, 2, store.FreezeToken{MoveID: 6}))
		refused(t, "rolling back another move", dst.Store.Rollback(part, 6))
		refused(t, "confirming another move", dst.Store.ConfirmFlip(part, 6))
		dst = dst.Restart(t)
	}
	// Back to staging: the bytes are there, and can be used again (C02).
	must(t, dst.Store.Rollback(part, 5))
	must(t, dst.Store.Rollback(part, 5))
	if find(t, dst, part, store.Active) != nil || find(t, dst, part, store.Staged) == nil {
		t.Fatalf("after a rollback: %+v", copies(t, dst))
	}
	dst = dst.Restart(t)
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	equal(t, "staged files after a rollback", len(st.Files()), len(m.Files))
	_, err = st.Finalize(ctx, m)
	must(t, err)
	refused(t, "a marker of another move", st.Install(store.Pending{MoveID: 6, Handoff: 2}))
	must(t, st.Install(store.Pending{MoveID: 5, Handoff: 2}))
	equal(t, "marker", find(t, dst, part, store.Active).Pending, &store.Pending{MoveID: 5, Handoff: 2})
	must(t, dst.Store.ConfirmFlip(part, 5))
	must(t, dst.Store.ConfirmFlip(part, 5))
	refused(t, "rolling back a confirmed copy", dst.Store.Rollback(part, 5))
	must(t, dst.Store.Open(part, 2))
	equal(t, "records", readAll(t, dst, part, 0), all)

	// An active copy of another identity is in the way.
	st, err = dst.Store.Stage(ctx, part, 8)
	must(t, err)
	pull(t, src, st, m)
	_, err = st.Finalize(ctx, m)
	must(t, err)
	refused(t, "installing over another copy", st.Install(store.Pending{MoveID: 8, Handoff: 1}))
	equal(t, "records", readAll(t, dst, part, 0), all)
	must(t, dst.Store.Quarantine(part, 5))
	must(t, st.Install(store.Pending{MoveID: 8, Handoff: 1}))
	must(t, dst.Store.ConfirmFlip(part, 8))
	must(t, dst.Store.Open(part, 3))
	equal(t, "records", readAll(t, dst, part, 0), all)
}

func testQuarantine(t *testing.T, f Factory) {
	in, all := hideTail(t, f, 100)
	m := manifest(t, in, part)
	refused(t, "another identity", in.Store.Quarantine(part, 99))
	must(t, in.Store.Quarantine(part, topicID))
	must(t, in.Store.Quarantine(part, topicID))
	_, err := in.Append(context.Background(), part, records(0, 1))
	wantReason(t, err, cluster.ReasonNotOwner)
	refused(t, "opening what is in quarantine", in.Store.Open(part, 2))
	in = in.Restart(t)
	c := find(t, in, part, store.Quarantined)
	equal(t, "copy", *c, store.Copy{Partition: part, Place: store.Quarantined, Identity: topicID, Bytes: m.Bytes()})
	all = append(all, records(len(all), 1)...) // with the hidden tail
	for _, from := range []int{0, 55, len(all)} {
		var got []store.Record
		must(t, in.Store.ReadQuarantined(part, topicID, cluster.Offset(from), func(r store.Record) error {
			got = append(got, r)
			return nil
		}))
		if len(got) != len(all)-from {
			t.Fatalf("%d records from %d on, want %d", len(got), from, len(all)-from)
		}
		for i := range got {
			equal(t, "record", got[i], all[from+i])
		}
	}
	stop := errors.New("stop")
	n := 0
	err = in.Store.ReadQuarantined(part, topicID, 0, func(store.Record) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Fatalf("got %v after %d records, want the callback's error after one", err, n)
	}
	q, err := in.Store.QuarantinedManifest(part, topicID)
	must(t, err)
	equal(t, "manifest", q, m)
	refused(t, "reading another identity", in.Store.ReadQuarantined(part, 99, 0, func(store.Record) error { return nil }))
	// Its place is free.
	must(t, in.Store.Create(part, 44))
	must(t, in.Store.Open(part, 3))
	fill(t, in, part, 0, 3)
	must(t, in.Store.Delete(part, store.Quarantined, topicID))
	must(t, in.Store.Delete(part, store.Quarantined, topicID))
	if find(t, in, part, store.Quarantined) != nil {
		t.Fatal("the quarantined copy is there after it was deleted")
	}
	equal(t, "records of the new copy", readAll(t, in, part, 0), records(0, 3))
}

// testDelete: I9, C44, C77: a late deletion of an old copy does not hit the one that took its place.
func testDelete(t *testing.T, f Factory) {
	src, _ := served(t, f, small(), 50)
	dst, _ := served(t, f, small(), 50)
	must(t, dst.Store.Delete(part, store.Active, topicID))
	must(t, dst.Store.Delete(part, store.Active, topicID))
	_, err := dst.Append(context.Background(), part, records(0, 1))
	wantReason(t, err, cluster.ReasonNotOwner)
	move(t, src, dst, 5)
	refused(t, "deleting the copy that was there before", dst.Store.Delete(part, store.Active, topicID))
	must(t, dst.Store.ConfirmFlip(part, 5))
	must(t, dst.Store.Open(part, 2))
	refused(t, "deleting the copy that was there before", dst.Store.Delete(part, store.Active, topicID))
	equal(t, "records", readAll(t, dst, part, 0), records(0, 50))
	must(t, dst.Store.Delete(part, store.Active, 5))
	if dst.Crash != nil {
		dst = dst.Crash(t)
	}
	equal(t, "copies", copies(t, dst), nil)
	must(t, dst.Store.Create(part, 77))
	must(t, dst.Store.Open(part, 3))
	equal(t, "records of a new copy", readAll(t, dst, part, 0), nil)
}

// testPowerCut: C20, C83: the power goes after each step that is durable.
func testPowerCut(t *testing.T, f Factory) {
	ctx := context.Background()
	src, all := served(t, f, small(), 120)
	if src.Crash == nil {
		src.Crash = src.Restart
	}
	dst := f(t, small())
	if dst.Crash == nil {
		dst.Crash = dst.Restart
	}
	cut := func(in *Instance) *Instance {
		if in.Crash == nil {
			return in.Restart(t)
		}
		return in.Crash(t)
	}
	must(t, src.Store.Freeze(ctx, part, store.FreezeToken{MoveID: 5, Handoff: 1}))
	m := manifest(t, src, part)
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	for _, file := range m.Files {
		must(t, st.SyncAndCompare(ctx, file))
	}
	dst = cut(dst)
	st, err = dst.Store.Stage(ctx, part, 5)
	must(t, err)
	equal(t, "files that were compared, after a power cut", len(st.Files()), len(m.Files))
	_, err = st.Finalize(ctx, m)
	must(t, err)
	must(t, st.Install(store.Pending{MoveID: 5, Handoff: 1}))
	dst = cut(dst)
	equal(t, "copies after an install and a power cut", copies(t, dst), []store.Copy{{
		Partition: part, Place: store.Active, Identity: 5, Pending: &store.Pending{MoveID: 5, Handoff: 1}, Bytes: m.Bytes(),
	}})
	must(t, dst.Store.Rollback(part, 5))
	dst = cut(dst)
	equal(t, "copies after a rollback and a power cut", copies(t, dst), []store.Copy{{
		Partition: part, Place: store.Staged, Identity: 5, Bytes: m.Bytes(),
	}})
	st, err = dst.Store.Stage(ctx, part, 5)
	must(t, err)
	_, err = st.Finalize(ctx, m)
	must(t, err)
	must(t, st.Install(store.Pending{MoveID: 5, Handoff: 2}))
	must(t, dst.Store.ConfirmFlip(part, 5))
	dst = cut(dst)
	must(t, dst.Store.Open(part, 2))
	equal(t, "records after a flip and a power cut", readAll(t, dst, part, 0), all)
	more := fill(t, dst, part, 120, 30)
	dst = cut(dst)
	must(t, dst.Store.Open(part, 2))
	equal(t, "acknowledged records after a power cut", readAll(t, dst, part, 0), append(all, more...))
	must(t, dst.Store.Quarantine(part, 5))
	dst = cut(dst)
	if c := copies(t, dst); len(c) != 1 || c[0].Place != store.Quarantined {
		t.Fatalf("copies after a quarantine and a power cut: %+v", c)
	}
	must(t, dst.Store.Create(other, topicID))
	dst = cut(dst)
	must(t, dst.Store.Open(other, 1))
}

func testCopies(t *testing.T, f Factory) {
	ctx := context.Background()
	in := f(t, small())
	equal(t, "copies of an empty store", copies(t, in), nil)
	must(t, in.Store.Create(other, topicID))
	must(t, in.Store.Create(part, topicID))
	must(t, in.Store.Quarantine(part, topicID))
	must(t, in.Store.Create(part, 9))
	st, err := in.Store.Stage(ctx, part, 12)
	must(t, err)
	must(t, st.Close())
	st, err = in.Store.Stage(ctx, part, 10)
	must(t, err)
	must(t, st.Close())
	must(t, in.Store.Open(part, 1))
	want := []store.Copy{
		{Partition: part, Place: store.Active, Identity: 9, Open: true},
		{Partition: part, Place: store.Staged, Identity: 10},
		{Partition: part, Place: store.Staged, Identity: 12},
		{Partition: part, Place: store.Quarantined, Identity: topicID},
		{Partition: other, Place: store.Active, Identity: topicID},
	}
	equal(t, "copies", copies(t, in), want)
	in = in.Restart(t)
	want[0].Open = false
	equal(t, "copies after a restart", copies(t, in), want)
	must(t, in.Store.Open(part, 1))
	closeUnderLoad(t, in)
}
