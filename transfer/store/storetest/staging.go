package storetest

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func digests(b []byte) []uint64 {
	var out []uint64
	for at := 0; at < len(b); at += store.BlockSize {
		out = append(out, xxh3.Hash(b[at:min(at+store.BlockSize, len(b))]))
	}
	return out
}

func testMove(t *testing.T, f Factory) {
	src, all := served(t, f, small(), 200)
	must(t, src.Commit(part, "g", 77))
	dst := f(t, small())
	m := move(t, src, dst, 31)
	must(t, dst.Store.ConfirmFlip(part, 31))
	must(t, dst.Store.Open(part, 2))
	equal(t, "records", readAll(t, dst, part, 0), all)
	got := manifest(t, dst, part)
	for i := range got.Files {
		equal(t, "file "+got.Files[i].Name, content(t, dst, part, got.Files[i]), content(t, src, part, m.Files[i]))
		got.Files[i].Identity = m.Files[i].Identity // each copy names its own
	}
	equal(t, "manifest", got, m)
	fill(t, dst, part, 200, 100)
	dst = dst.Restart(t)
	must(t, dst.Store.Open(part, 2))
	equal(t, "records", readAll(t, dst, part, 0), records(0, 300))
}

// testSmallPartitions: C23.
func testSmallPartitions(t *testing.T, f Factory) {
	for n := range 2 {
		src, all := served(t, f, small(), n)
		dst := f(t, small())
		m := move(t, src, dst, 31)
		equal(t, "LEO", m.LEO, cluster.Offset(n))
		must(t, dst.Store.ConfirmFlip(part, 31))
		if dst.Crash != nil {
			dst = dst.Crash(t)
		}
		must(t, dst.Store.Open(part, 2))
		equal(t, "records", readAll(t, dst, part, 0), all)
		fill(t, dst, part, n, 3)
	}
}

func testStagingWrites(t *testing.T, f Factory) {
	src, _ := served(t, f, small(), 100)
	m := manifest(t, src, part)
	file := m.Files[0]
	b := content(t, src, part, file)
	dst := f(t, small())
	st, err := dst.Store.Stage(context.Background(), part, 5)
	must(t, err)
	_, err = dst.Store.Stage(context.Background(), part, 5)
	refused(t, "a second holder of one staging", err)
	refused(t, "dropping a staging in use", dst.Store.DropStaging(part, 5))
	refused(t, "a write past the end", st.Write(file.Name, 10, b))
	refused(t, "a path as a name", st.Write("../"+file.Name, 0, b))
	must(t, st.Write(file.Name, 0, b[:1001]))
	refused(t, "a write before the end", st.Write(file.Name, 1000, b[1000:]))
	must(t, st.Write(file.Name, 1001, b[1001:1003]))
	equal(t, "digests within a frame", st.Files()[0].Blocks, digests(b[:1003]))
	// A byte of the frame that is half written is bad: it goes, with its first half.
	bad := bytes.Clone(b[1003:])
	bad[0] ^= 1
	err = st.Write(file.Name, 1003, bad)
	wantReason(t, err, cluster.ReasonCorrupt)
	if !strings.Contains(err.Error(), file.Name) {
		t.Fatalf("error %q does not name the file %s", err, file.Name)
	}
	have := st.Files()[0]
	if have.Size > 1003 {
		t.Fatalf("%d bytes are staged, of which 1003 were good", have.Size)
	}
	equal(t, "digests after a bad write", have.Blocks, digests(b[:have.Size]))
	must(t, st.Write(file.Name, int64(have.Size), b[have.Size:]))
	must(t, st.SyncAndCompare(context.Background(), file))
	// Good frames before a bad one are kept.
	must(t, st.Truncate(file.Name, 0))
	bad = bytes.Clone(b)
	bad[len(bad)-1] ^= 1
	wantReason(t, st.Write(file.Name, 0, bad), cluster.ReasonCorrupt)
	kept := st.Files()[0].Size
	if kept == 0 || kept >= file.Size {
		t.Fatalf("%d of %d bytes were kept, want all good frames", kept, file.Size)
	}
	must(t, st.Truncate(file.Name, 777))
	equal(t, "digests after truncation", st.Files()[0].Blocks, digests(b[:777]))
	must(t, st.Write(file.Name, 777, b[777:]))
	must(t, st.SyncAndCompare(context.Background(), file))
	// Records of another position are not this file's.
	second := m.Files[1]
	wantReason(t, st.Write(second.Name, 0, b), cluster.ReasonCorrupt)
	must(t, st.Remove(second.Name))
	must(t, st.Remove("00000000000000000999.log"))
	equal(t, "staged files", len(st.Files()), 1)
	must(t, st.Close())
	must(t, dst.Store.DropStaging(part, 5))
	must(t, dst.Store.DropStaging(part, 5))
	equal(t, "copies", copies(t, dst), nil)
}

