package dataplane

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func TestProduceReachesLocalAndRemoteOwners(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "a", "b")
	for i := range uint32(2) {
		p := cluster.PartitionID{Topic: id, Index: i}
		want := numbered(cluster.FormatPartition("p", i), 500)
		c.nodes["a"].produce("orders", keyFor(i, 2), want...)
		owner := c.nodes[[]string{"a", "b"}[i]]
		eventually(t, "all records in "+p.String(), func() bool { return len(owner.values(p)) == 500 })
		if diff := cmp.Diff(want, owner.values(p)); diff != "" {
			t.Errorf("partition %s differs (-want +got)\n%s", p, diff)
		}
	}
	eventually(t, "an empty queue", func() bool {
		records, bytes := c.nodes["a"].svc.Depth()
		return records == 0 && bytes == 0
	})
	if got := c.nodes["a"].svc.Counts(); got.Accepted != 1000 || got.Delivered != 1000 || got.Rerouted != 0 {
		t.Errorf("counts: %+v; want 1000 accepted and delivered, none rerouted", got)
	}
}

// TestProduceGoesOnInAFreeze: a record for a frozen partition is acknowledged and goes to another
// partition of its topic; the partition gets its records again after the thaw.
func TestProduceGoesOnInAFreeze(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b", "b", "a")
	p0 := cluster.PartitionID{Topic: id}
	token := store.FreezeToken{MoveID: 77, Handoff: 1}
	c.ok(c.nodes["b"].store.Freeze(t.Context(), p0, token))
	c.nodes["a"].produce("orders", keyFor(0, 3), "x")
	others := func() (n int) {
		return len(c.nodes["b"].values(cluster.PartitionID{Topic: id, Index: 1})) +
			len(c.nodes["a"].values(cluster.PartitionID{Topic: id, Index: 2}))
	}
	eventually(t, "the record in another partition", func() bool { return others() == 1 })
	if n := len(c.nodes["b"].values(p0)); n != 0 {
		t.Errorf("the frozen partition has %d records", n)
	}
	eventually(t, "the reroute is counted", func() bool { return c.nodes["a"].svc.Counts().Rerouted == 1 })
	c.ok(c.nodes["b"].store.Thaw(p0, token))
	eventually(t, "records in their own partition again", func() bool {
		c.nodes["a"].produce("orders", keyFor(0, 3), "y")
		return slices.Contains(c.nodes["b"].values(p0), "y")
	})
}

// TestOnePartitionTopicWaitsForTheNewOwner: there is nowhere to reroute to, so records are acknowledged and
// wait, and go to the new owner as soon as the routes name it.
func TestOnePartitionTopicWaitsForTheNewOwner(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b", "c")
	id := c.topic("orders", "b")
	p := cluster.PartitionID{Topic: id}
	c.ok(c.nodes["b"].store.Freeze(t.Context(), p, store.FreezeToken{MoveID: 77, Handoff: 1}))
	want := numbered("r", 20)
	for _, v := range want {
		c.nodes["a"].produce("orders", nil, v)
	}
	eventually(t, "refused appends", func() bool { return c.nodes["a"].svc.Counts().Refused > 9 })
	if records, _ := c.nodes["a"].svc.Depth(); records != 20 {
		t.Errorf("%d records wait, want 20", records)
	}
	c.ok(c.nodes["b"].store.Close(p))
	c.ok(c.nodes["c"].store.Create(p, 77))
	c.ok(c.nodes["c"].store.Open(p, 4))
	begun := time.Now()
	c.apply(assign(id, 0, "c", 4))
	eventually(t, "the records at the new owner", func() bool { return len(c.nodes["c"].values(p)) == 20 })
	if d := time.Since(begun); d > 900*time.Millisecond {
		t.Errorf("%s from the route to the records; a new route is to be tried at once", d)
	}
	if diff := cmp.Diff(want, c.nodes["c"].values(p)); diff != "" {
		t.Errorf("records differ (-want +got)\n%s", diff)
	}
}

// TestHintLeadsToTheNewOwner: the former owner knows better than the routes of the one who asks.
func TestHintLeadsToTheNewOwner(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b", "c")
	id := c.topic("orders", "b")
	p := cluster.PartitionID{Topic: id}
	c.ok(c.nodes["b"].store.Close(p))
	c.ok(c.nodes["c"].store.Create(p, 77))
	c.ok(c.nodes["c"].store.Open(p, 4))
	c.nodes["b"].router.Apply(false, 1000, []cluster.Change{assign(id, 0, "c", 4)})
	c.nodes["a"].produce("orders", nil, "x")
	eventually(t, "the record at the owner that only b knows of", func() bool { return len(c.nodes["c"].values(p)) == 1 })
}

