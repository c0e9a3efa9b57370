package etcdraft

import (
	"fmt"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// LogStore keeps the raft log. Writes come from one goroutine at a time; reads may be concurrent with them.
// After an error of a write the store is broken and only Close is allowed.
type LogStore interface {
	// Term, Entries, FirstIndex and LastIndex are those of raft.Storage.
	Term(index uint64) (uint64, error)
	Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error)
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	// HardState returns the last one saved.
	HardState() *raftpb.HardState
	// SnapshotMeta stands for everything before FirstIndex; index zero when nothing was compacted.
	SnapshotMeta() *raftpb.SnapshotMetadata

	// Save appends entries, replacing those from the first one's index on, and sets the hard state unless it
	// is nil. Entries, term and vote are synced on return; a commit index alone need not be.
	Save(hs *raftpb.HardState, entries []*raftpb.Entry) error
	// BeginSnapshot records, synced, that the state machine is about to be replaced by a snapshot.
	BeginSnapshot(meta *raftpb.SnapshotMetadata) error
	// FinishSnapshot drops the log in favour of the snapshot that the state machine now holds.
	FinishSnapshot(meta *raftpb.SnapshotMetadata) error
	// Compact drops entries up to and including meta's index, which the state machine holds durably.
	Compact(meta *raftpb.SnapshotMetadata) error
	Close() error
}

// logRecord is one record of a log file, decoded. One field is set.
type logRecord struct {
	entry *raftpb.Entry
	state *raftpb.HardState
	snap  *raftpb.SnapshotMetadata
}

// rejoinRemedy is what helps when log or state are lost.
const rejoinRemedy = "restore what is missing, or remove this controller from the cluster, empty its directories and start it with --join"

// logView is the log that a sequence of records amounts to.
type logView struct {
	snap    *raftpb.SnapshotMetadata
	state   *raftpb.HardState
	entries []*raftpb.Entry
}

// replayRecords reads a log for a state machine that durably holds everything up to applied. It errs
// rather than return less than what was acknowledged.
func replayRecords(records []logRecord, applied uint64) (logView, error) {
	v := logView{state: &raftpb.HardState{}}
	lowest := ^uint64(0)
	for _, r := range records {
		if r.snap == nil {
			continue
		}
		lowest = min(lowest, r.snap.GetIndex())
		// A snapshot above applied is one whose installation was not completed: the old log still counts.
		if i := r.snap.GetIndex(); i <= applied && (v.snap == nil || i >= v.snap.GetIndex()) {
			v.snap = r.snap
		}
	}
	if v.snap == nil {
		return v, fmt.Errorf("%w: the state machine has applied index %d, the log begins after %d: the state is older than the log "+
			"(restored from a backup?); %s", ErrStateMismatch, applied, lowest, rejoinRemedy)
	}
	base := v.snap.GetIndex()
	for _, r := range records {
		switch {
		case r.state != nil:
			v.state = r.state
		case r.entry != nil && r.entry.GetIndex() > base:
			at := r.entry.GetIndex() - base - 1
			if at > uint64(len(v.entries)) {
				return v, fmt.Errorf("%w: entries %d to %d are missing from the log, the state machine has applied index %d; %s",
					ErrStateMismatch, base+1+uint64(len(v.entries)), r.entry.GetIndex()-1, applied, rejoinRemedy)
			}
			v.entries = append(v.entries[:at], r.entry)
		}
	}
	// Entries after a snapshot with a term before the snapshot's were dropped when it was installed.
	for i, e := range v.entries {
		if e.GetTerm() < v.snap.GetTerm() {
			v.entries = v.entries[:i]
			break
		}
	}
	last := base + uint64(len(v.entries))
	if commit := v.state.GetCommit(); commit > last {
		return v, fmt.Errorf("%w: the log ends at index %d, but %d was committed; %s", ErrStateMismatch, last, commit, rejoinRemedy)
	}
	if applied > last {
		return v, fmt.Errorf("%w: the log ends at index %d, but the state machine has applied %d: synced entries are lost; %s",
			ErrStateMismatch, last, applied, rejoinRemedy)
	}
	// What was applied was committed, whether or not the commit index was synced; and a snapshot's term was
	// seen, whether or not the crash came before it was saved (nothing was answered in that term then).
	st := proto.Clone(v.state).(*raftpb.HardState)
	if applied > st.GetCommit() {
		st.Commit = new(applied)
	}
	if t := v.snap.GetTerm(); t > st.GetTerm() {
		st.Term, st.Vote = new(t), new(uint64(0))
	}
	v.state = st
	return v, nil
}

