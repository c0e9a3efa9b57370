package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// The bounds of what is remembered. All replicas must agree on them: changing one is a format change.
const (
	// DefaultHistoryLimit is how many revisions watches can resume over; a watcher that is further
	// behind starts from a snapshot.
	DefaultHistoryLimit = 50_000
	// requestLimit is how many revisions a request id is remembered; a later retry is applied again.
	requestLimit = 10_000
	// EndedLimit is how many ended moves are listed; older ones are forgotten.
	EndedLimit = 10_000
)

// Options configure a Machine. The zero value is a machine on the real disk with default bounds.
type Options struct {
	// FS is where the database lives; nil is the real file system.
	FS vfs.FS
	// HistoryLimit overrides DefaultHistoryLimit, for tests. It must be alike on all replicas.
	HistoryLimit int
	// Logger receives Pebble's messages; nil discards them.
	Logger pebble.Logger
}

// Entry is one committed log entry. When both Command and Metadata are empty only the index advances.
type Entry struct {
	Index    uint64
	Command  []byte
	Metadata []byte
}

// Result is what a command did. It is equal on all replicas.
type Result struct {
	// Revision is the one that the command made, or the present one when it changed nothing.
	Revision cluster.Revision
	Changed  bool
	// Value is the topic id, move id, handoff or raft id that the command is about.
	Value uint64
	// Assignment is the partition's record after the command, for commands about one.
	Assignment *cluster.Assignment
	// Outcome says how the move ended, for commands about a move that has.
	Outcome *cluster.Outcome
	// Err is the refusal; nil when the command was accepted.
	Err *cluster.Error
}

// Machine is the state machine. See the package comment for its rules and concurrency.
type Machine struct {
	fs    vfs.FS
	dir   string
	opts  Options
	limit uint64

	applied atomic.Uint64
	durable atomic.Uint64

	mu struct {
		sync.RWMutex
		db      *handle
		state   *state
		updated chan struct{}
		closed  bool
	}
}

// Open opens or creates the state in dir. The caller closes the machine. A machine that was killed opens
// with a prefix of what it had applied; AppliedIndex tells up to where.
func Open(dir string, opts Options) (*Machine, error) {
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.HistoryLimit <= 0 {
		opts.HistoryLimit = DefaultHistoryLimit
	}
	if opts.Logger == nil {
		opts.Logger = discard{}
	}
	m := &Machine{fs: opts.FS, dir: dir, opts: opts, limit: uint64(opts.HistoryLimit)}
	m.mu.updated = make(chan struct{})
	name, err := m.activeName()
	if err != nil {
		return nil, err
	}
	db, err := m.openDB(name)
	if err != nil {
		return nil, err
	}
	if err := m.adopt(db); err != nil {
		return nil, errors.Join(err, db.release())
	}
	return m, nil
}

// adopt loads the state of db and makes it the machine's.
func (m *Machine) adopt(db *handle) error {
	st, applied, err := load(db.DB, m.limit)
	if err != nil {
		return err
	}
	m.mu.db, m.mu.state = db, st
	m.applied.Store(applied)
	m.durable.Store(applied)
	return nil
}

// AppliedIndex is the index of the last applied entry; zero before the first.
func (m *Machine) AppliedIndex() uint64 { return m.applied.Load() }

// DurableIndex is the index up to which entries survive a crash.
func (m *Machine) DurableIndex() uint64 { return m.durable.Load() }

// Flush makes everything that was applied before the call durable.
func (m *Machine) Flush() error {
	index := m.applied.Load()
	m.mu.RLock()
	db, closed := m.mu.db, m.mu.closed
	if !closed {
		db.acquire()
	}
	m.mu.RUnlock()
	if closed {
		return errors.New("flush: the state machine is closed")
	}
	err := db.Flush()
	if err := errors.Join(err, db.release()); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	for {
		old := m.durable.Load()
		if old >= index || m.durable.CompareAndSwap(old, index) {
			return nil
		}
	}
}

// Metadata returns the consensus record of the last applied entry that had one; nil before the first.
func (m *Machine) Metadata() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.state.metadata
}

// Close flushes and closes. Snapshots that are still open stay readable until they are closed.
func (m *Machine) Close() error {
	flushErr := m.Flush()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil
	}
	m.mu.closed = true
	close(m.mu.updated)
	return errors.Join(flushErr, m.mu.db.release())
}

