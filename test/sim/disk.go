package sim

import (
	"bytes"
	"errors"
	"io"
	"slices"

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