// memTable is the readable form of a log; entries from the last compaction on are kept in memory.
type memTable struct {
	ms *raft.MemoryStorage
	mu struct {
		sync.Mutex
		state *raftpb.HardState
		snap  *raftpb.SnapshotMetadata
	}
}

func newMemTable(v logView) (*memTable, error) {
	t := &memTable{ms: raft.NewMemoryStorage()}
	t.mu.state, t.mu.snap = v.state, v.snap
	if v.snap.GetIndex() > 0 {
		if err := t.ms.ApplySnapshot(&raftpb.Snapshot{Metadata: v.snap}); err != nil {
			return nil, fmt.Errorf("load the log: %w", err)
		}
	}
	if err := t.ms.Append(v.entries); err != nil {
		return nil, fmt.Errorf("load the log: %w", err)
	}
	return t, nil
}

// Term is raft.Storage's.
func (t *memTable) Term(i uint64) (uint64, error) { return t.ms.Term(i) }

// Entries is raft.Storage's.
func (t *memTable) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	return t.ms.Entries(lo, hi, maxSize)
}

// FirstIndex is raft.Storage's.
func (t *memTable) FirstIndex() (uint64, error) { return t.ms.FirstIndex() }

// LastIndex is raft.Storage's.
func (t *memTable) LastIndex() (uint64, error) { return t.ms.LastIndex() }

// HardState returns the last one saved.
func (t *memTable) HardState() *raftpb.HardState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.state
}

// SnapshotMeta stands for everything before FirstIndex.
func (t *memTable) SnapshotMeta() *raftpb.SnapshotMetadata {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.snap
}

func (t *memTable) save(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	if hs != nil {
		t.mu.Lock()
		t.mu.state = hs
		t.mu.Unlock()
	}
	return t.ms.Append(entries)
}

func (t *memTable) replace(meta *raftpb.SnapshotMetadata) error {
	if err := t.ms.ApplySnapshot(&raftpb.Snapshot{Metadata: meta}); err != nil {
		return err
	}
	t.setSnap(meta)
	return nil
}

func (t *memTable) compact(meta *raftpb.SnapshotMetadata) error {
	if meta.GetIndex() <= t.SnapshotMeta().GetIndex() {
		return nil
	}
	if _, err := t.ms.CreateSnapshot(meta.GetIndex(), meta.GetConfState(), nil); err != nil {
		return err
	}
	// The metadata first: raft must find one that covers everything before FirstIndex at any time.
	t.setSnap(meta)
	return t.ms.Compact(meta.GetIndex())
}

func (t *memTable) setSnap(meta *raftpb.SnapshotMetadata) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.snap = meta
}

// raftStorage is a LogStore as raft reads it. conf is the configuration as of the applied index.
type raftStorage struct {
	LogStore
	conf *raftpb.ConfState
}

// InitialState implements raft.Storage.
func (s raftStorage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	return s.HardState(), s.conf, nil
}

// Snapshot implements raft.Storage. It is only a mark: what is sent is the state machine's present state,
// which is never older.
func (s raftStorage) Snapshot() (*raftpb.Snapshot, error) {
	meta := s.SnapshotMeta()
	if meta.GetIndex() == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: meta}, nil
}
