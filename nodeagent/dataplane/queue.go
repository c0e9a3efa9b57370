package dataplane

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// take returns the oldest chunks of a partition, at least one when there is one, otherwise up to
// maxBytes, without removing them. When there is none the queue is left inactive and nil is returned: the
// calling worker must end.
func (in *ingress) take(p cluster.PartitionID, maxBytes uint64) ([]*chunk, error) {
	in.mu.Lock()
	q := in.queue(p)
	if len(q.mem) == 0 && q.disk.chunks > 0 {
		before, from, to := q.disk, q.cursor, in.visible()
		in.mu.Unlock()
		chunks, end, err := in.load(p, from, to, maxBytes)
		in.mu.Lock()
		if err != nil {
			in.mu.Unlock()
			return nil, err
		}
		in.loaded(q, before, chunks, end)
	}
	defer in.mu.Unlock()
	if len(q.mem) == 0 && q.disk.chunks == 0 {
		q.active = false
		delete(in.mu.queues, p)
		return nil, nil
	}
	var n int
	var size uint64
	for n < len(q.mem) && (n == 0 || size+q.mem[n].size <= maxBytes) {
		size += q.mem[n].size
		n++
	}
	return slices.Clone(q.mem[:n]), nil
}

// loaded moves chunks that were read from disk to memory. end says that the partition holds no others
// that were counted before the read; a difference is dropped from the counts.
func (in *ingress) loaded(q *queue, before amount, chunks []*chunk, end bool) {
	got := amountOf(chunks...)
	if end {
		q.disk.sub(before)
		in.mu.total.sub(amount{0, before.records - min(before.records, got.records), before.bytes - min(before.bytes, got.bytes)})
	} else {
		q.disk.sub(got)
	}
	if len(chunks) > 0 {
		q.mem = chunks
		q.cursor = chunks[len(chunks)-1].seq + 1
		in.mu.inMemory += got.bytes
	}
}

// load reads chunks with sequence numbers in [from, to) from the database, at least one when there is
// one, otherwise up to maxBytes. end says that there are no others.
func (in *ingress) load(p cluster.PartitionID, from, to, maxBytes uint64) (chunks []*chunk, end bool, err error) {
	it, err := in.db.NewIter(&pebble.IterOptions{
		LowerBound: appendChunkKey(nil, in.prefix, p, from), UpperBound: appendChunkKey(nil, in.prefix, p, to)})
	if err != nil {
		return nil, false, fmt.Errorf("read the ingress queue of partition %s: %w", p, err)
	}
	defer func() {
		if e := it.Close(); e != nil && err == nil {
			err = fmt.Errorf("read the ingress queue of partition %s: %w", p, e)
		}
	}()
	var size uint64
	for ok := it.First(); ok; ok = it.Next() {
		_, seq, err := parseChunkKey(in.prefix, it.Key())
		if err != nil {
			return nil, false, err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, false, fmt.Errorf("read the ingress queue of partition %s: %w", p, err)
		}
		c := &chunk{partition: p, seq: seq, size: uint64(len(v)) + chunkOverhead}
		if len(chunks) > 0 && size+c.size > maxBytes {
			return chunks, false, nil
		}
		if c.records, err = decodeChunk(append([]byte(nil), v...)); err != nil {
			return nil, false, fmt.Errorf("ingress queue of partition %s, entry %d: %w", p, seq, err)
		}
		size += c.size
		chunks = append(chunks, c)
	}
	return chunks, true, nil
}

// done removes the chunks that take returned, the front of their queue. The removal is not synced: lost
// in a crash, it costs a second delivery.
func (in *ingress) done(p cluster.PartitionID, chunks []*chunk) error {
	b := in.db.NewBatch()
	var key []byte
	for _, c := range chunks {
		key = appendChunkKey(key[:0], in.prefix, p, c.seq)
		// A key is set once before it is removed, which is what SingleDelete asks for; it then leaves no
		// tombstone behind when both are still in memory.
		if err := b.SingleDelete(key, nil); err != nil {
			_ = b.Close()
			return fmt.Errorf("remove from the ingress queue: %w", err)
		}
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		_ = b.Close()
		return fmt.Errorf("remove from the ingress queue: %w", err)
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("remove from the ingress queue: %w", err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	q := in.queue(p)
	gone := amountOf(chunks...)
	in.mu.total.sub(gone)
	if len(q.mem) > 0 && q.mem[0].seq == chunks[0].seq {
		clear(q.mem[:len(chunks)])
		q.mem = q.mem[len(chunks):]
		in.mu.inMemory -= min(in.mu.inMemory, gone.bytes)
		return nil
	}
	// The chunks were shed meanwhile: they are the first of those on disk.
	q.disk.sub(gone)
	q.cursor = chunks[len(chunks)-1].seq + 1
	return nil
}

// shed gives up the memory of a partition that waits, so that others can use it. Its chunks are read
// again from the database.
func (in *ingress) shed(p cluster.PartitionID) {
	in.mu.Lock()
	defer in.mu.Unlock()
	q := in.queue(p)
	if len(q.mem) == 0 {
		return
	}
	a := amountOf(q.mem...)
	q.disk.add(a)
	q.cursor = q.mem[0].seq
	q.mem = nil
	in.mu.inMemory -= min(in.mu.inMemory, a.bytes)
}

// shedWhenTight sheds when more than half of the memory is in use.
func (in *ingress) shedWhenTight(p cluster.PartitionID) {
	in.mu.Lock()
	tight := in.mu.inMemory > in.memory/2
	in.mu.Unlock()
	if tight {
		in.shed(p)
	}
}
