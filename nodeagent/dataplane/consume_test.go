package dataplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// TestConsumeFromAnyAgent produces over three owners and consumes at one of them: everything arrives once,
// and after the acknowledgements nothing is left.
func TestConsumeFromAnyAgent(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b", "c")
	c.topic("orders", "a", "b", "c", "b")
	want := numbered("r", 400)
	c.nodes["a"].produce("orders", nil, want...)
	var got []string
	eventually(t, "400 records", func() bool {
		resp := c.nodes["b"].consume(&nodev1.ConsumeRequest{Topic: "orders", MaxRecords: 70, Wait: durationpb.New(time.Second)})
		if len(resp.GetUnavailable()) > 0 || len(resp.GetRecords()) > 70 {
			t.Fatalf("%d records, unavailable: %v", len(resp.GetRecords()), resp.GetUnavailable())
		}
		got = append(got, valuesOf(resp.GetRecords())...)
		if len(resp.GetRecords()) > 0 {
			ack, err := c.nodes["c"].client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: receiptsOf(resp.GetRecords())})
			c.ok(err)
			if int(ack.GetAcked()) != len(resp.GetRecords()) || len(ack.GetErrors()) > 0 {
				t.Fatalf("%d of %d acknowledged, errors: %v", ack.GetAcked(), len(resp.GetRecords()), ack.GetErrors())
			}
		}
		return len(got) >= 400
	})
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records differ (-want +got)\n%s", diff)
	}
	if resp := c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders"}); len(resp.GetRecords()) != 0 {
		t.Errorf("%d records after all are acknowledged", len(resp.GetRecords()))
	}
	// Another group starts at the log start.
	if resp := c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders", Group: "late", MaxRecords: 1000}); len(resp.GetRecords()) != 400 {
		t.Errorf("a new group gets %d records, want 400", len(resp.GetRecords()))
	}
}

func TestConsumeWaitsForARemoteRecord(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	c.topic("orders", "b")
	got := make(chan *nodev1.ConsumeResponse)
	go func() {
		resp, err := c.nodes["a"].client.Consume(context.Background(), &nodev1.ConsumeRequest{Topic: "orders", Group: "g",
			Wait: durationpb.New(20 * time.Second)})
		if err != nil {
			t.Error(err)
		}
		got <- resp
	}()
	begun := time.Now()
	c.nodes["b"].produce("orders", nil, "x")
	if resp := <-got; len(resp.GetRecords()) != 1 || time.Since(begun) > 5*time.Second {
		t.Errorf("%d records after %s, want 1 at once", len(resp.GetRecords()), time.Since(begun))
	}
	begun = time.Now()
	resp := c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders", Wait: durationpb.New(300 * time.Millisecond)})
	if d := time.Since(begun); len(resp.GetRecords()) != 0 || d < 300*time.Millisecond || d > 3*time.Second {
		t.Errorf("%d records after %s, want none after 300ms", len(resp.GetRecords()), d)
	}
}

// TestI4RedeliveryAndOutOfOrderAcks: acknowledgements may come in any order; what is not acknowledged comes
// again after its time, and what is, does not. A receipt that was superseded is stale.
func TestI4RedeliveryAndOutOfOrderAcks(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b")
	n := c.nodes["a"]
	n.produce("orders", nil, numbered("r", 5)...)
	eventually(t, "the records", func() bool { return len(c.nodes["b"].values(cluster.PartitionID{Topic: id})) == 5 })
	short := durationpb.New(time.Second)
	first := n.consume(&nodev1.ConsumeRequest{Topic: "orders", VisibilityTimeout: short}).GetRecords()
	if len(first) != 5 {
		t.Fatalf("%d records, want 5", len(first))
	}
	receipts := receiptsOf(first)
	ack, err := n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: []string{receipts[0], receipts[3], receipts[3]}})
	c.ok(err)
	if ack.GetAcked() != 3 {
		t.Fatalf("acked %d (%v), want 3: repeating one is fine", ack.GetAcked(), ack.GetErrors())
	}
	extended, err := n.client.Extend(t.Context(), &nodev1.ExtendRequest{Topic: "orders", Receipts: []string{receipts[1]},
		VisibilityTimeout: durationpb.New(time.Hour)})
	c.ok(err)
	if extended.GetExtended() != 1 {
		t.Fatalf("extended %d (%v), want 1", extended.GetExtended(), extended.GetErrors())
	}
	l, err := c.nodes["b"].store.Log(cluster.PartitionID{Topic: id})
	c.ok(err)
	if off, _ := l.CommittedOffset("g"); off != 1 {
		t.Errorf("committed offset %d, want 1: the end of the contiguous prefix", off)
	}
	again := n.consume(&nodev1.ConsumeRequest{Topic: "orders", Wait: durationpb.New(10 * time.Second)}).GetRecords()
	if diff := cmp.Diff([]string{"r0002", "r0004"}, valuesOf(again)); diff != "" {
		t.Errorf("redelivered records differ (-want +got)\n%s", diff)
	}
	ack, err = n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: []string{receipts[2]}})
	c.ok(err)
	if ack.GetAcked() != 0 || len(ack.GetErrors()) != 1 || ack.GetErrors()[0].GetReason() != "STALE_RECEIPT" {
		t.Errorf("the superseded receipt: %v, want STALE_RECEIPT", ack)
	}
	if got := c.nodes["b"].svc.Counts().Redelivered; got != 2 {
		t.Errorf("%d counted as redelivered, want 2", got)
	}
}

