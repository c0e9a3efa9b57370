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
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// sourceRecord is the source's record on its way to a move's goroutine.
type sourceRecord struct{ node cluster.Node }

// run is one move's goroutine. loop owns the fields without a remark; the effect in flight, of which there
// is one at most, owns those of work.
type run struct {
	m        *Mover
	p        cluster.PartitionID
	move     cluster.MoveID
	sourceID cluster.NodeID

	inbox   chan any // move.Event or sourceRecord
	results chan move.Event
	done    chan struct{}

	st       move.State
	timer    *time.Timer
	busy     bool
	endTask  context.CancelFunc
	crashed  error
	injected error
	// source is the record at the start; later ones come through the inbox.
	source *cluster.Node

	address atomic.Pointer[string]
	// passBytes counts what the pass in flight has staged, steps what the destination has got done.
	passBytes atomic.Uint64
	steps     atomic.Uint64

	shared struct {
		sync.Mutex
		st move.State
	}
	work work
}

// work is what an attempt knows of the source and of the staged copy.
type work struct {
	staging     store.Staging
	incarnation cluster.Incarnation
	manifest    store.Manifest
	// identities says of which of the source's files the staged bytes are; confirmed which were synced
	// and compared, at which size.
	identities map[string]string
	confirmed  map[string]cluster.Bytes
}

func newRun(m *Mover, st move.State) *run {
	r := &run{
		m: m, p: st.Partition, move: st.MoveID, sourceID: st.Source, st: st,
		inbox: make(chan any, inboxSize), results: make(chan move.Event, 1), done: make(chan struct{}),
	}
	r.shared.st = st
	r.forgetStaged()
	return r
}

// forgetStaged makes the next attempt measure everything anew.
func (r *run) forgetStaged() {
	r.work = work{identities: map[string]string{}, confirmed: map[string]cluster.Bytes{}}
}

func (r *run) send(e any) {
	select {
	case r.inbox <- e:
	case <-r.done:
	case <-r.m.ctx.Done():
	}
}

func (r *run) loop(ctx context.Context) {
	defer close(r.done)
	defer r.close()
	r.timer = time.NewTimer(time.Hour)
	defer r.timer.Stop()
	started, err := r.onDisk()
	for err != nil {
		r.m.cfg.Log.Warn("look for a move's copy", append(logFields(r.p, r.move), zap.Error(err))...)
		r.timer.Reset(move.MaxBackoff)
		select {
		case <-ctx.Done():
			return
		case <-r.timer.C:
		}
		started, err = r.onDisk()
	}
	r.input(ctx, started)
	if r.source != nil {
		r.observed(ctx, *r.source)
	}
	for r.st.Phase != move.Done && r.crashed == nil {
		select {
		case <-ctx.Done():
			return
		case e := <-r.inbox:
			switch e := e.(type) {
			case sourceRecord:
				r.observed(ctx, e.node)
			case move.Event:
				r.input(ctx, e)
			}
		case e := <-r.results:
			r.busy = false
			r.endTask()
			r.input(ctx, e)
		case <-r.timer.C:
			r.input(ctx, move.Ticked{})
		}
	}
}

// close waits for the effect in flight and releases the staging.
func (r *run) close() {
	if r.busy {
		r.endTask()
		<-r.results
	}
	if err := r.release(); err != nil {
		r.m.cfg.Log.Warn("close staging", append(logFields(r.p, r.move), zap.Error(err))...)
	}
}

func (r *run) release() error {
	if r.work.staging == nil {
		return nil
	}
	err := r.work.staging.Close()
	r.work.staging = nil
	return err
}

// onDisk says what the active place holds of this move.
func (r *run) onDisk() (move.Started, error) {
	c, ok, err := activeCopy(r.m.cfg.Store, r.p)
	if err != nil || !ok || c.Identity != store.Identity(r.move) {
		return move.Started{}, err
	}
	if c.Pending != nil {
		return move.Started{Installed: true, Handoff: c.Pending.Handoff}, nil
	}
	return move.Started{Confirmed: true}, nil
}

func (r *run) observed(ctx context.Context, n cluster.Node) {
	r.address.Store(&n.Address)
	e := move.SourceSeen{Dead: n.Status == cluster.NodeDead, Incarnation: n.Incarnation}
	for _, h := range n.DeadHWMs {
		if h.Partition == r.p {
			e.HWM = h.Offset
		}
	}
	r.input(ctx, e)
}

func (r *run) input(ctx context.Context, e move.Event) {
	before := r.st
	var effects []move.Effect
	r.st, effects = move.Step(r.st, move.Input{
		Now: r.m.cfg.Now(), Jitter: jitter(), Settings: r.m.settings(), Event: e,
	})
	r.shared.Lock()
	r.shared.st = r.st
	r.shared.Unlock()
	if before.Phase != r.st.Phase || before.LastError != r.st.LastError {
		r.logStep(before, e)
	}
	for _, eff := range effects {
		if r.crashed = r.perform(ctx, eff, e); r.crashed != nil {
			return
		}
	}
}