// testStageMeasures: C02: what is staged is what is on disk, whatever happened to it.
func testStageMeasures(t *testing.T, f Factory) {
	ctx := context.Background()
	src, _ := served(t, f, small(), 100)
	m := manifest(t, src, part)
	dst := f(t, small())
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	whole := st.Files()
	must(t, st.Truncate(m.Files[1].Name, 500)) // within a frame
	must(t, st.Close())
	st, err = dst.Store.Stage(ctx, part, 5)
	must(t, err)
	got := st.Files()
	if got[1].Size == 0 || got[1].Size >= 500 {
		t.Fatalf("%d bytes of a file that was cut within a frame at 500", got[1].Size)
	}
	equal(t, "digests", got[1].Blocks, digests(content(t, src, part, m.Files[1])[:got[1].Size]))
	got[1] = whole[1]
	equal(t, "other files", got, whole)
	must(t, st.Close())
	dst = dst.Restart(t)
	st, err = dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	equal(t, "staged after a restart", st.Files(), whole)
	_, err = st.Finalize(ctx, m)
	must(t, err)
	must(t, st.Close())
}

// testDamage: C28.
func testDamage(t *testing.T, f Factory) {
	ctx := context.Background()
	src, all := served(t, f, small(), 100)
	m := manifest(t, src, part)
	dst := f(t, small())
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	dst.Damage(t, part, store.Staged, 5, m.Files[0].Name, 2000)
	wantReason(t, st.SyncAndCompare(ctx, m.Files[0]), cluster.ReasonCorrupt)
	if got := st.Files()[0].Size; got > 2000 {
		t.Fatalf("%d bytes are kept of a file with damage at 2000", got)
	}
	pull(t, src, st, m)
	must(t, st.SyncAndCompare(ctx, m.Files[0]))
	dst.Damage(t, part, store.Staged, 5, m.Files[1].Name, 10) // not compared yet
	_, err = st.Finalize(ctx, m)
	wantReason(t, err, cluster.ReasonCorrupt)
	refused(t, "installing what was not finalized", st.Install(store.Pending{MoveID: 5, Handoff: 1}))
	pull(t, src, st, m)
	_, err = st.Finalize(ctx, m)
	must(t, err)
	must(t, st.Close())

	// At the owner: named, not served, kept.
	must(t, src.Store.Close(part))
	src.Damage(t, part, store.Active, topicID, m.Files[1].Name, 900)
	src = src.Restart(t)
	err = src.Store.Open(part, 2)
	if err == nil {
		_, err = src.Store.Manifest(part, nil)
	}
	wantReason(t, err, cluster.ReasonCorrupt)
	if !strings.Contains(err.Error(), m.Files[1].Name) {
		t.Fatalf("error %q does not name the file %s", err, m.Files[1].Name)
	}
	_, err = src.Append(ctx, part, records(len(all), 1))
	refused(t, "an append to a damaged partition", err)
	if find(t, src, part, store.Active) == nil {
		t.Fatal("the damaged copy is gone")
	}
}

// testOtherBytes: C71, C72: the right length with other records does not pass.
func testOtherBytes(t *testing.T, f Factory) {
	ctx := context.Background()
	a, _ := served(t, f, small(), 0)
	b, _ := served(t, f, small(), 0)
	for i, in := range []*Instance{a, b} {
		for k := range 30 {
			_, err := in.Append(ctx, part, []store.Record{{Time: int64(k), Value: bytes.Repeat([]byte{byte('a' + i)}, 200)}})
			must(t, err)
		}
	}
	ma, mb := manifest(t, a, part), manifest(t, b, part)
	equal(t, "sizes", ma.Bytes(), mb.Bytes())
	dst := f(t, small())
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, a, st, ma)
	wantReason(t, st.SyncAndCompare(ctx, mb.Files[0]), cluster.ReasonCorrupt)
	_, err = st.Finalize(ctx, mb)
	wantReason(t, err, cluster.ReasonCorrupt)
	_, err = st.Finalize(ctx, ma)
	must(t, err)
	must(t, st.Close())
}

