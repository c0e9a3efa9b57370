package etcdraft

import (
	"slices"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// MemLog is a LogStore in memory that can crash: records that were not synced are lost, or a prefix of them
// survives. For tests and simulations.
type MemLog struct {
	*memTable

	disk struct {
		sync.Mutex
		records []logRecord
		synced  int
	}
}

// NewMemLog returns an empty log. With conf it begins at the bootstrap record.
func NewMemLog(conf *raftpb.ConfState) *MemLog {
	records := []logRecord{{snap: &raftpb.SnapshotMetadata{Index: new(uint64(0)), Term: new(uint64(0))}}}
	applied := uint64(0)
	if conf != nil {
		applied = bootstrapIndex
		records = append(records, bootstrapRecords(conf)...)
	}
	m, err := openMemLog(records, applied)
	if err != nil {
		panic(err) // The records above always make a log.
	}
	return m
}

// bootstrapRecords is how a log begins at the bootstrap record.
func bootstrapRecords(conf *raftpb.ConfState) []logRecord {
	return []logRecord{
		{snap: &raftpb.SnapshotMetadata{Index: new(uint64(bootstrapIndex)), Term: new(uint64(bootstrapTerm)), ConfState: conf}},
		{state: &raftpb.HardState{Term: new(uint64(bootstrapTerm)), Vote: new(uint64(0)), Commit: new(uint64(bootstrapIndex))}},
	}
}

func openMemLog(records []logRecord, applied uint64) (*MemLog, error) {
	v, err := replayRecords(records, applied)
	if err != nil {
		return nil, err
	}
	t, err := newMemTable(v)
	if err != nil {
		return nil, err
	}
	m := &MemLog{memTable: t}
	m.disk.records, m.disk.synced = records, len(records)
	return m, nil
}

// Crash returns the log as a restarted process finds it: everything synced, and keep unsynced records.
// applied is what the state machine holds durably.
func (m *MemLog) Crash(applied uint64, keep int) (*MemLog, error) {
	m.disk.Lock()
	defer m.disk.Unlock()
	n := min(m.disk.synced+keep, len(m.disk.records))
	return openMemLog(slices.Clone(m.disk.records[:n]), applied)
}

func (m *MemLog) write(sync bool, records ...logRecord) {
	m.disk.Lock()
	defer m.disk.Unlock()
	m.disk.records = append(m.disk.records, records...)
	if sync {
		m.disk.synced = len(m.disk.records)
	}
}

// Save implements LogStore.
func (m *MemLog) Save(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	prev := m.HardState()
	var records []logRecord
	for _, e := range entries {
		records = append(records, logRecord{entry: e})
	}
	sync := len(entries) > 0
	if hs != nil {
		records = append(records, logRecord{state: hs})
		sync = raft.MustSync(hs, prev, len(entries))
	}
	m.write(sync, records...)
	return m.save(hs, entries)
}

// BeginSnapshot implements LogStore.
func (m *MemLog) BeginSnapshot(meta *raftpb.SnapshotMetadata) error {
	m.write(true, logRecord{snap: meta})
	return nil
}

// FinishSnapshot implements LogStore.
func (m *MemLog) FinishSnapshot(meta *raftpb.SnapshotMetadata) error { return m.replace(meta) }

// Compact implements LogStore.
func (m *MemLog) Compact(meta *raftpb.SnapshotMetadata) error {
	if meta.GetIndex() <= m.SnapshotMeta().GetIndex() {
		return nil
	}
	m.write(true, logRecord{snap: meta})
	return m.compact(meta)
}

// Close implements LogStore.
func (m *MemLog) Close() error { return nil }