// TestC24NewOwnerStartsAtTheCommittedOffset: reservations do not move. The new owner hands out everything
// from the committed offset on, and receipts of the former epoch are stale there.
func TestC24NewOwnerStartsAtTheCommittedOffset(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a")
	id := c.topic("orders", "a")
	p := cluster.PartitionID{Topic: id}
	n := c.nodes["a"]
	n.produce("orders", nil, numbered("r", 10)...)
	eventually(t, "the records", func() bool { return len(n.values(p)) == 10 })
	old := n.consume(&nodev1.ConsumeRequest{Topic: "orders"}).GetRecords()
	_, err := n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: receiptsOf(old[:4])})
	c.ok(err)
	// A move that begins raises the epoch, and reservations stay.
	c.ok(n.store.Open(p, 2))
	ack, err := n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: receiptsOf(old[4:5])})
	c.ok(err)
	if ack.GetAcked() != 1 {
		t.Errorf("an acknowledgement after a move began: %v", ack)
	}
	c.ok(n.store.Close(p))
	c.ok(n.store.Open(p, 5))
	c.apply(assign(id, 0, "a", 5))
	ack, err = n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: receiptsOf(old[5:])})
	c.ok(err)
	if ack.GetAcked() != 0 || len(ack.GetErrors()) != 5 || ack.GetErrors()[0].GetReason() != "STALE_RECEIPT" {
		t.Errorf("receipts of the former opening: %v, want 5 times STALE_RECEIPT", ack)
	}
	got := valuesOf(n.consume(&nodev1.ConsumeRequest{Topic: "orders"}).GetRecords())
	if diff := cmp.Diff(numbered("r", 10)[5:], got); diff != "" {
		t.Errorf("records after the reopening differ (-want +got)\n%s", diff)
	}
}

// TestConsumeGoesOnInAFreeze: reads and acknowledgements are not frozen.
func TestConsumeGoesOnInAFreeze(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b")
	p := cluster.PartitionID{Topic: id}
	c.nodes["a"].produce("orders", nil, numbered("r", 3)...)
	eventually(t, "the records", func() bool { return len(c.nodes["b"].values(p)) == 3 })
	c.ok(c.nodes["b"].store.Freeze(t.Context(), p, store.FreezeToken{MoveID: 9, Handoff: 1}))
	got := c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders"}).GetRecords()
	ack, err := c.nodes["a"].client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: receiptsOf(got)})
	c.ok(err)
	if ack.GetAcked() != 3 {
		t.Errorf("in a freeze: %d records, %v; want 3 and all acknowledged", len(got), ack)
	}
}

// TestC41ConsumeNamesWhatIsUnavailable: dead and silent owners neither fail a consume nor delay it for long.
func TestC41ConsumeNamesWhatIsUnavailable(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RequestTimeout = 500 * time.Millisecond
	c := newCluster(t, cfg, "a", "b")
	c.apply(nodeChange("silent", silentPeer(t), cluster.NodeAlive), nodeChange("dead", "127.0.0.1:1", cluster.NodeDead))
	c.topic("orders", "b", "silent", "dead")
	c.nodes["a"].produce("orders", keyFor(0, 3), "x")
	begun := time.Now()
	var resp *nodev1.ConsumeResponse
	eventually(t, "the record of the living owner", func() bool {
		resp = c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders", Wait: durationpb.New(time.Second)})
		return len(resp.GetRecords()) == 1
	})
	if d := time.Since(begun); d > 4*time.Second {
		t.Errorf("it took %s", d)
	}
	resp = c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders"})
	if all := strings.Join(resp.GetUnavailable(), "\n"); len(resp.GetUnavailable()) != 2 ||
		!strings.Contains(all, "orders/1: its owner silent does not answer") || !strings.Contains(all, "orders/2: its owner dead is dead") {
		t.Errorf("unavailable: %q; want a sentence about orders/1 and one about orders/2", resp.GetUnavailable())
	}
}

