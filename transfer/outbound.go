package transfer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// final is the answer to PrepareHandoff.
type final struct {
	incarnation cluster.Incarnation
	handoff     cluster.Handoff
	nonce       cluster.Nonce
	manifest    store.Manifest
	frozenFor   time.Duration
	err         error
}

// outbound is one marker's goroutine. loop owns step, waiters and manifest.
type outbound struct {
	src      *Source
	part     *part
	p        cluster.PartitionID
	move     cluster.MoveID
	identity store.Identity

	inbox    chan message
	results  chan handoff.Event
	done     chan struct{}
	quit     chan struct{}
	quitOnce sync.Once

	step     handoff.State
	waiters  []chan final
	manifest store.Manifest
	timer    *time.Timer
	busy     bool
	// doing names the effect in flight; crashed is what Observe said.
	doing   string
	crashed error

	// lastRead is when the destination last read bytes, on the source's clock.
	lastRead atomic.Int64
	// fences counts the fences that are set and that loop has not seen yet.
	fences atomic.Int32
	// epoch is of the assignment at which the node was last known as the owner; zero is unknown.
	epoch atomic.Uint64

	shared struct {
		sync.Mutex
		marker Marker
		state  handoff.State
		known  []store.File
		// files maps a name to the identity and sealed state of the latest manifest that was sent.
		files map[string]store.File
	}
}

// message is an event with, for a PrepareHandoff, who waits and what it has.
type message struct {
	event handoff.Event
	reply chan final
	known []store.File
}

func newOutbound(s *Source, p *part, m Marker, st handoff.State, epoch cluster.Epoch) *outbound {
	o := &outbound{
		src: s, part: p, p: m.Partition, move: m.MoveID, identity: m.Identity,
		inbox: make(chan message, inboxSize), results: make(chan handoff.Event, 1),
		done: make(chan struct{}), quit: make(chan struct{}), step: st,
	}
	o.shared.marker, o.shared.state, o.shared.files = m, st, map[string]store.File{}
	o.epoch.Store(uint64(epoch))
	return o
}

func (o *outbound) seen() cluster.Epoch { return cluster.Epoch(o.epoch.Load()) }

func (o *outbound) stop() { o.quitOnce.Do(func() { close(o.quit) }) }

func (o *outbound) markerNow() Marker {
	o.shared.Lock()
	defer o.shared.Unlock()
	return o.shared.marker
}

func (o *outbound) state() handoff.State {
	o.shared.Lock()
	defer o.shared.Unlock()
	return o.shared.state
}

func (o *outbound) phase() handoff.Phase { return o.state().Phase }

// fence sets a fence. The part's lock is held, so that nobody opens the copy before the state says that it holds.
func (o *outbound) fence(ctx context.Context) {
	o.fences.Add(1)
	if !o.send(ctx, handoff.Fence{}) {
		o.fences.Add(-1)
	}
}

// holds says whether the copy must not accept appends. Invariant I7: a fence counts from when it was set, not from
// when loop comes to it.
func (o *outbound) holds() bool { return o.fences.Load() > 0 || o.state().Holds() }

// remember keeps what a manifest says of each file, so that reads can be checked.
func (o *outbound) remember(m store.Manifest) {
	o.shared.Lock()
	defer o.shared.Unlock()
	clear(o.shared.files)
	for _, f := range m.Files {
		o.shared.files[f.Name] = f
	}
}

func (o *outbound) file(name string) (store.File, bool) {
	o.shared.Lock()
	defer o.shared.Unlock()
	f, ok := o.shared.files[name]
	return f, ok
}

// touch says that the destination has read bytes.
func (o *outbound) touch() { o.lastRead.Store(int64(o.src.cfg.Now())) }

// send hands an event over; it waits while the inbox is full.
func (o *outbound) send(ctx context.Context, e handoff.Event) bool {
	return o.post(ctx, message{event: e})
}

func (o *outbound) post(ctx context.Context, m message) bool {
	select {
	case <-o.done:
		return false
	default:
	}
	select {
	case o.inbox <- m:
		return true
	case <-o.done:
	case <-ctx.Done():
	case <-o.src.ctx.Done():
	}
	return false
}

func (o *outbound) loop(ctx context.Context) {
	defer close(o.done)
	o.timer = time.NewTimer(time.Hour)
	defer o.timer.Stop()
	o.input(ctx, handoff.Ticked{})
	for o.step.Phase != handoff.Gone && o.crashed == nil {
		select {
		case <-ctx.Done():
			o.end()
			return
		case <-o.quit:
			o.end()
			return
		case m := <-o.inbox:
			if m.reply != nil {
				o.waiters = append(o.waiters, m.reply)
				o.shared.Lock()
				o.shared.known = m.known
				o.shared.Unlock()
			}
			o.input(ctx, m.event)
		case e := <-o.results:
			o.busy = false
			if o.crashed = o.observe(o.doing, true); o.crashed == nil {
				o.input(ctx, e)
			}
		case <-o.timer.C:
			if at := time.Duration(o.lastRead.Load()); at > o.step.LastProgress {
				o.apply(ctx, handoff.Input{Now: at, Jitter: jitter(), Event: handoff.BytesRead{}})
			}
			o.input(ctx, handoff.Ticked{})
		}
	}
	if o.crashed == nil {
		o.leaveUnfenced()
	}
	o.end()
}

