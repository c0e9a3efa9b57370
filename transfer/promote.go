package transfer

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/faults"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// notifyTimeout bounds the notice to the source, which learns the same from its watch.
const notifyTimeout = time.Second

func (r *run) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.m.cfg.CallTimeout)
}

func (r *run) resolver() Resolver {
	return Resolver{
		Node: r.m.cfg.Node, Store: r.m.cfg.Store, Control: r.m.cfg.Control, Partition: r.p, Move: r.move, CallTimeout: r.m.cfg.CallTimeout,
	}
}

// promote finalizes the staged copy without its source, and records what it is made of.
func (r *run) promote(ctx context.Context, eff move.Promote) (move.Event, error) {
	m := r.work.manifest
	if r.work.staging == nil || r.work.incarnation == 0 {
		var err error
		if m, err = decodeMeta(eff.Meta); err != nil {
			return nil, err
		}
	}
	if err := r.stage(ctx); err != nil {
		return nil, err
	}
	leo, err := r.work.staging.FinalizeForced(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("finalize without the source: %w", err)
	}
	staged := map[string]bool{}
	for _, f := range r.work.staging.Files() {
		staged[f.Name] = true
	}
	var files []store.File
	for _, f := range m.Files {
		if staged[f.Name] {
			files = append(files, f)
		}
	}
	b, err := encodePromoted(leo, files)
	if err == nil {
		err = r.m.cfg.Journal.Save(journalKey(promotedPrefix, r.p, r.move), b)
	}
	if err != nil {
		return nil, fmt.Errorf("record the promotion: %w", err)
	}
	return move.Promotable{LEO: leo}, nil
}

// report tells the control plane, then the source. A refusal means that the ownership has changed again,
// and that nobody waits for the report.
func (r *run) report(ctx context.Context, st move.State, eff move.Report) (move.Event, error) {
	call, cancel := r.call(ctx)
	defer cancel()
	stats := eff.Stats
	if err := r.m.cfg.Control.ReportOpened(call, r.p, eff.Epoch, r.move, &stats); err != nil {
		if !Definite(err) {
			return nil, fmt.Errorf("report opened: %w", err)
		}
		r.m.cfg.Log.Info("report of an opened partition refused", append(logFields(r.p, r.move), zap.Error(err))...)
	}
	if err := r.hit(faults.MoveReported, 0); err != nil {
		return nil, err
	}
	if st.Forced {
		return move.Reported{}, nil
	}
	c, err := r.client()
	if err == nil {
		notify, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		_, err = c.NotifyOpened(notify, &nodev1.NotifyOpenedRequest{Move: moveRef(r.p, r.move)})
	}
	if err != nil {
		r.m.cfg.Log.Debug("notify the source", append(logFields(r.p, r.move), zap.Error(err))...)
	}
	return move.Reported{}, nil
}
