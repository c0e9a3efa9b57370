package partitionlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// writebackStep is how much is written to a staged file before writing it to disk is begun.
const writebackStep = 8 << 20

// staging is one move's staging directory.
type staging struct {
	s     *Store
	sl    *slot
	meta  *copyMeta
	move  cluster.MoveID
	dir   string
	files map[string]*stagedFile
	// entries says that the directory's entries are durable, and so is the directory itself.
	entries bool
	// final is what the last Finalize proved; nil after every change.
	final *carried
	// installed says that Install has renamed the directory, and is to be called again because a
	// sync did not succeed.
	installed bool
	closed    bool
}

// stagedFile is a file that grows at its end.
type stagedFile struct {
	name  string
	path  string
	chk   *checker
	hash  blockHasher
	file  vfs.File // open for writing, or nil
	size  int64
	begun int64 // up to here writing to disk was begun
	// synced says that all bytes are durable, compared up to where they were re-read and equal what was
	// written.
	synced   bool
	compared int64
	// doubtful says that the file could not be measured after a failure, and that what is known of it does not hold.
	// Before anything else it is cut to redo and measured.
	doubtful bool
	redo     int64
}

// Stage implements store.PartitionStore.
func (s *Store) Stage(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) (store.Staging, error) {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	dir := s.stagingDir(p, move)
	sl.view.Lock()
	held, meta, active := sl.view.held[move], sl.view.staged[move], sl.view.active
	sl.view.Unlock()
	if active != nil && active.identity == store.Identity(move) {
		return nil, occupied(p, active) // it is installed: roll back first
	}
	if held {
		return nil, cluster.Errorf(cluster.ReasonBlocked, "partition %s: the staging of move %d is in use", p, move)
	}
	if meta == nil {
		// Not synced: an empty directory is worth nothing, and syncEntries comes before what is staged counts.
		if err := s.fs.MkdirAll(dir, dirMode); err != nil {
			return nil, fmt.Errorf("stage partition %s: %w", p, err)
		}
		meta = &copyMeta{identity: store.Identity(move)}
	}
	st := &staging{s: s, sl: sl, meta: meta, move: move, dir: dir, files: map[string]*stagedFile{}}
	// Invariant I8: nothing that was remembered counts; what is staged is measured from disk.
	if err := st.measure(ctx); err != nil {
		return nil, fmt.Errorf("stage partition %s: %w", p, errors.Join(err, st.closeFiles()))
	}
	sl.view.Lock()
	sl.view.staged[move] = meta
	sl.view.held[move] = true
	sl.view.Unlock()
	return st, nil
}

func (st *staging) measure(ctx context.Context) error {
	names, err := list(st.s.fs, st.dir)
	if err != nil {
		return err
	}
	var total int64
	for _, n := range names {
		path := st.s.fs.PathJoin(st.dir, n)
		if _, ok := parseSegmentName(n); !ok {
			// State, marker or temporary file of an earlier attempt.
			if err := st.s.fs.Remove(path); err != nil {
				return err
			}
			continue
		}
		f, err := st.load(ctx, n, -1)
		if err != nil {
			return err
		}
		total += f.size
	}
	st.meta.bytes.Store(total)
	return nil
}

// load measures a file from disk and cuts it: to size, or with -1 after its last complete frame.
func (st *staging) load(ctx context.Context, name string, size int64) (*stagedFile, error) {
	base, _ := parseSegmentName(name)
	path := st.s.fs.PathJoin(st.dir, name)
	fi, err := st.s.fs.Stat(path)
	if err != nil {
		return nil, err
	}
	onDisk := fi.Size()
	upTo := onDisk
	if size >= 0 {
		upTo = min(onDisk, size)
	}
	s, err := scan(ctx, st.s.fs, path, base, upTo, true)
	if err != nil {
		return nil, err
	}
	keep := s.size
	if size < 0 || s.bad {
		keep = s.chk.good // a damaged prefix is never kept
	}
	if keep < s.size {
		if s, err = scan(ctx, st.s.fs, path, base, keep, true); err != nil {
			return nil, err
		}
	}
	if keep < onDisk {
		if err := truncateFile(st.s.fs, path, keep); err != nil {
			return nil, err
		}
	}
	f := &stagedFile{name: name, path: path, chk: s.chk, hash: s.hash, size: keep, begun: keep}
	st.files[name] = f
	return f, nil
}

// usable says why the staging can't be worked on. A file in doubt is measured first.
func (st *staging) usable() error {
	if st.closed || st.installed {
		return cluster.Errorf(cluster.ReasonBug, "partition %s: the staging of move %d is closed", st.sl.p, st.move)
	}
	for _, f := range st.sorted() {
		if f.doubtful {
			if err := st.reload(f, f.redo); err != nil {
				return err
			}
		}
	}
	return nil
}

