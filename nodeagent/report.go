package nodeagent

import (
	"slices"
	"sync"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// measured is what was found on disk. It is gathered beside the heartbeats, so that a slow disk delays
// none of them.
type measured struct {
	at          time.Time
	diskTotal   cluster.Bytes
	diskFree    cluster.Bytes
	quarantined int
	sizes       map[cluster.PartitionID]cluster.Bytes
	outbound    map[cluster.PartitionID]cluster.Offset
}

// reporter makes heartbeats' soft state. Safe for concurrent use.
type reporter struct {
	mu struct {
		sync.Mutex
		now measured
		// sent are the sizes that the leader has.
		sent map[cluster.PartitionID]cluster.Bytes
	}
}

func (r *reporter) set(m measured) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.now = m
}

// fill puts what was measured last into a request. Before the first measurement the sizes are not
// called complete.
func (r *reporter) fill(req *planev1.HeartbeatRequest, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mu.now
	req.DiskTotalBytes = uint64(m.diskTotal)
	req.DiskFreeBytes = uint64(m.diskFree)
	req.Quarantined = uint32(m.quarantined)
	req.OutboundHwms = wire.PartitionOffsetsToProto(sortedOffsets(m.outbound))
	sent := r.mu.sent
	if all {
		sent = nil
	}
	for _, s := range sizeChanges(sent, m.sizes) {
		req.Sizes = append(req.Sizes, &planev1.PartitionSize{Partition: wire.PartitionToProto(s.partition), Bytes: uint64(s.bytes)})
	}
	req.SizesComplete = all && !m.at.IsZero()
}

// accepted takes note of what the leader has now.
func (r *reporter) accepted(req *planev1.HeartbeatRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.sent == nil || req.GetSizesComplete() {
		r.mu.sent = map[cluster.PartitionID]cluster.Bytes{}
	}
	for _, s := range req.GetSizes() {
		p := wire.PartitionFromProto(s.GetPartition())
		if s.GetBytes() == 0 {
			delete(r.mu.sent, p)
			continue
		}
		r.mu.sent[p] = cluster.Bytes(s.GetBytes())
	}
}

type partitionSize struct {
	partition cluster.PartitionID
	bytes     cluster.Bytes
}

// sizeChanges lists what differs from sent, in order; what is gone has size zero. With a nil sent it
// lists all.
func sizeChanges(sent, now map[cluster.PartitionID]cluster.Bytes) []partitionSize {
	var out []partitionSize
	for p, n := range now {
		if sent == nil || sent[p] != n {
			out = append(out, partitionSize{p, n})
		}
	}
	for p, old := range sent {
		if _, ok := now[p]; !ok && old != 0 {
			out = append(out, partitionSize{p, 0})
		}
	}
	slices.SortFunc(out, func(a, b partitionSize) int { return a.partition.Compare(b.partition) })
	return out
}

func sortedOffsets(m map[cluster.PartitionID]cluster.Offset) []cluster.PartitionOffset {
	out := make([]cluster.PartitionOffset, 0, len(m))
	for p, o := range m {
		out = append(out, cluster.PartitionOffset{Partition: p, Offset: o})
	}
	slices.SortFunc(out, func(a, b cluster.PartitionOffset) int { return a.Partition.Compare(b.Partition) })
	return out
}
