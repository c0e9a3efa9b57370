package fsm

import (
	"encoding/binary"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// formatVersion gates the key space. Version 1: the prefixes below, values as naradplane.storage.v1.
const formatVersion = 1

// The key space: one byte of prefix, then the key. Integers are big-endian, so that order is numeric.
const (
	prefixLocal      = 'l' // applied index, metadata: outside the state hash
	prefixMeta       = 'm' // format, revision, next raft id, what it was restored from
	prefixNode       = 'n'
	prefixTopic      = 't'
	prefixAssignment = 'a'
	prefixOutcome    = 'o'
	prefixSettings   = 's'
	prefixController = 'c'
	prefixHistory    = 'h' // revision → RevisionRecord
	prefixRequest    = 'q' // revision → ResultRecord
	prefixEnded      = 'v' // revision, partition → MoveHistoryRecord
	prefixClaim      = 'k' // partition, node, identity → ClaimRecord, until the partition is confirmed
	prefixEvent      = 'e' // id → EventRecord
)

var (
	keyApplied    = []byte{prefixLocal, 'a'}
	keyConsensus  = []byte{prefixLocal, 'c'}
	keyFormat     = []byte{prefixMeta, 'f'}
	keyRevision   = []byte{prefixMeta, 'r'}
	keyNextRaftID = []byte{prefixMeta, 'i'}
	keyRestored   = []byte{prefixMeta, 'b'}
	keySettings   = []byte{prefixSettings}
)

func keyString(prefix byte, s string) []byte { return append([]byte{prefix}, s...) }

func key64(prefix byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefix}, n)
}

func keyPartition(prefix byte, p cluster.PartitionID) []byte {
	return binary.BigEndian.AppendUint32(key64(prefix, uint64(p.Topic)), p.Index)
}

func keyOutcome(p cluster.PartitionID, move cluster.MoveID) []byte {
	return binary.BigEndian.AppendUint64(keyPartition(prefixOutcome, p), uint64(move))
}

func keyEnded(r cluster.Revision, p cluster.PartitionID) []byte {
	k := binary.BigEndian.AppendUint64([]byte{prefixEnded}, uint64(r))
	k = binary.BigEndian.AppendUint64(k, uint64(p.Topic))
	return binary.BigEndian.AppendUint32(k, p.Index)
}

func keyClaim(p cluster.PartitionID, node cluster.NodeID, identity uint64) []byte {
	return binary.BigEndian.AppendUint64(append(keyPartition(prefixClaim, p), node...), identity)
}

func value64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