// silentPeer accepts connections and never answers, like a stopped process.
func silentPeer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				for _, c := range conns {
					_ = c.Close()
				}
				return
			}
			conns = append(conns, conn)
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return l.Addr().String()
}

// TestC41SilentOwnerDelaysNobodyElse: more partitions than append slots belong to an owner that does not
// answer. Others get their records meanwhile, and the stuck ones theirs when they have a new owner.
func TestC41SilentOwnerDelaysNobodyElse(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AppendsPerOwner = 2
	cfg.DispatchMemory = 1 << 20
	c := newCluster(t, cfg, "a", "b")
	c.apply(nodeChange("silent", silentPeer(t), cluster.NodeAlive))
	stuck := c.topic("stuck", "silent", "silent", "silent", "silent", "silent", "silent")
	good := c.topic("good", "a", "b")
	payload := string(make([]byte, 300<<10))
	for i := range uint32(6) {
		c.nodes["a"].produce("stuck", keyFor(i, 6), payload, payload)
	}
	begun := time.Now()
	for i := range uint32(2) {
		c.nodes["a"].produce("good", keyFor(i, 2), numbered("g", 100)...)
	}
	eventually(t, "the good topic's records", func() bool {
		return len(c.nodes["a"].values(cluster.PartitionID{Topic: good})) == 100 &&
			len(c.nodes["b"].values(cluster.PartitionID{Topic: good, Index: 1})) == 100
	})
	if d := time.Since(begun); d > 2*time.Second {
		t.Errorf("the good topic waited %s", d)
	}
	eventually(t, "only the silent owner's 12 records wait", func() bool { records, _ := c.nodes["a"].svc.Depth(); return records == 12 })
	var changes []cluster.Change
	for i := range uint32(6) {
		p := cluster.PartitionID{Topic: stuck, Index: i}
		c.ok(c.nodes["b"].store.Create(p, 99))
		c.ok(c.nodes["b"].store.Open(p, 9))
		changes = append(changes, assign(stuck, i, "b", 9))
	}
	c.apply(changes...)
	eventually(t, "the stuck records at their new owner", func() bool {
		n := 0
		for i := range uint32(6) {
			n += len(c.nodes["b"].values(cluster.PartitionID{Topic: stuck, Index: i}))
		}
		return n == 12
	})
}

// TestC41DeadOwnerIsReroutedAround: a declared death is not waited for longer than reroute_after.
func TestC41DeadOwnerIsReroutedAround(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b", "a")
	c.node("b", cluster.NodeDead)
	c.nodes["a"].produce("orders", keyFor(0, 2), numbered("k", 10)...)
	c.nodes["a"].produce("orders", nil, numbered("n", 10)...)
	eventually(t, "all records at the living owner", func() bool {
		return len(c.nodes["a"].values(cluster.PartitionID{Topic: id, Index: 1})) == 20
	})
	if got := c.nodes["a"].svc.Counts().Rerouted; got != 10 {
		t.Errorf("%d records rerouted; want the 10 with a key, since those without avoid the dead", got)
	}
}

// TestI2RestartDelivers: what an agent accepted and could not deliver is delivered after its restart.
func TestI2RestartDelivers(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b")
	p := cluster.PartitionID{Topic: id}
	c.node("b", cluster.NodeDead)
	want := numbered("r", 50)
	c.nodes["a"].produce("orders", nil, want...)
	c.nodes["a"].shutDown()
	c.nodes["a"].start()
	if records, _ := c.nodes["a"].svc.Depth(); records != 50 {
		t.Fatalf("%d records after the restart, want 50", records)
	}
	c.node("b", cluster.NodeAlive)
	eventually(t, "the records at their owner", func() bool { return len(c.nodes["b"].values(p)) == 50 })
	if diff := cmp.Diff(want, c.nodes["b"].values(p)); diff != "" {
		t.Errorf("records differ (-want +got)\n%s", diff)
	}
}

func TestDeletedTopicsRecordsAreDropped(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b")
	c.node("b", cluster.NodeDead)
	c.nodes["a"].produce("orders", nil, "x", "y")
	if records, _ := c.nodes["a"].svc.Depth(); records != 2 {
		t.Fatalf("%d records wait, want 2", records)
	}
	c.apply(cluster.Change{TopicRemoved: id}, cluster.Change{AssignmentRemoved: &cluster.PartitionID{Topic: id}})
	eventually(t, "an empty queue", func() bool { records, _ := c.nodes["a"].svc.Depth(); return records == 0 })
	if got := c.nodes["a"].svc.Counts(); got.Discarded != 2 || got.Delivered != 0 {
		t.Errorf("counts: %+v; want 2 discarded", got)
	}
}

