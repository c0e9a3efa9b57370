package dataplane

import (
	"container/heap"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// reservations is what one group holds of one partition. Pure: the caller brings time, nonces and
// records. Not safe for concurrent use.
//
// Every offset in [committed, next) is either reserved (its time may have run out) or acknowledged out of
// order; nothing else is. committed is therefore the end of the contiguous acknowledged prefix.
//
// Invariant I4: committed passes an offset only in settle, which needs its acknowledgement, or in
// advance, which says that retention removed it.
type reservations struct {
	committed, next cluster.Offset
	held            map[cluster.Offset]hold
	acked           map[cluster.Offset]struct{}
	// expiries holds an entry per hold, and outdated ones, by deadline; due holds offsets whose time ran
	// out, and outdated ones, by offset.
	expiries expiryHeap
	due      offsetHeap
	limit    uint64
}

// hold is one reservation.
type hold struct {
	nonce    uint64
	deadline time.Time
}

func newReservations(committed cluster.Offset, limit int) *reservations {
	return &reservations{committed: committed, next: committed, held: map[cluster.Offset]hold{},
		acked: map[cluster.Offset]struct{}{}, limit: uint64(limit)}
}

// fresh returns the next offset that was never reserved, and how many from there on may be.
func (r *reservations) fresh() (from cluster.Offset, room int) {
	used := uint64(r.next - r.committed)
	return r.next, int(r.limit - min(r.limit, used))
}

// expired returns, in ascending order, up to n offsets whose time ran out. They stay what they are until
// they are reserved again.
func (r *reservations) expired(now time.Time, n int) []cluster.Offset {
	for len(r.expiries) > 0 && !r.expiries[0].deadline.After(now) {
		e := heap.Pop(&r.expiries).(expiry)
		if h, ok := r.held[e.offset]; ok && h.nonce == e.nonce && h.deadline.Equal(e.deadline) {
			heap.Push(&r.due, e.offset)
		}
	}
	var out []cluster.Offset
	for len(out) < n && len(r.due) > 0 {
		o := heap.Pop(&r.due).(cluster.Offset)
		h, ok := r.held[o]
		if ok && !h.deadline.After(now) && (len(out) == 0 || out[len(out)-1] != o) {
			out = append(out, o)
		}
	}
	for _, o := range out {
		heap.Push(&r.due, o)
	}
	return out
}

// reserve reserves an offset that expired named, or the one that fresh named. It returns false, and does
// nothing, for any other.
func (r *reservations) reserve(o cluster.Offset, nonce uint64, now, deadline time.Time) bool {
	switch h, ok := r.held[o]; {
	case ok && h.deadline.After(now):
		return false
	case ok:
	case o == r.next:
		r.next++
	default:
		return false
	}
	r.hold(o, nonce, deadline)
	return true
}

func (r *reservations) hold(o cluster.Offset, nonce uint64, deadline time.Time) {
	r.held[o] = hold{nonce, deadline}
	heap.Push(&r.expiries, expiry{deadline, o, nonce})
	// Extensions leave outdated entries behind; without this they would be bounded by nothing.
	if len(r.expiries) > 2*len(r.held)+64 {
		r.expiries = r.expiries[:0]
		for o, h := range r.held {
			r.expiries = append(r.expiries, expiry{h.deadline, o, h.nonce})
		}
		heap.Init(&r.expiries)
	}
}

// settlement is the answer to an acknowledgement or extension.
type settlement uint8

const (
	// settled: done.
	settled settlement = iota + 1
	// settledBefore: the record was acknowledged before.
	settledBefore
	// settleStale: the record was handed out again meanwhile, or never by this table.
	settleStale
)

// ack acknowledges a reservation. One whose time ran out but that nobody else got is still good.
func (r *reservations) ack(o cluster.Offset, nonce uint64) settlement {
	if s := r.check(o, nonce); s != settled {
		return s
	}
	delete(r.held, o)
	r.acked[o] = struct{}{}
	r.settle()
	return settled
}

// extend restarts a reservation's time.
func (r *reservations) extend(o cluster.Offset, nonce uint64, deadline time.Time) settlement {
	if s := r.check(o, nonce); s != settled {
		return s
	}
	r.hold(o, nonce, deadline)
	return settled
}

func (r *reservations) check(o cluster.Offset, nonce uint64) settlement {
	if o < r.committed {
		return settledBefore
	}
	if _, ok := r.acked[o]; ok {
		return settledBefore
	}
	if h, ok := r.held[o]; !ok || h.nonce != nonce {
		return settleStale
	}
	return settled
}

// settle moves committed over what is acknowledged.
func (r *reservations) settle() {
	for {
		if _, ok := r.acked[r.committed]; !ok {
			return
		}
		delete(r.acked, r.committed)
		r.committed++
	}
}

// advance says that records below start no longer exist.
func (r *reservations) advance(start cluster.Offset) {
	if start <= r.committed {
		return
	}
	for o := range r.held {
		if o < start {
			delete(r.held, o)
		}
	}
	for o := range r.acked {
		if o < start {
			delete(r.acked, o)
		}
	}
	r.committed = start
	r.next = max(r.next, start)
	r.settle()
}

// nextExpiry returns a time not later than the first end of a reservation; false when there is none.
func (r *reservations) nextExpiry(now time.Time) (time.Time, bool) {
	if len(r.expired(now, 1)) > 0 {
		return now, true
	}
	if len(r.expiries) == 0 {
		return time.Time{}, false
	}
	return r.expiries[0].deadline, true
}

type expiry struct {
	deadline time.Time
	offset   cluster.Offset
	nonce    uint64
}

type expiryHeap []expiry

func (h expiryHeap) Len() int { return len(h) }
func (h expiryHeap) Less(i, j int) bool {
	if !h[i].deadline.Equal(h[j].deadline) {
		return h[i].deadline.Before(h[j].deadline)
	}
	return h[i].offset < h[j].offset
}
func (h expiryHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *expiryHeap) Push(x any)   { *h = append(*h, x.(expiry)) }
func (h *expiryHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

type offsetHeap []cluster.Offset

func (h offsetHeap) Len() int           { return len(h) }
func (h offsetHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h offsetHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *offsetHeap) Push(x any)        { *h = append(*h, x.(cluster.Offset)) }
func (h *offsetHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
