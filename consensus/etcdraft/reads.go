package etcdraft

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"

	"go.etcd.io/raft/v3"

	"github.com/naradctl/naradctl-plane/consensus"
)

// readQueue is the state of read barriers: one question is under way, all calls that come meanwhile share
// the next. Owned by the loop.
type readQueue struct {
	nonce   uint64
	seq     uint64
	next    []*readWait
	current *readBatch
	// applying wait for the state machine to reach their index.
	applying []*readWait
}

type readBatch struct {
	ctx     []byte
	waits   []*readWait
	sent    bool
	sentAt  uint64
	term    uint64
	leading bool
}

type readWait struct {
	ctx        context.Context
	leaderOnly bool
	index      uint64
	term       uint64
	ch         chan readAnswer
}

type readAnswer struct {
	term uint64
	err  error
}

// readRetryTicks is after how long an unanswered question is asked again: messages get lost, and a leader
// that was deposed answers nothing.
const readRetryTicks = 5

// Barrier implements consensus.Backend.
func (b *Backend) Barrier(ctx context.Context) error {
	_, err := b.barrier(ctx, false)
	return err
}

// LeaderBarrier implements consensus.Backend.
func (b *Backend) LeaderBarrier(ctx context.Context) (uint64, error) {
	return b.barrier(ctx, true)
}

func (b *Backend) barrier(ctx context.Context, leaderOnly bool) (uint64, error) {
	w := &readWait{ctx: ctx, leaderOnly: leaderOnly, ch: make(chan readAnswer, 1)}
	err := b.post(ctx, func() {
		if leaderOnly && !b.driver.leads() {
			w.ch <- readAnswer{err: consensus.ErrNotLeader}
			return
		}
		b.loop.reads.next = append(b.loop.reads.next, w)
		b.issueRead()
	})
	if err != nil {
		return 0, err
	}
	select {
	case a := <-w.ch:
		return a.term, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-b.done:
		return 0, b.stopError()
	}
}

// issueRead asks the next question when none is under way, or sends one that could not be sent before.
func (b *Backend) issueRead() {
	q := &b.loop.reads
	if q.current == nil {
		if len(q.next) == 0 {
			return
		}
		q.current = &readBatch{waits: q.next}
		q.next = nil
	}
	if q.current.sent {
		return
	}
	st := b.driver.Status()
	leading := st.RaftState == raft.StateLeader
	if st.Lead == 0 || (leading && !b.driver.OwnTermApplied()) {
		return // Sent when a leader is known, or when the first entry of this term is applied.
	}
	if q.nonce == 0 {
		q.nonce = rand.Uint64() | 1
	}
	q.seq++
	c := q.current
	c.ctx = binary.BigEndian.AppendUint64(nil, uint64(b.self))
	c.ctx = binary.BigEndian.AppendUint64(c.ctx, q.nonce)
	c.ctx = binary.BigEndian.AppendUint64(c.ctx, q.seq)
	c.sent, c.sentAt, c.term, c.leading = true, b.loop.ticks, st.GetTerm(), leading
	b.driver.rn.ReadIndex(c.ctx)
}

// reissueRead asks the current question again, under a new number.
func (b *Backend) reissueRead() {
	q := &b.loop.reads
	b.failLeaderReads()
	if q.current != nil {
		q.current.sent = false
	}
	b.issueRead()
}

func (b *Backend) tickReads() {
	q := &b.loop.reads
	live := func(ws []*readWait) []*readWait {
		out := ws[:0]
		for _, w := range ws {
			if w.ctx.Err() == nil {
				out = append(out, w)
			}
		}
		return out
	}
	q.next, q.applying = live(q.next), live(q.applying)
	if c := q.current; c != nil {
		if c.waits = live(c.waits); len(c.waits) == 0 {
			q.current = nil
		} else if !c.sent || b.loop.ticks-c.sentAt >= readRetryTicks {
			b.reissueRead()
		}
	}
	b.issueRead()
}

// failLeaderReads ends the calls that only a leader answers, once this member is none.
func (b *Backend) failLeaderReads() {
	if b.driver.leads() {
		return
	}
	fail := func(ws []*readWait) []*readWait {
		out := ws[:0]
		for _, w := range ws {
			if w.leaderOnly {
				w.ch <- readAnswer{err: consensus.ErrNotLeader}
			} else {
				out = append(out, w)
			}
		}
		return out
	}
	q := &b.loop.reads
	q.next = fail(q.next)
	if q.current != nil {
		if q.current.waits = fail(q.current.waits); len(q.current.waits) == 0 {
			q.current = nil
		}
	}
}

// readConfirmed takes raft's answer: a quorum confirmed the leader after the question was asked.
func (b *Backend) readConfirmed(rs raft.ReadState) {
	q := &b.loop.reads
	if q.current == nil || !q.current.sent || !bytes.Equal(q.current.ctx, rs.RequestCtx) {
		return
	}
	c := q.current
	q.current = nil
	for _, w := range c.waits {
		if w.leaderOnly && !c.leading {
			w.ch <- readAnswer{err: consensus.ErrNotLeader}
			continue
		}
		w.index, w.term = rs.Index, c.term
		q.applying = append(q.applying, w)
	}
	b.releaseReads()
	b.issueRead()
}

// releaseReads answers the calls whose index is applied.
func (b *Backend) releaseReads() {
	q := &b.loop.reads
	out := q.applying[:0]
	for _, w := range q.applying {
		if w.index > b.loop.applied {
			out = append(out, w)
			continue
		}
		w.ch <- readAnswer{term: w.term}
	}
	q.applying = out
}

// failLoop answers everyone who still waits in the loop's queues. Called once the loop has ended.
func (b *Backend) failLoop() {
	q := &b.loop.reads
	all := append(q.next, q.applying...)
	if q.current != nil {
		all = append(all, q.current.waits...)
	}
	for _, w := range all {
		w.ch <- readAnswer{err: b.stopError()}
	}
	for _, t := range b.loop.transfers {
		t.ch <- b.stopError()
	}
}
