package dataplane

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// testCluster is a set of agents' data planes that dial each other over loopback; the test plays the control
// plane.
type testCluster struct {
	t     testing.TB
	cfg   Config
	nodes map[string]*testNode
	state struct {
		sync.Mutex
		revision cluster.Revision
		changes  []cluster.Change
	}
}

type testNode struct {
	c      *testCluster
	id     string
	fs     vfs.FS
	db     *pebble.DB
	store  *partitionlog.Store
	router *Router
	svc    *Service
	server *httptest.Server
	client nodev1connect.DataServiceClient
	accept func() error
	free   cluster.Bytes

	// handler is swapped by a restart, so that the address stays.
	handler struct {
		sync.Mutex
		http.Handler
	}
	stop context.CancelFunc
	done chan struct{}
}

func newCluster(t testing.TB, cfg Config, ids ...string) *testCluster {
	return newClusterOn(t, cfg, func() vfs.FS { return vfs.NewMem() }, ids...)
}

// inDir puts a file system's relative names into a directory.
type inDir struct {
	vfs.FS
	dir string
}

func newClusterOn(t testing.TB, cfg Config, fs func() vfs.FS, ids ...string) *testCluster {
	c := &testCluster{t: t, cfg: cfg, nodes: map[string]*testNode{}}
	for _, id := range ids {
		n := &testNode{c: c, id: id, fs: fs(), free: 1 << 40}
		n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.handler.Lock()
			h := n.handler.Handler
			n.handler.Unlock()
			h.ServeHTTP(w, r)
		}))
		t.Cleanup(n.server.Close)
		s, err := partitionlog.Open(partitionlog.Options{Dir: n.path("logs"), FS: n.base(), RetentionInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		n.store = s
		n.client = nodev1connect.NewDataServiceClient(connect.NewClient(
			connecthttp.NewTransport(newHTTPClient(256), n.server.URL)))
		c.nodes[id] = n
		c.node(id, cluster.NodeAlive)
		n.start()
		t.Cleanup(func() {
			n.shutDown()
			if err := n.store.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

func (n *testNode) start() {
	t := n.c.t
	n.db = openDBAt(t, n.base(), n.path("db"))
	n.router = NewRouter()
	n.c.state.Lock()
	n.router.Apply(true, n.c.state.revision, n.c.state.changes)
	n.c.state.Unlock()
	svc, err := New(n.c.cfg, Deps{DB: n.db, Prefix: testPrefix, Logs: StoreLogs(n.store), Router: n.router,
		Self: cluster.NodeID(n.id), LeaseTTL: func() time.Duration { return 10 * time.Second },
		AcceptsProduce: func() error {
			if n.accept != nil {
				return n.accept()
			}
			return nil
		},
		DiskFree: func() (cluster.Bytes, error) { return n.free, nil },
		WireError: func(err error) error {
			return connect.NewError(connect.CodeInternal, cluster.ReasonOf(err).String()+" "+err.Error())
		}})
	if err != nil {
		t.Fatal(err)
	}
	n.svc = svc
	server := connect.NewServer()
	svc.Register(server)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server, connecthttp.WithReadMaxBytes(8<<20))
	n.handler.Lock()
	n.handler.Handler = mux
	n.handler.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.done = cancel, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		svc.Run(ctx)
	}(n.done)
}

func (n *testNode) base() vfs.FS {
	if d, ok := n.fs.(inDir); ok {
		return d.FS
	}
	return n.fs
}

func (n *testNode) path(name string) string {
	if d, ok := n.fs.(inDir); ok {
		return d.PathJoin(d.dir, name)
	}
	return name
}

func (n *testNode) shutDown() {
	n.stop()
	<-n.done
	if err := n.db.Close(); err != nil {
		n.c.t.Error(err)
	}
}

// apply is a revision: everybody sees it, and those who start later.
func (c *testCluster) apply(changes ...cluster.Change) cluster.Revision {
	c.state.Lock()
	defer c.state.Unlock()
	c.state.revision++
	c.state.changes = append(c.state.changes, changes...)
	for _, n := range c.nodes {
		if n.router != nil {
			n.router.Apply(false, c.state.revision, changes)
		}
	}
	return c.state.revision
}

func (c *testCluster) node(id string, status cluster.NodeStatus) {
	c.apply(nodeChange(id, c.nodes[id].server.Listener.Addr().String(), status))
}

// topic makes a topic with one partition per owner, opened there.
func (c *testCluster) topic(name string, owners ...string) cluster.TopicID {
	c.t.Helper()
	c.state.Lock()
	id := cluster.TopicID(c.state.revision + 1)
	c.state.Unlock()
	changes := []cluster.Change{topicChange(id, name, uint32(len(owners)))}
	for i, owner := range owners {
		p := cluster.PartitionID{Topic: id, Index: uint32(i)}
		if n := c.nodes[owner]; n != nil {
			c.ok(n.store.Create(p, store.Identity(id)))
			c.ok(n.store.Open(p, 1))
		}
		changes = append(changes, assign(id, uint32(i), owner, 1))
	}
	c.apply(changes...)
	return id
}

func (c *testCluster) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// values returns what a partition's log holds at a node, in order.
func (n *testNode) values(p cluster.PartitionID) []string {
	l, err := n.store.Log(p)
	if err != nil {
		return nil
	}
	records, err := l.Read(0, 1_000_000, 1<<30)
	if err != nil {
		n.c.t.Error(err)
	}
	var out []string
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("not within 20 s: %s", what)
		case <-tick.C:
		}
	}
}

// keyFor returns a key that belongs to a partition.
func keyFor(index, partitions uint32) []byte {
	for i := 0; ; i++ {
		if k := fmt.Appendf(nil, "key-%d", i); PartitionOf(k, partitions) == index {
			return k
		}
	}
}

// produce sends one record per value, with a key.
func (n *testNode) produce(topic string, key []byte, values ...string) {
	n.c.t.Helper()
	req := &nodev1.ProduceRequest{Topic: topic}
	for _, v := range values {
		req.Records = append(req.Records, &nodev1.ProduceRecord{Key: key, Value: []byte(v)})
	}
	resp, err := n.client.Produce(n.c.t.Context(), req)
	n.c.ok(err)
	if int(resp.GetAccepted()) != len(values) {
		n.c.t.Fatalf("%d records accepted, want %d", resp.GetAccepted(), len(values))
	}
}

func (n *testNode) consume(req *nodev1.ConsumeRequest) *nodev1.ConsumeResponse {
	n.c.t.Helper()
	if req.Group == "" {
		req.Group = "g"
	}
	resp, err := n.client.Consume(n.c.t.Context(), req)
	n.c.ok(err)
	return resp
}

func valuesOf(records []*nodev1.ConsumedRecord) []string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.GetValue()))
	}
	slices.Sort(out)
	return out
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return out
}

func wantReason(t testing.TB, err error, reason cluster.Reason, mention string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), reason.String()) || !strings.Contains(err.Error(), mention) {
		t.Errorf("got %v, want %s mentioning %q", err, reason, mention)
	}
}
