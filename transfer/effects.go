package transfer

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// effect performs what ends in a result. It owns r.work.
func (r *run) effect(ctx context.Context, st move.State, eff move.Effect) move.Event {
	switch eff := eff.(type) {
	case move.Begin:
		return r.orFailed(r.begin(ctx))
	case move.Measure:
		return r.orFailed(r.measure(ctx))
	case move.CopyPass:
		return r.orFailed(r.copyPass(ctx))
	case move.PrepareHandoff:
		return r.orFailed(r.prepare(ctx, eff.TTL))
	case move.Drain:
		return r.frozenWork(ctx, eff.Handoff, func(ctx context.Context) (move.Event, error) { return r.drain(ctx, eff.Handoff) })
	case move.Verify:
		return r.frozenWork(ctx, eff.Handoff, func(ctx context.Context) (move.Event, error) { return r.verify(ctx, eff.Handoff) })
	case move.Install:
		if eff.Handoff == 0 {
			return r.orFailed(r.install(0))
		}
		return r.frozenWork(ctx, eff.Handoff, func(context.Context) (move.Event, error) { return r.install(eff.Handoff) })
	case move.CompleteMove:
		return r.resolver().Complete(ctx, eff)
	case move.RevokeHandoff:
		return r.resolver().Revoke(ctx, eff)
	case move.Rollback:
		return r.orFailed(r.rollback())
	case move.Promote:
		return r.orFailed(r.promote(ctx, eff))
	case move.ForceComplete:
		return r.resolver().Force(ctx, eff)
	case move.ConfirmFlip:
		return r.orFailed(move.Confirmed{}, r.m.cfg.Store.ConfirmFlip(r.p, r.move))
	case move.Open:
		return r.orFailed(r.open(eff.Epoch))
	case move.Report:
		return r.orFailed(r.report(ctx, st, eff))
	case move.ReadMove:
		return r.orFailed(r.resolver().Read(ctx))
	case move.DropStaging:
		return r.orFailed(r.dropStaging())
	}
	return move.Failed{Message: "unknown effect " + move.EffectName(eff)}
}

// orFailed turns an error into the event that says what it means for the move.
func (r *run) orFailed(e move.Event, err error) move.Event {
	if err == nil {
		return e
	}
	f := move.Failed{Message: err.Error()}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, errNoRoom):
		f.Blocked = true
	case cluster.ReasonOf(err) == cluster.ReasonMoveMismatch:
		f.Hint = true
	}
	return f
}

var errNoRoom = errors.New("not enough room")

func (r *run) hit(point string, h cluster.Handoff) error { return hit(point, r.p, r.move, h) }

// client returns the source's TransferService.
func (r *run) client() (nodev1connect.TransferServiceClient, error) {
	base, err := r.base()
	if err != nil {
		return nil, err
	}
	return nodev1connect.NewTransferServiceClient(connect.NewClient(connecthttp.NewTransport(r.m.cfg.HTTP, base, connecthttp.WithCompressors(),
		connecthttp.WithReadMaxBytes(maxMessageBytes)))), nil
}

func (r *run) base() (string, error) {
	a := r.address.Load()
	if a == nil || *a == "" {
		return "", fmt.Errorf("the address of source %s is not known yet", r.sourceID)
	}
	return r.m.cfg.BaseURL(*a), nil
}

func (r *run) begin(ctx context.Context) (move.Event, error) {
	c, err := r.client()
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, r.m.longCall())
	defer cancel()
	res, err := c.Begin(call, &nodev1.BeginRequest{Move: moveRef(r.p, r.move), Destination: string(r.m.cfg.Node)})
	if err != nil {
		return nil, fmt.Errorf("begin at %s: %w", r.sourceID, r.m.cfg.Errors.fromWire(err))
	}
	m, err := manifestFromProto(res.GetManifest())
	if err != nil {
		return nil, err
	}
	if err := r.stage(ctx); err != nil {
		return nil, err
	}
	inc := cluster.Incarnation(res.GetIncarnation())
	e, err := r.adopt(m, inc)
	if err != nil {
		return nil, err
	}
	if err := r.checkRoom(e.Missing); err != nil {
		return nil, err
	}
	return move.Begun{Incarnation: inc, Measured: e}, nil
}

