package partitionlog

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Log is an open partition. It is safe for concurrent use and ends with Store.Close or whatever takes the
// copy away; then its methods that can fail say NOT_OWNER. Opening the copy again makes another Log.
type Log struct {
	store    *Store
	p        cluster.PartitionID
	dir      string
	copyID   store.Identity
	outbound *atomic.Bool

	// write is the write lock: who has put a value in may change files.
	write chan struct{}
	// Under the write lock: the active segment's file (nil until it is needed), whether its directory
	// entry is durable yet, whether bytes beyond its size may be on disk, and the state change that must
	// be durable before they are cut off.
	file     vfs.File
	newFile  bool
	tailLeft bool
	cutSeq   uint64

	queue struct {
		sync.Mutex
		reqs   []*appendReq
		bytes  int
		frozen *store.FreezeToken
		closed bool
		damage *cluster.Error
	}

	view struct {
		sync.RWMutex
		segs     []*segment // by base; the last is active
		logStart cluster.Offset
		hwm, leo cluster.Offset
		// hidden says that the state file is to hold the HWM.
		hidden    bool
		epoch     cluster.Epoch
		groups    map[string]cluster.Offset
		retention time.Duration
		changed   chan struct{} // nil when nobody waits
		ended     bool
		seq       uint64 // counts changes of what the state file holds
	}

	saver struct {
		sync.Mutex
		seq   uint64 // the newest change that is durable
		floor floor  // what the durable state says of the end
		ended bool   // the directory may belong to another copy
	}
}

// Partition returns which partition it is.
func (l *Log) Partition() cluster.PartitionID { return l.p }

// HWM returns the high watermark: the first offset that consumers may not see yet.
func (l *Log) HWM() cluster.Offset {
	l.view.RLock()
	defer l.view.RUnlock()
	return l.view.hwm
}

// LEO returns the log end offset: what is synced ends below it.
func (l *Log) LEO() cluster.Offset {
	l.view.RLock()
	defer l.view.RUnlock()
	return l.view.leo
}

// LogStart returns the first offset that retention has left.
func (l *Log) LogStart() cluster.Offset {
	l.view.RLock()
	defer l.view.RUnlock()
	return l.view.logStart
}

// Epoch returns the assignment's epoch that the copy was opened with.
func (l *Log) Epoch() cluster.Epoch {
	l.view.RLock()
	defer l.view.RUnlock()
	return l.view.epoch
}

func (l *Log) setEpoch(e cluster.Epoch) {
	l.view.Lock()
	defer l.view.Unlock()
	l.view.epoch = e
}

// Size returns the synced bytes of all segments.
func (l *Log) Size() cluster.Bytes {
	l.view.RLock()
	defer l.view.RUnlock()
	var n int64
	for _, g := range l.view.segs {
		n += g.size
	}
	return cluster.Bytes(n)
}

// Changed returns a channel that is closed when the HWM next advances or the log closes. Take it before
// looking at the HWM.
func (l *Log) Changed() <-chan struct{} {
	l.view.Lock()
	defer l.view.Unlock()
	if l.view.changed == nil {
		l.view.changed = make(chan struct{})
		if l.view.ended {
			close(l.view.changed)
		}
	}
	return l.view.changed
}

// wake tells those who wait for a change. The view lock is held for writing.
func (l *Log) wake() {
	if l.view.changed != nil && !l.view.ended {
		close(l.view.changed)
		l.view.changed = nil
	}
}

// Frozen returns the present freeze token; nil when appends are accepted.
func (l *Log) Frozen() *store.FreezeToken {
	l.queue.Lock()
	defer l.queue.Unlock()
	if l.queue.frozen == nil {
		return nil
	}
	t := *l.queue.frozen
	return &t
}

// usable returns why the log can't be used: closed or damaged.
func (l *Log) usable() error {
	l.queue.Lock()
	defer l.queue.Unlock()
	return l.usableLocked()
}

func (l *Log) usableLocked() error {
	if l.queue.closed {
		return notOwner(l.p)
	}
	if l.queue.damage != nil {
		return l.queue.damage
	}
	return nil
}

// damage ends service: appends and reads fail with e from now on. The bytes stay. It returns e.
func (l *Log) damage(e *cluster.Error) error {
	l.queue.Lock()
	if l.queue.damage == nil {
		l.queue.damage = e
	}
	reqs := l.refuseLocked()
	l.queue.Unlock()
	finish(reqs, 0, e)
	return e
}

