package cluster

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strconv"
)

// NodeID names a data node. The operator chooses it; see ValidateNodeID for its syntax.
type NodeID string

// ControllerName names a controller (a consensus member). Same syntax as NodeID.
type ControllerName string

// RaftID is a consensus member's number. It is assigned once and never reused.
type RaftID uint64

// StoreID is the UUID that a daemon gives its data directory when it first uses it.
type StoreID string

// ClusterID identifies one cluster for ever; it is fixed by the bootstrap record.
type ClusterID string

// TopicID is the revision that created a topic. It is never reused, so a topic that is created
// again under an old name shares nothing with the old one. Zero means "no topic".
type TopicID uint64

// Revision is a position in the state machine's history. It grows by one with every command that
// changes something. Zero precedes the first change.
type Revision uint64

// MoveID is the revision of the SetTarget that created a move; unique for ever. Zero means "no move".
type MoveID uint64

// Handoff numbers the freeze attempts of one move: 1, 2, 3 … Zero means "none yet".
type Handoff uint32

// Epoch counts every change of one assignment.
type Epoch uint64

// Incarnation is a node's durable start counter. It never comes from a clock.
type Incarnation uint64

// Offset is a record's position in a partition. Bounds named LEO and HWM are exclusive.
type Offset uint64

// Bytes is a size or a rate per second.
type Bytes uint64

// Nonce is the random secret of one handoff. Only the frozen source's manifest holds it.
type Nonce [16]byte

// NonceHash is what the state machine keeps of a Nonce.
type NonceHash [sha256.Size]byte

// Hash returns what the state machine keeps of n.
func (n Nonce) Hash() NonceHash { return sha256.Sum256(n[:]) }

// PartitionID names one shard of a topic.
type PartitionID struct {
	Topic TopicID
	Index uint32
}

// String returns "topic id/index".
func (p PartitionID) String() string {
	return strconv.FormatUint(uint64(p.Topic), 10) + "/" + strconv.FormatUint(uint64(p.Index), 10)
}

// Less orders partitions by topic, then index.
func (p PartitionID) Less(q PartitionID) bool { return p.Compare(q) < 0 }

// Compare returns -1, 0 or 1, ordering by topic, then index.
func (p PartitionID) Compare(q PartitionID) int {
	switch {
	case p.Topic < q.Topic:
		return -1
	case p.Topic > q.Topic:
		return 1
	case p.Index < q.Index:
		return -1
	case p.Index > q.Index:
		return 1
	}
	return 0
}

// Limits of names and counts. Requests beyond them are refused with ReasonInvalid.
const (
	MaxTopicNameLen = 200
	// MaxPartitions bounds the partitions of one topic: creation is one log entry.
	MaxPartitions = 100_000
	// MaxRecordBytes bounds key plus value of one record.
	MaxRecordBytes = 1 << 20
	// MaxKeyBytes bounds a record's key.
	MaxKeyBytes = 64 << 10
	// MaxGroupNameLen bounds a consumer group's name.
	MaxGroupNameLen = 200
)

var (
	nodeIDPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	namePattern   = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)
)

// ValidateNodeID returns a ReasonInvalid error when id is not a legal node id.
func ValidateNodeID(id NodeID) error {
	if !nodeIDPattern.MatchString(string(id)) {
		return Invalid("node_id", "%q is not a node id: 1 to 63 of a-z, 0-9, '.', '-', beginning and ending with a letter or digit", id)
	}
	return nil
}

// ValidateControllerName returns a ReasonInvalid error when name is not legal.
func ValidateControllerName(name ControllerName) error {
	if !nodeIDPattern.MatchString(string(name)) {
		return Invalid("name", "%q is not a controller name: 1 to 63 of a-z, 0-9, '.', '-', beginning and ending with a letter or digit", name)
	}
	return nil
}

// ValidateTopicName returns a ReasonInvalid error when name is not a legal topic name.
func ValidateTopicName(name string) error { return validateName("topic", name) }

// ValidateGroupName returns a ReasonInvalid error when name is not a legal consumer group name.
func ValidateGroupName(name string) error { return validateName("group", name) }

func validateName(field, name string) error {
	if !namePattern.MatchString(name) || name == "." || name == ".." {
		return Invalid(field, "%q is not a %s name: 1 to 200 of A-Z, a-z, 0-9, '.', '_', '-', and not '.' or '..'", name, field)
	}
	return nil
}

// FormatPartition returns the name operators see, "topic/index".
func FormatPartition(topic string, index uint32) string {
	return fmt.Sprintf("%s/%d", topic, index)
}
