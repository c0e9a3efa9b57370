package etcdraft

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
)

// inboxSize bounds what waits for the loop; senders wait when it is full.
const inboxSize = 4096

// Backend implements consensus.Backend around a Driver. Node.Start makes it.
type Backend struct {
	cfg       Config
	log       *zap.Logger
	self      consensus.ID
	node      *Node
	driver    *Driver
	store     LogStore
	sm        consensus.StateMachine
	transport *transport

	inbox   chan func()
	appends *queue[*raftpb.Message]
	applies *queue[applyJob]
	waiters *waiters
	// changeMu serialises this member's configuration changes: raft takes one at a time.
	changeMu chan struct{}

	// loop is owned by the loop goroutine.
	loop struct {
		ticks     uint64
		applied   uint64
		lastHeard map[uint64]uint64
		reads     readQueue
		transfers []*transferWait
		leaderID  uint64
		removal   *removal
	}
	status statusCell

	stop     context.CancelFunc
	stopping context.Context
	done     chan struct{}
	end      struct {
		sync.Mutex
		err      error
		closeErr error
	}
}

type applyJob struct {
	entries *raftpb.Message
	// restore, when set, replaces the state; done gets the result.
	restore *raftpb.SnapshotMetadata
	done    chan error
}

var _ consensus.Backend = (*Backend)(nil)

