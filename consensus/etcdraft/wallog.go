package etcdraft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

const newSuffix = ".new"

var segmentOnce sync.Once

// setSegmentBytes sets the library's process-wide variable once, before any log is open.
func setSegmentBytes(n int64) {
	segmentOnce.Do(func() { wal.SegmentSizeBytes = n })
}

// walLog is the LogStore on disk: etcd's write-ahead log.
type walLog struct {
	*memTable
	dir string
	log *zap.Logger
	w   *wal.WAL
}

// createWALLog makes a log that begins at the bootstrap record when conf is given, else empty. It appears
// whole or not at all.
func createWALLog(dir string, head *raftv1.WALMetadata, conf *raftpb.ConfState, log *zap.Logger) error {
	meta, err := proto.MarshalOptions{Deterministic: true}.Marshal(head)
	if err != nil {
		return fmt.Errorf("encode the head of the log: %w", err)
	}
	tmp := dir + newSuffix
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove a half-made log: %w", err)
	}
	w, err := wal.Create(log.Named("wal"), tmp, meta)
	if err != nil {
		return fmt.Errorf("create the log: %w", err)
	}
	if conf != nil {
		for _, r := range bootstrapRecords(conf) {
			if r.snap != nil {
				err = w.SaveSnapshot(walSnapshot(r.snap))
			} else {
				err = w.Save(r.state, nil)
			}
			if err != nil {
				return errors.Join(fmt.Errorf("write the head of the log: %w", err), w.Close())
			}
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("close the new log: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("publish the new log: %w", err)
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("publish the new log: %w", err)
	}
	return nil
}

// openWALLog checks the log as a whole, then opens it for a state machine that durably holds everything up to
// applied.
func openWALLog(dir string, applied uint64, log *zap.Logger) (*raftv1.WALMetadata, *walLog, error) {
	scan, err := scanWAL(dir)
	if err != nil {
		return nil, nil, err
	}
	head := &raftv1.WALMetadata{}
	if err := proto.Unmarshal(scan.metadata, head); err != nil || head.GetRaftId() == 0 {
		return nil, nil, &DamageError{File: dir, Reason: "its head names no member"}
	}
	v, err := replayRecords(scan.records, applied)
	if err != nil {
		return nil, nil, fmt.Errorf("read the log %s: %w", dir, err)
	}
	if scan.torn {
		log.Warn("the log ends in a write that was never completed; cutting it off, a copy is kept", zap.String("dir", dir))
		if !wal.Repair(log.Named("wal"), dir) {
			return nil, nil, fmt.Errorf("cut off the torn end of the log %s", dir)
		}
	}
	w, err := wal.Open(log.Named("wal"), dir, walSnapshot(v.snap))
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	if _, _, _, err := w.ReadAll(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read the log: %w", err), w.Close())
	}
	t, err := newMemTable(v)
	if err != nil {
		return nil, nil, errors.Join(err, w.Close())
	}
	l := &walLog{memTable: t, dir: dir, log: log, w: w}
	// The state as replayed may say more than the last record: make it the last record before use.
	if err := w.Save(v.state, nil); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("write the log: %w", err), w.Close())
	}
	return head, l, nil
}

func walSnapshot(meta *raftpb.SnapshotMetadata) *walpb.Snapshot {
	s := &walpb.Snapshot{Index: new(meta.GetIndex()), Term: new(meta.GetTerm()), ConfState: meta.GetConfState()}
	if s.ConfState == nil && s.GetIndex() > 0 {
		s.ConfState = &raftpb.ConfState{}
	}
	return s
}

// Save implements LogStore.
func (l *walLog) Save(hs *raftpb.HardState, entries []*raftpb.Entry) error {
	// Each batch ends in a state record, needed or not: laterBatch tells batches apart by it.
	st := hs
	if st == nil && len(entries) > 0 {
		st = l.HardState()
	}
	if err := l.w.Save(st, entries); err != nil {
		return fmt.Errorf("write the log %s: %w", l.dir, err)
	}
	return l.save(hs, entries)
}

// BeginSnapshot implements LogStore.
func (l *walLog) BeginSnapshot(meta *raftpb.SnapshotMetadata) error {
	if err := l.w.SaveSnapshot(walSnapshot(meta)); err != nil {
		return fmt.Errorf("write the log %s: %w", l.dir, err)
	}
	return nil
}

// FinishSnapshot implements LogStore.
func (l *walLog) FinishSnapshot(meta *raftpb.SnapshotMetadata) error {
	if err := l.replace(meta); err != nil {
		return fmt.Errorf("replace the log by a snapshot: %w", err)
	}
	return l.purge(meta.GetIndex())
}

// Compact implements LogStore.
func (l *walLog) Compact(meta *raftpb.SnapshotMetadata) error {
	if meta.GetIndex() <= l.SnapshotMeta().GetIndex() {
		return nil
	}
	// The record must be durable before a file goes, else nothing says where the log begins.
	if err := l.w.SaveSnapshot(walSnapshot(meta)); err != nil {
		return fmt.Errorf("write the log %s: %w", l.dir, err)
	}
	if err := l.compact(meta); err != nil {
		return fmt.Errorf("compact the log: %w", err)
	}
	return l.purge(meta.GetIndex())
}

// purge deletes the files that hold nothing after index, oldest first, so that what is left has no gap.
func (l *walLog) purge(index uint64) error {
	if err := l.w.ReleaseLockTo(index); err != nil {
		return fmt.Errorf("release old log files: %w", err)
	}
	files, err := walFiles(l.dir)
	if err != nil {
		return err
	}
	keep := 0
	for i, f := range files {
		if f.index <= index {
			keep = i
		}
	}
	for _, f := range files[:keep] {
		if err := os.Remove(filepath.Join(l.dir, f.name)); err != nil {
			return fmt.Errorf("delete an old log file: %w", err)
		}
	}
	if keep == 0 {
		return nil
	}
	l.log.Info("old log files deleted", zap.Int("files", keep), zap.Uint64("compacted_to", index))
	if err := syncDir(l.dir); err != nil {
		return fmt.Errorf("sync the log directory: %w", err)
	}
	return nil
}

// Close implements LogStore.
func (l *walLog) Close() error {
	if err := l.w.Close(); err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	return nil
}
