package dataplane

import (
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Delivery brings one partition's queue to the owners, one step after the other. It decides and keeps the queue, and neither
// waits nor sends: Next says what to do, and for an append Ended takes what came of it. The dispatcher's workers drive
// it, and simulations do. There is one at a time for a partition; it is not safe for concurrent use.
type Delivery struct {
	d     *dispatcher
	p     cluster.PartitionID
	a     attempt
	batch []*chunk
	// failures counts what the agent's own database refused in a row.
	failures int
	// pause is until when nothing is done.
	pause time.Time
}

// StepKind is what a Step asks for.
type StepKind uint8

// The values of StepKind.
const (
	// StepAppend: append Records to Route's partition at Route's owner, and call Ended.
	StepAppend StepKind = iota + 1
	// StepWait: until the routes change, at Until at the latest.
	StepWait
	// StepPause: until Until.
	StepPause
	// StepIdle: the queue is empty. The delivery is over; a later record wakes another one.
	StepIdle
)

// Step is what is to be done next.
type Step struct {
	Kind    StepKind
	Route   Route
	Records []store.Record
	Until   time.Time
	// reroute says that Route is another partition than the records' own.
	reroute bool
}

// Drive has wake called for every partition whose queue begins to have something to deliver, now and later, for who drives
// deliveries by hand instead of calling Run. wake must not block.
func (s *Service) Drive(wake func(cluster.PartitionID)) { s.in.attach(wake) }

// Delivery begins the delivery of a partition that wake was called for.
func (s *Service) Delivery(p cluster.PartitionID) *Delivery { return s.dispatcher.delivery(p) }

func (d *dispatcher) delivery(p cluster.PartitionID) *Delivery { return &Delivery{d: d, p: p} }

// Next says what to do. After StepIdle the delivery must not be used again.
func (v *Delivery) Next() Step {
	for {
		now := v.d.now()
		if v.pause.After(now) {
			return Step{Kind: StepPause, Until: v.pause}
		}
		if v.batch == nil {
			batch, err := v.d.in.take(v.p, uint64(v.d.cfg.BatchBytes))
			if err != nil {
				v.unusable(err)
				continue
			}
			if len(batch) == 0 {
				v.d.setStuck(v.p, false)
				return Step{Kind: StepIdle}
			}
			v.batch = batch
		}
		s := v.d.look(v.p, v.a)
		var next decision
		next, v.a = decide(v.a, s, v.d.cfg.RerouteAfter)
		switch next.action {
		case actDiscard:
			n := amountOf(v.batch...).records
			v.d.stats.discarded.Add(n)
			v.d.log.Warn("records of a deleted topic are dropped", zap.Stringer("partition", v.p), zap.Uint64("records", n))
			v.done()
		case actSend:
			return Step{Kind: StepAppend, Route: s.route, Records: flatten(v.batch)}
		case actReroute:
			v.d.setStuck(v.p, true)
			if route, ok := v.other(); ok {
				return Step{Kind: StepAppend, Route: route, Records: flatten(v.batch), reroute: true}
			}
		default:
			v.d.setStuck(v.p, true)
			v.d.in.shedWhenTight(v.p)
			return Step{Kind: StepWait, Until: next.until}
		}
	}
}

// other picks another partition for the batch. The order of records with one key is not promised, so any record may go.
func (v *Delivery) other() (Route, bool) {
	route, ok := v.d.router.pickOther(v.p.Topic, v.d.unfit(v.p))
	if !ok {
		return Route{}, false
	}
	if now := v.d.now(); route.Owner != v.d.self && !v.d.peers.at(route.Address).unreachable(now).IsZero() {
		v.a = v.a.afterReroute(result{verdict: refused, err: errPeerDown}, now)
		return Route{}, false
	}
	return route, true
}

// Ended takes the answer to an append that was sent at sent. Only an acknowledgement in time ends the batch (I2, I10).
func (v *Delivery) Ended(s Step, r Answer, sent time.Time) {
	now := v.d.now()
	judged := judge(r.result, sent, now, v.d.leaseTTL())
	if judged.verdict != r.verdict {
		v.d.stats.late.Add(1)
	}
	if s.reroute {
		v.a = v.a.afterReroute(judged, now)
	} else {
		v.a = v.a.after(judged, s.Route, now)
		v.d.setStuck(v.p, judged.verdict != appended)
	}
	if judged.verdict != appended {
		v.d.note(s.Route.Partition, s.Route, judged)
		return
	}
	n := amountOf(v.batch...)
	v.d.stats.delivered.Add(n.records)
	if s.reroute {
		v.d.stats.rerouted.Add(n.records)
	}
	if v.done() && n.bytes < lingerBytes {
		v.pause = now.Add(lingerTime)
	}
}

// done removes the batch from the queue. When that fails it is taken, and delivered, again.
func (v *Delivery) done() bool {
	batch := v.batch
	v.batch = nil
	if err := v.d.in.done(v.p, batch); err != nil {
		v.unusable(err)
		return false
	}
	v.failures = 0
	return true
}

// unusable backs off from the agent's own database. Nothing was removed, so nothing is lost.
func (v *Delivery) unusable(err error) {
	v.failures++
	v.d.log.Error("the ingress queue can't be used, records wait", zap.Stringer("partition", v.p), zap.Error(err))
	v.pause = v.d.now().Add(backoff(v.failures))
}

// Answer is the end of an append, as its sender knows it.
type Answer struct{ result }

// AppendRequest is a step's append for the owner's server.
func (s Step) AppendRequest(from cluster.NodeID) *nodev1.AppendRequest {
	records, pointers := make([]nodev1.AppendRecord, len(s.Records)), make([]*nodev1.AppendRecord, len(s.Records))
	for i, r := range s.Records {
		records[i].Key, records[i].Value, records[i].Time = r.Key, r.Value, r.Time
		pointers[i] = &records[i]
	}
	p := s.Route.Partition
	return &nodev1.AppendRequest{From: string(from), Batches: []*nodev1.PartitionBatch{
		{TopicId: uint64(p.Topic), Index: p.Index, Records: pointers}}}
}

// AnswerOf says what an answer to AppendRequest means. Without one, or with an error, the outcome is unknown.
func AnswerOf(resp *nodev1.AppendResponse, err error) Answer {
	if err != nil {
		return Answer{result{verdict: unknown, err: err}}
	}
	if len(resp.GetResults()) != 1 {
		return Answer{result{verdict: unknown, err: cluster.Errorf(cluster.ReasonBug, "append: %d results for one batch", len(resp.GetResults()))}}
	}
	res := resp.GetResults()[0]
	if res.GetReason() == "" {
		return Answer{result{verdict: appended}}
	}
	r := result{verdict: refused, reason: parseReason(res.GetReason()), owner: cluster.NodeID(res.GetOwner()),
		epoch: cluster.Epoch(res.GetEpoch())}
	r.err = cluster.Errorf(r.reason, "%s", res.GetMessage())
	if r.reason == cluster.ReasonNoLeader {
		r.verdict = unknown
	}
	return Answer{r}
}