func startBackend(n *Node, d *Driver, store LogStore, sm consensus.StateMachine) *Backend {
	b := &Backend{
		cfg: n.cfg, log: n.log, self: d.id, node: n, driver: d, store: store, sm: sm, transport: n.transport,
		inbox:    make(chan func(), inboxSize),
		appends:  newQueue[*raftpb.Message](),
		applies:  newQueue[applyJob](),
		waiters:  newWaiters(n.cfg.MaxProposals),
		changeMu: make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
	b.loop.lastHeard = map[uint64]uint64{}
	b.loop.applied = sm.AppliedIndex()
	b.stopping, b.stop = context.WithCancel(context.Background())
	b.status.init(b.snapshotStatus())
	b.transport.attach(b)
	var wg sync.WaitGroup
	for _, f := range []func(){b.runLoop, b.runAppends, b.runApplies} {
		wg.Go(f)
	}
	go b.supervise(&wg)
	return b
}

// supervise owns the goroutines: it waits for their end and then gives everything back.
func (b *Backend) supervise(wg *sync.WaitGroup) {
	<-b.stopping.Done()
	wg.Wait()
	b.transport.close()
	b.waiters.failAll(errors.Join(consensus.ErrOutcomeUnknown, b.stopError()))
	b.failLoop()
	err := errors.Join(b.store.Close(), b.node.dir.close())
	b.end.Lock()
	b.end.closeErr = err
	b.end.Unlock()
	close(b.done)
}

// fail stops the backend because of err. The first error is the one that is told.
func (b *Backend) fail(err error) {
	b.end.Lock()
	if b.end.err == nil && b.stopping.Err() == nil {
		b.end.err = err
		if errors.Is(err, consensus.ErrRemoved) {
			b.log.Error("consensus stops: this member was removed", zap.Error(err))
		} else {
			b.log.Error("consensus stops", zap.Error(err))
		}
	}
	b.end.Unlock()
	b.stop()
}

// Done implements consensus.Backend.
func (b *Backend) Done() <-chan struct{} { return b.done }

// Err implements consensus.Backend.
func (b *Backend) Err() error {
	b.end.Lock()
	defer b.end.Unlock()
	return b.end.err
}

// Stop implements consensus.Backend.
func (b *Backend) Stop() error {
	b.stop()
	<-b.done
	b.end.Lock()
	defer b.end.Unlock()
	return b.end.closeErr
}

// ClusterID is the cluster's name for itself.
func (b *Backend) ClusterID() string { return b.driver.members.Load().clusterID }

// stopError is what calls get once the backend has stopped.
func (b *Backend) stopError() error {
	if err := b.Err(); errors.Is(err, consensus.ErrRemoved) {
		return err
	}
	return consensus.ErrStopped
}

// post hands fn to the loop. False when the loop has ended; fn may then never run.
func (b *Backend) post(ctx context.Context, fn func()) error {
	select {
	case <-b.stopping.Done():
		return b.stopError()
	default:
	}
	select {
	case b.inbox <- fn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.stopping.Done():
		return b.stopError()
	}
}

// runLoop owns the raft state: everything that touches it runs here.
func (b *Backend) runLoop() {
	ticker := time.NewTicker(b.cfg.TickInterval)
	defer ticker.Stop()
	if ms := b.driver.members.Load(); len(ms.conf.GetVoters()) == 1 && ms.isVoter(b.self) {
		// A sole voter has nobody to wait for.
		_ = b.driver.Campaign()
	}
	b.process()
	for {
		select {
		case <-b.stopping.Done():
			return
		case fn := <-b.inbox:
			fn()
			b.drainInbox()
		case <-ticker.C:
			b.tick()
		}
		b.process()
	}
}

// drainInbox takes what else waits, so that one Ready and one sync serve many proposals.
func (b *Backend) drainInbox() {
	for range 1024 {
		select {
		case fn := <-b.inbox:
			fn()
		default:
			return
		}
	}
}

func (b *Backend) tick() {
	b.loop.ticks++
	b.driver.Tick()
	b.tickReads()
	b.tickTransfers()
	b.tickRemoval()
	b.publish(true)
}

// process hands out all work that raft has.
func (b *Backend) process() {
	for {
		w, ok := b.driver.Ready()
		if !ok {
			break
		}
		b.transport.send(w.Messages)
		if w.Append != nil {
			b.appends.push(w.Append)
		}
		if w.Apply != nil {
			b.applies.push(applyJob{entries: w.Apply})
		}
		for _, rs := range w.Reads {
			b.readConfirmed(rs)
		}
		if w.Soft != nil {
			b.leaderChanged(w.Soft.Lead)
		}
	}
	b.publish(false)
}

func (b *Backend) leaderChanged(lead uint64) {
	if lead == b.loop.leaderID {
		return
	}
	b.log.Info("leader changed", zap.Uint64("from", b.loop.leaderID), zap.Uint64("to", lead), zap.Uint64("term", b.driver.Status().GetTerm()))
	b.loop.leaderID = lead
	clear(b.loop.lastHeard)
	for id := range b.driver.members.Load().members {
		// A new leader grants everyone a full election time-out before it calls them silent.
		b.loop.lastHeard[uint64(id)] = b.loop.ticks
	}
	b.reissueRead()
	b.checkTransfers()
}

// received is called by the transport with messages of a peer, already checked.
func (b *Backend) received(ctx context.Context, from consensus.ID, ms []*raftpb.Message) error {
	return b.post(ctx, func() {
		b.loop.lastHeard[uint64(from)] = b.loop.ticks
		for _, m := range ms {
			if err := b.driver.Step(m); err != nil {
				b.log.Warn("raft message ignored", zap.Uint64("from", uint64(from)), zap.Error(err))
			}
		}
	})
}

// runAppends is the log worker: what piled up since the last sync is written with the next.
func (b *Backend) runAppends() {
	for {
		batch, ok := b.appends.take(b.stopping)
		if !ok {
			return
		}
		if err := b.driver.Persist(batch, b.restoreByApplier); err != nil {
			b.fail(err)
			return
		}
		if b.post(b.stopping, func() { b.transport.send(b.driver.Persisted(batch)) }) != nil {
			return
		}
		if err := b.maybeCompact(); err != nil {
			b.fail(err)
			return
		}
	}
}

func (b *Backend) restoreByApplier(meta *raftpb.SnapshotMetadata) error {
	job := applyJob{restore: meta, done: make(chan error, 1)}
	b.applies.push(job)
	select {
	case err := <-job.done:
		return err
	case <-b.stopping.Done():
		return consensus.ErrStopped
	}
}

// runApplies is the apply worker: the only goroutine that changes the state machine.
func (b *Backend) runApplies() {
	for {
		jobs, ok := b.applies.take(b.stopping)
		if !ok {
			return
		}
		var ms []*raftpb.Message
		for _, j := range jobs {
			if j.entries != nil {
				ms = append(ms, j.entries)
				continue
			}
			if !b.applyEntries(ms) {
				return
			}
			ms = nil
			err := b.driver.Restore(j.restore)
			j.done <- err
			if err != nil {
				b.fail(err)
				return
			}
			b.restored(j.restore.GetIndex())
		}
		if !b.applyEntries(ms) {
			return
		}
	}
}

// applyEntries applies ms and answers those who wait. False ends the worker.
func (b *Backend) applyEntries(ms []*raftpb.Message) bool {
	if len(ms) == 0 {
		return true
	}
	a, err := b.driver.Apply(ms)
	if err != nil {
		b.fail(err)
		return false
	}
	if len(a.Entries) > 0 {
		b.waiters.applied(a)
	}
	if len(a.changes) > 0 {
		b.transport.membersChanged(b.driver.members.Load())
	}
	return b.post(b.stopping, func() {
		b.driver.Applied(a)
		b.appliedTo(a.Index)
		if len(a.changes) > 0 {
			b.checkOwnRemoval()
		}
	}) == nil
}

// restored takes note of a snapshot: entries that others wait for may be in it, or not.
func (b *Backend) restored(index uint64) {
	b.waiters.failAll(consensus.ErrOutcomeUnknown)
	b.transport.membersChanged(b.driver.members.Load())
	b.log.Info("state restored from a snapshot", zap.Uint64("index", index))
	_ = b.post(b.stopping, func() { b.appliedTo(index) })
}

func (b *Backend) appliedTo(index uint64) {
	b.loop.applied = max(b.loop.applied, index)
	b.releaseReads()
	b.issueRead()
}

// maybeCompact keeps the log short. It runs on the log worker, which alone writes the log.
func (b *Backend) maybeCompact() error {
	first, err := b.store.FirstIndex()
	if err != nil {
		return err
	}
	applied := b.sm.AppliedIndex()
	if applied < first+b.cfg.SnapshotEntries+b.cfg.TrailEntries {
		return nil
	}
	durable := b.sm.DurableIndex()
	if durable < first+b.cfg.SnapshotEntries/2+b.cfg.TrailEntries {
		if err := b.sm.Flush(); err != nil {
			return err
		}
		durable = b.sm.DurableIndex()
	}
	// Nothing that the state machine could lose in a crash may leave the log.
	at := min(durable, applied, b.driver.raftApplied.Load())
	if at <= first+b.cfg.TrailEntries {
		return nil
	}
	at -= b.cfg.TrailEntries
	term, err := b.store.Term(at)
	if err != nil {
		return err
	}
	return b.store.Compact(&raftpb.SnapshotMetadata{Index: new(at), Term: new(term), ConfState: b.driver.members.Load().conf})
}

// queue passes work to a worker. It is bounded by raft's own flow control: uncommitted bytes, in-flight
// messages, and committed bytes that are not applied.
type queue[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{}
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) push(v T) {
	q.mu.Lock()
	q.items = append(q.items, v)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take waits for work and returns all of it; false when ctx is done.
func (q *queue[T]) take(ctx context.Context) ([]T, bool) {
	for {
		if ctx.Err() != nil {
			return nil, false
		}
		q.mu.Lock()
		items := q.items
		q.items = nil
		q.mu.Unlock()
		if len(items) > 0 {
			return items, true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil, false
		}
	}
}
