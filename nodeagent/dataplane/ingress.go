package dataplane

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// retryAfter is what a refused client is told to wait.
const retryAfter = time.Second

// ingress is the durable queue of accepted records. It lives in a borrowed database under a prefix.
//
// accept is called by many goroutines: each commits its own batch, and the database shares one sync
// among them. Chunks become visible to the dispatcher in the order of their sequence numbers, once all
// lower ones are committed, so that a reader that has passed a number never misses one below it.
//
// For one partition, take, done and shed are called by one goroutine at a time.
type ingress struct {
	db       *pebble.DB
	prefix   []byte
	maxBytes uint64
	memory   uint64
	// wake tells the dispatcher that a partition without a worker has something to deliver; nil without a
	// dispatcher. It is called with mu held and must not block. Under mu.
	wake func(cluster.PartitionID)

	mu struct {
		sync.Mutex
		next     uint64
		inFlight []*acceptance
		queues   map[cluster.PartitionID]*queue
		total    amount
		inMemory uint64
		broken   error
	}
}

// amount counts chunks, their records and their bytes.
type amount struct{ chunks, records, bytes uint64 }

func (a *amount) add(b amount) { a.chunks += b.chunks; a.records += b.records; a.bytes += b.bytes }

// sub never goes below zero: a wrong count must not turn into a full queue.
func (a *amount) sub(b amount) {
	a.chunks -= min(a.chunks, b.chunks)
	a.records -= min(a.records, b.records)
	a.bytes -= min(a.bytes, b.bytes)
}

func amountOf(chunks ...*chunk) amount {
	var a amount
	for _, c := range chunks {
		a.add(amount{1, uint64(len(c.records)), c.size})
	}
	return a
}

// acceptance is one accept between its numbering and its publication.
type acceptance struct {
	chunks []*chunk
	first  uint64
	done   bool
}

// queue is what is pending for one partition: chunks in memory, then chunks that are only on disk.
type queue struct {
	mem  []*chunk
	disk amount
	// cursor is the sequence number from which the chunks on disk continue after mem.
	cursor uint64
	// active says that a worker delivers the queue.
	active bool
}

// openIngress recovers the queue from the database.
func openIngress(db *pebble.DB, prefix []byte, cfg Config) (*ingress, error) {
	in := &ingress{db: db, prefix: append([]byte(nil), prefix...), maxBytes: uint64(cfg.IngressMaxBytes),
		memory: uint64(cfg.DispatchMemory)}
	in.mu.queues = map[cluster.PartitionID]*queue{}
	in.mu.next = 1
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: in.prefix, UpperBound: prefixEnd(in.prefix)})
	if err != nil {
		return nil, fmt.Errorf("recover the ingress queue: %w", err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		if err := in.recover(it); err != nil {
			_ = it.Close()
			return nil, fmt.Errorf("recover the ingress queue: %w", err)
		}
	}
	if err := it.Close(); err != nil {
		return nil, fmt.Errorf("recover the ingress queue: %w", err)
	}
	return in, nil
}

func (in *ingress) recover(it *pebble.Iterator) error {
	p, seq, err := parseChunkKey(in.prefix, it.Key())
	if err != nil {
		return err
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	n, _, err := countChunk(v)
	if err != nil {
		return fmt.Errorf("partition %s, entry %d: %w", p, seq, err)
	}
	a := amount{1, n, uint64(len(v)) + chunkOverhead}
	in.queue(p).disk.add(a)
	in.mu.total.add(a)
	in.mu.next = max(in.mu.next, seq+1)
	return nil
}

// prefixEnd returns the first key after all keys with the prefix; nil when there is none.
func prefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// queue returns a partition's queue, made when there is none. The caller holds mu.
func (in *ingress) queue(p cluster.PartitionID) *queue {
	q, ok := in.mu.queues[p]
	if !ok {
		q = &queue{}
		in.mu.queues[p] = q
	}
	return q
}

// attach sets the dispatcher, and wakes it for everything that is pending, by partition.
func (in *ingress) attach(wake func(cluster.PartitionID)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.wake = wake
	for _, p := range slices.SortedFunc(maps.Keys(in.mu.queues), cluster.PartitionID.Compare) {
		if q := in.mu.queues[p]; !q.active {
			q.active = true
			wake(p)
		}
	}
}

// detach stops waking. Workers that end before their queues are empty leave them active, so that a queue is
// attached once.
func (in *ingress) detach() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.wake = nil
}

