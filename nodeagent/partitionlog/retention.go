package partitionlog

import (
	"errors"
	"fmt"
	"time"
)

func (s *Store) retentionLoop() {
	defer s.done.Done()
	t := time.NewTicker(s.opts.RetentionInterval)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			// An error comes again with the next append, which says it to somebody.
			_ = s.EnforceRetention()
		}
	}
}

// EnforceRetention removes, from every open log, the sealed segments whose records are all too old.
func (s *Store) EnforceRetention() error {
	var errs []error
	for _, sl := range s.allSlots() {
		if l := sl.open(); l != nil {
			errs = append(errs, l.enforceRetention())
		}
	}
	return errors.Join(errs...)
}

// enforceRetention goes by the records' own times, so a move makes nothing younger. It does nothing during a
// freeze: the final manifest must not change.
func (l *Log) enforceRetention() error {
	l.view.RLock()
	keep := l.view.retention
	l.view.RUnlock()
	if keep <= 0 {
		return nil
	}
	oldest := l.store.opts.Clock().Add(-keep).UnixMilli()
	l.write <- struct{}{}
	defer func() { <-l.write }()
	if l.usable() != nil || l.Frozen() != nil {
		return nil
	}
	segs := l.view.segs
	n := len(segs)
	if n == 0 {
		return nil
	}
	// An idle active segment is sealed when all of it is old, or its records would outlive their time.
	if g := segs[n-1]; g.size > 0 && g.last < oldest && !l.view.hidden && !l.tailLeft {
		if err := l.roll(); err != nil {
			return fmt.Errorf("retention of partition %s: %w", l.p, err)
		}
		segs = l.view.segs
		n = len(segs)
	}
	drop := 0
	for drop < n-1 && segs[drop].last < oldest && segs[drop+1].base <= l.view.hwm {
		drop++
	}
	if drop == 0 {
		return nil
	}
	// The log start is durable before files go: a crash in between finishes the removal, while the other
	// order would leave a log with a missing beginning.
	seq := l.changedState(func() {
		l.view.logStart = segs[drop].base
		l.view.segs = append([]*segment(nil), segs[drop:]...)
	})
	if err := l.save(seq); err != nil {
		return fmt.Errorf("retention of partition %s: %w", l.p, err)
	}
	for _, g := range segs[:drop] {
		if err := l.store.fs.Remove(l.path(g.name)); err != nil && !notExist(err) {
			return fmt.Errorf("retention of partition %s: %w", l.p, err)
		}
	}
	return syncDir(l.store.fs, l.dir)
}
