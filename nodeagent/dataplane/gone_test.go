package dataplane

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// hang makes the node accept requests and answer none, as one that is stopped or still starting. The function that is
// returned ends that.
func (n *testNode) hang() func() {
	release, _ := n.hangAndCount()
	return release
}

// hangAndCount also counts the requests that hang.
func (n *testNode) hangAndCount() (func(), *atomic.Int64) {
	asked := &atomic.Int64{}
	release := make(chan struct{})
	n.handler.Lock()
	answering := n.handler.Handler
	n.handler.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-r.Context().Done():
		case <-release:
		}
		panic(http.ErrAbortHandler)
	})
	n.handler.Unlock()
	return func() {
		n.handler.Lock()
		n.handler.Handler = answering
		n.handler.Unlock()
		close(release)
	}, asked
}

// TestOwnerThatHangsDelaysOthersOnce: the records of other owners wait a second, once, and those of the owner come soon
// after it answers again.
func TestOwnerThatHangsDelaysOthersOnce(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b", "c")
	id := c.topic("orders", "b", "c")
	for i, owner := range []string{"b", "c"} {
		p := cluster.PartitionID{Topic: id, Index: uint32(i)}
		c.nodes[owner].produce("orders", keyFor(uint32(i), 2), numbered(owner, 20)...)
		eventually(t, "the records", func() bool { return len(c.nodes[owner].values(p)) == 20 })
	}
	answer := c.nodes["b"].hang()
	var slow []time.Duration
	for got := 0; got < 20; {
		begun := time.Now()
		resp := c.nodes["a"].consume(&nodev1.ConsumeRequest{Topic: "orders", MaxRecords: 1, Wait: durationpb.New(5 * time.Second)})
		got += len(resp.GetRecords())
		if d := time.Since(begun); d > 500*time.Millisecond {
			slow = append(slow, d)
		}
	}
	if len(slow) > 1 || (len(slow) == 1 && slow[0] > 3*time.Second/2) {
		t.Errorf("slow requests for the records of the owner that answers: %v; want one of a second", slow)
	}
	waiting := make(chan time.Time, 1)
	go func() {
		resp, err := c.nodes["a"].client.Consume(context.Background(), &nodev1.ConsumeRequest{Topic: "orders", Group: "g", Wait: durationpb.New(20 * time.Second)})
		if err != nil || len(resp.GetRecords()) == 0 {
			t.Errorf("%d records, %v", len(resp.GetRecords()), err)
		}
		waiting <- time.Now()
	}()
	begun := time.Now()
	answer()
	if d := (<-waiting).Sub(begun); d > 4*time.Second {
		t.Errorf("the owner's records came %s after it answered again", d)
	}
}

// TestConsumerThatIsGoneGivesBack: what was reserved for a client that has gone is for the next one at once, also when that
// one waits already.
func TestConsumerThatIsGoneGivesBack(t *testing.T) {
	c := newCluster(t, DefaultConfig(), "a", "b", "c")
	id := c.topic("orders", "a", "b", "c")
	for i, owner := range []string{"a", "b"} {
		p := cluster.PartitionID{Topic: id, Index: uint32(i)}
		c.nodes[owner].produce("orders", keyFor(uint32(i), 3), numbered(owner, 10)...)
		eventually(t, "the records", func() bool { return len(c.nodes[owner].values(p)) == 10 })
	}
	release, asked := c.nodes["c"].hangAndCount()
	defer release()
	// The turn is a, b, c, and c is waited for until the client has gone.
	turns.Store(2)
	peer := c.nodes["a"].svc.peers.at(c.nodes["c"].server.Listener.Addr().String())
	peer.mu.Lock()
	peer.mu.patience = time.Minute
	peer.mu.Unlock()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		resp, err := c.nodes["a"].client.Consume(ctx, &nodev1.ConsumeRequest{Topic: "orders", Group: "g", MaxRecords: 100,
			VisibilityTimeout: durationpb.New(time.Hour)})
		if err == nil {
			t.Errorf("an answer with %d records, want none", len(resp.GetRecords()))
		}
	}()
	eventually(t, "all is reserved", func() bool { return c.nodes["a"].svc.Counts().Consumed+c.nodes["b"].svc.Counts().Consumed == 20 })
	// An answer that was on its way when the client left could not be given back: c is asked when b's has arrived.
	eventually(t, "c is asked", func() bool { return asked.Load() > 0 })
	leave()
	<-left
	begun, got := time.Now(), 0
	for got < 20 && time.Since(begun) < 5*time.Second {
		got += len(c.nodes["b"].consume(&nodev1.ConsumeRequest{Topic: "orders", Wait: durationpb.New(time.Second)}).GetRecords())
	}
	if got != 20 {
		t.Errorf("%d of 20 records within %s after the client had gone", got, time.Since(begun))
	}
}
