package sim

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// powerCut returns what a power cut leaves: everything synced, and by chance a part of the rest. Pebble's own
// partial clone draws by the order of maps, so that it does not replay; this one walks sorted names from the
// two extremes, which do.
func (w *World) powerCut(fs *vfs.MemFS) *vfs.MemFS {
	out := fs.CrashClone(vfs.CrashCloneCfg{})
	if w.rng.IntN(2) == 0 {
		return out
	}
	all := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: w.rng})
	if err := w.keepSome(out, all, "/"); err != nil {
		w.violated("I2", "simulate a power cut: %v", err)
	}
	return out.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: w.rng})
}

func (w *World) keepSome(out, all *vfs.MemFS, dir string) error {
	names, err := all.List(dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		path := all.PathJoin(dir, name)
		fi, err := all.Stat(path)
		if err != nil {
			return err
		}
		_, serr := out.Stat(path)
		if serr != nil && w.rng.IntN(2) == 0 {
			continue // the entry was not synced
		}
		if fi.IsDir() {
			if err := errors.Join(out.MkdirAll(path, 0o700), w.keepSome(out, all, path)); err != nil {
				return err
			}
			continue
		}
		if err := w.keepFile(out, all, path); err != nil {
			return err
		}
	}
	return nil
}

// keepFile keeps a file as it was, as it was synced, or, when it was appended to, cut within what was not synced.
func (w *World) keepFile(out, all *vfs.MemFS, path string) error {
	now, err := content(all, path)
	if err != nil {
		return err
	}
	synced, err := content(out, path)
	if err == nil {
		if bytes.Equal(now, synced) || w.rng.IntN(2) == 0 {
			return nil
		}
		if bytes.HasPrefix(now, synced) {
			now = now[:len(synced)+w.rng.IntN(len(now)-len(synced)+1)]
		}
	}
	f, err := out.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(now)
	return errors.Join(err, f.Close())
}

func content(fs *vfs.MemFS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// faultyFS fails the next syncs of data when it is told to, and has no room for anything while it is full.
type faultyFS struct {
	vfs.FS
	failSyncs int
	full      bool
}

var errInjected = errors.New("injected: sync failed")

type faultyFile struct {
	vfs.File
	fs *faultyFS
}

func (f *faultyFS) room() error {
	if f.full {
		return syscall.ENOSPC
	}
	return nil
}

// Create implements vfs.FS.
func (f *faultyFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.room(); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Create(name, c))
}

// OpenReadWrite implements vfs.FS.
func (f *faultyFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.wrap(f.FS.OpenReadWrite(name, c, opts...))
}

// MkdirAll implements vfs.FS. A directory that exists takes no room.
func (f *faultyFS) MkdirAll(dir string, perm os.FileMode) error {
	if _, err := f.FS.Stat(dir); err != nil && f.full {
		return syscall.ENOSPC
	}
	return f.FS.MkdirAll(dir, perm)
}

func (f *faultyFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f}, nil
}

// Write implements vfs.File. A full disk may take a part.
func (f *faultyFile) Write(b []byte) (int, error) {
	if f.fs.full {
		n, err := f.File.Write(b[:len(b)/2])
		return n, errors.Join(err, syscall.ENOSPC)
	}
	return f.File.Write(b)
}

// WriteAt implements vfs.File.
func (f *faultyFile) WriteAt(b []byte, at int64) (int, error) {
	if f.fs.full {
		n, err := f.File.WriteAt(b[:len(b)/2], at)
		return n, errors.Join(err, syscall.ENOSPC)
	}
	return f.File.WriteAt(b, at)
}

// SyncData implements vfs.File.
func (f *faultyFile) SyncData() error {
	if f.fs.failSyncs > 0 {
		f.fs.failSyncs--
		return errInjected
	}
	return f.File.SyncData()
}
