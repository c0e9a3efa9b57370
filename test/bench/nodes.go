package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"golang.org/x/sync/errgroup"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// nodes are agents without data, played by this program: they register, beat, and ask as agents do.
type nodes struct {
	rpc   planev1connect.NodeServiceClient
	http  *http.Transport
	names []string
}

// incarnation is the one that every played node is in.
const incarnation = 1

// registerNodes registers n nodes at the leader, over HTTP/1.1 as agents do.
func registerNodes(ctx context.Context, c *harness.Cluster, prefix string, n int) (*nodes, error) {
	address, err := leaderAddress(ctx, c)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 1024}
	rpc := planev1connect.NewNodeServiceClient(connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: t}, "http://"+address,
		connecthttp.WithCompressors())))
	out := &nodes{rpc: rpc, http: t, names: make([]string, n)}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		out.names[i] = name
		g.Go(func() error {
			_, err := rpc.RegisterNode(gctx, &planev1.RegisterNodeRequest{
				NodeId: name, StoreId: "store-" + name, Incarnation: incarnation, Address: fmt.Sprintf("127.0.0.1:%d", 1+i%65535),
			})
			return err
		})
	}
	return out, g.Wait()
}

// leaderAddress waits for a leader.
func leaderAddress(ctx context.Context, c *harness.Cluster) (string, error) {
	name, err := c.API.Leader(ctx)
	if err != nil {
		return "", err
	}
	p := c.Process(name)
	if p == nil {
		return "", fmt.Errorf("leader %q is no process of the cluster", name)
	}
	return p.Address, nil
}

// beat sends one heartbeat.
func (n *nodes) beat(ctx context.Context, i int) error {
	_, err := n.rpc.Heartbeat(ctx, &planev1.HeartbeatRequest{
		NodeId: n.names[i], Incarnation: incarnation, SizesComplete: true, DiskTotalBytes: 1 << 40, DiskFreeBytes: 1 << 39,
	})
	return err
}

// keepAlive beats for all nodes every two seconds until the returned function is called.
func (n *nodes) keepAlive(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			for i := range n.names {
				_ = n.beat(ctx, i) // a node that is declared dead fails what is measured
			}
			pause(ctx, 2*time.Second-time.Since(began))
		}
	})
	return func() {
		cancel()
		wg.Wait()
		n.http.CloseIdleConnections()
	}
}

// hammer calls fn from a number of clients for a while and returns the calls per second and how long each took. fn gets the
// client's number.
func hammer(ctx context.Context, clients int, d time.Duration, fn func(ctx context.Context, client int) error) (float64, []time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	took := make([][]time.Duration, clients)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			// The last call is not cut off: what becomes of it would not be known.
			for time.Since(began) < d {
				start := time.Now()
				if err := fn(ctx, i); err != nil {
					failed.CompareAndSwap(nil, &err)
					cancel()
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if err := failed.Load(); err != nil {
		return 0, nil, *err
	}
	var all []time.Duration
	for _, t := range took {
		all = append(all, t...)
	}
	if len(all) == 0 {
		return 0, nil, errors.New("no call was answered")
	}
	return float64(len(all)) / elapsed.Seconds(), all, nil
}

// handoffs proposes grants and revocations in turn: each commits an entry that changes a partition's record.
type handoffs struct {
	nodes *nodes
	moves []handoffMove
}

type handoffMove struct {
	topic   uint64
	index   uint32
	move    uint64
	handoff uint32
	nonce   uint64
}

// newHandoffs makes a partition with a move under way for each of n clients.
func newHandoffs(ctx context.Context, c *harness.Cluster, n int) (*handoffs, func(), error) {
	from, err := registerNodes(ctx, c, "from", 1)
	if err != nil {
		return nil, nil, err
	}
	stop := from.keepAlive(ctx)
	fail := func(err error) (*handoffs, func(), error) {
		stop()
		return nil, nil, err
	}
	t, err := c.API.CreateTopic(ctx, "handoffs", uint32(n), "")
	if err != nil {
		return fail(err)
	}
	to, err := registerNodes(ctx, c, "to", 1)
	if err != nil {
		return fail(err)
	}
	alive := to.keepAlive(ctx)
	h := &handoffs{nodes: from, moves: make([]handoffMove, n)}
	for i := range n {
		move, err := c.API.StartMove(ctx, "handoffs", uint32(i), "to-0")
		if err != nil {
			alive()
			return fail(err)
		}
		h.moves[i] = handoffMove{topic: t.GetTopicId(), index: uint32(i), move: move}
	}
	return h, func() { alive(); stop() }, nil
}

// propose commits the next entry of a client's partition.
func (h *handoffs) propose(ctx context.Context, client int) error {
	m := &h.moves[client]
	if m.handoff != 0 {
		_, err := h.nodes.rpc.RevokeHandoff(ctx, &planev1.RevokeHandoffRequest{
			TopicId: m.topic, Index: m.index, MoveId: m.move, Handoff: m.handoff, Reason: "bench",
		})
		if err == nil {
			m.handoff = 0
		}
		return err
	}
	hash := sha256.Sum256(binary.BigEndian.AppendUint64(nil, m.nonce))
	r, err := h.nodes.rpc.GrantHandoff(ctx, &planev1.GrantHandoffRequest{
		TopicId: m.topic, Index: m.index, MoveId: m.move, NodeId: h.nodes.names[0], Incarnation: incarnation, NonceHash: hash[:],
	})
	if err == nil {
		m.handoff, m.nonce = r.GetHandoff(), m.nonce+1
	}
	return err
}