func (o *outbound) observe(effect string, after bool) error {
	if f := o.src.cfg.Observe; f != nil {
		return f(o.p, effect, after)
	}
	return nil
}

// leaveUnfenced ends a fence that was set while the last result of the unmarking was on its way: nobody else
// would, since the marker is gone.
func (o *outbound) leaveUnfenced() {
	for {
		select {
		case m := <-o.inbox:
			if m.reply != nil {
				o.waiters = append(o.waiters, m.reply)
			}
			if _, ok := m.event.(handoff.Fence); ok {
				o.fences.Add(-1)
				if err := o.src.cfg.Store.Thaw(o.p, fenceToken(o.move)); err != nil {
					o.src.cfg.Log.Error("thaw after a cancelled move", append(logFields(o.p, o.move), zap.Error(err))...)
				}
			}
		default:
			return
		}
	}
}

// end refuses who waits, and waits for the effect in flight.
func (o *outbound) end() {
	o.answer(final{err: cluster.Errorf(cluster.ReasonNoLeader, "the move has ended here, or the node is stopping")})
	if o.busy {
		<-o.results
	}
}

func (o *outbound) answer(f final) {
	for _, w := range o.waiters {
		w <- f // buffered by one; each waiter is answered once
	}
	o.waiters = nil
}

func (o *outbound) input(ctx context.Context, e handoff.Event) {
	o.apply(ctx, handoff.Input{Now: o.src.cfg.Now(), Jitter: jitter(), Event: e})
}

func (o *outbound) apply(ctx context.Context, in handoff.Input) {
	if o.crashed != nil {
		return
	}
	before := o.step
	var effects []handoff.Effect
	o.step, effects = handoff.Step(o.step, in)
	o.shared.Lock()
	o.shared.state = o.step
	o.shared.Unlock()
	if _, ok := in.Event.(handoff.Fence); ok {
		o.fences.Add(-1)
	}
	if before.Phase != o.step.Phase {
		o.src.cfg.Log.Info("outbound move", append(logFields(o.p, o.move),
			zap.Stringer("from", before.Phase), zap.Stringer("to", o.step.Phase),
			zap.Uint32("handoff", uint32(o.step.Handoff)), zap.String("event", handoff.Name(in.Event)),
			zap.String("error", o.step.LastError))...)
	}
	if before.Phase != handoff.Flipped && o.step.Phase == handoff.Flipped && o.src.cfg.OnEnded != nil {
		o.src.cfg.OnEnded(o.p)
	}
	for _, e := range effects {
		if o.crashed = o.observe(handoff.EffectName(e), false); o.crashed != nil {
			return
		}
		if o.perform(ctx, e); o.crashed != nil {
			return
		}
	}
}

func (o *outbound) perform(ctx context.Context, e handoff.Effect) {
	switch e := e.(type) {
	case handoff.Answer:
		o.answer(final{
			incarnation: o.step.Incarnation, handoff: e.Handoff, nonce: e.Nonce, manifest: o.manifest,
			frozenFor: e.FrozenFor,
		})
		o.crashed = o.observe(handoff.EffectName(e), true)
	case handoff.Refuse:
		o.answer(final{err: cluster.Errorf(cluster.ReasonHandoffRevoked, "no handoff: %s", e.Message)})
	case handoff.Wait:
		o.timer.Reset(max(e.Until-o.src.cfg.Now(), time.Millisecond))
	default:
		o.busy, o.doing = true, handoff.EffectName(e)
		st := o.step
		go func() { o.results <- o.effect(ctx, st, e) }()
	}
}

// effect performs what ends in a result. It touches nothing that loop owns, but for the manifest, which
// loop reads after the result alone.
func (o *outbound) effect(ctx context.Context, st handoff.State, e handoff.Effect) handoff.Event {
	switch e := e.(type) {
	case handoff.Grant:
		return o.grant(ctx, e)
	case handoff.Freeze:
		return o.freeze(ctx, e)
	case handoff.Revoke:
		return o.revoke(ctx, e)
	case handoff.Thaw:
		return o.thaw(e)
	case handoff.Redirect:
		return o.redirect()
	case handoff.ReadMove:
		return o.readMove(ctx)
	case handoff.Unmark:
		if err := o.src.unmark(ctx, o); err != nil {
			return handoff.Failed{Message: err.Error()}
		}
		return handoff.Unmarked{}
	}
	return handoff.Failed{Message: fmt.Sprintf("unknown effect %s in %s", handoff.EffectName(e), st.Phase)}
}

func (o *outbound) hit(point string, h cluster.Handoff) error { return hit(point, o.p, o.move, h) }

func (o *outbound) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, o.src.cfg.CallTimeout)
}

