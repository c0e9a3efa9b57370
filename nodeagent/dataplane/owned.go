package dataplane

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// ownedPartitions holds the reservations of the partitions that this node serves. Each belongs to one
// opening of a log: closing or losing the partition ends them all.
type ownedPartitions struct {
	cfg   Config
	logs  Logs
	stats *Stats
	now   func() time.Time
	// turn rotates which partition is asked first.
	turn atomic.Uint64

	mu struct {
		sync.Mutex
		parts map[cluster.PartitionID]*owned
	}
}

// owned is one opening of a partition.
type owned struct {
	partition cluster.PartitionID
	log       Log
	now       func() time.Time
	// epoch is the log's when its reservations began. It stays when a move begins or is cancelled, since
	// reservations do; an opening after an absence has a higher one.
	epoch cluster.Epoch

	mu struct {
		sync.Mutex
		groups map[string]*group
	}
}

// group is a consumer group's state in one opening.
type group struct {
	name string
	mu   struct {
		sync.Mutex
		res   *reservations
		nonce uint64
		// back is closed when reservations ended before their time; nil when nobody waits.
		back chan struct{}
	}
	// committing is held while the committed offset is made durable; waiting callers find it done.
	committing struct {
		sync.Mutex
		durable cluster.Offset
	}
}

func newOwnedPartitions(cfg Config, deps Deps, stats *Stats) *ownedPartitions {
	op := &ownedPartitions{cfg: cfg, logs: deps.Logs, stats: stats, now: deps.Now}
	op.clear()
	return op
}

func (op *ownedPartitions) clear() {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.mu.parts = map[cluster.PartitionID]*owned{}
}

// get returns the present opening of a partition, or NOT_OWNER.
func (op *ownedPartitions) get(p cluster.PartitionID) (*owned, error) {
	l, err := op.logs.Log(p)
	op.mu.Lock()
	defer op.mu.Unlock()
	if err != nil {
		delete(op.mu.parts, p)
		return nil, err
	}
	if o, ok := op.mu.parts[p]; ok && o.log == l {
		return o, nil
	}
	o := &owned{partition: p, log: l, now: op.now, epoch: l.Epoch()}
	o.mu.groups = map[string]*group{}
	op.mu.parts[p] = o
	return o, nil
}

// sweep forgets partitions that are no longer open.
func (op *ownedPartitions) sweep() {
	op.mu.Lock()
	parts := make([]cluster.PartitionID, 0, len(op.mu.parts))
	for p := range op.mu.parts {
		parts = append(parts, p)
	}
	op.mu.Unlock()
	for _, p := range parts {
		// Only the forgetting matters.
		_, _ = op.get(p)
	}
}

// group returns a group's state. Unless create is set, nil means that the log has no such group.
func (o *owned) group(name string, create bool, cfg Config) (*group, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g, ok := o.mu.groups[name]; ok {
		return g, nil
	}
	committed, exists := o.log.CommittedOffset(name)
	if !exists && !create {
		return nil, nil
	}
	if len(o.mu.groups) >= cfg.MaxGroups {
		e := cluster.Errorf(cluster.ReasonLimit, "partition %s serves %d groups, max_groups", o.partition, len(o.mu.groups))
		e.Field, e.RetryAfter = "max_groups", retryAfter
		return nil, e
	}
	if !exists {
		var err error
		if committed, err = o.log.EnsureGroup(name); err != nil {
			return nil, err
		}
	}
	g := &group{name: name}
	// Invariant I4: a position beyond what can be read would pass over what is written there next.
	g.mu.res = newReservations(min(committed, o.log.HWM()), cfg.MaxReservations)
	g.committing.durable = committed
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	// A random start tells receipts of this opening from those before a restart at the same epoch.
	g.mu.nonce = binary.LittleEndian.Uint64(seed[:])
	o.mu.groups[name] = g
	return g, nil
}

// budget is what a consume may still hand out.
type budget struct {
	records    int
	bytes      cluster.Bytes
	visibility time.Duration
	// any says that a record was handed out, so that one that exceeds bytes is not.
	any bool
}

// consumedSize is what a record counts against max_bytes: about its encoded length with its receipt, so
// that an answer stays below the 4 MiB that clients read by default.
func consumedSize(key, value []byte, group string) cluster.Bytes {
	return cluster.Bytes(len(key) + len(value) + 100 + len(group)*4/3)
}

