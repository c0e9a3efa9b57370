package partitionlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// prepare makes the active segment ready for an append: no hidden tail, not full, its file open. The
// write lock is held. With an error nothing of the append was written.
func (l *Log) prepare() error {
	if l.tailLeft || l.view.hidden {
		if err := l.cutTail(); err != nil {
			return err
		}
	}
	if n := len(l.view.segs); n == 0 || l.view.segs[n-1].size >= int64(l.store.opts.SegmentBytes) {
		return l.roll()
	}
	if l.file != nil {
		return nil
	}
	g := l.view.segs[len(l.view.segs)-1]
	f, err := l.store.fs.OpenReadWrite(l.path(g.name), writeCategory)
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	l.file = f
	return nil
}

// roll seals the active segment, if there is one, and begins the next. The write lock is held.
func (l *Log) roll() error {
	g := &segment{base: l.view.leo, name: segmentName(l.view.leo), run: &blockHasher{}, known: true}
	f, err := l.store.fs.Create(l.path(g.name), writeCategory)
	if err != nil {
		return fmt.Errorf("begin segment: %w", err)
	}
	// Create may not be written at positions on every file system; OpenReadWrite may.
	if err := f.Close(); err != nil {
		return fmt.Errorf("begin segment: %w", err)
	}
	if f, err = l.store.fs.OpenReadWrite(l.path(g.name), writeCategory); err != nil {
		return fmt.Errorf("begin segment: %w", err)
	}
	old := l.file
	l.file, l.newFile = f, true
	sealed := false
	seq := l.changedState(func() {
		if n := len(l.view.segs); n > 0 {
			// A segment takes over its predecessor's cut number, so that one that was removed with a
			// hidden tail and is begun again has another identity.
			g.cut = l.view.segs[n-1].cut
			l.view.segs[n-1].seal()
			sealed = true
		}
		l.view.segs = append(l.view.segs, g)
	})
	if old != nil {
		if err := old.Close(); err != nil {
			return fmt.Errorf("seal segment: %w", err)
		}
	}
	if !sealed {
		return nil
	}
	// The list of sealed segments spares the next opening a reading; it may be missing.
	if err := syncDir(l.store.fs, l.dir); err != nil {
		return err
	}
	l.newFile = false
	return l.save(seq)
}

// cutTail removes what is beyond the HWM, which nobody was acknowledged. The write lock is held, and the
// log is not frozen: its caller has an append that was accepted.
func (l *Log) cutTail() error {
	if l.file != nil {
		err := l.file.Close()
		l.file = nil
		if err != nil {
			return fmt.Errorf("cut hidden tail: %w", err)
		}
	}
	for l.view.leo > l.view.hwm {
		if err := l.cutSegment(); err != nil {
			return fmt.Errorf("cut hidden tail: %w", err)
		}
	}
	// Cut numbers are durable before the cut: the same identity never names other bytes. The floor went
	// down with it, so that the shorter file is not taken for damage. A tail that was never synced was
	// never shown and needs no number, so a full disk does not stand in the way of cutting it.
	if err := l.save(l.cutSeq); err != nil {
		return fmt.Errorf("cut hidden tail: %w", err)
	}
	if n := len(l.view.segs); n > 0 {
		g := l.view.segs[n-1]
		if err := truncateFile(l.store.fs, l.path(g.name), g.size); err != nil {
			return fmt.Errorf("cut hidden tail: %w", err)
		}
	}
	l.tailLeft = false
	// The HWM in the state file goes when nothing is above it, and before anything is: an acknowledged
	// record above it would be hidden by a restart.
	if err := l.save(l.changedState(func() { l.view.hidden = false })); err != nil {
		l.changedState(func() { l.view.hidden = true })
		return fmt.Errorf("cut hidden tail: %w", err)
	}
	return nil
}

// cutSegment makes the last segment end at the HWM in memory, or removes it when it begins above. Its
// bytes on disk are the caller's.
func (l *Log) cutSegment() error {
	n := len(l.view.segs)
	g, hwm := l.view.segs[n-1], l.view.hwm
	if g.base > hwm {
		prev := l.view.segs[n-2]
		if err := l.ensureKnown(context.Background(), prev, g.base); err != nil {
			return err
		}
		l.cutSeq = l.changedState(func() {
			prev.sealed = false
			prev.cut = g.cut
			l.view.segs, l.view.leo, l.view.hidden = l.view.segs[:n-1:n-1], g.base, true
		})
		if err := l.save(l.cutSeq); err != nil {
			return err
		}
		if err := l.store.fs.Remove(l.path(g.name)); err != nil && !notExist(err) {
			return err
		}
		return syncDir(l.store.fs, l.dir)
	}
	pos, err := l.position(g, hwm)
	if err != nil {
		return err
	}
	s, err := scan(context.Background(), l.store.fs, l.path(g.name), g.base, pos, true)
	if err != nil {
		return err
	}
	if s.chk.good != pos || s.chk.next != hwm {
		return l.damage(corrupt(l.p, g.name, s.chk.good, "record %d where the hidden tail should begin with %d", s.chk.next, hwm))
	}
	l.tailLeft = true
	l.cutSeq = l.changedState(func() {
		g.cut++
		g.size = pos
		g.learn(s)
		l.view.leo, l.view.hidden = hwm, true
	})
	return nil
}

// position returns where the frame of off begins in g; off may be the end of g.
func (l *Log) position(g *segment, off cluster.Offset) (int64, error) {
	pos := g.idx.locate(g.base, off)
	err := readFrames(l.store.fs, l.path(g.name), pos, g.size, scanChunk, func(r store.Record, start, end int64) bool {
		if r.Offset >= off {
			return false
		}
		pos = end
		return true
	})
	if bad := (*badFrame)(nil); errors.As(err, &bad) {
		return 0, l.damage(corrupt(l.p, g.name, bad.pos, "no frame"))
	}
	return pos, err
}
