package partitionlog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Options of Open. The zero value of all but Dir is usable.
type Options struct {
	// Dir holds everything of the store. It is made when it does not exist.
	Dir string
	// FS is the file system; nil is the real one.
	FS vfs.FS
	// Lease is asked after the sync of an append to a copy with an outbound marker; nil is always valid.
	Lease store.LeaseCheck
	// Clock gives the time for retention; nil is time.Now.
	Clock store.Clock
	// SegmentBytes is the length from which on a new segment is begun; zero is 64 MiB, at most 1 GiB. A
	// segment is at most one group of appends longer.
	SegmentBytes cluster.Bytes
	// RetentionInterval is how often segments are looked through for old ones; zero is 30 s, negative is
	// never (EnforceRetention does it by hand).
	RetentionInterval time.Duration
}

const (
	defaultSegmentBytes      = 64 << 20
	maxSegmentBytes          = 1 << 30
	defaultRetentionInterval = 30 * time.Second
	closeParallelism         = 16
)

// Store keeps the copies of a node. It implements store.PartitionStore and is safe for concurrent use.
// Shut it down.
type Store struct {
	opts Options
	fs   vfs.FS

	mu struct {
		sync.Mutex
		slots map[cluster.PartitionID]*slot
		// durable are directories known to exist and to be synced in their parents.
		durable map[string]bool
		closed  bool
	}
	trash atomic.Uint64 // numbers what is being removed

	stop chan struct{}
	done sync.WaitGroup
}

var _ store.PartitionStore = (*Store)(nil)

// slot is everything about one partition.
type slot struct {
	p        cluster.PartitionID
	outbound atomic.Bool

	// structure is held while copies are made, opened, closed, renamed or removed.
	structure sync.Mutex
	// carry is what Finalize proved of the files that the next opening will find. Under structure.
	carry *carried

	// view is changed under structure too.
	view struct {
		sync.Mutex
		log         *Log // nil unless open
		active      *copyMeta
		staged      map[cluster.MoveID]*copyMeta
		quarantined map[store.Identity]*copyMeta
		held        map[cluster.MoveID]bool // a Staging is out
	}
}

// copyMeta describes a directory. Its fields do not change, but for bytes.
type copyMeta struct {
	identity store.Identity
	pending  *store.Pending
	bytes    atomic.Int64
	damaged  error // the state file can't be read
}

// Open opens the store in opts.Dir and lists its copies; it opens no copy. It removes what a removal left
// behind, and completes renames that a power cut left half durable.
func Open(opts Options) (*Store, error) {
	if opts.Dir == "" {
		return nil, cluster.Invalid("dir", "is empty")
	}
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.Lease == nil {
		opts.Lease = func() bool { return true }
	}
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.SegmentBytes == 0 {
		opts.SegmentBytes = defaultSegmentBytes
	}
	if opts.SegmentBytes > maxSegmentBytes {
		return nil, cluster.Invalid("segment_bytes", "%d is more than %d", opts.SegmentBytes, maxSegmentBytes)
	}
	if opts.RetentionInterval == 0 {
		opts.RetentionInterval = defaultRetentionInterval
	}
	s := &Store{opts: opts, fs: opts.FS, stop: make(chan struct{})}
	s.mu.slots = map[cluster.PartitionID]*slot{}
	s.mu.durable = map[string]bool{}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("open partition store: %w", err)
	}
	if opts.RetentionInterval > 0 {
		s.done.Add(1)
		go s.retentionLoop()
	}
	return s, nil
}

// Shutdown closes every open copy and ends the store. (Close closes one copy.)
func (s *Store) Shutdown() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.done.Wait()
	var g errgroup.Group
	g.SetLimit(closeParallelism)
	for _, sl := range s.allSlots() {
		g.Go(func() error { return s.closeSlot(sl) })
	}
	return g.Wait()
}

// slot returns p's slot, and makes it.
func (s *Store) slot(p cluster.PartitionID) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slotLocked(p)
}

func (s *Store) slotLocked(p cluster.PartitionID) *slot {
	sl := s.mu.slots[p]
	if sl == nil {
		sl = &slot{p: p}
		sl.view.staged = map[cluster.MoveID]*copyMeta{}
		sl.view.quarantined = map[store.Identity]*copyMeta{}
		sl.view.held = map[cluster.MoveID]bool{}
		s.mu.slots[p] = sl
	}
	return sl
}

func (s *Store) allSlots() []*slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*slot, 0, len(s.mu.slots))
	for _, sl := range s.mu.slots {
		out = append(out, sl)
	}
	slices.SortFunc(out, func(a, b *slot) int { return a.p.Compare(b.p) })
	return out
}