// stage opens the staging directory, unless it is open, and clears the place that the copy will take.
func (r *run) stage(ctx context.Context) error {
	if r.work.staging != nil {
		return nil
	}
	if err := r.clearPlace(ctx); err != nil {
		return err
	}
	s, err := r.m.cfg.Store.Stage(ctx, r.p, r.move)
	if err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	r.forgetStaged()
	r.work.staging = s
	return nil
}

// clearPlace sets a stale copy of an earlier ownership aside: this node gave it away, and the partition
// comes home before it was reclaimed. It is neither served nor mixed in, and what becomes of it is for
// reclaim or salvage to say.
func (r *run) clearPlace(ctx context.Context) error {
	c, ok, err := activeCopy(r.m.cfg.Store, r.p)
	if err != nil || !ok || c.Identity == store.Identity(r.move) {
		return err
	}
	if c.Pending != nil {
		return fmt.Errorf("the copy of move %d still waits for its flip", c.Pending.MoveID)
	}
	cctx, cancel := context.WithTimeout(ctx, r.m.cfg.CallTimeout)
	defer cancel()
	v, err := r.m.cfg.Control.ReadMove(cctx, r.p, r.move)
	if err != nil {
		return fmt.Errorf("read who owns %s: %w", r.p, err)
	}
	// Invariant I9: nothing is set aside on the local view.
	if v.State != MoveCurrent || v.Assignment == nil || v.Assignment.Owner == r.m.cfg.Node {
		e := cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s is not current", r.move, r.p)
		return e
	}
	if err := r.m.cfg.Store.Quarantine(r.p, c.Identity); err != nil {
		return fmt.Errorf("set the stale copy aside: %w", err)
	}
	r.m.cfg.Log.Info("stale copy set aside", append(logFields(r.p, r.move), zap.Uint64("identity", uint64(c.Identity)))...)
	if r.m.cfg.OnClosedStale != nil {
		r.m.cfg.OnClosedStale(r.p)
	}
	return nil
}

func (r *run) checkRoom(missing cluster.Bytes) error {
	if r.m.cfg.FreeDisk == nil || missing == 0 {
		return nil
	}
	free, err := r.m.cfg.FreeDisk()
	if err != nil {
		return fmt.Errorf("measure free disk: %w", err)
	}
	if missing > free {
		return fmt.Errorf("%w: needs %d bytes, has %d", errNoRoom, missing, free)
	}
	return nil
}

func (r *run) measure(ctx context.Context) (move.Event, error) {
	c, err := r.client()
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, r.m.longCall())
	defer cancel()
	res, err := c.Manifest(call, &nodev1.ManifestRequest{Move: moveRef(r.p, r.move), Known: filesToProto(r.known())})
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", r.sourceID, r.m.cfg.Errors.fromWire(err))
	}
	m, err := manifestFromProto(res.GetManifest())
	if err != nil {
		return nil, err
	}
	inc := cluster.Incarnation(res.GetIncarnation())
	if inc != r.work.incarnation {
		return nil, fmt.Errorf("source %s is in incarnation %d now", r.sourceID, inc)
	}
	e, err := r.adopt(m, inc)
	return e, err
}

func (r *run) copyPass(ctx context.Context) (move.Event, error) {
	start := time.Now()
	n, err := r.pull(ctx, pullOptions{limited: true, compare: true})
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(start)
	if err := r.hit(faults.MoveSealedSynced, 0); err != nil {
		return nil, err
	}
	return move.Copied{Bytes: n, Elapsed: elapsed}, nil
}

func (r *run) prepare(ctx context.Context, ttl time.Duration) (move.Event, error) {
	if err := r.hit(faults.MoveConverged, 0); err != nil {
		return nil, err
	}
	c, err := r.client()
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, r.m.longCall())
	defer cancel()
	res, err := c.PrepareHandoff(call, &nodev1.PrepareHandoffRequest{
		Move: moveRef(r.p, r.move), Ttl: durationpb.New(ttl), Known: filesToProto(r.known()),
	})
	if err != nil {
		return nil, fmt.Errorf("prepare handoff at %s: %w", r.sourceID, r.m.cfg.Errors.fromWire(err))
	}
	m, err := manifestFromProto(res.GetManifest())
	if err != nil {
		return nil, err
	}
	e := move.FreezeGranted{
		Incarnation: cluster.Incarnation(res.GetIncarnation()), Handoff: cluster.Handoff(res.GetHandoff()),
		HWM: m.HWM, FrozenFor: res.GetFrozenFor().AsDuration(),
	}
	if len(res.GetNonce()) != len(e.Nonce) || e.Handoff == 0 {
		return nil, cluster.Errorf(cluster.ReasonCorrupt, "handoff %d with a nonce of %d bytes", e.Handoff, len(res.GetNonce()))
	}
	if e.Incarnation != r.work.incarnation {
		// The digests that were left out belong to another session. The freeze stays for the next attempt.
		return nil, fmt.Errorf("source %s is in incarnation %d now", r.sourceID, e.Incarnation)
	}
	copy(e.Nonce[:], res.GetNonce())
	measured, err := r.adopt(m, e.Incarnation)
	if err != nil {
		return nil, err
	}
	e.Meta = measured.Meta
	return e, nil
}

