package partitionlog

import (
	"errors"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Install implements store.Staging. After an error it may be called again; so may Store.Rollback.
func (st *staging) Install(pending store.Pending) error {
	s, sl, p := st.s, st.sl, st.sl.p
	sl.structure.Lock()
	defer sl.structure.Unlock()
	to := s.activeDir(p)
	if st.installed && !st.closed {
		if m := sl.active(); m == nil || m.identity != store.Identity(st.move) {
			return cluster.Errorf(cluster.ReasonBug, "partition %s: the copy of move %d was taken back", p, st.move)
		}
		if err := s.syncParents(to, st.dir); err != nil {
			return fmt.Errorf("install partition %s: %w", p, err)
		}
		st.closed = true
		return nil
	}
	if err := st.usable(); err != nil {
		return err
	}
	st.mu.Lock()
	final := st.mu.final
	st.mu.Unlock()
	if final == nil {
		return cluster.Errorf(cluster.ReasonBug, "partition %s: the copy of move %d is not final", p, st.move)
	}
	if pending.MoveID != st.move {
		return cluster.Invalid("pending", "names move %d, the copy is of move %d", pending.MoveID, st.move)
	}
	if m := sl.active(); m != nil {
		return occupied(p, m)
	}
	if err := st.mark(pending, to); err != nil {
		return fmt.Errorf("install partition %s: %w", p, err)
	}
	moved, err := s.rename(st.dir, to)
	if err == nil && st.entries() {
		// What was never durable where it was can't come back there.
		err = s.syncParents(st.dir)
	}
	if moved {
		m := &copyMeta{identity: store.Identity(st.move), pending: &pending}
		m.bytes.Store(st.meta.bytes.Load())
		sl.carry = final
		sl.view.Lock()
		sl.view.active = m
		delete(sl.view.staged, st.move)
		delete(sl.view.held, st.move)
		sl.view.Unlock()
		st.installed, st.closed = true, err == nil
	}
	if err != nil {
		return fmt.Errorf("install partition %s: %w", p, err)
	}
	return nil
}

// mark makes everything ready for the rename.
func (st *staging) mark(pending store.Pending, to string) error {
	fs := st.s.fs
	if err := st.closeFiles(); err != nil {
		return err
	}
	// What is there without being a copy is what a Create left that was not completed.
	if err := fs.RemoveAll(to); err != nil && !notExist(err) {
		return err
	}
	if err := removePending(fs, st.dir); err != nil {
		return err
	}
	f, err := fs.Create(fs.PathJoin(st.dir, pendingName(pending)), writeCategory)
	if err != nil {
		return err
	}
	// State and marker are durable before the directory is in the active place, where a copy without a marker is
	// served. The file comes first: what it makes the file system write has the directory's entries in it, so that
	// most often the second sync finds nothing to do.
	if err := errors.Join(f.Close(), syncFile(fs, fs.PathJoin(st.dir, stateName))); err != nil {
		return err
	}
	return syncDir(fs, st.dir)
}
