package partitionlog

import (
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Rollback implements store.PartitionStore.
func (s *Store) Rollback(p cluster.PartitionID, move cluster.MoveID) error {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	to := s.stagingDir(p, move)
	m := sl.active()
	if m == nil || m.identity != store.Identity(move) {
		if sl.isStaged(move) {
			return s.syncParents(to, s.activeDir(p))
		}
		if m != nil {
			return occupied(p, m)
		}
		return cluster.NotFound("partition %s has no copy of move %d to roll back", p, move)
	}
	if m.pending == nil {
		return cluster.Errorf(cluster.ReasonBlocked, "partition %s: the copy of move %d does not wait for a flip", p, move)
	}
	if sl.isStaged(move) {
		return cluster.Errorf(cluster.ReasonBlocked, "partition %s: move %d is staged and installed", p, move)
	}
	sl.carry = nil
	moved, err := s.move(s.activeDir(p), to)
	if moved {
		staged := &copyMeta{identity: m.identity}
		staged.bytes.Store(m.bytes.Load())
		sl.view.Lock()
		sl.view.active = nil
		sl.view.staged[move] = staged
		sl.view.Unlock()
	}
	if err != nil {
		return fmt.Errorf("roll back partition %s: %w", p, err)
	}
	return nil
}

func (sl *slot) isStaged(move cluster.MoveID) bool {
	sl.view.Lock()
	defer sl.view.Unlock()
	return sl.view.staged[move] != nil
}

// ConfirmFlip implements store.PartitionStore.
func (s *Store) ConfirmFlip(p cluster.PartitionID, move cluster.MoveID) error {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	m := sl.active()
	switch {
	case m == nil:
		return cluster.NotFound("partition %s has no copy of move %d to confirm", p, move)
	case m.identity != store.Identity(move):
		return occupied(p, m)
	case m.pending == nil:
		return nil
	}
	if err := removePending(s.fs, s.activeDir(p)); err != nil {
		return fmt.Errorf("confirm flip of partition %s: %w", p, err)
	}
	confirmed := &copyMeta{identity: m.identity, damaged: m.damaged}
	confirmed.bytes.Store(m.bytes.Load())
	sl.view.Lock()
	sl.view.active = confirmed
	sl.view.Unlock()
	return nil
}

// DropStaging implements store.PartitionStore. Invariant I9: the caller has confirmed.
func (s *Store) DropStaging(p cluster.PartitionID, move cluster.MoveID) error {
	return s.Delete(p, store.Staged, store.Identity(move))
}

// Quarantine implements store.PartitionStore.
func (s *Store) Quarantine(p cluster.PartitionID, id store.Identity) error {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	to := s.quarantineDir(p, id)
	sl.view.Lock()
	m, there := sl.view.active, sl.view.quarantined[id] != nil
	sl.view.Unlock()
	if m == nil || m.identity != id {
		if there {
			return s.syncParents(to, s.activeDir(p))
		}
		if m != nil {
			return occupied(p, m)
		}
		return cluster.NotFound("partition %s has no copy of identity %d", p, id)
	}
	if there {
		return cluster.Errorf(cluster.ReasonBlocked, "partition %s: a copy of identity %d is in quarantine already", p, id)
	}
	if err := s.closeLocked(sl); err != nil {
		return fmt.Errorf("quarantine partition %s: %w", p, err)
	}
	sl.carry = nil
	moved, err := s.move(s.activeDir(p), to)
	if moved {
		q := &copyMeta{identity: id, damaged: m.damaged}
		q.bytes.Store(m.bytes.Load())
		sl.view.Lock()
		sl.view.active = nil
		sl.view.quarantined[id] = q
		sl.view.Unlock()
	}
	if err != nil {
		return fmt.Errorf("quarantine partition %s: %w", p, err)
	}
	return nil
}

// Delete implements store.PartitionStore. Invariant I9: the caller has confirmed, for this identity.
func (s *Store) Delete(p cluster.PartitionID, place store.Place, id store.Identity) error {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	sl.view.Lock()
	m, dir, forget := sl.view.active, s.activeDir(p), func() { sl.view.active = nil }
	switch place {
	case store.Active:
	case store.Staged:
		move := cluster.MoveID(id)
		m, dir, forget = sl.view.staged[move], s.stagingDir(p, move), func() { delete(sl.view.staged, move) }
		if sl.view.held[move] {
			sl.view.Unlock()
			return cluster.Errorf(cluster.ReasonBlocked, "partition %s: the staging of move %d is in use", p, move)
		}
	case store.Quarantined:
		m, dir, forget = sl.view.quarantined[id], s.quarantineDir(p, id), func() { delete(sl.view.quarantined, id) }
	default:
		sl.view.Unlock()
		return cluster.Invalid("place", "%d is not a place", place)
	}
	sl.view.Unlock()
	if m == nil {
		return s.syncParents(dir)
	}
	if m.identity != id {
		return occupied(p, m)
	}
	if place == store.Active {
		if err := s.closeLocked(sl); err != nil {
			return fmt.Errorf("delete partition %s: %w", p, err)
		}
		sl.carry = nil
	}
	removed, err := s.remove(dir)
	if removed {
		sl.view.Lock()
		forget()
		sl.view.Unlock()
	}
	if err != nil {
		return fmt.Errorf("delete %s copy of partition %s: %w", place, p, err)
	}
	return nil
}
