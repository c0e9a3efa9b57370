package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/naradctl/naradctl-plane/consensus"
)

// maxProposals bounds proposals in flight on one member.
const maxProposals = 4096

// Backend is one member. Made by Cluster.Start.
type Backend struct {
	c  *Cluster
	id consensus.ID
	sm consensus.StateMachine

	stopping chan struct{}
	stopOnce sync.Once
	done     chan struct{}

	mu struct {
		sync.Mutex
		err     error
		results map[uint64]chan any
		inUse   int
		applied chan struct{}
	}
	seen struct {
		sync.Mutex
		leader  consensus.ID
		term    uint64
		conf    string
		changed chan struct{}
	}
}

var _ consensus.Backend = (*Backend)(nil)

// Start runs member id over sm, which may come from an earlier run of it.
func (c *Cluster) Start(id consensus.ID, sm consensus.StateMachine) (*Backend, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.conf.Removed[id] {
		return nil, consensus.ErrRemoved
	}
	if c.mu.nodes[id] != nil {
		return nil, fmt.Errorf("member %d runs already", id)
	}
	b := &Backend{c: c, id: id, sm: sm, stopping: make(chan struct{}), done: make(chan struct{})}
	b.mu.results = map[uint64]chan any{}
	b.mu.applied = make(chan struct{})
	b.seen.changed = make(chan struct{})
	c.mu.nodes[id] = b
	c.settle()
	go b.run()
	return b, nil
}

// run applies what is committed until the member stops.
func (b *Backend) run() {
	defer close(b.done)
	defer b.leave()
	for {
		b.c.mu.Lock()
		changed := b.c.mu.changed
		removed := b.c.mu.conf.Removed[b.id]
		var batch []entry
		behind := false
		if b.c.reachable(b.id) {
			at := b.sm.AppliedIndex() + 1
			if behind = at < b.c.mu.first; !behind {
				batch = b.c.mu.log[at-b.c.mu.first:]
			}
		}
		cut := b.c.mu.cut[b.id]
		b.c.mu.Unlock()
		b.look()
		switch {
		case behind:
			if err := b.restore(); err != nil {
				b.fail(err)
				return
			}
			continue
		case len(batch) > 0:
			if err := b.apply(batch); err != nil {
				b.fail(err)
				return
			}
			continue
		case removed && !cut:
			b.fail(consensus.ErrRemoved)
			return
		}
		select {
		case <-changed:
		case <-b.stopping:
			return
		}
	}
}

// leave takes the member out of the reachable ones.
func (b *Backend) leave() {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	delete(b.c.mu.nodes, b.id)
	b.c.settle()
}

func (b *Backend) apply(batch []entry) error {
	entries := make([]consensus.Entry, len(batch))
	for i, e := range batch {
		entries[i] = e.Entry
	}
	results, err := b.sm.Apply(entries)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	b.mu.Lock()
	for i, e := range entries {
		if ch, ok := b.mu.results[e.Index]; ok {
			ch <- results[i]
			delete(b.mu.results, e.Index)
		}
	}
	b.mu.Unlock()
	b.noteApplied()
	return nil
}

func (b *Backend) noteApplied() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.mu.applied)
	b.mu.applied = make(chan struct{})
}

// restore copies another member's state.
func (b *Backend) restore() error {
	b.c.mu.Lock()
	var best *Backend
	for id, n := range b.c.mu.nodes {
		if n != b && !b.c.mu.cut[id] && (best == nil || n.sm.AppliedIndex() > best.sm.AppliedIndex()) {
			best = n
		}
	}
	b.c.mu.Unlock()
	if best == nil {
		return errors.New("restore: no member has what was compacted")
	}
	snap, err := best.sm.Snapshot()
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	pr, pw := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := snap.WriteTo(pw)
		pw.CloseWithError(errors.Join(err, snap.Close()))
	})
	err = b.sm.Restore(pr)
	pr.CloseWithError(err)
	wg.Wait()
	b.noteApplied()
	return err
}

