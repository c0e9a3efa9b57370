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
	var a attempt
	defer d.setStuck(p, false)
	for failures := 0; ctx.Err() == nil; {
		batch, err := d.in.take(p, uint64(d.cfg.BatchBytes))
		if err == nil && len(batch) == 0 {
			return
		}
		if err == nil {
			if !d.deliver(ctx, p, batch, &a) {
				return
			}
			err = d.in.done(p, batch)
		}
		if err == nil {
			failures = 0
			d.linger(ctx, batch)
			continue
		}
		// The agent's own database. Nothing was removed, so nothing is lost; it may be delivered again.
		failures++
		d.log.Error("the ingress queue can't be used, records wait", zap.Stringer("partition", p), zap.Error(err))
		d.wait(ctx, nil, time.Now().Add(backoff(failures)))
	}
}

// After a small batch the next one waits for lingerTime. Appends then need fewer syncs, and leave the disk to
// the ingress queue's, which producers wait for. A partition that was idle is not delayed.
const (
	lingerBytes = 64 << 10
	lingerTime  = 5 * time.Millisecond
)

func (d *dispatcher) linger(ctx context.Context, batch []*chunk) {
	if amountOf(batch...).bytes < lingerBytes {
		d.wait(ctx, nil, time.Now().Add(lingerTime))
	}
}

// deliver tries until the batch is appended somewhere or its topic is gone; false when ctx ended first.
func (d *dispatcher) deliver(ctx context.Context, p cluster.PartitionID, batch []*chunk, a *attempt) bool {
	for ctx.Err() == nil {
		changed := d.router.Changed()
		s := d.look(p, *a)
		var next decision
		next, *a = decide(*a, s, d.cfg.RerouteAfter)
		switch next.action {
		case actDiscard:
			d.stats.discarded.Add(amountOf(batch...).records)
			d.log.Warn("records of a deleted topic are dropped", zap.Stringer("partition", p),
				zap.Uint64("records", amountOf(batch...).records))
			return true
		case actSend:
			r := d.send(ctx, s.route, batch, changed)
			*a = a.after(r, s.route, time.Now())
			d.setStuck(p, r.verdict != appended)
			if r.verdict == appended {
				d.stats.delivered.Add(amountOf(batch...).records)
				return true
			}
			d.note(p, s.route, r)
		case actReroute:
			d.setStuck(p, true)
			if d.reroute(ctx, p, batch, a, changed) {
				return true
			}
		default:
			d.setStuck(p, true)
			d.in.shedWhenTight(p)
			d.wait(ctx, changed, next.until)
		}
	}
	return false
}

// look gathers what a decision about p needs.
func (d *dispatcher) look(p cluster.PartitionID, a attempt) situation {
	s := situation{now: time.Now()}
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

// reroute appends the batch to another partition of the topic. The order of records with one key is not
// promised, so any record may go.
func (d *dispatcher) reroute(ctx context.Context, p cluster.PartitionID, batch []*chunk, a *attempt,
	changed <-chan struct{}) bool {
	route, ok := d.router.pickOther(p.Topic, d.unfit(p))
	if !ok {
		return false
	}
	r := result{verdict: refused, err: errPeerDown}
	if route.Owner == d.self || d.peers.at(route.Address).unreachable(time.Now()).IsZero() {
		r = d.send(ctx, route, batch, changed)
	}
	*a = a.afterReroute(r, time.Now())
	if r.verdict != appended {
		d.note(route.Partition, route, r)
		return false
	}
	n := amountOf(batch...).records
	d.stats.delivered.Add(n)
	d.stats.rerouted.Add(n)
	return true
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

// send appends a batch to route's partition at its owner. stop ends the wait for a slot early.
func (d *dispatcher) send(ctx context.Context, route Route, batch []*chunk, stop <-chan struct{}) result {
	target := d.local
	if route.Owner != d.self {
		target = d.peers.at(route.Address)
	}
	if !target.acquire(ctx, stop) {
		return result{verdict: refused, err: errNoSlot}
	}
	defer target.release()
	sent := time.Now()
	var r result
	if target == d.local {
		r = d.appendLocal(ctx, route.Partition, batch)
	} else {
		r = d.appendRemote(ctx, target, route.Partition, batch)
	}
	judged := judge(r, sent, time.Now(), d.leaseTTL())
	if judged.verdict != r.verdict {
		d.stats.late.Add(1)
	}
	return judged
}

func (d *dispatcher) appendLocal(ctx context.Context, p cluster.PartitionID, batch []*chunk) result {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.RequestTimeout)
	defer cancel()
	l, err := d.logs.Log(p)
	if err == nil {
		_, err = l.Append(ctx, flatten(batch))
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

func (d *dispatcher) appendRemote(ctx context.Context, to *peer, p cluster.PartitionID, batch []*chunk) result {
	n := int(amountOf(batch...).records)
	records, pointers := make([]nodev1.AppendRecord, n), make([]*nodev1.AppendRecord, n)
	i := 0
	for _, c := range batch {
		for _, r := range c.records {
			records[i].Key, records[i].Value, records[i].Time = r.Key, r.Value, r.Time
			pointers[i] = &records[i]
			i++
		}
	}
	req := &nodev1.AppendRequest{From: string(d.self), Batches: []*nodev1.PartitionBatch{
		{TopicId: uint64(p.Topic), Index: p.Index, Records: pointers}}}
	var resp *nodev1.AppendResponse
	err := to.call(ctx, min(d.cfg.RequestTimeout, d.leaseTTL()), func(ctx context.Context) (err error) {
		resp, err = to.client.Append(ctx, req)
		return err
	})
	if err != nil {
		return result{verdict: unknown, err: err}
	}
	if len(resp.GetResults()) != 1 {
		return result{verdict: unknown, err: cluster.Errorf(cluster.ReasonBug, "append: %d results for one batch", len(resp.GetResults()))}
	}
	res := resp.GetResults()[0]
	if res.GetReason() == "" {
		return result{verdict: appended}
	}
	r := result{verdict: refused, reason: parseReason(res.GetReason()), owner: cluster.NodeID(res.GetOwner()),
		epoch: cluster.Epoch(res.GetEpoch())}
	r.err = cluster.Errorf(r.reason, "%s", res.GetMessage())
	if r.reason == cluster.ReasonNoLeader {
		r.verdict = unknown
	}
	return r
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
