package etcdraft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/naradctl/naradctl-plane/consensus"
)

// waiters are the proposals of this member that are not answered yet.
type waiters struct {
	nonce uint64
	limit int
	mu    struct {
		sync.Mutex
		seq  uint64
		open map[ProposalID]*waiter
		// term is the last applied entry's. No waiter ever gets a lower one.
		term uint64
	}
}

type waiter struct {
	id ProposalID
	// term is the one in which raft took the proposal; zero before.
	term uint64
	ch   chan answer
}

// answer never blocks: the first answer counts.
func (w *waiter) answer(a answer) {
	select {
	case w.ch <- a:
	default:
	}
}

type answer struct {
	result any
	index  uint64
	err    error
}

func newWaiters(limit int) *waiters {
	// The nonce keeps a restarted process from taking entries of its former life for its own.
	w := &waiters{nonce: rand.Uint64(), limit: limit}
	w.mu.open = map[ProposalID]*waiter{}
	w.mu.seq = rand.Uint64() >> 1
	return w
}

// add makes a waiter. Configuration changes have no nonce; their number alone tells them apart.
func (ws *waiters) add(change bool) (*waiter, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.mu.open) >= ws.limit {
		return nil, consensus.ErrBusy
	}
	ws.mu.seq++
	w := &waiter{id: ProposalID{Nonce: ws.nonce, Seq: ws.mu.seq}, ch: make(chan answer, 1)}
	if change {
		w.id.Nonce = 0
	}
	ws.mu.open[w.id] = w
	return w, nil
}

func (ws *waiters) drop(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.mu.open, w.id)
}

// setTerm notes that raft took the proposal in term.
func (ws *waiters) setTerm(w *waiter, term uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.term = term
}

// applied answers who waits for an entry of a. Terms never fall along the log: once an entry of a later
// term was applied, a proposal of an earlier term that was not can't be any more.
func (ws *waiters) applied(a Applied) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	later := a.Term > ws.mu.term
	ws.mu.term = a.Term
	if len(ws.mu.open) == 0 {
		return
	}
	for _, e := range a.Entries {
		if w, ok := ws.mu.open[e.ID]; ok {
			delete(ws.mu.open, e.ID)
			w.answer(answer{result: e.Result, index: e.Index, err: e.Err})
		}
	}
	if !later {
		return
	}
	for id, w := range ws.mu.open {
		if w.term != 0 && w.term < a.Term {
			delete(ws.mu.open, id)
			w.answer(answer{err: consensus.ErrNotLeader})
		}
	}
}

func (ws *waiters) failAll(err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for id, w := range ws.mu.open {
		if w.term != 0 {
			delete(ws.mu.open, id)
			w.answer(answer{err: err})
		}
	}
}

// Propose implements consensus.Backend.
func (b *Backend) Propose(ctx context.Context, command []byte) (any, uint64, error) {
	w, err := b.waiters.add(false)
	if err != nil {
		return nil, 0, err
	}
	defer b.waiters.drop(w)
	return b.propose(ctx, w, func() error { return b.driver.Propose(w.id, command) })
}

// propose runs step in the loop and waits for the answer.
func (b *Backend) propose(ctx context.Context, w *waiter, step func() error) (any, uint64, error) {
	err := b.post(ctx, func() {
		if err := ctx.Err(); err != nil {
			w.answer(answer{err: err})
			return
		}
		// The term first: the apply worker may see the entry before step returns.
		b.waiters.setTerm(w, b.driver.Status().GetTerm())
		if err := step(); err != nil {
			b.waiters.setTerm(w, 0)
			w.answer(answer{err: err})
		}
	})
	if err != nil {
		return nil, 0, err
	}
	select {
	case a := <-w.ch:
		return a.result, a.index, a.err
	case <-ctx.Done():
		return nil, 0, unknown(ctx.Err())
	case <-b.done:
	}
	select {
	case a := <-w.ch:
		return a.result, a.index, a.err
	default:
		// The loop ended before it came to this proposal, or just after; who knows.
		return nil, 0, unknown(b.stopError())
	}
}

func unknown(err error) error {
	if errors.Is(err, consensus.ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", consensus.ErrOutcomeUnknown, err)
}