// close ends service and waits for the append in progress.
func (l *Log) close() error {
	l.queue.Lock()
	l.queue.closed = true
	reqs := l.refuseLocked()
	damaged := l.queue.damage != nil
	l.queue.Unlock()
	finish(reqs, 0, notOwner(l.p))
	l.write <- struct{}{} // never given back: nothing is written after this
	var err error
	if l.file != nil {
		err = l.file.Close()
		l.file = nil
	}
	l.view.Lock()
	l.wake()
	l.view.ended = true
	l.view.Unlock()
	// A floor at the end spares the next opening a sync. Without it the log is recovered all the same, so
	// a failure is not the caller's business; nor is the floor of a log that can't be trusted.
	if !damaged && !l.tailLeft && !l.saved() {
		_ = l.save(l.changedState(func() {}))
	}
	l.saver.Lock()
	l.saver.ended = true
	l.saver.Unlock()
	return err
}

// changedState runs fn under the view lock and returns the number of that change, for save.
func (l *Log) changedState(fn func()) uint64 {
	l.view.Lock()
	defer l.view.Unlock()
	fn()
	l.view.seq++
	return l.view.seq
}

// save makes a change durable, together with all others up to now: who waits for the saver while it
// writes finds its change written, or writes all that came since.
func (l *Log) save(seq uint64) error {
	l.saver.Lock()
	defer l.saver.Unlock()
	if l.saver.seq >= seq {
		return nil
	}
	if l.saver.ended {
		return notOwner(l.p)
	}
	l.view.RLock()
	st, now := l.stateLocked(), l.view.seq
	l.view.RUnlock()
	if err := writeState(l.store.fs, l.dir, st); err != nil {
		return err
	}
	l.saver.seq, l.saver.floor = now, floorOf(st)
	return nil
}

// floor is the last segment that a state lists, and how much of it is durable.
type floor struct {
	base cluster.Offset
	size int64
}

func floorOf(st *state) floor {
	if n := len(st.Segments); n > 0 {
		return floor{st.Segments[n-1].Base, st.Segments[n-1].Size}
	}
	return floor{}
}

// saved says that the durable state has everything already.
func (l *Log) saved() bool {
	l.saver.Lock()
	defer l.saver.Unlock()
	l.view.RLock()
	defer l.view.RUnlock()
	return l.saver.seq >= l.view.seq && l.saver.floor == floorOf(l.stateLocked())
}

func (l *Log) stateLocked() *state {
	st := &state{Identity: l.copyID, LogStart: l.view.logStart, Hidden: l.view.hidden, HWM: l.view.hwm}
	st.Segments = make([]segmentState, len(l.view.segs))
	for i, g := range l.view.segs {
		st.Segments[i] = segmentState{Base: g.base, Cut: g.cut, Sealed: g.sealed, Size: g.size, LastTime: g.last}
	}
	st.Groups = l.groupsLocked()
	return st
}

func (l *Log) groupsLocked() []store.GroupOffset {
	out := make([]store.GroupOffset, 0, len(l.view.groups))
	for g, off := range l.view.groups {
		out = append(out, store.GroupOffset{Group: g, Offset: l.clampLocked(off)})
	}
	slices.SortFunc(out, func(a, b store.GroupOffset) int { return strings.Compare(a.Group, b.Group) })
	return out
}

func (l *Log) clampLocked(off cluster.Offset) cluster.Offset {
	return min(max(off, l.view.logStart), l.view.hwm)
}

// CommittedOffset returns the group's committed offset, between log start and HWM; false without the group.
func (l *Log) CommittedOffset(group string) (cluster.Offset, bool) {
	l.view.RLock()
	defer l.view.RUnlock()
	off, ok := l.view.groups[group]
	return l.clampLocked(off), ok
}

// CommitOffset sets the group's committed offset, clamped to [log start, HWM], and makes it durable;
// concurrent calls share a sync. It never goes back: a lower offset changes nothing. It goes on during a freeze.
func (l *Log) CommitOffset(group string, off cluster.Offset) error {
	if err := cluster.ValidateGroupName(group); err != nil {
		return err
	}
	if err := l.usable(); err != nil {
		return err
	}
	l.view.Lock()
	old, ok := l.view.groups[group]
	if !ok && len(l.view.groups) >= MaxGroups {
		l.view.Unlock()
		return tooManyGroups()
	}
	// An equal offset may still be on its way to the disk: save waits for it.
	seq := l.view.seq
	if off = l.clampLocked(off); !ok || off > old {
		l.view.groups[group] = off
		l.view.seq++
		seq = l.view.seq
	}
	l.view.Unlock()
	return l.save(seq)
}

// EnsureGroup makes the group with the log start as its committed offset, durably, unless it exists, and
// returns its committed offset.
func (l *Log) EnsureGroup(group string) (cluster.Offset, error) {
	if off, ok := l.CommittedOffset(group); ok {
		return off, l.usable()
	}
	if err := l.CommitOffset(group, 0); err != nil {
		return 0, err
	}
	off, _ := l.CommittedOffset(group)
	return off, nil
}

func tooManyGroups() error {
	e := cluster.Errorf(cluster.ReasonLimit, "groups: a partition has at most %d", MaxGroups)
	e.Field = "groups"
	return e
}
