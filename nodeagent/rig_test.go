package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/api"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Durations of the test cluster: a tenth of the usual ones.
const (
	testLease     = time.Second
	testBeat      = 200 * time.Millisecond
	testDeadAfter = 3 * time.Second
	testPatience  = 30 * time.Second
)

// machineAdapter lets consensus drive the fsm.
type machineAdapter struct{ *fsm.Machine }

func (s machineAdapter) Apply(entries []consensus.Entry) ([]any, error) {
	in := make([]fsm.Entry, len(entries))
	for i, e := range entries {
		in[i] = fsm.Entry{Index: e.Index, Command: e.Command, Metadata: e.Metadata}
	}
	results, err := s.Machine.Apply(in)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(entries))
	for i := range results {
		if len(entries[i].Command) > 0 {
			out[i] = results[i]
		}
	}
	return out, nil
}

func (s machineAdapter) Snapshot() (consensus.Snapshot, error) { return s.Machine.Snapshot() }

func (s machineAdapter) Restore(r io.Reader) error { return s.Machine.Restore(r) }

// testController is one real controller, alone in its cluster, on loopback.
type testController struct {
	*controller.Controller
	machine *fsm.Machine
	address string
	stop    func()
}

func startController(t *testing.T) *testController {
	t.Helper()
	dir := t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &testController{address: ln.Addr().String()}
	node, err := etcdraft.New(etcdraft.Config{
		Name: "c1", AdvertiseAddress: c.address, DataDir: dir, TickInterval: 10 * time.Millisecond, SegmentBytes: 1 << 20,
		InitialMembers: []etcdraft.Peer{{Name: "c1", Address: c.address}},
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	var inner atomic.Pointer[http.Handler]
	raft := node.Handler()
	inner.Store(&raft)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*inner.Load()).ServeHTTP(w, r) })}
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.Serve(ln) })
	if c.machine, err = fsm.Open(filepath.Join(dir, "state"), fsm.Options{}); err != nil {
		t.Fatal(err)
	}
	backend, err := node.Start(t.Context(), machineAdapter{c.machine})
	if err != nil {
		t.Fatal(err)
	}
	cfg := controller.DefaultConfig()
	cfg.Name, cfg.ClusterID = "c1", cluster.ClusterID(backend.ClusterID())
	cfg.LeaseTTL, cfg.HeartbeatInterval, cfg.DeadAfter, cfg.SlowTick = testLease, testBeat, testDeadAfter, 100*time.Millisecond
	c.Controller = controller.New(cfg, backend, c.machine, zap.NewNop())
	server, err := api.New(api.Deps{Controller: c.Controller, Backend: backend, Machine: c.machine, KeepAlive: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var handler http.Handler = server
	inner.Store(&handler)
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() { _ = c.Run(ctx) })
	c.stop = sync.OnceFunc(func() {
		server.Close()
		_ = web.Close()
		cancel()
		wg.Wait()
		if err := errors.Join(backend.Stop(), c.machine.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
	c.configure(t)
	return c
}

// configure waits for leadership, stops the planner from moving anything by itself, and shortens graces.
func (c *testController) configure(t *testing.T) {
	t.Helper()
	eventually(t, "settings", func() error {
		_, _, err := c.UpdateSettings(t.Context(), func(s cluster.Settings) cluster.Settings {
			s.RebalancePaused, s.ReclaimAfter, s.RebalanceDelay = true, 0, 0
			s.HandoffTTL = 2 * time.Second
			s.ForcePromoteAfter = 500 * time.Millisecond
			return s
		}, "")
		return err
	})
}

func (c *testController) createTopic(t *testing.T, name string, partitions uint32) cluster.Topic {
	t.Helper()
	var topic cluster.Topic
	eventually(t, "create topic", func() (err error) {
		_, topic, err = c.CreateTopic(t.Context(), name, partitions, "", 0, "")
		return err
	})
	return topic
}

func (c *testController) deleteTopic(t *testing.T, name string) {
	t.Helper()
	var id cluster.TopicID
	c.machine.Read(func(r fsm.Reader) {
		if topic, ok := r.TopicByName(name); ok {
			id = topic.ID
		}
	})
	r, err := c.Propose(t.Context(), &storagev1.Command{Command: &storagev1.Command_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: uint64(id)}}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Err != nil {
		t.Fatal(r.Err)
	}
}

func (c *testController) assignment(p cluster.PartitionID) (a cluster.Assignment) {
	c.machine.Read(func(r fsm.Reader) { a, _ = r.Assignment(p) })
	return a
}

func (c *testController) node(id cluster.NodeID) (n cluster.Node) {
	c.machine.Read(func(r fsm.Reader) { n, _ = r.Node(id) })
	return n
}

func (c *testController) outcomes() (out []cluster.Outcome) {
	c.machine.Read(func(r fsm.Reader) { out = append(out, r.Outcomes()...) })
	return out
}

func (c *testController) move(t *testing.T, topic string, index uint32, to cluster.NodeID) {
	t.Helper()
	eventually(t, fmt.Sprintf("move %s/%d to %s", topic, index, to), func() error {
		_, err := c.StartMove(t.Context(), topic, index, to, "")
		return err
	})
}

// testAgent is a real agent on a directory of its own.
type testAgent struct {
	*Agent
	logs    *partitionlog.Store
	address string
	ended   chan error
	stop    func()
}

type agentOptions struct {
	id          cluster.NodeID
	dir         string
	listen      string
	controllers []string
	plane       Plane
	// pinned keeps to controllers, whatever the cluster names.
	pinned bool
	// wrap, when set, stands between the agent and its store.
	wrap func(*partitionlog.Store) Store
}

func newAgent(t *testing.T, o agentOptions) (*testAgent, net.Listener, error) {
	t.Helper()
	if o.listen == "" {
		o.listen = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", o.listen)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.NodeID, cfg.DataDir, cfg.Listen, cfg.Controllers = o.id, o.dir, ln.Addr().String(), o.controllers
	cfg.HeartbeatInterval, cfg.WatchIdle, cfg.ResyncInterval = testBeat, 2*time.Second, 500*time.Millisecond
	cfg.CallTimeout, cfg.FollowControllers = time.Second, !o.pinned
	a := &testAgent{address: ln.Addr().String(), ended: make(chan error, 1)}
	log := zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	a.Agent, err = New(cfg, Deps{Log: log, OpenStore: func(lease store.LeaseCheck) (Store, error) {
		a.logs, err = partitionlog.Open(partitionlog.Options{Dir: PartitionsDir(o.dir), Lease: lease, SegmentBytes: 64 << 10})
		if err == nil && o.wrap != nil {
			return o.wrap(a.logs), nil
		}
		return a.logs, err
	}})
	return a, ln, err
}

func startAgent(t *testing.T, o agentOptions) *testAgent {
	t.Helper()
	a, ln, err := newAgent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	a.Attach(o.plane)
	mux, rpc := http.NewServeMux(), connect.NewServer()
	a.Handlers(mux, rpc)
	connecthttp.Mount(mux, rpc)
	web := &http.Server{Handler: mux}
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.Serve(ln) })
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() { a.ended <- a.Run(ctx) })
	a.stop = sync.OnceFunc(func() {
		_ = web.Close()
		cancel()
		wg.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(a.stop)
	return a
}

func (a *testAgent) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "agent ready", func() error {
		if r := a.Ready(); len(r) > 0 {
			return fmt.Errorf("not ready: %v", r)
		}
		return nil
	})
}

// append appends one record, retrying until the log is open.
func (a *testAgent) append(t *testing.T, p cluster.PartitionID, value string) {
	t.Helper()
	eventually(t, "append to "+p.String(), func() error {
		l, err := a.logs.Log(p)
		if err != nil {
			return err
		}
		_, err = l.Append(t.Context(), []store.Record{{Time: 1, Value: []byte(value)}})
		return err
	})
}

// values reads everything that consumers may see.
func (a *testAgent) values(p cluster.PartitionID) ([]string, error) {
	l, err := a.logs.Log(p)
	if err != nil {
		return nil, err
	}
	var out []string
	for off := l.LogStart(); off < l.HWM(); {
		recs, err := l.Read(off, 1000, 1<<20)
		if err != nil {
			return nil, err
		}
		for _, r := range recs {
			out = append(out, string(r.Value))
			off = r.Offset + 1
		}
	}
	return out, nil
}

func (a *testAgent) copiesOf(t *testing.T, p cluster.PartitionID) []store.Copy {
	t.Helper()
	all, err := a.logs.Copies()
	if err != nil {
		t.Fatal(err)
	}
	var out []store.Copy
	for _, c := range all {
		if c.Partition == p {
			out = append(out, c)
		}
	}
	return out
}

// eventually asks until there is no error, or until patience ends.
func eventually(t *testing.T, what string, fn func() error) {
	t.Helper()
	deadline := time.Now().Add(testPatience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}

// netsplit is a TCP relay whose packets can be dropped without a trace: connections stay, nothing arrives.
type netsplit struct {
	address string
	mu      sync.Mutex
	open    *sync.Cond
	dropped bool
}

func startNetsplit(t *testing.T, to string) *netsplit {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &netsplit{address: ln.Addr().String()}
	n.open = sync.NewCond(&n.mu)
	var wg sync.WaitGroup
	var conns sync.Map
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Store(c, true)
			wg.Go(func() {
				d, err := net.Dial("tcp", to)
				if err != nil {
					_ = c.Close()
					return
				}
				conns.Store(d, true)
				wg.Go(func() { n.relay(c, d) })
				n.relay(d, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		n.drop(false)
		conns.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return n
}

// relay passes bytes on. What is read during a split waits, as if the network kept losing it.
func (n *netsplit) relay(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		k, err := from.Read(buf)
		n.mu.Lock()
		for n.dropped {
			n.open.Wait()
		}
		n.mu.Unlock()
		if k > 0 {
			if _, werr := to.Write(buf[:k]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_ = from.Close()
			_ = to.Close()
			return
		}
	}
}

func (n *netsplit) drop(on bool) {
	n.mu.Lock()
	n.dropped = on
	n.mu.Unlock()
	n.open.Broadcast()
}
