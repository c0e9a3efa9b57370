package clients_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/client"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// TestLostReplyIsAppliedOnce: a mutation whose answer was lost is repeated under its request id and answered like the first
// time. One that has no request id is not repeated.
func TestLostReplyIsAppliedOnce(t *testing.T) {
	ctx := within(t, time.Minute)
	to := live.cluster.Controllers[0].Address
	create := newLossy(t, to, "/CreateTopic")
	c := dial(t, client.Options{Controllers: []string{create.address}, Patience: 20 * time.Second})
	res, err := c.Topics().CreateTopic(ctx, &planev1.CreateTopicRequest{Name: "once", Partitions: 2})
	must(t, err)
	if res.GetTopic().GetName() != "once" || create.requests.Load() < 2 {
		t.Errorf("%v after %d requests, want the topic after a repetition", res, create.requests.Load())
	}
	_, err = c.Topics().CreateTopic(ctx, &planev1.CreateTopicRequest{Name: "once", Partitions: 2})
	if client.ReasonOf(err) != planev1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		t.Errorf("another request for the same topic: %v", err)
	}

	transfer := newLossy(t, to, "/TransferLeadership")
	c = dial(t, client.Options{Controllers: []string{transfer.address}, Patience: 20 * time.Second})
	_, err = c.Cluster().TransferLeadership(ctx, &planev1.TransferLeadershipRequest{})
	if !errors.Is(err, client.ErrOutcomeUnknown) || transfer.requests.Load() != 1 {
		t.Errorf("%v after %d requests, want an unknown outcome after one", err, transfer.requests.Load())
	}
}