// TestConsumeKeepsItsBounds: max_records and max_bytes hold over several owners, and what did not fit is
// there for the next one.
func TestConsumeKeepsItsBounds(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b", "c")
	id := c.topic("orders", "a", "b", "c")
	for i := range uint32(3) {
		c.nodes["a"].produce("orders", keyFor(i, 3), strings.Repeat(fmt.Sprint(i), 1000), strings.Repeat(fmt.Sprint(i), 1000))
	}
	eventually(t, "the records", func() bool {
		return len(c.nodes["a"].values(cluster.PartitionID{Topic: id}))+len(c.nodes["b"].values(cluster.PartitionID{Topic: id, Index: 1}))+
			len(c.nodes["c"].values(cluster.PartitionID{Topic: id, Index: 2})) == 6
	})
	total := 0
	for _, limits := range []struct{ records, bytes, want int }{{1, 0, 1}, {0, 10, 1}, {0, 2500, 2}, {0, 1500, 1}, {100, 1 << 20, 1}, {100, 1 << 20, 0}} {
		resp := c.nodes["b"].consume(&nodev1.ConsumeRequest{Topic: "orders", MaxRecords: uint32(limits.records), MaxBytes: uint64(limits.bytes)})
		if len(resp.GetRecords()) != limits.want {
			t.Errorf("limits %+v: %d records", limits, len(resp.GetRecords()))
		}
		total += len(resp.GetRecords())
	}
	if total != 6 {
		t.Errorf("%d records in all, want 6: what did not fit is given back at once", total)
	}
}

func TestConsumeRefusals(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a")
	id := c.topic("orders", "a")
	other := c.topic("other", "a")
	n := c.nodes["a"]
	for _, tc := range []struct {
		req     *nodev1.ConsumeRequest
		reason  cluster.Reason
		mention string
	}{
		{&nodev1.ConsumeRequest{Topic: "nope", Group: "g"}, cluster.ReasonNotFound, "nope"},
		{&nodev1.ConsumeRequest{Topic: "orders"}, cluster.ReasonInvalid, "group"},
		{&nodev1.ConsumeRequest{Topic: "orders", Group: "g", MaxRecords: 10_001}, cluster.ReasonInvalid, "max_records"},
		{&nodev1.ConsumeRequest{Topic: "orders", Group: "g", MaxBytes: 4<<20 + 1}, cluster.ReasonInvalid, "max_bytes"},
		{&nodev1.ConsumeRequest{Topic: "orders", Group: "g", Wait: durationpb.New(31 * time.Second)}, cluster.ReasonInvalid, "wait"},
		{&nodev1.ConsumeRequest{Topic: "orders", Group: "g", VisibilityTimeout: durationpb.New(time.Millisecond)},
			cluster.ReasonInvalid, "visibility_timeout"},
	} {
		_, err := n.client.Consume(t.Context(), tc.req)
		wantReason(t, err, tc.reason, tc.mention)
	}
	_, err := n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders"})
	wantReason(t, err, cluster.ReasonInvalid, "receipts")
	_, err = n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: make([]string, 10_001)})
	wantReason(t, err, cluster.ReasonInvalid, "receipts")
	stale := receipt{partition: cluster.PartitionID{Topic: id}, group: "g", epoch: 1, offset: 5}.String()
	foreign := receipt{partition: cluster.PartitionID{Topic: other}, group: "g", epoch: 1}.String()
	nowhere := receipt{partition: cluster.PartitionID{Topic: id, Index: 7}, group: "g", epoch: 1}.String()
	resp, err := n.client.Ack(t.Context(), &nodev1.AckRequest{Topic: "orders", Receipts: []string{"junk", stale, foreign, nowhere}})
	c.ok(err)
	got := map[string]string{}
	for _, e := range resp.GetErrors() {
		got[e.GetReceipt()] = e.GetReason()
	}
	want := map[string]string{"junk": "INVALID", stale: "STALE_RECEIPT", foreign: "INVALID", nowhere: "NOT_FOUND"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("receipt errors differ (-want +got)\n%s", diff)
	}
}

// TestAppendAnswersPerPartition: one batch's refusal does not concern the others of its request.
func TestAppendAnswersPerPartition(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "a", "a", "b")
	n := c.nodes["a"]
	c.ok(n.store.Freeze(t.Context(), cluster.PartitionID{Topic: id, Index: 1}, store.FreezeToken{MoveID: 9, Handoff: 1}))
	batch := func(topic cluster.TopicID, index uint32) *nodev1.PartitionBatch {
		return &nodev1.PartitionBatch{TopicId: uint64(topic), Index: index, Records: []*nodev1.AppendRecord{{Value: []byte("x")}}}
	}
	resp, err := ownerHandler{n.svc}.Append(t.Context(), &nodev1.AppendRequest{Batches: []*nodev1.PartitionBatch{
		batch(id, 0), batch(id, 1), batch(id, 2), batch(id, 0), batch(1, 0)}})
	c.ok(err)
	var got []string
	for _, r := range resp.GetResults() {
		got = append(got, fmt.Sprintf("%s %s %d", r.GetReason(), r.GetOwner(), r.GetEpoch()))
	}
	if diff := cmp.Diff([]string{"  0", "FROZEN  0", "NOT_OWNER b 1", "  0", "NOT_FOUND  0"}, got); diff != "" {
		t.Errorf("results differ (-want +got)\n%s", diff)
	}
}
