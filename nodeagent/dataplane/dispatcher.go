package dataplane

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// dispatcher brings the ingress queue's chunks to the owners. Each partition with something pending has
// one worker with one append in flight.
type dispatcher struct {
	cfg      Config
	self     cluster.NodeID
	in       *ingress
	router   *Router
	logs     Logs
	peers    *peers
	leaseTTL func() time.Duration
	stats    *Stats
	log      *zap.Logger
	now      func() time.Time
	// local bounds this node's own appends, as peers' slots bound theirs.
	local *peer

	wg sync.WaitGroup
	// stuck holds the partitions whose last append failed: keyless records and reroutes avoid them.
	stuck      sync.Map // cluster.PartitionID → struct{}
	stuckCount atomic.Int64
}

// run dispatches until ctx ends, and waits for its workers.
func (d *dispatcher) run(ctx context.Context) {
	d.in.attach(func(p cluster.PartitionID) {
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			d.work(ctx, p)
		}()
	})
	<-ctx.Done()
	d.in.detach()
	d.wg.Wait()
}

// isStuck reports whether the partition's last append failed.
func (d *dispatcher) isStuck(p cluster.PartitionID) bool {
	if d.stuckCount.Load() == 0 {
		return false
	}
	_, ok := d.stuck.Load(p)
	return ok
}

func (d *dispatcher) setStuck(p cluster.PartitionID, stuck bool) {
	if stuck {
		if _, had := d.stuck.LoadOrStore(p, struct{}{}); !had {
			d.stuckCount.Add(1)
		}
		return
	}
	if d.stuckCount.Load() == 0 {
		return
	}
	if _, had := d.stuck.LoadAndDelete(p); had {
		d.stuckCount.Add(-1)
	}
}

// work delivers one partition's queue until it is empty or ctx ends.
func (d *dispatcher) work(ctx context.Context, p cluster.PartitionID) {
	v := d.delivery(p)
	for ctx.Err() == nil {
		changed := d.router.Changed()
		switch s := v.Next(); s.Kind {
		case StepIdle:
			return
		case StepAppend:
			r, sent := d.send(ctx, s, changed)
			v.Ended(s, r, sent)
		case StepWait:
			d.wait(ctx, changed, s.Until)
		case StepPause:
			d.wait(ctx, nil, s.Until)
		}
	}
}

// After a small batch the next one waits for lingerTime. Appends then need fewer syncs, and leave the disk to
// the ingress queue's, which producers wait for. A partition that was idle is not delayed.
const (
	lingerBytes = 64 << 10
	lingerTime  = 5 * time.Millisecond
)

// look gathers what a decision about p needs.
func (d *dispatcher) look(p cluster.PartitionID, a attempt) situation {
	s := situation{now: d.now()}
	s.route, s.known = d.router.Route(p)
	if !s.known {
		s.gone = d.router.Gone(p.Topic)
		return s
	}
	if a.hintEpoch > s.route.Epoch {
		if r, ok := d.router.withOwner(s.route, a.hintOwner, a.hintEpoch); ok {
			s.route = r
		}
	}
	if s.route.Owner != d.self && s.route.Address != "" {
		s.peerRetryAt = d.peers.at(s.route.Address).unreachable(s.now)
	}
	// Only a partition in trouble needs to know its alternatives.
	if !a.since.IsZero() || !s.route.Alive || !s.peerRetryAt.IsZero() {
		_, s.others = d.router.pickOther(p.Topic, d.unfit(p))
	}
	return s
}

// unfit returns the test for partitions that p's records must not be rerouted to.
func (d *dispatcher) unfit(p cluster.PartitionID) func(cluster.PartitionID) bool {
	return func(q cluster.PartitionID) bool { return q == p || d.isStuck(q) }
}

func (d *dispatcher) note(p cluster.PartitionID, route Route, r result) {
	d.stats.refused.Add(1)
	d.log.Debug("append was not acknowledged, trying again", zap.Stringer("partition", p),
		zap.String("owner", string(route.Owner)), zap.Uint64("epoch", uint64(route.Epoch)), zap.Error(r.err))
}

// wait returns when changed is closed, at until, or when ctx ends.
func (d *dispatcher) wait(ctx context.Context, changed <-chan struct{}, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// send performs an append. stop ends the wait for a slot early. sent is when it left.
func (d *dispatcher) send(ctx context.Context, s Step, stop <-chan struct{}) (r Answer, sent time.Time) {
	target := d.local
	if s.Route.Owner != d.self {
		target = d.peers.at(s.Route.Address)
	}
	if !target.acquire(ctx, stop) {
		return Answer{result{verdict: refused, err: errNoSlot}}, d.now()
	}
	defer target.release()
	sent = d.now()
	if target == d.local {
		return Answer{d.appendLocal(ctx, s)}, sent
	}
	return d.appendRemote(ctx, target, s), sent
}

func (d *dispatcher) appendLocal(ctx context.Context, s Step) result {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.RequestTimeout)
	defer cancel()
	l, err := d.logs.Log(s.Route.Partition)
	if err == nil {
		_, err = l.Append(ctx, s.Records)
	}
	if err == nil {
		return result{verdict: appended}
	}
	r := result{verdict: refused, reason: cluster.ReasonOf(err), err: err}
	switch r.reason {
	case cluster.ReasonNotOwner:
		r.owner, r.epoch = cluster.AsError(err).Owner, cluster.AsError(err).Epoch
	case 0, cluster.ReasonNoLeader:
		r.verdict = unknown
	}
	return r
}

func flatten(batch []*chunk) []store.Record {
	if len(batch) == 1 {
		return batch[0].records
	}
	out := make([]store.Record, 0, amountOf(batch...).records)
	for _, c := range batch {
		out = append(out, c.records...)
	}
	return out
}

func (d *dispatcher) appendRemote(ctx context.Context, to *peer, s Step) Answer {
	req := s.AppendRequest(d.self)
	var resp *nodev1.AppendResponse
	err := to.call(ctx, min(d.cfg.RequestTimeout, d.leaseTTL()), func(ctx context.Context) (err error) {
		resp, err = to.client.Append(ctx, req)
		return err
	})
	return AnswerOf(resp, err)
}

// parseReason returns the reason with a wire name; an unknown one is a BUG to its reader.
func parseReason(name string) cluster.Reason {
	for _, r := range cluster.Reasons() {
		if r.String() == name {
			return r
		}
	}
	return cluster.ReasonBug
}
