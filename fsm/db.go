package fsm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// handle is a database that is closed when its last user releases it: a restore replaces the machine's
// database while snapshots of the old one may still be streamed.
type handle struct {
	*pebble.DB
	refs   atomic.Int64
	onLast func() error
}

func (h *handle) acquire() { h.refs.Add(1) }

func (h *handle) release() error {
	if h.refs.Add(-1) > 0 {
		return nil
	}
	err := h.DB.Close()
	if h.onLast != nil {
		err = errors.Join(err, h.onLast())
	}
	return err
}

// The directory holds one database directory and a file that names it. A restore builds a second one and
// switches the name, so that there is a whole state at any moment.
const (
	activeFile = "ACTIVE"
	dbPrefix   = "state-"
)

func (m *Machine) path(name string) string { return m.fs.PathJoin(m.dir, name) }

// activeName returns the name of the present database and removes what an interrupted restore left.
func (m *Machine) activeName() (string, error) {
	if err := m.makeDir(m.dir); err != nil {
		return "", fmt.Errorf("open state in %s: %w", m.dir, err)
	}
	name := dbPrefix + "1"
	f, err := m.fs.Open(m.path(activeFile))
	switch {
	case err == nil:
		b, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", fmt.Errorf("open state: read %s: %w", activeFile, err)
		}
		if name = strings.TrimSpace(string(b)); !strings.HasPrefix(name, dbPrefix) {
			return "", fmt.Errorf("open state: %s in %s is damaged: %q", activeFile, m.dir, name)
		}
	case !isNotExist(err):
		return "", fmt.Errorf("open state: %w", err)
	}
	entries, err := m.fs.List(m.dir)
	if err != nil {
		return "", fmt.Errorf("open state: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e, dbPrefix) && e != name {
			if err := m.fs.RemoveAll(m.path(e)); err != nil {
				return "", fmt.Errorf("open state: remove %s: %w", e, err)
			}
		}
	}
	return name, nil
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// setActive switches to a database that is whole and durable.
func (m *Machine) setActive(name string) error {
	tmp := m.path(activeFile + ".tmp")
	f, err := m.fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(name + "\n"))
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := m.fs.Rename(tmp, m.path(activeFile)); err != nil {
		return err
	}
	return m.syncDir(m.dir)
}

// makeDir makes a directory and its parents so that they survive a crash.
func (m *Machine) makeDir(dir string) error {
	if _, err := m.fs.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := m.fs.PathDir(dir)
	if parent != dir {
		if err := m.makeDir(parent); err != nil {
			return err
		}
	}
	if err := m.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return m.syncDir(parent)
}

func (m *Machine) syncDir(dir string) error {
	d, err := m.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openDB opens one database. Its write-ahead log is off: the consensus log is the write-ahead log, and a
// crash keeps a prefix of batches.
func (m *Machine) openDB(name string) (*handle, error) {
	db, err := pebble.Open(m.path(name), &pebble.Options{
		FS: m.fs, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: m.opts.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open state in %s: %w", m.path(name), err)
	}
	h := &handle{DB: db}
	h.acquire()
	if err := stampFormat(db); err != nil {
		return nil, errors.Join(err, h.release())
	}
	return h, nil
}

func stampFormat(db *pebble.DB) error {
	_, closer, err := db.Get(keyFormat)
	if err == nil {
		return closer.Close()
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return fmt.Errorf("read format version: %w", err)
	}
	return db.Set(keyFormat, value64(formatVersion), pebble.NoSync)
}