func (r *run) logStep(before move.State, e move.Event) {
	fields := append(logFields(r.p, r.move), zap.Stringer("from", before.Phase), zap.Stringer("to", r.st.Phase),
		zap.String("event", move.Name(e)), zap.Uint32("handoff", uint32(r.st.Handoff)),
		zap.Uint64("missing", uint64(r.st.Missing)), zap.String("error", r.st.LastError))
	switch {
	case r.st.NonConverged && !before.NonConverged:
		r.m.cfg.Log.Warn("move did not converge, freezing all the same", fields...)
	case r.st.LastError != "" && r.st.LastError != before.LastError:
		r.m.cfg.Log.Warn("move will be retried", fields...)
	case before.Phase == move.Measuring || r.st.Phase == move.Measuring:
		r.m.cfg.Log.Debug("move", fields...)
	default:
		r.m.cfg.Log.Info("move", fields...)
	}
}

// savedPoint is the fault point that follows the journal entry after an event.
func savedPoint(e move.Event) string {
	switch e.(type) {
	case move.Begun:
		return faults.MoveBegun
	case move.FreezeGranted:
		return faults.MoveFrozen
	case move.FlipAnswered:
		return faults.MoveFlipped
	}
	return ""
}

// perform does an effect, or starts it. An error ends the goroutine: the journal can't be written, or a test
// said so.
func (r *run) perform(ctx context.Context, eff move.Effect, cause move.Event) error {
	if o := r.m.cfg.Observe; o != nil {
		if err := o(r.p, move.EffectName(eff)); err != nil {
			return err
		}
	}
	switch eff := eff.(type) {
	case move.Save:
		return r.save(ctx, cause)
	case move.Wait:
		r.timer.Reset(max(eff.Until-r.m.cfg.Now(), time.Millisecond))
	case move.Interrupt:
		if r.busy {
			r.endTask()
		}
	case move.Forget:
		if err := r.m.cfg.Journal.Delete(journalKey(movePrefix, r.p, r.move)); err != nil {
			r.m.cfg.Log.Warn("remove a finished move from the journal", append(logFields(r.p, r.move), zap.Error(err))...)
		}
	default:
		r.busy = true
		task, cancel := context.WithCancel(ctx)
		r.endTask = cancel
		st, injected := r.st, r.injected
		r.injected = nil
		go func() {
			if injected != nil {
				r.results <- move.Failed{Message: injected.Error()}
				return
			}
			r.results <- r.effect(task, st, eff)
		}()
	}
	return nil
}

// save journals the state. Invariant I7: nothing goes on without it, so a failing journal is tried again
// until it works or the node stops.
func (r *run) save(ctx context.Context, cause move.Event) error {
	b, err := r.st.Encode()
	if err != nil {
		return err
	}
	for wait := move.MinBackoff; ; wait = min(2*wait, move.MaxBackoff) {
		if err = r.m.cfg.Journal.Save(journalKey(movePrefix, r.p, r.move), b); err == nil {
			break
		}
		r.m.cfg.Log.Error("journal a move", append(logFields(r.p, r.move), zap.Error(err))...)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("journal move %d of %s: %w", r.move, r.p, err)
		case <-t.C:
		}
	}
	if point := savedPoint(cause); point != "" {
		r.injected = hit(point, r.p, r.move, r.st.Handoff)
	}
	return nil
}

func (r *run) progress() cluster.MoveProgress {
	r.shared.Lock()
	st := r.shared.st
	r.shared.Unlock()
	missing := st.Missing
	if st.Phase == move.Copying || st.Phase == move.Draining {
		missing -= min(missing, cluster.Bytes(r.passBytes.Load()))
	}
	if st.Phase >= move.Installing {
		missing = 0
	}
	var frozen time.Duration
	if shown := st.Shown(); st.FrozenAt > 0 && st.Handoff > 0 && (shown == cluster.PhaseFrozen && st.Phase != move.Preparing || shown == cluster.PhaseFlipping) {
		frozen = st.FrozenFor + r.m.cfg.Now() - st.FrozenAt
	}
	return cluster.MoveProgress{
		Partition: r.p, MoveID: r.move, Phase: st.Shown(), Done: st.Total - min(missing, st.Total), Total: st.Total,
		BytesPerSecond: st.Bandwidth, Lag: missing, Passes: st.Stats.Passes, Attempt: st.Stats.Attempts,
		Converged: st.Stats.Converged, NonConverged: st.NonConverged, LastError: st.LastError, FrozenFor: frozen,
	}
}
