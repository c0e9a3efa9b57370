package partitionlog

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// verifyOnOpen is the length of sealed segments up to which all of them are read before the log is served.
// Longer logs are read when a segment is first needed, so that a restart of a node with terabytes is
// no matter of hours; every record that is read is checked anyhow.
const verifyOnOpen = 4 << 20

// openLog recovers the copy and returns its log. What it changes on disk it may change again after a crash.
func openLog(s *Store, sl *slot, m *copyMeta, epoch cluster.Epoch, token *store.FreezeToken) (*Log, error) {
	dir := s.activeDir(sl.p)
	l := &Log{store: s, p: sl.p, dir: dir, copyID: m.identity, outbound: &sl.outbound, write: make(chan struct{}, 1)}
	l.view.epoch = epoch
	l.view.groups = map[string]cluster.Offset{}
	if token != nil {
		t := *token
		l.queue.frozen = &t
	}
	st, err := readState(s.fs, dir)
	if err != nil {
		return nil, corrupt(sl.p, stateName, 0, "%v", err)
	}
	files, _, err := readDir(s.fs, dir)
	if err != nil {
		return nil, err
	}
	l.saver.floor = floorOf(st)
	l.view.logStart = st.LogStart
	for _, g := range st.Groups {
		l.view.groups[g.Group] = g.Offset
	}
	if files, err = l.dropExpired(files, st.LogStart); err != nil {
		return nil, err
	}
	proven := map[string]*scanned{}
	if c := sl.carry; c != nil && c.identity == m.identity {
		proven = c.files
	}
	if err := l.recoverSegments(st, files, proven); err != nil {
		return nil, err
	}
	if err := l.recoverActive(st, proven); err != nil {
		return nil, err
	}
	return l, nil
}

// dropExpired removes segments that end at or below the log start: retention made the log start durable and
// was interrupted.
func (l *Log) dropExpired(files []dirFile, start cluster.Offset) ([]dirFile, error) {
	for len(files) > 1 && files[1].base <= start {
		if err := l.store.fs.Remove(l.path(files[0].name)); err != nil && !notExist(err) {
			return nil, fmt.Errorf("remove expired segment: %w", err)
		}
		files = files[1:]
	}
	return files, nil
}

// recoverSegments builds the list of segments from what the state file says and what is on disk.
func (l *Log) recoverSegments(st *state, files []dirFile, proven map[string]*scanned) error {
	listed := make(map[cluster.Offset]segmentState, len(st.Segments))
	for _, g := range st.Segments {
		listed[g.Base] = g
	}
	if len(files) > 0 && files[0].base > st.LogStart {
		return corrupt(l.p, segmentName(st.LogStart), 0, "missing; the first segment is %s, the log start %d", files[0].name, st.LogStart)
	}
	missing := maps.Clone(listed)
	var cut uint32
	var unread int64
	for i, f := range files {
		g := &segment{base: f.base, name: f.name, size: f.size, cut: cut}
		ls, ok := listed[f.base]
		if ok {
			g.cut, g.last = ls.Cut, ls.LastTime
			delete(missing, f.base)
		}
		cut = g.cut
		g.sealed = i+1 < len(files)
		l.view.segs = append(l.view.segs, g)
		if s := proven[f.name]; s != nil && s.size == f.size {
			g.learn(s)
			continue
		}
		if !g.sealed {
			continue
		}
		if ok && ls.Sealed && ls.Size != f.size {
			return corrupt(l.p, f.name, min(ls.Size, f.size), "the file has %d bytes, was sealed with %d", f.size, ls.Size)
		}
		if unread += f.size; !ok || !ls.Sealed || unread <= verifyOnOpen {
			if err := l.ensureKnown(context.Background(), g, files[i+1].base); err != nil {
				return err
			}
		}
	}
	for base, g := range missing {
		// A segment of which no byte was known to be synced may never have reached the disk.
		if g.Size > 0 && (base >= st.LogStart || len(files) == 0) {
			return corrupt(l.p, segmentName(base), 0, "missing; it had %d bytes", g.Size)
		}
	}
	return nil
}

// recoverActive finds the end of the last complete frame, which is the HWM unless the state file says
// that it is lower. It cuts what is after it, and syncs what is before: after a mere restart it may be in memory
// only, and it will be shown to readers and copied.
func (l *Log) recoverActive(st *state, proven map[string]*scanned) error {
	if len(l.view.segs) == 0 {
		return l.recoverEnds(st, st.LogStart)
	}
	g := l.view.segs[len(l.view.segs)-1]
	if g.known {
		return l.recoverEnds(st, proven[g.name].chk.next)
	}
	var floor int64
	for _, ls := range st.Segments {
		if ls.Base == g.base {
			floor = ls.Size
		}
	}
	onDisk := g.size
	s, err := scan(context.Background(), l.store.fs, l.path(g.name), g.base, onDisk, true)
	if err != nil {
		return err
	}
	good, end := s.chk.good, s.chk.next
	if good < floor {
		return corrupt(l.p, g.name, good, "no frame; %d bytes were synced", floor)
	}
	if good < s.size {
		// The digests are to be those of what stays.
		if s, err = scan(context.Background(), l.store.fs, l.path(g.name), g.base, good, true); err != nil {
			return err
		}
	}
	g.size = good
	g.learn(s)
	if err := l.recoverEnds(st, end); err != nil {
		return err
	}
	if good != floor {
		if err := l.syncSegment(g); err != nil {
			return err
		}
	}
	if good == onDisk {
		return nil
	}
	// Another identity before other bytes: see cutTail.
	if err := l.save(l.changedState(func() { g.cut++ })); err != nil {
		return err
	}
	return truncateFile(l.store.fs, l.path(g.name), good)
}

// recoverEnds sets LEO and HWM. Invariant I3: without an HWM in the state file everything that is
// complete is visible; it may have been acknowledged.
func (l *Log) recoverEnds(st *state, leo cluster.Offset) error {
	if leo < st.LogStart || st.Hidden && st.HWM > leo {
		name := segmentName(st.LogStart)
		if n := len(l.view.segs); n > 0 {
			name = l.view.segs[n-1].name
		}
		return corrupt(l.p, name, 0, "the log ends at record %d; it begins at %d and had %d", leo, st.LogStart, st.HWM)
	}
	l.view.leo, l.view.hwm, l.view.hidden = leo, leo, st.Hidden
	if st.Hidden {
		l.view.hwm = max(st.HWM, st.LogStart)
	}
	// Invariant I4: a position beyond the end would outlive lower commits, and pass over what is appended there.
	for g, off := range l.view.groups {
		l.view.groups[g] = l.clampLocked(off)
	}
	return nil
}

func (l *Log) syncSegment(g *segment) error {
	f, err := l.store.fs.OpenReadWrite(l.path(g.name), writeCategory)
	if err != nil {
		return fmt.Errorf("sync segment: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync segment: %w", err)
	}
	return syncDir(l.store.fs, l.dir)
}
