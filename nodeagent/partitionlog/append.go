package partitionlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const (
	// MaxAppendBytes bounds the frames of one Append.
	MaxAppendBytes = 32 << 20
	// maxGroupBytes bounds what is written with one sync, unless a single Append is larger.
	maxGroupBytes = 8 << 20
	// maxQueueBytes bounds what waits for the write lock. More is refused with LIMIT.
	maxQueueBytes = 64 << 20
	queueRetry    = 10 * time.Millisecond
	// maxPooledBuffer keeps a rare large group from pinning its memory.
	maxPooledBuffer = 2 << 20
)

// appendReq is an Append that waits. Who takes it out of the queue finishes it, once.
type appendReq struct {
	recs  []store.Record
	bytes int
	first cluster.Offset
	err   error
	done  chan struct{} // gets one value when first and err are set
}

var (
	reqPool = sync.Pool{New: func() any { return &appendReq{done: make(chan struct{}, 1)} }}
	bufPool = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10); return &b }}
)

// Append adds records behind the log's end and returns the first one's offset after they are synced.
// Offset fields are ignored. The records may be used again when it returns. Concurrent appends share
// one write and one sync.
//
// NOT_OWNER, FROZEN and LIMIT say that nothing was written, as does ctx's error. After all other errors, NO_LEADER
// (the lease has run out) and CORRUPT included, the outcome is unknown.
func (l *Log) Append(ctx context.Context, recs []store.Record) (first cluster.Offset, err error) {
	if len(recs) == 0 {
		return 0, cluster.Invalid("records", "is empty")
	}
	size := 0
	for i := range recs {
		r := &recs[i]
		if len(r.Key) > cluster.MaxKeyBytes || len(r.Key)+len(r.Value) > cluster.MaxRecordBytes {
			return 0, limit("record", "%d bytes of key and %d of key and value; at most %d and %d", len(r.Key), len(r.Key)+len(r.Value), cluster.MaxKeyBytes, cluster.MaxRecordBytes)
		}
		size += frameSize(r)
	}
	if size > MaxAppendBytes {
		return 0, limit("append", "%d bytes; at most %d", size, MaxAppendBytes)
	}
	req := reqPool.Get().(*appendReq)
	req.recs, req.bytes = recs, size
	if err := l.enqueue(req); err != nil {
		reqPool.Put(req)
		return 0, err
	}
	return l.await(ctx, req)
}

func limit(field, format string, args ...any) *cluster.Error {
	e := cluster.Errorf(cluster.ReasonLimit, "%s: %s", field, fmt.Sprintf(format, args...))
	e.Field = field
	return e
}

func (l *Log) enqueue(req *appendReq) error {
	l.queue.Lock()
	defer l.queue.Unlock()
	if err := l.usableLocked(); err != nil {
		return err
	}
	if t := l.queue.frozen; t != nil {
		return frozenError(l.p, *t)
	}
	if l.queue.bytes+req.bytes > maxQueueBytes && len(l.queue.reqs) > 0 {
		e := limit("queue", "partition %s: more than %d bytes wait", l.p, maxQueueBytes)
		e.RetryAfter = queueRetry
		return e
	}
	l.queue.reqs = append(l.queue.reqs, req)
	l.queue.bytes += req.bytes
	return nil
}

func frozenError(p cluster.PartitionID, t store.FreezeToken) error {
	e := cluster.Errorf(cluster.ReasonFrozen, "partition %s is frozen for move %d, handoff %d", p, t.MoveID, t.Handoff)
	e.MoveID, e.Handoff = t.MoveID, t.Handoff
	return e
}

// await returns req's outcome. Whoever gets the write lock first writes for all that wait.
func (l *Log) await(ctx context.Context, req *appendReq) (cluster.Offset, error) {
	for {
		select {
		case <-req.done:
			return release(req)
		default:
		}
		select {
		case <-req.done:
			return release(req)
		case l.write <- struct{}{}:
			l.writeGroup()
			<-l.write
		case <-ctx.Done():
			if l.withdraw(req) {
				req.recs = nil
				reqPool.Put(req)
				return 0, ctx.Err()
			}
			<-req.done // it is being written
			return release(req)
		}
	}
}

func release(req *appendReq) (cluster.Offset, error) {
	first, err := req.first, req.err
	req.recs, req.err = nil, nil
	reqPool.Put(req)
	return first, err
}

// finish gives all requests an error, or offsets from first on.
func finish(reqs []*appendReq, first cluster.Offset, err error) {
	for _, r := range reqs {
		r.first, r.err = first, err
		first += cluster.Offset(len(r.recs))
		r.done <- struct{}{}
	}
}

// withdraw takes req out of the queue; false when somebody else has.
func (l *Log) withdraw(req *appendReq) bool {
	l.queue.Lock()
	defer l.queue.Unlock()
	for i, r := range l.queue.reqs {
		if r == req {
			l.queue.reqs = append(l.queue.reqs[:i:i], l.queue.reqs[i+1:]...)
			l.queue.bytes -= req.bytes
			return true
		}
	}
	return false
}