// frozenWork runs fn while it tells the source of every later step, so that a long drain keeps its freeze
// and a stuck one loses it.
func (r *run) frozenWork(ctx context.Context, h cluster.Handoff, fn func(context.Context) (move.Event, error)) move.Event {
	r.steps.Add(1)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.keepFrozen(ctx, h, stop)
	}()
	e := r.orFailed(fn(ctx))
	close(stop)
	<-done
	return e
}

func (r *run) keepFrozen(ctx context.Context, h cluster.Handoff, stop <-chan struct{}) {
	every := max(r.m.settings().HandoffTTL/5, 10*time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var sent uint64
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		step := r.steps.Load()
		if step == sent {
			continue
		}
		c, err := r.client()
		if err == nil {
			call, cancel := context.WithTimeout(ctx, every)
			_, err = c.KeepFrozen(call, &nodev1.KeepFrozenRequest{Move: moveRef(r.p, r.move), Handoff: uint32(h), Step: step})
			cancel()
		}
		if err != nil {
			// The source lets go if this goes on; the flip will then be refused.
			r.m.cfg.Log.Debug("keep frozen", append(logFields(r.p, r.move), zap.Error(err))...)
			continue
		}
		sent = step
	}
}

func (r *run) drain(ctx context.Context, h cluster.Handoff) (move.Event, error) {
	n, err := r.pull(ctx, pullOptions{})
	if err == nil {
		err = r.hit(faults.MoveDrained, h)
	}
	return move.Drained{Read: n}, err
}

// verify proves the staged copy. Invariant I5.
func (r *run) verify(ctx context.Context, h cluster.Handoff) (move.Event, error) {
	n, err := r.work.staging.Finalize(ctx, r.finalManifest())
	if err != nil {
		// What differs was cut off or will be by the next comparison; nothing that was believed of it counts.
		return nil, errors.Join(fmt.Errorf("verify: %w", err), r.release())
	}
	return move.Verified{Read: n}, r.hit(faults.MoveVerified, h)
}

func (r *run) install(h cluster.Handoff) (move.Event, error) {
	if err := r.work.staging.Install(store.Pending{MoveID: r.move, Handoff: h}); err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	r.work.staging = nil
	return move.Installed{}, r.hit(faults.MoveInstalled, h)
}

func (r *run) rollback() (move.Event, error) {
	if err := r.release(); err != nil {
		return nil, err
	}
	if err := r.m.cfg.Store.Rollback(r.p, r.move); err != nil {
		return nil, fmt.Errorf("roll back: %w", err)
	}
	r.forgetStaged()
	return move.RolledBack{}, nil
}

func (r *run) open(epoch cluster.Epoch) (move.Event, error) {
	err := r.m.cfg.Open(r.p, epoch)
	if cluster.ReasonOf(err) == cluster.ReasonFrozen {
		// Invariant I1: a later move has a hold on this copy, which therefore was open before: this is a
		// repetition, after a restart or by a watch that is behind. Whether it is served is that move's.
		return move.Opened{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if r.m.cfg.OnOpened != nil {
		r.m.cfg.OnOpened(r.p, epoch)
	}
	return move.Opened{}, r.hit(faults.MoveOpened, 0)
}

func (r *run) dropStaging() (move.Event, error) {
	if err := r.release(); err != nil {
		return nil, err
	}
	if err := r.m.cfg.Store.DropStaging(r.p, r.move); err != nil {
		return nil, fmt.Errorf("drop staging: %w", err)
	}
	return move.Dropped{}, r.m.cfg.Journal.Delete(journalKey(promotedPrefix, r.p, r.move))
}