// look compares what this member sees of the cluster with what it saw before.
func (b *Backend) look() {
	s := b.Status()
	members := fmt.Sprint(s.Members)
	b.seen.Lock()
	defer b.seen.Unlock()
	if b.seen.leader == s.Leader && b.seen.term == s.Term && b.seen.conf == members {
		return
	}
	b.seen.leader, b.seen.term, b.seen.conf = s.Leader, s.Term, members
	close(b.seen.changed)
	b.seen.changed = make(chan struct{})
}

func (b *Backend) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.err = err
}

func (b *Backend) stopError() error {
	if err := b.Err(); errors.Is(err, consensus.ErrRemoved) {
		return err
	}
	return consensus.ErrStopped
}

// leading reports whether this member leads. Callers hold the cluster's lock.
func (b *Backend) leading() bool { return b.c.mu.leader == b.id && b.c.electable(b.id) }

// Propose implements consensus.Backend.
func (b *Backend) Propose(ctx context.Context, command []byte) (any, uint64, error) {
	return b.commit(ctx, func() ([]byte, []byte, error) { return command, nil, nil })
}

// errNoChange ends a commit that has nothing to do.
var errNoChange = errors.New("no change")

// commit appends what make returns, as the leader, and waits until it is applied here. make runs under the
// cluster's lock.
func (b *Backend) commit(ctx context.Context, make func() (command, metadata []byte, err error)) (any, uint64, error) {
	if !b.enter() {
		return nil, 0, consensus.ErrBusy
	}
	defer b.exit()
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	ch, index, err := b.submit(make)
	if err != nil {
		return nil, 0, err
	}
	select {
	case res := <-ch:
		return res, index, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-b.done:
		err = b.stopError()
	}
	select {
	case res := <-ch:
		return res, index, nil
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.mu.results, index)
	return nil, 0, fmt.Errorf("%w: %w", consensus.ErrOutcomeUnknown, err)
}

func (b *Backend) submit(make func() (command, metadata []byte, err error)) (chan any, uint64, error) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	select {
	case <-b.stopping:
		return nil, 0, b.stopError()
	case <-b.done:
		return nil, 0, b.stopError()
	default:
	}
	if !b.leading() {
		return nil, 0, consensus.ErrNotLeader
	}
	command, metadata, err := make()
	if err != nil {
		return nil, 0, err
	}
	// The waiter first: the applier may be quicker than this.
	ch := newResult()
	b.mu.Lock()
	b.mu.results[b.c.last()+1] = ch
	b.mu.Unlock()
	return ch, b.c.append(command, metadata), nil
}

func newResult() chan any { return make(chan any, 1) }

func (b *Backend) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.inUse >= maxProposals {
		return false
	}
	b.mu.inUse++
	return true
}

func (b *Backend) exit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.inUse--
}

// Barrier implements consensus.Backend.
func (b *Backend) Barrier(ctx context.Context) error {
	for {
		b.c.mu.Lock()
		changed, index := b.c.mu.changed, b.c.last()
		ready := b.c.mu.leader != 0 && b.c.reachable(b.id)
		b.c.mu.Unlock()
		if ready {
			return b.waitApplied(ctx, index)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.done:
			return b.stopError()
		}
	}
}

func (b *Backend) waitApplied(ctx context.Context, index uint64) error {
	for {
		b.mu.Lock()
		applied := b.mu.applied
		b.mu.Unlock()
		select {
		case <-b.done:
			return b.stopError()
		default:
		}
		if b.sm.AppliedIndex() >= index {
			return nil
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.done:
			return b.stopError()
		}
	}
}

// LeaderBarrier implements consensus.Backend.
func (b *Backend) LeaderBarrier(ctx context.Context) (uint64, error) {
	b.c.mu.Lock()
	leading, term, index := b.leading(), b.c.mu.term, b.c.last()
	b.c.mu.Unlock()
	select {
	case <-b.done:
		return 0, b.stopError()
	default:
	}
	if !leading {
		return 0, consensus.ErrNotLeader
	}
	return term, b.waitApplied(ctx, index)
}

// Done implements consensus.Backend.
func (b *Backend) Done() <-chan struct{} { return b.done }

// Err implements consensus.Backend.
func (b *Backend) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.err
}

// Stop implements consensus.Backend.
func (b *Backend) Stop() error {
	b.stopOnce.Do(func() { close(b.stopping) })
	<-b.done
	return nil
}
