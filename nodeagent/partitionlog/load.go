package partitionlog

import (
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const (
	activeName     = "partitions"
	stagingName    = "staging"
	quarantineName = "quarantine"
	trashName      = "trash"
)

// load makes the directories, empties the trash and fills the registry.
func (s *Store) load() error {
	for _, place := range []string{activeName, stagingName, quarantineName, trashName} {
		if err := s.makeDir(s.fs.PathJoin(s.opts.Dir, place)); err != nil {
			return err
		}
	}
	trash := s.fs.PathJoin(s.opts.Dir, trashName)
	names, err := list(s.fs, trash)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := s.fs.RemoveAll(s.fs.PathJoin(trash, n)); err != nil {
			return fmt.Errorf("empty trash: %w", err)
		}
	}
	if err := s.walk(activeName, s.loadActive); err != nil {
		return err
	}
	if err := s.walk(stagingName, s.loadStaged); err != nil {
		return err
	}
	return s.walk(quarantineName, s.loadQuarantined)
}

// walk calls fn with every partition directory of a place.
func (s *Store) walk(place string, fn func(sl *slot, dir string) error) error {
	root := s.fs.PathJoin(s.opts.Dir, place)
	topics, err := list(s.fs, root)
	if err != nil {
		return err
	}
	for _, t := range topics {
		topic, ok := parseDirNumber(t)
		if !ok {
			continue
		}
		dir := s.fs.PathJoin(root, t)
		indexes, err := list(s.fs, dir)
		if err != nil {
			return err
		}
		for _, i := range indexes {
			n, ok := parseDirNumber(i)
			if !ok || n > 1<<32-1 {
				continue
			}
			p := cluster.PartitionID{Topic: cluster.TopicID(topic), Index: uint32(n)}
			if err := fn(s.slot(p), s.fs.PathJoin(dir, i)); err != nil {
				return fmt.Errorf("load partition %s: %w", p, err)
			}
		}
	}
	return nil
}

// meta describes the copy in dir. Without a state file that can be read, damaged is set.
func (s *Store) meta(dir string) (*copyMeta, []dirFile, error) {
	segs, pending, err := readDir(s.fs, dir)
	if err != nil {
		return nil, nil, err
	}
	m := &copyMeta{pending: pending}
	for _, f := range segs {
		m.bytes.Add(f.size)
	}
	st, err := readState(s.fs, dir)
	if err != nil {
		m.damaged = err
	} else {
		m.identity = st.Identity
	}
	return m, segs, nil
}

func (s *Store) loadActive(sl *slot, dir string) error {
	m, segs, err := s.meta(dir)
	if err != nil {
		return err
	}
	if m.damaged != nil && len(segs) == 0 && m.pending == nil {
		return nil // a Create that was not completed
	}
	sl.view.active = m
	return nil
}

func (s *Store) loadStaged(sl *slot, dir string) error {
	return s.eachCopy(sl, dir, func(id uint64, m *copyMeta) {
		m.damaged = nil
		sl.view.staged[cluster.MoveID(id)] = m
	})
}

func (s *Store) loadQuarantined(sl *slot, dir string) error {
	return s.eachCopy(sl, dir, func(id uint64, m *copyMeta) { sl.view.quarantined[store.Identity(id)] = m })
}

// eachCopy calls fn for every copy in dir, whose directories are named by their identity.
func (s *Store) eachCopy(sl *slot, dir string, fn func(id uint64, m *copyMeta)) error {
	names, err := list(s.fs, dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		id, ok := parseDirNumber(n)
		if !ok {
			continue
		}
		path := s.fs.PathJoin(dir, n)
		if twin, err := s.removeTwin(sl, path, store.Identity(id)); err != nil {
			return err
		} else if twin {
			continue
		}
		m, _, err := s.meta(path)
		if err != nil {
			return err
		}
		m.identity, m.pending = store.Identity(id), nil
		fn(id, m)
	}
	return nil
}

// removeTwin ends a rename of which a power cut left both ends: the same directory is in the active
// place and here. The active one stays, so the rename out of it, or into it, is done again or is done.
// A staging directory that has nothing in common with the active copy but its number is no twin: one made
// for a move that is installed already is empty, and nothing is lost with it.
func (s *Store) removeTwin(sl *slot, path string, id store.Identity) (bool, error) {
	m := sl.view.active
	if m == nil || m.damaged != nil || m.identity != id {
		return false, nil
	}
	_, err := s.remove(path)
	return true, err
}