// reserve hands out up to n records of a group: first those whose reservation ran out.
func (o *owned) reserve(g *group, n int, b *budget, stats *Stats) ([]*nodev1.ConsumedRecord, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	res := g.mu.res
	res.advance(o.log.LogStart())
	now := o.now()
	var out []*nodev1.ConsumedRecord
	take := func(from cluster.Offset, count int) (full bool, err error) {
		records, err := o.log.Read(from, count, max(b.bytes, 1))
		if err != nil {
			return true, err
		}
		// Retention may have removed what was asked for. A gap for another reason would stall the group
		// rather than be skipped.
		res.advance(o.log.LogStart())
		for i := range records {
			r := &records[i]
			size := consumedSize(r.Key, r.Value, g.name)
			if b.any && size > b.bytes {
				return true, nil
			}
			g.mu.nonce++
			if !res.reserve(r.Offset, g.mu.nonce, now, now.Add(b.visibility)) {
				return false, nil
			}
			out = append(out, o.record(r, g))
			b.any, b.records, b.bytes = true, b.records-1, b.bytes-min(b.bytes, size)
		}
		return b.any && b.bytes == 0, nil
	}
	due := res.expired(now, min(n, b.records))
	for len(due) > 0 {
		run := 1
		for run < len(due) && due[run] == due[run-1]+1 {
			run++
		}
		had := len(out)
		full, err := take(due[0], run)
		stats.redelivered.Add(uint64(len(out) - had))
		if err != nil || full {
			return out, err
		}
		due = due[run:]
	}
	if from, room := res.fresh(); from < o.log.HWM() {
		if count := min(n-len(out), b.records, room); count > 0 {
			_, err := take(from, count)
			return out, err
		}
	}
	return out, nil
}

func (o *owned) record(r *store.Record, g *group) *nodev1.ConsumedRecord {
	return &nodev1.ConsumedRecord{Partition: o.partition.Index, Offset: uint64(r.Offset), Key: r.Key, Value: r.Value,
		Time: timestamppb.New(time.UnixMilli(r.Time)),
		Receipt: receipt{partition: o.partition, group: g.name, offset: r.Offset, nonce: g.mu.nonce,
			epoch: o.epoch}.String()}
}

// ready reports whether reserve would hand out something, and otherwise when a reservation may run out.
func (o *owned) ready(g *group) (ready bool, next time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := o.now()
	at, any := g.mu.res.nextExpiry(now)
	if any && !at.After(now) {
		return true, now
	}
	from, room := g.mu.res.fresh()
	return room > 0 && from < o.log.HWM(), at
}

// released returns a channel that is closed when reservations next end before their time. Take it before looking.
func (g *group) released() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.back == nil {
		g.mu.back = make(chan struct{})
	}
	return g.mu.back
}

// wake tells who waits that something can be reserved, if so.
func (g *group) wake(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, any := g.mu.res.nextExpiry(now); any && !at.After(now) && g.mu.back != nil {
		close(g.mu.back)
		g.mu.back = nil
	}
}

// commit makes the group's committed offset durable.
func (g *group) commit(l Log) error {
	g.committing.Lock()
	defer g.committing.Unlock()
	g.mu.Lock()
	to := g.mu.res.committed
	g.mu.Unlock()
	if to <= g.committing.durable {
		return nil
	}
	if err := l.CommitOffset(g.name, to); err != nil {
		return err
	}
	g.committing.durable = to
	return nil
}

// maxSelect bounds how many logs one waiting consume watches; the others are looked at by polling.
const maxSelect = 4096

// waitAny returns when a channel is closed, at until, or when ctx or stop ends.
func waitAny(ctx context.Context, stop <-chan struct{}, changed []<-chan struct{}, until time.Time) {
	if len(changed) > maxSelect {
		changed = changed[:maxSelect]
		until = minTime(until, time.Now().Add(100*time.Millisecond))
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	cases := make([]reflect.SelectCase, 0, len(changed)+3)
	add := func(ch any) {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ch)})
	}
	add(t.C)
	add(ctx.Done())
	add(stop)
	for _, ch := range changed {
		add(ch)
	}
	reflect.Select(cases)
}
