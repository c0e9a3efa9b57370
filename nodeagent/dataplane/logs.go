package dataplane

import (
	"context"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Log is an open partition log. Two values are equal iff they are the same opening of it.
type Log interface {
	// Append appends all records and returns after their sync. After NOT_OWNER, FROZEN and LIMIT nothing is
	// written; after NO_LEADER (the lease ran out), CORRUPT and others the outcome is unknown.
	Append(ctx context.Context, records []store.Record) (first cluster.Offset, err error)
	// Read returns records below the high watermark, at least one when there is one; from below the
	// log start it begins there.
	Read(from cluster.Offset, maxRecords int, maxBytes cluster.Bytes) ([]store.Record, error)
	HWM() cluster.Offset
	LogStart() cluster.Offset
	Epoch() cluster.Epoch
	// CommittedOffset returns a group's committed offset; false when there is no such group.
	CommittedOffset(group string) (cluster.Offset, bool)
	// CommitOffset makes a group's committed offset durable.
	CommitOffset(group string, offset cluster.Offset) error
	// EnsureGroup returns a group's committed offset; a new group is made durable at the log start.
	EnsureGroup(group string) (cluster.Offset, error)
	// Changed returns a channel that is closed when the high watermark advances or the log closes.
	Changed() <-chan struct{}
}

// Logs gives the open logs of this node.
type Logs interface {
	// Log returns the open log of a partition; NOT_OWNER when it is not served here.
	Log(p cluster.PartitionID) (Log, error)
}