// TestLostReplyIsSentAgain: an append whose answer is lost may have been written. It is repeated: the record
// is there at least once.
func TestI2LostReplyIsSentAgain(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b")
	p := cluster.PartitionID{Topic: id}
	target := c.nodes["b"].server.Config.Handler
	lost := false
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lost {
			target.ServeHTTP(w, r)
			return
		}
		lost = true
		target.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}))
	defer proxy.Close()
	c.apply(nodeChange("b", proxy.Listener.Addr().String(), cluster.NodeAlive))
	c.nodes["a"].produce("orders", nil, "x")
	eventually(t, "an empty queue", func() bool { records, _ := c.nodes["a"].svc.Depth(); return records == 0 })
	if diff := cmp.Diff([]string{"x", "x"}, c.nodes["b"].values(p)); diff != "" {
		t.Errorf("records differ (-want +got)\n%s", diff)
	}
}

func TestProduceRefusals(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a")
	c.topic("orders", "a")
	n := c.nodes["a"]
	rec := func(key, value int) *nodev1.ProduceRecord {
		return &nodev1.ProduceRecord{Key: make([]byte, key), Value: make([]byte, value)}
	}
	for _, tc := range []struct {
		name    string
		req     *nodev1.ProduceRequest
		reason  cluster.Reason
		mention string
	}{
		{"unknown topic", &nodev1.ProduceRequest{Topic: "nope", Records: []*nodev1.ProduceRecord{rec(1, 1)}}, cluster.ReasonNotFound, "nope"},
		{"bad name", &nodev1.ProduceRequest{Topic: "../x", Records: []*nodev1.ProduceRecord{rec(1, 1)}}, cluster.ReasonInvalid, "topic"},
		{"no record", &nodev1.ProduceRequest{Topic: "orders"}, cluster.ReasonInvalid, "records"},
		{"long key", &nodev1.ProduceRequest{Topic: "orders", Records: []*nodev1.ProduceRecord{rec(1, 1), rec(64<<10+1, 1)}},
			cluster.ReasonInvalid, "records[1].key"},
		{"long record", &nodev1.ProduceRequest{Topic: "orders", Records: []*nodev1.ProduceRecord{rec(10, 1<<20-9)}},
			cluster.ReasonInvalid, "records[0].value"},
		{"long request", &nodev1.ProduceRequest{Topic: "orders", Records: []*nodev1.ProduceRecord{
			rec(0, 1<<20), rec(0, 1<<20), rec(0, 1<<20), rec(0, 1<<20)}}, cluster.ReasonInvalid, "records"},
	} {
		_, err := n.client.Produce(t.Context(), tc.req)
		wantReason(t, err, tc.reason, tc.mention)
	}
	n.produce("orders", make([]byte, 64<<10), string(make([]byte, 1<<20-64<<10)))

	n.accept = func() error { return cluster.Errorf(cluster.ReasonBlocked, "draining; ask b or c") }
	ok := &nodev1.ProduceRequest{Topic: "orders", Records: []*nodev1.ProduceRecord{rec(1, 1)}}
	_, err := n.client.Produce(t.Context(), ok)
	wantReason(t, err, cluster.ReasonBlocked, "ask b or c")
	if err := n.svc.Produce(t.Context(), "orders", []store.Record{{Time: 1, Value: []byte("salvaged")}}); err != nil {
		t.Errorf("the agent's own records on a draining agent: %v", err)
	}
	n.accept = nil
	n.free = 1 << 20
	n.svc.disk.read = time.Time{}
	_, err = n.client.Produce(t.Context(), ok)
	wantReason(t, err, cluster.ReasonLimit, "min_disk_free")
}

// TestSalvagedRecordsKeepTheirTime: retention depends on it.
func TestSalvagedRecordsKeepTheirTime(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b")
	id := c.topic("orders", "b")
	c.ok(c.nodes["a"].svc.Produce(t.Context(), "orders", []store.Record{{Offset: 99, Time: 12345, Value: []byte("x")}}))
	eventually(t, "the record", func() bool { return len(c.nodes["b"].values(cluster.PartitionID{Topic: id})) == 1 })
	l, err := c.nodes["b"].store.Log(cluster.PartitionID{Topic: id})
	c.ok(err)
	records, err := l.Read(0, 1, 100)
	c.ok(err)
	if records[0].Time != 12345 {
		t.Errorf("time %d, want 12345", records[0].Time)
	}
}

func TestStoppingRefuses(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a")
	c.topic("orders", "a")
	n := c.nodes["a"]
	n.shutDown()
	err := n.svc.Produce(context.Background(), "orders", []store.Record{{Value: []byte("x")}})
	if !errors.Is(err, &cluster.Error{Reason: cluster.ReasonNoLeader}) {
		t.Errorf("produce after the end: %v, want NO_LEADER", err)
	}
	n.start()
}