// Apply applies entries in order. Their effects, the last metadata and the applied index are one atomic
// write. There is one result per entry. An error means that the process must stop: the state in memory
// may be ahead of the database.
func (m *Machine) Apply(entries []Entry) ([]Result, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil, errors.New("apply: the state machine is closed")
	}
	st := m.mu.state
	before := st.revision
	batch := m.mu.db.NewBatch()
	defer batch.Close()
	st.batch = batch
	results := make([]Result, len(entries))
	index := m.applied.Load()
	for i, e := range entries {
		if e.Index <= index {
			return nil, fmt.Errorf("apply entry %d: entry %d is applied already", e.Index, index)
		}
		index = e.Index
		r, err := st.applyEntry(e)
		if err != nil {
			return nil, fmt.Errorf("apply entry %d: %w", e.Index, err)
		}
		results[i] = r
	}
	st.set(keyApplied, value64(index))
	st.batch = nil
	if err := st.err; err != nil {
		return nil, fmt.Errorf("apply entry %d: %w", index, err)
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return nil, fmt.Errorf("apply entry %d: %w", index, err)
	}
	m.applied.Store(index)
	if st.revision != before {
		close(m.mu.updated)
		m.mu.updated = make(chan struct{})
	}
	return results, nil
}

func (st *state) applyEntry(e Entry) (Result, error) {
	if e.Metadata != nil {
		st.metadata = e.Metadata
		st.set(keyConsensus, e.Metadata)
	}
	if e.Command == nil {
		return Result{Revision: st.revision}, nil
	}
	cmd, err := decode(e.Command)
	if err != nil {
		return Result{}, err
	}
	if r, ok := st.remembered(cmd.GetRequestId()); ok {
		return r, nil
	}
	st.begin(cmd)
	r, err := st.dispatch(cmd)
	if err != nil {
		return Result{}, err
	}
	return st.end(cmd, r), nil
}

// dispatch runs one command. Each handler checks everything before it writes anything, so that a refusal
// changes nothing.
func (st *state) dispatch(cmd *storagev1.Command) (Result, error) {
	switch c := cmd.GetCommand().(type) {
	case *storagev1.Command_Noop:
		return Result{}, nil
	case *storagev1.Command_RegisterNode:
		return st.registerNode(c.RegisterNode), nil
	case *storagev1.Command_MarkDead:
		return st.markDead(c.MarkDead), nil
	case *storagev1.Command_SetDraining:
		return st.setDraining(c.SetDraining), nil
	case *storagev1.Command_RemoveNode:
		return st.removeNode(c.RemoveNode), nil
	case *storagev1.Command_CreateTopic:
		return st.createTopic(c.CreateTopic), nil
	case *storagev1.Command_DeleteTopic:
		return st.deleteTopic(c.DeleteTopic), nil
	case *storagev1.Command_SetTarget:
		return st.setTarget(c.SetTarget), nil
	case *storagev1.Command_CancelMove:
		return st.cancelMove(c.CancelMove), nil
	case *storagev1.Command_GrantHandoff:
		return st.grantHandoff(c.GrantHandoff), nil
	case *storagev1.Command_RevokeHandoff:
		return st.revokeHandoff(c.RevokeHandoff), nil
	case *storagev1.Command_CompleteMove:
		return st.completeMove(c.CompleteMove), nil
	case *storagev1.Command_ForceCompleteMove:
		return st.forceCompleteMove(c.ForceCompleteMove), nil
	case *storagev1.Command_ReportOpened:
		return st.reportOpened(c.ReportOpened), nil
	case *storagev1.Command_ReportReclaimed:
		return st.reportReclaimed(c.ReportReclaimed), nil
	case *storagev1.Command_SetSettings:
		return st.setSettings(c.SetSettings), nil
	case *storagev1.Command_PutController:
		return st.putController(c.PutController), nil
	case *storagev1.Command_RemoveController:
		return st.removeController(c.RemoveController), nil
	case *storagev1.Command_ClaimPartitions:
		return st.claimPartitions(c.ClaimPartitions), nil
	case *storagev1.Command_SettlePartition:
		return st.settlePartition(c.SettlePartition), nil
	case *storagev1.Command_ForgetNode:
		return st.forgetNode(c.ForgetNode), nil
	case *storagev1.Command_AdoptCopy:
		return st.adoptCopy(c.AdoptCopy), nil
	case *storagev1.Command_SetMaintenance:
		return st.setMaintenance(c.SetMaintenance), nil
	}
	return Result{}, fmt.Errorf("command %T is of a kind that this version does not know; upgrade this process", cmd.GetCommand())
}

// load reads the whole state of db.
func load(db *pebble.DB, limit uint64) (st *state, applied uint64, err error) {
	st = newState(limit)
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, 0, fmt.Errorf("read state: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		if string(it.Key()) == string(keyApplied) {
			if len(it.Value()) != 8 {
				return nil, 0, errors.New("read state: applied index is damaged")
			}
			applied = binary.BigEndian.Uint64(it.Value())
			continue
		}
		if err := st.loadKey(it.Key(), it.Value()); err != nil {
			return nil, 0, fmt.Errorf("read state: key %q: %w", it.Key(), err)
		}
	}
	if err := it.Error(); err != nil {
		return nil, 0, fmt.Errorf("read state: %w", err)
	}
	return st, applied, nil
}

type discard struct{}

func (discard) Infof(string, ...any)           {}
func (discard) Errorf(string, ...any)          {}
func (discard) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