// take takes the next group out of the queue. An empty one comes of a freeze or a close in between.
func (l *Log) take() (group []*appendReq, bytes int) {
	l.queue.Lock()
	defer l.queue.Unlock()
	n := 0
	for n < len(l.queue.reqs) && (n == 0 || bytes+l.queue.reqs[n].bytes <= maxGroupBytes) {
		bytes += l.queue.reqs[n].bytes
		n++
	}
	group = l.queue.reqs[:n:n]
	l.queue.reqs = l.queue.reqs[n:]
	if len(l.queue.reqs) == 0 {
		l.queue.reqs = nil
	}
	l.queue.bytes -= bytes
	return group, bytes
}

// refuseLocked empties the queue; the caller finishes what it returns.
func (l *Log) refuseLocked() []*appendReq {
	reqs := l.queue.reqs
	l.queue.reqs, l.queue.bytes = nil, 0
	return reqs
}

// writeGroup writes, syncs and acknowledges what waits. The write lock is held. The freeze check is in
// enqueue and freeze, which empties the queue: what is taken here was accepted before the freeze, and the
// freeze waits for this lock.
func (l *Log) writeGroup() {
	group, bytes := l.take()
	if len(group) == 0 {
		return
	}
	// Invariant I10: a lease that has run out already is seen before anything is written, so that a
	// fenced owner does not write, hide and cut over and over.
	if !l.leased() {
		finish(group, 0, l.fenced())
		return
	}
	if err := l.prepare(); err != nil {
		finish(group, 0, fmt.Errorf("append to partition %s: %w", l.p, err))
		return
	}
	buf := bufPool.Get().(*[]byte)
	if cap(*buf) < bytes {
		*buf = make([]byte, 0, bytes)
	}
	first, err := l.commit(group, (*buf)[:0])
	if cap(*buf) <= maxPooledBuffer {
		bufPool.Put(buf)
	}
	finish(group, first, err)
}

func (l *Log) leased() bool { return !l.outbound.Load() || l.store.opts.Lease() }

func (l *Log) fenced() error {
	return cluster.Errorf(cluster.ReasonNoLeader, "partition %s: the lease has run out while the partition is being moved", l.p)
}

// commit writes a group at the end of the active segment. The write lock is held and prepare has
// succeeded.
func (l *Log) commit(group []*appendReq, buf []byte) (cluster.Offset, error) {
	// The view's segment, leo and run change under the write lock only, which is held.
	g := l.view.segs[len(l.view.segs)-1]
	first := l.view.leo
	off, last, idx := first, g.last, g.idx
	for _, req := range group {
		for i := range req.recs {
			r := &req.recs[i]
			idx = idx.add(g.base, off, g.size+int64(len(buf)))
			buf = appendFrame(buf, off, r)
			last = max(last, r.Time)
			off++
		}
	}
	run := *g.run
	run.write(buf) // before the file may change buf
	ev := faults.Event{TopicID: uint64(l.p.Topic), Index: l.p.Index}
	l.tailLeft = true
	if _, err := l.file.WriteAt(buf, g.size); err != nil {
		return 0, l.failed(fmt.Errorf("append to partition %s: write: %w", l.p, err))
	}
	ev.Point = faults.AppendWritten
	if err := faults.Hit(ev); err != nil {
		return 0, l.failed(err)
	}
	if err := l.file.SyncData(); err != nil {
		return 0, l.failed(fmt.Errorf("append to partition %s: sync: %w", l.p, err))
	}
	if l.newFile {
		if err := syncDir(l.store.fs, l.dir); err != nil {
			return 0, l.failed(fmt.Errorf("append to partition %s: %w", l.p, err))
		}
		l.newFile = false
	}
	ev.Point = faults.AppendSynced
	if err := faults.Hit(ev); err != nil {
		return 0, l.failed(err)
	}
	l.tailLeft = false
	// Invariant I10: the lease is checked after the sync. A source that was suspended during the sync
	// must not acknowledge what a promoted destination can't have.
	leased := l.leased()
	l.view.Lock()
	g.size += int64(len(buf))
	g.idx, g.last, *g.run = idx, last, run
	l.view.leo = off
	if leased {
		l.view.hwm = off
		l.wake()
	} else {
		l.view.hidden = true
	}
	l.view.seq++
	seq := l.view.seq
	l.view.Unlock()
	if leased {
		return first, nil
	}
	// Invariant I3: the HWM below the tail is durable before anything else. When even that fails, a restart
	// shows records that were not acknowledged, which is a duplicate at most.
	_ = l.save(seq)
	return 0, l.fenced()
}

// failed hides what may have reached the disk and returns err. The write lock is held.
func (l *Log) failed(err error) error {
	// Invariant I3: see commit.
	_ = l.save(l.changedState(func() { l.view.hidden = true }))
	return err
}