// Files implements store.Staging.
func (st *staging) Files() []store.File {
	out := make([]store.File, 0, len(st.files))
	for _, f := range st.sorted() {
		if f.doubtful {
			out = append(out, store.File{Name: f.name, BaseOffset: f.chk.base})
			continue
		}
		out = append(out, store.File{
			Name: f.name, Size: cluster.Bytes(f.size), BaseOffset: f.chk.base,
			Blocks: f.hash.blocks(), LastRecordTime: f.chk.last,
		})
	}
	return out
}

func (st *staging) sorted() []*stagedFile {
	out := make([]*stagedFile, 0, len(st.files))
	for _, f := range st.files {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *stagedFile) int { return cmp.Compare(a.chk.base, b.chk.base) })
	return out
}

// Write implements store.Staging.
func (st *staging) Write(name string, off int64, data []byte) error {
	if err := st.usable(); err != nil {
		return err
	}
	f := st.files[name]
	if f == nil {
		base, ok := parseSegmentName(name)
		if !ok {
			return cluster.Invalid("name", "%q is not a segment", name)
		}
		f = &stagedFile{name: name, path: st.s.fs.PathJoin(st.dir, name), chk: newChecker(base)}
	}
	if off != f.size {
		return cluster.Invalid("offset", "file %s has %d bytes, can't be written at %d", name, f.size, off)
	}
	st.final = nil
	if f.file == nil {
		var err error
		if f.file, err = st.s.fs.OpenReadWrite(f.path, writeCategory); err != nil {
			return fmt.Errorf("stage file %s: %w", name, err)
		}
		st.entries = st.entries && st.files[name] != nil
		st.files[name] = f
	}
	if f.chk.write(data) != nil {
		return st.reject(f, data)
	}
	return st.add(f, data)
}

// add writes bytes that the checker has passed.
func (st *staging) add(f *stagedFile, data []byte) error {
	f.synced = false
	f.hash.write(data)
	if _, err := f.file.WriteAt(data, f.size); err != nil {
		// What the file has now is known only to the disk.
		return errors.Join(fmt.Errorf("stage file %s: %w", f.name, err), st.reload(f, f.size))
	}
	f.size += int64(len(data))
	st.meta.bytes.Add(int64(len(data)))
	if f.size-f.begun >= writebackStep {
		startWriteback(f.file, f.begun, f.size-f.begun)
		f.begun = f.size
	}
	return nil
}

// reject keeps what is good of the file and of data, and returns CORRUPT.
func (st *staging) reject(f *stagedFile, data []byte) error {
	good := f.chk.good
	err := error(corrupt(st.sl.p, f.name, good, "no frame with record %d", f.chk.next))
	if good > f.size {
		// The checker has gone ahead of the file; its state is that of the good part but for the rest.
		if werr := st.add(f, data[:good-f.size]); werr != nil {
			return errors.Join(err, werr)
		}
		f.chk.restart()
		return err
	}
	if rerr := st.reload(f, good); rerr != nil {
		return errors.Join(err, rerr)
	}
	return err
}

// reload cuts a file to a length and measures it from disk.
func (st *staging) reload(f *stagedFile, size int64) error {
	if f.file != nil {
		// Nothing that was written counts before it is measured, so a failing close says nothing more.
		_ = f.file.Close()
		f.file = nil
	}
	compared := f.compared
	f.doubtful, f.redo = true, size
	n, err := st.load(context.Background(), f.name, size)
	if err != nil {
		return fmt.Errorf("stage file %s: %w", f.name, err)
	}
	st.meta.bytes.Add(n.size - f.size)
	n.compared = min(compared, n.size)
	return nil
}

// Truncate implements store.Staging.
func (st *staging) Truncate(name string, size int64) error {
	if err := st.usable(); err != nil {
		return err
	}
	f := st.files[name]
	if f == nil {
		return cluster.NotFound("file %s is not staged", name)
	}
	if size < 0 || size > f.size {
		return cluster.Invalid("size", "file %s has %d bytes, can't be cut to %d", name, f.size, size)
	}
	st.final = nil
	return st.reload(f, size)
}

// Remove implements store.Staging.
func (st *staging) Remove(name string) error {
	if err := st.usable(); err != nil {
		return err
	}
	f := st.files[name]
	if f == nil {
		return nil
	}
	st.final = nil
	if f.file != nil {
		err := f.file.Close()
		f.file = nil
		if err != nil {
			return fmt.Errorf("remove staged file %s: %w", name, err)
		}
	}
	if err := st.s.fs.Remove(f.path); err != nil && !notExist(err) {
		return fmt.Errorf("remove staged file %s: %w", name, err)
	}
	st.meta.bytes.Add(-f.size)
	delete(st.files, name)
	return nil
}

func (st *staging) closeFiles() error {
	var errs []error
	for _, f := range st.files {
		if f.file != nil {
			errs = append(errs, f.file.Close())
			f.file = nil
		}
	}
	return errors.Join(errs...)
}

// Close implements store.Staging.
func (st *staging) Close() error {
	if st.closed {
		return nil
	}
	st.closed = true
	err := st.closeFiles()
	st.sl.view.Lock()
	delete(st.sl.view.held, st.move)
	st.sl.view.Unlock()
	return err
}
