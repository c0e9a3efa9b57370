package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/dataplane"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// simLogs gives the data plane the open logs, with the checks that hold whenever one acknowledges.
type simLogs struct{ n *node }

// Log implements dataplane.Logs.
func (s simLogs) Log(p cluster.PartitionID) (dataplane.Log, error) {
	l, err := s.n.store.Log(p)
	if err != nil {
		return nil, err
	}
	return simLog{l, s.n, p}, nil
}

// simLog is an open log of a node. Two of one opening are equal.
type simLog struct {
	*partitionlog.Log
	n *node
	p cluster.PartitionID
}

// Append implements dataplane.Log. Sometimes a sync fails.
func (l simLog) Append(ctx context.Context, records []store.Record) (cluster.Offset, error) {
	n, frozen := l.n, l.Frozen()
	if n.w.permille(8) {
		n.fs.failSyncs = 1
	}
	first, err := l.Log.Append(ctx, records)
	n.fs.failSyncs = 0
	if err != nil {
		return first, err
	}
	if frozen != nil {
		n.w.violated("I6", "%s acknowledges %s of %s, which is frozen for move %d, handoff %d", n.id, records[0].Key, l.p, frozen.MoveID, frozen.Handoff)
	}
	for i, r := range records {
		n.w.book.appended(n, l.p, first+cluster.Offset(i), r)
	}
	return first, nil
}

// CommitOffset implements dataplane.Log.
func (l simLog) CommitOffset(group string, off cluster.Offset) error {
	l.n.w.book.committing(l.n, l.p, off)
	return l.Log.CommitOffset(group, off)
}

// deliver brings one partition's queue to its owner: the dispatcher's worker, on virtual time.
func (n *node) deliver(p *proc, q cluster.PartitionID) {
	v := n.plane.Delivery(q)
	for {
		switch s := v.Next(); s.Kind {
		case dataplane.StepIdle:
			return
		case dataplane.StepAppend:
			sent, req := n.now(), s.AppendRequest(n.id)
			resp, ok := call(p, n.host, host(s.Route.Owner), min(callTimeout, leaseTTL), func(reply func(*nodev1.AppendResponse)) {
				if to := n.w.node(s.Route.Owner); to != nil && to.up() {
					if resp, err := to.plane.Owner().Append(context.Background(), req); err == nil {
						reply(resp)
					}
				}
			})
			var err error
			if !ok {
				err = errUnknown
			}
			v.Ended(s, dataplane.AnswerOf(resp, err), sent)
		case dataplane.StepWait:
			// A change of the routes ends the wait; it is looked for a few times in a second.
			p.sleep(min(s.Until.Sub(n.now()), 30*time.Millisecond))
		case dataplane.StepPause:
			p.sleep(s.Until.Sub(n.now()))
		}
	}
}

// producer hands records to any node for as long as faults go on. It keeps to topics that it knows.
func (w *World) producer(from host) func(p *proc) {
	return func(p *proc) {
		for !w.calm {
			p.sleep(w.between(10*time.Millisecond, w.opts.pace))
			if topics := w.topics(); len(topics) > 0 {
				w.produce(p, from, pick(w, topics))
			}
		}
	}
}

func (w *World) produce(p *proc, from host, topic cluster.Topic) {
	to, req := pick(w, w.nodes), &nodev1.ProduceRequest{Topic: topic.Name}
	var ids []string
	for range 1 + w.rng.IntN(3) {
		id, size := w.book.id(topic), 10+w.rng.IntN(300)
		ids = append(ids, id)
		req.Records = append(req.Records, &nodev1.ProduceRecord{Key: []byte(id), Value: fmt.Appendf(nil, "%0*d", size, len(id))})
	}
	ok, _ := call(p, from, to.host, callTimeout, func(reply func(bool)) {
		if !to.up() {
			return
		}
		// A topic that is not known yet would be waited for.
		if t, known := to.router.Topic(topic.Name); !known || t.ID != topic.ID {
			return
		}
		if _, err := to.plane.Data().Produce(context.Background(), req); err != nil {
			return
		}
		for _, id := range ids {
			w.book.queued(to, id)
		}
		reply(true)
	})
	if ok {
		for _, id := range ids {
			w.book.acknowledged(id)
		}
	}
}

// consumer reserves records by way of some node's routes, and acknowledges most of them: in any order, late, or never.
func (w *World) consumer(from host) func(p *proc) {
	return func(p *proc) {
		for {
			p.sleep(w.between(20*time.Millisecond, 120*time.Millisecond))
			via := pick(w, w.nodes)
			if !via.up() {
				continue
			}
			for _, t := range w.topics() {
				w.consume(p, from, via, t)
			}
		}
	}
}

// consume asks each owner of a topic's partitions, as via has them.
func (w *World) consume(p *proc, from host, via *node, topic cluster.Topic) {
	byOwner := map[cluster.NodeID][]uint32{}
	for _, r := range via.router.Routes(topic.ID) {
		byOwner[r.Owner] = append(byOwner[r.Owner], r.Partition.Index)
	}
	for _, id := range sortedKeys(byOwner, cmp.Compare[cluster.NodeID]) {
		to := w.node(id)
		if to == nil || !w.calm && w.rng.IntN(3) > 0 {
			continue
		}
		req := &nodev1.ConsumeOwnedRequest{
			TopicId: uint64(topic.ID), Indexes: byOwner[id], Group: group, MaxRecords: uint32(1 + w.rng.IntN(20)), MaxBytes: 1 << 16,
			VisibilityTimeout: durationpb.New(w.between(time.Second, 3*time.Second)),
		}
		resp, ok := call(p, from, to.host, callTimeout, func(reply func(*nodev1.ConsumeOwnedResponse)) {
			if to.up() {
				if resp, err := to.plane.Owner().ConsumeOwned(context.Background(), req); err == nil {
					reply(resp)
				}
			}
		})
		if ok && len(resp.GetRecords()) > 0 {
			w.settle(p, from, to, topic, resp.GetRecords())
		}
	}
}

// settle acknowledges what was handed out.
func (w *World) settle(p *proc, from host, to *node, topic cluster.Topic, records []*nodev1.ConsumedRecord) {
	for _, r := range records {
		id := string(r.GetKey())
		if w.book.topic[id] != topic.ID {
			w.violated("C38", "%s hands out %s of topic %d as of %d", to.id, id, w.book.topic[id], topic.ID)
		}
		w.book.delivered[id]++
	}
	records = slices.Clone(records)
	w.rng.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	if w.chance(10) {
		return // the consumer died
	}
	if w.chance(10) {
		p.sleep(w.between(0, 4*time.Second))
	}
	// One partition a time: an owner settles several in goroutines.
	slices.SortStableFunc(records, func(a, b *nodev1.ConsumedRecord) int { return cmp.Compare(a.GetPartition(), b.GetPartition()) })
	for len(records) > 0 {
		n, most := 0, 1+w.rng.IntN(10)
		var receipts []string
		for ; n < min(len(records), most) && records[n].GetPartition() == records[0].GetPartition(); n++ {
			if !w.chance(5) {
				w.book.settled[string(records[n].GetKey())] = true
				receipts = append(receipts, records[n].GetReceipt())
			}
		}
		records = records[n:]
		if len(receipts) == 0 {
			continue
		}
		call(p, from, to.host, callTimeout, func(reply func(bool)) {
			if to.up() {
				_, err := to.plane.Owner().AckOwned(context.Background(), &nodev1.AckOwnedRequest{Receipts: receipts})
				reply(err == nil)
			}
		})
	}
}