func (sl *slot) open() *Log {
	sl.view.Lock()
	defer sl.view.Unlock()
	return sl.view.log
}

func (sl *slot) active() *copyMeta {
	sl.view.Lock()
	defer sl.view.Unlock()
	return sl.view.active
}

// Log returns the open log, else NOT_OWNER.
func (s *Store) Log(p cluster.PartitionID) (*Log, error) {
	// Anybody may ask for any partition: that must not make anything.
	s.mu.Lock()
	sl := s.mu.slots[p]
	s.mu.Unlock()
	if sl != nil {
		if l := sl.open(); l != nil {
			return l, nil
		}
	}
	return nil, notOwner(p)
}

func notOwner(p cluster.PartitionID) error {
	return cluster.Errorf(cluster.ReasonNotOwner, "partition %s is not open here", p)
}

// Copies implements store.PartitionStore. It answers from memory.
func (s *Store) Copies() ([]store.Copy, error) {
	var out []store.Copy
	for _, sl := range s.allSlots() {
		out = sl.appendCopies(out)
	}
	return out, nil
}

// CopiesOf is Copies of one partition, without a look at the others.
func (s *Store) CopiesOf(p cluster.PartitionID) ([]store.Copy, error) {
	s.mu.Lock()
	sl := s.mu.slots[p]
	s.mu.Unlock()
	if sl == nil {
		return nil, nil
	}
	return sl.appendCopies(nil), nil
}

// appendCopies appends the slot's copies by place and identity.
func (sl *slot) appendCopies(out []store.Copy) []store.Copy {
	at := len(out)
	sl.view.Lock()
	add := func(place store.Place, m *copyMeta) {
		out = append(out, store.Copy{
			Partition: sl.p, Place: place, Identity: m.identity, Pending: m.pending,
			Bytes: cluster.Bytes(m.bytes.Load()),
		})
	}
	if m := sl.view.active; m != nil {
		add(store.Active, m)
		if l := sl.view.log; l != nil {
			out[at].Open, out[at].Bytes = true, l.Size()
		}
	}
	for _, m := range sl.view.staged {
		add(store.Staged, m)
	}
	for _, m := range sl.view.quarantined {
		add(store.Quarantined, m)
	}
	sl.view.Unlock()
	slices.SortFunc(out[at:], func(a, b store.Copy) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Identity, b.Identity))
	})
	return out
}

// Create implements store.PartitionStore.
func (s *Store) Create(p cluster.PartitionID, id store.Identity) error {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	if m := sl.active(); m != nil {
		if m.identity == id && m.damaged == nil {
			return nil
		}
		return occupied(p, m)
	}
	dir := s.activeDir(p)
	// What is there was not completed: it has no state file and no segments.
	if err := s.fs.RemoveAll(dir); err != nil && !notExist(err) {
		return fmt.Errorf("create partition %s: %w", p, err)
	}
	if err := s.makeDir(s.fs.PathDir(dir)); err != nil {
		return fmt.Errorf("create partition %s: %w", p, err)
	}
	if err := s.fs.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("create partition %s: %w", p, err)
	}
	// The state file is written in place: until the parent is synced the copy does not count.
	st := &state{Identity: id}
	err := writeSynced(s.fs, s.fs.PathJoin(dir, stateName), st.encode())
	if err == nil {
		err = syncDir(s.fs, dir)
	}
	if err == nil {
		err = syncDir(s.fs, s.fs.PathDir(dir))
	}
	if err != nil {
		return fmt.Errorf("create partition %s: %w", p, err)
	}
	sl.view.Lock()
	sl.view.active = &copyMeta{identity: id}
	sl.view.Unlock()
	return nil
}

func occupied(p cluster.PartitionID, m *copyMeta) error {
	e := cluster.Errorf(cluster.ReasonBlocked, "partition %s: the active place holds the copy of identity %d", p, m.identity)
	e.Blockers = []string{e.Message}
	return e
}

// Open implements store.PartitionStore.
func (s *Store) Open(p cluster.PartitionID, epoch cluster.Epoch) error {
	return s.openCopy(p, epoch, nil)
}

// OpenFrozen implements store.PartitionStore.
func (s *Store) OpenFrozen(p cluster.PartitionID, epoch cluster.Epoch, token store.FreezeToken) error {
	return s.openCopy(p, epoch, &token)
}