// testFinalizeRefuses: I5, C02: names, coverage and the end must be the manifest's.
func testFinalizeRefuses(t *testing.T, f Factory) {
	ctx := context.Background()
	src, _ := served(t, f, small(), 200)
	m := manifest(t, src, part)
	dst := f(t, small())
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	refuse := func(what string, change func(m *store.Manifest)) {
		t.Helper()
		c := m
		c.Files = append([]store.File(nil), m.Files...)
		change(&c)
		_, err := st.Finalize(ctx, c)
		refused(t, what, err)
		refused(t, "installing after "+what, st.Install(store.Pending{MoveID: 5, Handoff: 1}))
	}
	last := len(m.Files) - 1
	refuse("a LEO beyond the files", func(m *store.Manifest) { m.LEO++; m.HWM++ })
	refuse("a LEO before the end of the files", func(m *store.Manifest) { m.LEO--; m.HWM-- })
	refuse("an HWM above the LEO", func(m *store.Manifest) { m.HWM++ })
	refuse("an HWM below the log start", func(m *store.Manifest) { m.LogStart = m.LEO; m.HWM-- })
	refuse("a staged file that is not listed", func(m *store.Manifest) { m.Files = m.Files[:last] })
	refuse("a listed file that is not staged", func(m *store.Manifest) {
		m.Files = append(m.Files, store.File{Name: "00000000000000000200.log", Size: 1, BaseOffset: 200, Blocks: []uint64{1}})
	})
	refuse("a file of another size", func(m *store.Manifest) { m.Files[1].Size++ })
	refuse("a digest that differs", func(m *store.Manifest) { m.Files[1].Blocks = []uint64{m.Files[1].Blocks[0] + 1} })
	refuse("a file without digests", func(m *store.Manifest) { m.Files[1].Blocks = nil })

	hole := st.Files()[1]
	must(t, st.Remove(hole.Name))
	refuse("a hole", func(m *store.Manifest) { m.Files = append(m.Files[:1:1], m.Files[2:]...) })
	must(t, st.Remove(m.Files[0].Name))
	refuse("a missing beginning", func(m *store.Manifest) { m.Files = m.Files[2:] })
	for _, file := range st.Files() {
		must(t, st.Remove(file.Name))
	}
	refuse("nothing at all for a log with records", func(m *store.Manifest) { m.Files = nil })
	pull(t, src, st, m)
	_, err = st.Finalize(ctx, m)
	must(t, err)
	must(t, st.Install(store.Pending{MoveID: 5, Handoff: 1}))
}

// testFinalizeReads: the work inside a freeze is that of the tail.
func testFinalizeReads(t *testing.T, f Factory) {
	ctx := context.Background()
	src, _ := served(t, f, small(), 200)
	m := manifest(t, src, part)
	dst := f(t, small())
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	for _, file := range m.Files {
		must(t, st.SyncAndCompare(ctx, file))
	}
	read, err := st.Finalize(ctx, m)
	must(t, err)
	equal(t, "bytes read when all was compared", read, 0)
	fill(t, src, part, 200, 1)
	m = manifest(t, src, part)
	pull(t, src, st, m)
	read, err = st.Finalize(ctx, m)
	must(t, err)
	if last := m.Files[len(m.Files)-1]; read == 0 || read > last.Size {
		t.Fatalf("%d bytes were read for one more record, the last file has %d", read, last.Size)
	}
	must(t, st.Close())
}

func testFinalizeForced(t *testing.T, f Factory) {
	ctx := context.Background()
	src, all := served(t, f, small(), 200)
	must(t, src.Commit(part, "low", 3))
	must(t, src.Commit(part, "high", 200))
	m := manifest(t, src, part)
	dst := f(t, small())
	st, err := dst.Store.Stage(ctx, part, 5)
	must(t, err)
	pull(t, src, st, m)
	// The second file ends within a frame, so what is after it can't be used.
	must(t, st.Truncate(m.Files[1].Name, int64(m.Files[1].Size)-10))
	wrong := m
	wrong.Files = append([]store.File(nil), m.Files...)
	wrong.Files[0].Blocks = []uint64{1}
	_, err = st.FinalizeForced(ctx, wrong)
	wantReason(t, err, cluster.ReasonCorrupt)
	leo, err := st.FinalizeForced(ctx, m)
	must(t, err)
	if leo <= m.Files[1].BaseOffset || leo >= m.Files[2].BaseOffset {
		t.Fatalf("LEO %d, want the last complete frame between %d and %d", leo, m.Files[1].BaseOffset, m.Files[2].BaseOffset)
	}
	must(t, st.Install(store.Pending{MoveID: 5}))
	must(t, dst.Store.ConfirmFlip(part, 5))
	if dst.Crash != nil {
		dst = dst.Crash(t)
	}
	must(t, dst.Store.Open(part, 2))
	equal(t, "records", readAll(t, dst, part, 0), all[:leo])
	got := manifest(t, dst, part)
	equal(t, "HWM and LEO", []cluster.Offset{got.HWM, got.LEO}, []cluster.Offset{leo, leo})
	equal(t, "groups", got.Groups, []store.GroupOffset{{Group: "high", Offset: leo}, {Group: "low", Offset: 3}})
	fill(t, dst, part, int(leo), 5)

	// A hidden tail that was copied becomes visible: the source may have acknowledged it.
	src, all = hideTail(t, f, 60)
	m = manifest(t, src, part)
	dst = f(t, small())
	st, err = dst.Store.Stage(ctx, part, 6)
	must(t, err)
	pull(t, src, st, m)
	leo, err = st.FinalizeForced(ctx, m)
	must(t, err)
	equal(t, "LEO", leo, cluster.Offset(len(all)+1))
	must(t, st.Install(store.Pending{MoveID: 6}))
	must(t, dst.Store.ConfirmFlip(part, 6))
	must(t, dst.Store.Open(part, 2))
	equal(t, "visible records", len(readAll(t, dst, part, 0)), int(leo))
}
