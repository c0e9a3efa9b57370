package partitionlog

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const (
	segmentSuffix = ".log"
	pendingPrefix = "pending-flip-"
	dirMode       = 0o755
	writeCategory = vfs.WriteCategoryUnspecified
)

func segmentName(base cluster.Offset) string {
	return fmt.Sprintf("%020d%s", uint64(base), segmentSuffix)
}

// parseSegmentName returns the base offset; ok is false for every name that segmentName does not make.
func parseSegmentName(name string) (base cluster.Offset, ok bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || segmentName(cluster.Offset(n)) != name {
		return 0, false
	}
	return cluster.Offset(n), true
}

// The marker's content is its name: making and removing it is one synced change of the directory.
func pendingName(p store.Pending) string {
	return fmt.Sprintf("%s%d-%d", pendingPrefix, uint64(p.MoveID), uint32(p.Handoff))
}

// parsePendingName reads a marker; ok is false for every name that pendingName does not make.
func parsePendingName(name string) (*store.Pending, bool) {
	rest, ok := strings.CutPrefix(name, pendingPrefix)
	if !ok {
		return nil, false
	}
	m, h, ok := strings.Cut(rest, "-")
	if !ok {
		return nil, false
	}
	move, err1 := strconv.ParseUint(m, 10, 64)
	handoff, err2 := strconv.ParseUint(h, 10, 32)
	pending := store.Pending{MoveID: cluster.MoveID(move), Handoff: cluster.Handoff(handoff)}
	if err1 != nil || err2 != nil || pendingName(pending) != name {
		return nil, false
	}
	return &pending, true
}

func notExist(err error) bool { return errors.Is(err, iofs.ErrNotExist) }

// list returns the sorted names in dir; none when it does not exist.
func list(fs vfs.FS, dir string) ([]string, error) {
	names, err := fs.List(dir)
	if notExist(err) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}

// syncDir makes the entries of a directory durable.
func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// writeSynced makes a file with a content that is durable; its entry in the directory is not yet.
func writeSynced(fs vfs.FS, path string, b []byte) error { return writeFile(fs, path, b, true) }

func writeFile(fs vfs.FS, path string, b []byte, sync bool) error {
	f, err := fs.Create(path, writeCategory)
	if err != nil {
		return err
	}
	if len(b) > 0 {
		_, err = f.Write(b)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncFile makes a file's bytes durable that were written through another handle.
func syncFile(fs vfs.FS, path string) error {
	f, err := fs.OpenReadWrite(path, writeCategory)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// truncateFile cuts a file that nobody has open for writing, durably. Where files can't be cut in place, a
// shorter copy takes its place.
func truncateFile(fs vfs.FS, path string, size int64) (err error) {
	f, err := fs.OpenReadWrite(path, writeCategory)
	if err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if t, ok := f.(interface{ Truncate(size int64) error }); ok {
		if err := t.Truncate(size); err != nil {
			return fmt.Errorf("truncate: %w", err)
		}
		return f.Sync()
	}
	tmp := path + ".tmp"
	c, err := fs.Create(tmp, writeCategory)
	if err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	_, err = io.Copy(c, io.NewSectionReader(f, 0, size))
	if err == nil {
		err = c.Sync()
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return errors.Join(fmt.Errorf("truncate: %w", err), fs.Remove(tmp))
	}
	if err := fs.Rename(tmp, path); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	return syncDir(fs, fs.PathDir(path))
}

// dirFile is a file of a copy's directory.
type dirFile struct {
	name string
	base cluster.Offset
	size int64
}

// readDir lists a copy's segments by base, and its pending marker.
func readDir(fs vfs.FS, dir string) (segs []dirFile, pending *store.Pending, err error) {
	names, err := list(fs, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list copy: %w", err)
	}
	for _, n := range names {
		if p, ok := parsePendingName(n); ok {
			pending = p
			continue
		}
		base, ok := parseSegmentName(n)
		if !ok {
			continue
		}
		fi, err := fs.Stat(fs.PathJoin(dir, n))
		if err != nil {
			return nil, nil, fmt.Errorf("list copy: %w", err)
		}
		segs = append(segs, dirFile{name: n, base: base, size: fi.Size()})
	}
	return segs, pending, nil
}

func removePending(fs vfs.FS, dir string) error {
	names, err := list(fs, dir)
	if err != nil {
		return fmt.Errorf("remove pending marker: %w", err)
	}
	removed := false
	for _, n := range names {
		if _, ok := parsePendingName(n); ok {
			if err := fs.Remove(fs.PathJoin(dir, n)); err != nil {
				return fmt.Errorf("remove pending marker: %w", err)
			}
			removed = true
		}
	}
	if !removed {
		return nil
	}
	return syncDir(fs, dir)
}

// parseDirNumber reads a directory's name as its number; ok is false for names that numbers don't make.
func parseDirNumber(name string) (uint64, bool) {
	n, err := strconv.ParseUint(name, 10, 64)
	return n, err == nil && strconv.FormatUint(n, 10) == name
}