// TestNobodyAnswers: the error names each address, and comes at once unless patience was asked for.
func TestNobodyAnswers(t *testing.T) {
	c := dial(t, client.Options{Controllers: []string{"127.0.0.1:1"}})
	var nobody *client.UnreachableError
	for what, call := range map[string]func(context.Context) error{
		"controller": func(ctx context.Context) error {
			_, err := c.Topics().ListTopics(ctx, &planev1.ListTopicsRequest{})
			return err
		},
		"agent": func(ctx context.Context) error {
			_, err := c.Data().Produce(ctx, &nodev1.ProduceRequest{Topic: "t"})
			return err
		},
	} {
		if err := call(within(t, 20*time.Second)); !errors.As(err, &nobody) || nobody.Attempts[0].Address != "127.0.0.1:1" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// folded is what a watcher has.
type folded struct {
	topics map[string]bool
	byID   map[uint64]string
}

func (f *folded) fold(e client.Event) {
	if e.Reset {
		*f = folded{map[string]bool{}, map[uint64]string{}}
	}
	for _, c := range e.Changes {
		switch c := c.GetChange().(type) {
		case *planev1.Change_Topic:
			f.topics[c.Topic.GetName()] = true
			f.byID[c.Topic.GetTopicId()] = c.Topic.GetName()
		case *planev1.Change_TopicRemoved:
			delete(f.topics, f.byID[c.TopicRemoved])
		}
	}
}

// TestC61WatchThroughAProxy: connections that a proxy ends again and again cost no event: what is folded equals a list. A proxy
// with an idle time-out sees signs of life and ends none.
func TestC61WatchThroughAProxy(t *testing.T) {
	ctx := within(t, time.Minute)
	c := dial(t, client.Options{})
	cutting := newLink(t, live.cluster.Controllers[1].Address, 300*time.Millisecond, 0)
	idling := newLink(t, live.cluster.Controllers[2].Address, 0, 4*time.Second)
	type result struct {
		folded
		resets int
		err    error
	}
	results := map[*link]chan result{cutting: make(chan result, 1), idling: make(chan result, 1)}
	for k, done := range results {
		w := dial(t, client.Options{Controllers: []string{k.address}})
		go func() {
			var r result
			var last uint64
			for e, err := range w.WatchRoutes(ctx, client.WatchOptions{}) {
				if r.err = err; err != nil {
					break
				}
				if e.Revision <= last {
					r.err = fmt.Errorf("revision %d came after %d", e.Revision, last)
					break
				}
				last = e.Revision
				if e.Reset {
					r.resets++
				}
				r.fold(e)
				if r.topics["c61-end"] {
					break
				}
			}
			done <- r
		}()
	}
	for i := range 12 {
		name := fmt.Sprintf("c61-%d", i)
		_, err := c.Topics().CreateTopic(ctx, &planev1.CreateTopicRequest{Name: name, Partitions: 1})
		must(t, err)
		if i%3 == 0 {
			_, err = c.Topics().DeleteTopic(ctx, &planev1.DeleteTopicRequest{Name: name})
			must(t, err)
		}
		quiet(ctx, 150*time.Millisecond)
	}
	quiet(ctx, 5*time.Second) // longer than the idle time-out
	_, err := c.Topics().CreateTopic(ctx, &planev1.CreateTopicRequest{Name: "c61-end", Partitions: 1})
	must(t, err)
	list, err := c.Topics().ListTopics(ctx, &planev1.ListTopicsRequest{})
	must(t, err)
	want := map[string]bool{}
	for _, topic := range list.GetTopics() {
		want[topic.GetName()] = true
	}
	for k, done := range results {
		r := <-done
		if r.err != nil || r.resets != 1 || fmt.Sprint(r.topics) != fmt.Sprint(want) {
			t.Errorf("%v after %d snapshots: folded %v, the cluster has %v", r.err, r.resets, r.topics, want)
		}
		if n := k.connections.Load(); (k == cutting) != (n > 5) || (k == idling && n != 1) {
			t.Errorf("%d connections (cutting: %t)", n, k == cutting)
		}
	}
}

// quiet lets time pass without a change, which is what is tested.
func quiet(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// TestC55WatchFromNowhere: a revision that the history does not have begins with a snapshot.
func TestC55WatchFromNowhere(t *testing.T) {
	c := dial(t, client.Options{})
	for e, err := range c.WatchRoutes(within(t, 20*time.Second), client.WatchOptions{After: 1 << 60}) {
		must(t, err)
		if !e.Reset || len(e.Changes) == 0 {
			t.Errorf("got %v, want a snapshot", e)
		}
		break
	}
}

// TestRecordsFollowADrain: one client produces and consumes while a node leaves and another one dies; every record arrives.
func TestRecordsFollowADrain(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	for _, name := range []string{"leaver", "dier"} {
		_, err := live.cluster.AddAgent(ctx, name)
		must(t, err)
	}
	c := dial(t, client.Options{})
	_, err := c.Topics().CreateTopic(ctx, &planev1.CreateTopicRequest{Name: "drained", Partitions: 5})
	must(t, err)
	_, err = c.Cluster().Decommission(ctx, &planev1.DecommissionRequest{Id: "dier"})
	must(t, err)
	gone := func(id string) bool {
		m, err := c.Cluster().ListMembers(ctx, &planev1.ListMembersRequest{})
		must(t, err)
		for _, m := range m.GetMembers() {
			if m.GetNode().GetNodeId() == id {
				return false
			}
		}
		return true
	}
	seen := map[string]bool{}
	consume := func() {
		res, err := c.Data().Consume(ctx, &nodev1.ConsumeRequest{Topic: "drained", Group: "g", Wait: durationpb.New(50 * time.Millisecond)})
		must(t, err)
		ack := &nodev1.AckRequest{Topic: "drained"}
		for _, r := range res.GetRecords() {
			seen[string(r.GetValue())] = true
			ack.Receipts = append(ack.Receipts, r.GetReceipt())
		}
		if len(ack.Receipts) > 0 {
			_, err = c.Data().Ack(ctx, ack)
			must(t, err)
		}
	}
	sent, draining := 0, false
	for ctx.Err() == nil && (sent < 300 || !gone("leaver")) {
		_, err := c.Data().Produce(ctx, &nodev1.ProduceRequest{Topic: "drained", Records: []*nodev1.ProduceRecord{{Value: fmt.Append(nil, sent)}}})
		must(t, err)
		sent++
		if sent%20 == 0 {
			consume()
		}
		if !draining && gone("dier") {
			draining = true
			must(t, live.cluster.Process("dier").Kill()) // it holds nothing any more
			_, err = c.Cluster().Decommission(ctx, &planev1.DecommissionRequest{Id: "leaver"})
			must(t, err)
		}
	}
	for ctx.Err() == nil && len(seen) < sent {
		consume()
	}
	if len(seen) != sent || !gone("leaver") {
		t.Errorf("sent %d, seen %d", sent, len(seen))
	}
}
