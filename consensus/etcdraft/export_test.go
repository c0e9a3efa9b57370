package etcdraft

import (
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

// CreateWAL makes a log on disk for tests of the LogStore alone.
func CreateWAL(dir string, conf *raftpb.ConfState) error {
	setSegmentBytes(64 << 10)
	return createWALLog(dir, &raftv1.WALMetadata{ClusterId: "c", RaftId: 1, StoreId: "s", Name: "n"}, conf, zap.NewNop())
}

// OpenWAL opens a log on disk.
func OpenWAL(dir string, applied uint64) (LogStore, error) {
	_, l, err := openWALLog(dir, applied, zap.NewNop())
	if err != nil {
		return nil, err // Not l: a nil *walLog is not a nil LogStore.
	}
	return l, nil
}