func (o *outbound) grant(ctx context.Context, e handoff.Grant) handoff.Event {
	ctx, cancel := o.call(ctx)
	defer cancel()
	h, err := o.src.cfg.Control.GrantHandoff(ctx, o.p, o.move, e.Incarnation, e.Nonce.Hash())
	if err == nil {
		err = o.hit(faults.HandoffGranted, h)
	}
	switch {
	case err == nil:
		return handoff.Granted{Handoff: h}
	case Definite(err):
		return handoff.GrantRefused{Message: err.Error()}
	}
	return handoff.Failed{Message: err.Error()}
}

func (o *outbound) freeze(ctx context.Context, e handoff.Freeze) handoff.Event {
	ctx, cancel := context.WithTimeout(ctx, o.src.cfg.FreezeTimeout)
	defer cancel()
	o.shared.Lock()
	known := o.shared.known
	o.shared.Unlock()
	since := o.src.cfg.Now()
	err := o.src.cfg.Store.Freeze(ctx, o.p, store.FreezeToken{MoveID: o.move, Handoff: e.Handoff})
	if err == nil {
		o.manifest, err = o.src.cfg.Store.Manifest(o.p, known)
	}
	if err == nil {
		o.remember(o.manifest)
		err = o.hit(faults.HandoffFrozen, e.Handoff)
	}
	if err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	return handoff.Froze{Since: since}
}

func (o *outbound) revoke(ctx context.Context, e handoff.Revoke) handoff.Event {
	if err := o.hit(faults.HandoffExpired, e.Handoff); err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	ctx, cancel := o.call(ctx)
	defer cancel()
	r, err := o.src.cfg.Control.RevokeHandoff(ctx, o.p, o.move, e.Handoff, "the freeze ended without a flip")
	if err == nil {
		err = o.hit(faults.HandoffRevoked, e.Handoff)
	}
	if err != nil && !Definite(err) {
		return handoff.Failed{Message: err.Error()}
	}
	switch {
	case err != nil:
		// The move is not current and has no outcome: the read decides.
		view, ok := o.readMove(ctx).(handoff.MoveRead)
		if ok && view.View == handoff.ViewAway {
			return handoff.Ended{Flipped: true}
		}
		if ok && view.View == handoff.ViewCancelled {
			return handoff.Ended{}
		}
		return handoff.Failed{Message: err.Error()}
	case r.Outcome != nil:
		return handoff.Ended{Flipped: r.Outcome.Kind != cluster.OutcomeCancelled}
	}
	// Also when a later number was granted since: no flip of this one can come.
	return handoff.Revoked{Handoff: e.Handoff}
}

func (o *outbound) thaw(e handoff.Thaw) handoff.Event {
	if err := o.src.cfg.Store.Thaw(o.p, store.FreezeToken{MoveID: o.move, Handoff: e.Handoff}); err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	if err := o.hit(faults.HandoffThawed, e.Handoff); err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	return handoff.Thawed{}
}

// redirect closes the copy that has moved; one that took its place since is none of this move's business.
func (o *outbound) redirect() handoff.Event {
	o.part.mu.Lock()
	c, ok, err := activeCopy(o.src.cfg.Store, o.p)
	if err == nil && ok && c.Identity == o.identity {
		err = o.src.cfg.Store.Close(o.p)
	}
	o.part.mu.Unlock()
	if err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	if o.src.cfg.OnRedirected != nil {
		o.src.cfg.OnRedirected(o.p)
	}
	return handoff.Closed{}
}

func (o *outbound) readMove(ctx context.Context) handoff.Event {
	ctx, cancel := o.call(ctx)
	defer cancel()
	v, err := o.src.cfg.Control.ReadMove(ctx, o.p, o.move)
	if err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	a := v.Assignment
	taken := v.Outcome != nil && v.Outcome.Kind != cluster.OutcomeCancelled
	switch {
	case a == nil || taken || a.Owner != o.src.cfg.Node:
		// Without an assignment the topic is gone, and whoever set it aside has closed it.
		return handoff.MoveRead{View: handoff.ViewAway}
	case v.State != MoveCurrent:
		return handoff.MoveRead{View: handoff.ViewCancelled}
	}
	o.epoch.Store(uint64(max(a.Epoch, o.seen())))
	if a.Granted {
		return handoff.MoveRead{View: handoff.ViewGranted, Handoff: a.Handoff}
	}
	return handoff.MoveRead{View: handoff.ViewCurrent, Handoff: a.Handoff}
}

// unmark reports that nothing is left of a cancelled move and removes its marker, with the last one the
// store's knowledge too.
func (s *Source) unmark(ctx context.Context, o *outbound) error {
	call, cancel := o.call(ctx)
	defer cancel()
	if err := s.cfg.Control.ReportReclaimed(call, o.p, o.move); err != nil && !Definite(err) {
		return fmt.Errorf("report reclaimed: %w", err)
	}
	if err := s.cfg.Journal.Delete(o.markerNow().key()); err != nil {
		return fmt.Errorf("remove marker: %w", err)
	}
	o.part.mu.Lock()
	defer o.part.mu.Unlock()
	delete(o.part.mu.moves, o.move)
	o.part.marked.Store(int32(len(o.part.mu.moves)))
	if len(o.part.mu.moves) == 0 {
		s.cfg.Store.SetOutbound(o.p, false)
	}
	return nil
}
