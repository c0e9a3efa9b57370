package partitionlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// SyncAndCompare implements store.Staging.
func (st *staging) SyncAndCompare(ctx context.Context, want store.File) error {
	f, err := st.usableFile(want.Name)
	if err != nil {
		return err
	}
	if f == nil {
		return corrupt(st.sl.p, want.Name, 0, "not staged")
	}
	if _, err := st.prove(ctx, f, want); err != nil || st.entries() {
		return err
	}
	// A copy resumes from what was compared, also after a power cut.
	if err := st.syncEntries(); err != nil {
		return fmt.Errorf("sync staged file %s: %w", f.name, err)
	}
	return nil
}

// entries says that the directory is durable with all that it lists.
func (st *staging) entries() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mu.durable == st.mu.made
}

// syncEntries makes the directory durable with all that it lists.
func (st *staging) syncEntries() error {
	st.mu.Lock()
	made := st.mu.made // a file that is created meanwhile may or may not be in
	st.mu.Unlock()
	err := syncDir(st.s.fs, st.dir)
	if err == nil {
		err = st.s.makeDir(st.s.fs.PathDir(st.dir))
	}
	if err == nil {
		err = st.s.syncParents(st.dir)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if err == nil {
		st.mu.durable = max(st.mu.durable, made)
	}
	return err
}

// prove syncs f, re-reads what was not compared since it was written, and compares all digests with
// want's. It returns how many bytes it read.
func (st *staging) prove(ctx context.Context, f *stagedFile, want store.File) (cluster.Bytes, error) {
	if int64(want.Size) != f.size {
		return 0, corrupt(st.sl.p, f.name, min(f.size, int64(want.Size)), "staged are %d bytes, want %d", f.size, want.Size)
	}
	have := f.hash.blocks()
	if i := firstDifference(have, want.Blocks); i >= 0 {
		return 0, corrupt(st.sl.p, f.name, int64(i)*store.BlockSize, "digests of block %d differ", i)
	}
	if err := st.sync(f); err != nil {
		return 0, err
	}
	if f.compared == f.size {
		return 0, nil
	}
	from := f.compared / store.BlockSize * store.BlockSize
	read, bad, err := rehash(ctx, st.s.fs, f.path, from, f.size, have[from/store.BlockSize:])
	if err != nil {
		return read, fmt.Errorf("compare staged file %s: %w", f.name, err)
	}
	if bad >= 0 {
		// What the disk gives back is not what was written. Only what it gives counts from now on.
		err := error(corrupt(st.sl.p, f.name, bad, "the disk gives back other bytes than were written"))
		f.compared = 0
		if rerr := st.reload(f, bad); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return read, err
	}
	f.compared = f.size
	return read, nil
}

// firstDifference returns the first block in which digests differ, or -1.
func firstDifference(a, b []uint64) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// rehash reads [from, size) and compares its blocks; bad is where the first different one begins, or -1.
func rehash(ctx context.Context, fs vfs.FS, path string, from, size int64, want []uint64) (read cluster.Bytes, bad int64, err error) {
	r, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, -1, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	buf := make([]byte, min(store.BlockSize, size-from))
	for i, at := 0, from; at < size; i, at = i+1, at+store.BlockSize {
		if err := ctx.Err(); err != nil {
			return read, -1, err
		}
		b := buf[:min(int64(len(buf)), size-at)]
		n, err := r.ReadAt(b, at)
		read += cluster.Bytes(n)
		if n < len(b) {
			if err != nil && err != io.EOF {
				return read, -1, err
			}
			return read, at, nil
		}
		if xxh3.Hash(b) != want[i] {
			return read, at, nil
		}
	}
	return read, -1, nil
}

func (st *staging) sync(f *stagedFile) error {
	if f.synced {
		return nil
	}
	if f.file == nil {
		var err error
		if f.file, err = st.s.fs.OpenReadWrite(f.path, writeCategory); err != nil {
			return fmt.Errorf("sync staged file %s: %w", f.name, err)
		}
	}
	if err := f.file.Sync(); err != nil {
		// A second sync could succeed without the bytes being there. What is on disk is measured anew.
		f.compared = 0
		return errors.Join(fmt.Errorf("sync staged file %s: %w", f.name, err), st.reload(f, 0))
	}
	f.synced = true
	return nil
}

// Finalize implements store.Staging. Invariant I5: it succeeds only for what is durable and proven.
func (st *staging) Finalize(ctx context.Context, m store.Manifest) (read cluster.Bytes, err error) {
	if err := st.usable(); err != nil {
		return 0, err
	}
	st.changed()
	if m.HWM < m.LogStart || m.HWM > m.LEO {
		return 0, cluster.Invalid("manifest", "HWM %d is not within log start %d and LEO %d", m.HWM, m.LogStart, m.LEO)
	}
	if err := st.matchNames(m); err != nil {
		return 0, err
	}
	for _, want := range m.Files {
		f := st.file(want.Name)
		if f == nil && want.Size == 0 {
			continue
		}
		n, err := st.prove(ctx, f, want)
		read += n
		if err != nil {
			return read, err
		}
		if want.BaseOffset != f.chk.base {
			return read, corrupt(st.sl.p, f.name, 0, "the manifest says that it begins at record %d", want.BaseOffset)
		}
	}
	if err := st.covers(m.LogStart, m.LEO); err != nil {
		return read, err
	}
	return read, st.seal(m)
}

// matchNames wants exactly m's files. Empty ones don't matter: they hold nothing.
func (st *staging) matchNames(m store.Manifest) error {
	wanted := map[string]bool{}
	for _, f := range m.Files {
		if _, ok := parseSegmentName(f.Name); !ok || wanted[f.Name] {
			return cluster.Invalid("manifest", "%q is not a segment, or is listed twice", f.Name)
		}
		wanted[f.Name] = true
		if st.file(f.Name) == nil && f.Size > 0 {
			return corrupt(st.sl.p, f.Name, 0, "not staged; the manifest has %d bytes", f.Size)
		}
	}
	for _, f := range st.sorted() {
		if wanted[f.name] {
			continue
		}
		if f.size > 0 {
			return corrupt(st.sl.p, f.name, 0, "staged, but not in the manifest")
		}
		if err := st.Remove(f.name); err != nil {
			return err
		}
	}
	return nil
}

// covers checks that the frames are one log without a gap that holds [start, leo) and ends at leo.
func (st *staging) covers(start, leo cluster.Offset) error {
	files := st.sorted()
	if len(files) == 0 {
		if start != leo {
			return corrupt(st.sl.p, segmentName(start), 0, "no files; records %d to %d are missing", start, leo)
		}
		return nil
	}
	if first := files[0]; first.chk.base > start {
		return corrupt(st.sl.p, first.name, 0, "begins at record %d, the log at %d", first.chk.base, start)
	}
	next := files[0].chk.base
	for _, f := range files {
		if f.chk.base != next {
			return corrupt(st.sl.p, f.name, 0, "begins at record %d, the one before ends at %d", f.chk.base, next)
		}
		if f.chk.good != f.size {
			return corrupt(st.sl.p, f.name, f.chk.good, "ends within a frame")
		}
		next = f.chk.next
	}
	if next != leo {
		return corrupt(st.sl.p, files[len(files)-1].name, files[len(files)-1].size, "the log ends at record %d, want %d", next, leo)
	}
	return nil
}

// seal writes the state file, in place and not synced: in a staging directory it counts for nothing, and the next
// attempt removes it. Install makes it durable together with the marker.
func (st *staging) seal(m store.Manifest) error {
	s := &state{
		Identity: store.Identity(st.move), LogStart: m.LogStart, Hidden: m.HWM < m.LEO, HWM: m.HWM,
		Groups: slices.Clone(m.Groups),
	}
	final := &carried{identity: s.Identity, files: map[string]*scanned{}}
	files := st.sorted()
	for i, f := range files {
		if err := st.sync(f); err != nil { // an empty one was not proven
			return err
		}
		s.Segments = append(s.Segments, segmentState{Base: f.chk.base, Sealed: i+1 < len(files), Size: f.size, LastTime: f.chk.last})
		final.files[f.name] = &scanned{size: f.size, chk: f.chk, hash: f.hash, blocks: f.hash.blocks()}
	}
	if err := writeFile(st.s.fs, st.s.fs.PathJoin(st.dir, stateName), s.encode(), false); err != nil {
		return fmt.Errorf("finalize partition %s: %w", st.sl.p, err)
	}
	if len(files) > 0 && !st.entries() {
		if err := st.syncEntries(); err != nil {
			return fmt.Errorf("finalize partition %s: %w", st.sl.p, err)
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.mu.final = final
	return nil
}

// FinalizeForced implements store.Staging.
func (st *staging) FinalizeForced(ctx context.Context, m store.Manifest) (cluster.Offset, error) {
	if err := st.usable(); err != nil {
		return 0, err
	}
	st.changed()
	listed := map[string]store.File{}
	for _, f := range m.Files {
		listed[f.Name] = f
	}
	files := st.sorted()
	if len(files) > 0 && files[0].chk.base > m.LogStart {
		return 0, corrupt(st.sl.p, files[0].name, 0, "the staged log begins at record %d, the source's at %d", files[0].chk.base, m.LogStart)
	}
	// All is verified before anything is cut.
	for _, f := range files {
		if err := st.proveForced(ctx, f, listed[f.name]); err != nil {
			return 0, err
		}
	}
	leo := m.LogStart
	for i, f := range files {
		if i > 0 && f.chk.base != leo {
			if err := st.Remove(f.name); err != nil {
				return 0, err
			}
			continue
		}
		if f.chk.good < f.size {
			if err := st.reload(f, f.chk.good); err != nil {
				return 0, err
			}
			f = st.file(f.name)
			if err := st.proveForced(ctx, f, listed[f.name]); err != nil {
				return 0, err
			}
		}
		leo = f.chk.next
	}
	if leo < m.LogStart {
		return 0, corrupt(st.sl.p, files[0].name, files[0].size, "the staged log ends at record %d, before the source's log start %d", leo, m.LogStart)
	}
	forced := store.Manifest{LEO: leo, HWM: leo, LogStart: m.LogStart}
	for _, g := range m.Groups {
		forced.Groups = append(forced.Groups, store.GroupOffset{Group: g.Group, Offset: min(max(g.Offset, m.LogStart), leo)})
	}
	if err := st.covers(forced.LogStart, leo); err != nil {
		return 0, err
	}
	return leo, st.seal(forced)
}

// proveForced re-reads f from disk and compares it with the whole blocks that the source has listed.
func (st *staging) proveForced(ctx context.Context, f *stagedFile, listed store.File) error {
	have := f.hash.blocks()
	whole := min(len(have), len(listed.Blocks))
	if f.size != int64(listed.Size) {
		whole = int(min(f.size, int64(listed.Size)) / store.BlockSize)
		whole = min(whole, len(have), len(listed.Blocks))
	}
	if i := firstDifference(have[:whole], listed.Blocks[:whole]); i >= 0 {
		return corrupt(st.sl.p, f.name, int64(i)*store.BlockSize, "digests of block %d differ", i)
	}
	own := store.File{Name: f.name, Size: cluster.Bytes(f.size), Blocks: have}
	_, err := st.prove(ctx, f, own)
	return err
}