func (s *Store) openCopy(p cluster.PartitionID, epoch cluster.Epoch, token *store.FreezeToken) error {
	sl := s.slot(p)
	sl.structure.Lock()
	defer sl.structure.Unlock()
	if l := sl.open(); l != nil {
		l.setEpoch(epoch)
		if token != nil {
			return l.freeze(context.Background(), *token)
		}
		return nil
	}
	m := sl.active()
	switch {
	case m == nil:
		return cluster.NotFound("partition %s has no active copy here", p)
	case m.damaged != nil:
		return corrupt(p, stateName, 0, "%v", m.damaged)
	case m.pending != nil:
		return cluster.Errorf(cluster.ReasonBlocked, "partition %s waits for the flip of move %d", p, m.pending.MoveID)
	}
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.Unlock()
	if closed {
		return cluster.Errorf(cluster.ReasonNotOwner, "partition %s: the store is closed", p)
	}
	l, err := openLog(s, sl, m, epoch, token)
	if err != nil {
		return fmt.Errorf("open partition %s: %w", p, err)
	}
	sl.carry = nil
	sl.view.Lock()
	sl.view.log = l
	sl.view.Unlock()
	return nil
}

// Close implements store.PartitionStore.
func (s *Store) Close(p cluster.PartitionID) error { return s.closeSlot(s.slot(p)) }

func (s *Store) closeSlot(sl *slot) error {
	sl.structure.Lock()
	defer sl.structure.Unlock()
	return s.closeLocked(sl)
}

func (s *Store) closeLocked(sl *slot) error {
	l := sl.open()
	if l == nil {
		return nil
	}
	sl.view.Lock()
	sl.view.log = nil
	if sl.view.active != nil {
		sl.view.active.bytes.Store(int64(l.Size()))
	}
	sl.view.Unlock()
	return l.close()
}

// The directories.

func (s *Store) placeDir(place string, p cluster.PartitionID) string {
	return s.fs.PathJoin(s.opts.Dir, place, strconv.FormatUint(uint64(p.Topic), 10), strconv.FormatUint(uint64(p.Index), 10))
}

func (s *Store) activeDir(p cluster.PartitionID) string { return s.placeDir(activeName, p) }

func (s *Store) stagingDir(p cluster.PartitionID, move cluster.MoveID) string {
	return s.fs.PathJoin(s.placeDir(stagingName, p), strconv.FormatUint(uint64(move), 10))
}

func (s *Store) quarantineDir(p cluster.PartitionID, id store.Identity) string {
	return s.fs.PathJoin(s.placeDir(quarantineName, p), strconv.FormatUint(uint64(id), 10))
}

// makeDir makes a directory and its parents, durable in their parents.
func (s *Store) makeDir(dir string) error {
	s.mu.Lock()
	known := s.mu.durable[dir]
	s.mu.Unlock()
	if known {
		return nil
	}
	parent := s.fs.PathDir(dir)
	if dir != s.opts.Dir && parent != dir {
		if err := s.makeDir(parent); err != nil {
			return err
		}
	}
	if err := s.fs.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if parent != dir {
		if err := syncDir(s.fs, parent); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.mu.durable[dir] = true
	s.mu.Unlock()
	return nil
}

// move renames a copy's directory and syncs both parents, the new one first: if only that was durable,
// there are two of them after a power cut, and load removes one; the other order could leave none. With
// an error, moved says whether the rename took place all the same.
func (s *Store) move(from, to string) (moved bool, err error) {
	if moved, err = s.rename(from, to); err == nil {
		err = s.syncParents(from)
	}
	return moved, err
}

// rename is move without the sync of the old parent.
func (s *Store) rename(from, to string) (moved bool, err error) {
	if err := s.makeDir(s.fs.PathDir(to)); err != nil {
		return false, err
	}
	if err := s.fs.Rename(from, to); err != nil {
		return false, fmt.Errorf("move copy: %w", err)
	}
	return true, s.syncParents(to)
}

// syncParents syncs the parents of paths, in order.
func (s *Store) syncParents(paths ...string) error {
	for _, p := range paths {
		if err := s.syncDirs(s.fs.PathDir(p)); err != nil {
			return err
		}
	}
	return nil
}

// syncDirs syncs directories, in order; one that does not exist has nothing to sync.
func (s *Store) syncDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := syncDir(s.fs, d); err != nil && !notExist(err) {
			return err
		}
	}
	return nil
}

// remove takes a directory away whole: after the synced rename it is gone, whatever happens.
func (s *Store) remove(dir string) (removed bool, err error) {
	trash := s.fs.PathJoin(s.opts.Dir, trashName, strconv.FormatUint(s.trash.Add(1), 10))
	removed, err = s.move(dir, trash)
	if err != nil {
		return removed, err
	}
	if err := s.fs.RemoveAll(trash); err != nil && !notExist(err) {
		return true, fmt.Errorf("remove copy: %w", err)
	}
	return true, nil
}