// depth returns what is accepted and not delivered, acceptances in progress included.
func (in *ingress) depth() (records, bytes uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.mu.total.records, in.mu.total.bytes
}

// accept makes chunks durable, all or none. When it returns nil they are synced and will be delivered.
// On an error other than LIMIT the outcome is unknown: they may be delivered.
func (in *ingress) accept(chunks []*chunk) error {
	want := amountOf(chunks...)
	in.mu.Lock()
	if err := in.mu.broken; err != nil {
		in.mu.Unlock()
		return err
	}
	if in.mu.total.bytes+want.bytes > in.maxBytes {
		have := in.mu.total.bytes
		in.mu.Unlock()
		e := cluster.Errorf(cluster.ReasonLimit,
			"the ingress queue holds %d bytes and %d more exceed ingress_bytes, %d", have, want.bytes, in.maxBytes)
		e.Field, e.RetryAfter = "ingress_bytes", retryAfter
		return e
	}
	in.mu.total.add(want)
	a := &acceptance{chunks: chunks, first: in.mu.next}
	for _, c := range chunks {
		c.seq = in.mu.next
		in.mu.next++
	}
	in.mu.inFlight = append(in.mu.inFlight, a)
	in.mu.Unlock()

	err := in.commit(chunks, want.bytes)
	in.published(a, err)
	return err
}

// commit writes chunks in one synced batch. The database shares syncs among concurrent callers.
func (in *ingress) commit(chunks []*chunk, size uint64) error {
	b := in.db.NewBatchWithSize(int(size) + 16)
	key := make([]byte, 0, len(in.prefix)+keySuffixLen)
	for _, c := range chunks {
		key = appendChunkKey(key[:0], in.prefix, c.partition, c.seq)
		op := b.SetDeferred(len(key), int(c.size-chunkOverhead))
		copy(op.Key, key)
		encodeChunk(op.Value, c.records)
		if err := op.Finish(); err != nil {
			_ = b.Close()
			return fmt.Errorf("write the ingress queue: %w", err)
		}
	}
	// Invariant I2: nothing is acknowledged before this sync.
	if err := b.Commit(pebble.Sync); err != nil {
		_ = b.Close()
		return fmt.Errorf("write the ingress queue: %w", err)
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("write the ingress queue: %w", err)
	}
	return nil
}

// published makes an acceptance visible, and those after it that waited for it. After a failed commit the
// chunks may be in the database all the same, so they are delivered like others, and the queue is closed
// for new ones.
func (in *ingress) published(a *acceptance, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err != nil {
		in.mu.broken = err
	}
	a.done = true
	for len(in.mu.inFlight) > 0 && in.mu.inFlight[0].done {
		for _, c := range in.mu.inFlight[0].chunks {
			in.push(c)
		}
		in.mu.inFlight[0] = nil
		in.mu.inFlight = in.mu.inFlight[1:]
	}
}

// push appends a chunk to its queue: in memory when there is room and nothing is only on disk before it.
func (in *ingress) push(c *chunk) {
	q := in.queue(c.partition)
	if q.disk.chunks == 0 && in.mu.inMemory+c.size <= in.memory {
		q.mem = append(q.mem, c)
		q.cursor = c.seq + 1
		in.mu.inMemory += c.size
	} else {
		if q.disk.chunks == 0 && len(q.mem) == 0 {
			q.cursor = c.seq
		}
		q.disk.add(amountOf(c))
	}
	if !q.active && in.wake != nil {
		q.active = true
		in.wake(c.partition)
	}
}

// visible returns the sequence number below which everything is published. The caller holds mu.
func (in *ingress) visible() uint64 {
	if len(in.mu.inFlight) > 0 {
		return in.mu.inFlight[0].first
	}
	return in.mu.next
}
