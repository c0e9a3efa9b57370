package etcdraft_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/consensustest"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
)

func TestMain(m *testing.M) {
	if os.Getenv(envMember) != "" {
		runMember()
		return
	}
	goleak.VerifyTestMain(m)
}

// wire is the network between members of one test: it can cut hosts off, which ends their connections, and make them deaf,
// which loses what is sent without a word.
type wire struct {
	mu    sync.Mutex
	cut   map[string]bool
	deaf  map[string]bool
	links map[*link]bool
	dials map[string]int // by the address that was dialled
}

func newWire() *wire {
	return &wire{cut: map[string]bool{}, deaf: map[string]bool{}, links: map[*link]bool{}, dials: map[string]int{}}
}

// link is one connection.
type link struct {
	net.Conn
	w        *wire
	from, to string
}

func (l *link) lost() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.deaf[l.from] || l.w.deaf[l.to]
}

func (l *link) Write(b []byte) (int, error) {
	if l.lost() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

func (l *link) Read(b []byte) (int, error) {
	for {
		n, err := l.Conn.Read(b)
		if err != nil || !l.lost() {
			return n, err
		}
	}
}

func (l *link) Close() error {
	l.w.mu.Lock()
	delete(l.w.links, l)
	l.w.mu.Unlock()
	return l.Conn.Close()
}

func (w *wire) dial(ctx context.Context, from, to string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut[from] || w.cut[to] {
		return nil, errors.Join(errCut, c.Close())
	}
	l := &link{c, w, from, to}
	w.links[l] = true
	w.dials[to]++
	return l, nil
}

func (w *wire) setDeaf(address string, deaf bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf[address] = deaf
}

func (w *wire) dialled(address string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials[address]
}

func (w *wire) isCut(addresses ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range addresses {
		if w.cut[a] {
			return true
		}
	}
	return false
}

func (w *wire) set(address string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[address] = cut
	for l := range w.links {
		if cut && (l.from == address || l.to == address) {
			_ = l.Conn.Close()
			delete(w.links, l)
		}
	}
}

var errCut = errors.New("the network drops packets")

// roundTripper is one host's way out.
type roundTripper struct {
	w    *wire
	from string
	rt   *http.Transport
}

func (r *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.w.isCut(r.from, req.URL.Host) {
		return nil, errCut
	}
	return r.rt.RoundTrip(req)
}

// host is one member's process: its address and directory last, the rest comes and goes.
type host struct {
	name    string
	dir     string
	address string
	server  *http.Server
	rt      *roundTripper
	disk    *consensustest.Disk
	machine *consensustest.Machine
	backend *etcdraft.Backend

	mu      sync.Mutex
	handler http.Handler
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	handler := h.handler
	h.mu.Unlock()
	if handler == nil || h.rt.w.isCut(h.address) {
		http.Error(w, "nobody here", http.StatusBadGateway)
		return
	}
	handler.ServeHTTP(w, r)
}

func (h *host) serve(handler http.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handler = handler
}

type cluster struct {
	t            testing.TB
	w            *wire
	compactEvery uint64
	log          *zap.Logger
	hosts        []*host
	made         int
	peers        []etcdraft.Peer
}

func newRawCluster(t testing.TB, n int, compactEvery uint64) *cluster {
	level := zap.WarnLevel
	if testing.Verbose() {
		level = zap.InfoLevel
	}
	c := &cluster{t: t, w: newWire(), compactEvery: compactEvery}
	c.log = zaptest.NewLogger(t, zaptest.Level(level))
	if _, ok := t.(*testing.B); ok {
		c.log = zap.NewNop()
	}
	for range n {
		c.addHost()
	}
	for _, h := range c.hosts {
		c.peers = append(c.peers, etcdraft.Peer{Name: h.name, Address: h.address})
	}
	t.Cleanup(c.close)
	return c
}

func newCluster(t *testing.T, n int, compactEvery uint64) consensustest.Cluster {
	c := newRawCluster(t, n, compactEvery)
	c.startAll()
	return c
}

func (c *cluster) addHost() *host {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.made++
	h := &host{name: fmt.Sprintf("c%d", c.made), dir: filepath.Join(c.t.TempDir(), "raft"), address: l.Addr().String(), disk: &consensustest.Disk{}}
	h.rt = &roundTripper{w: c.w, from: h.address, rt: &http.Transport{DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
		return c.w.dial(ctx, h.address, to)
	}}}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go func() { _ = h.server.Serve(l) }() // Ends with Close below.
	c.hosts = append(c.hosts, h)
	return h
}

func (c *cluster) close() {
	var wg sync.WaitGroup
	for _, h := range c.hosts {
		wg.Go(func() {
			if h.backend != nil {
				if err := h.backend.Stop(); err != nil {
					c.t.Errorf("stop %s: %v", h.name, err)
				}
			}
			_ = h.server.Close()
			h.rt.rt.CloseIdleConnections()
		})
	}
	wg.Wait()
}

func (c *cluster) config(h *host) etcdraft.Config {
	cfg := etcdraft.Config{
		Name: h.name, AdvertiseAddress: h.address, DataDir: h.dir, InitialMembers: c.peers, RoundTripper: h.rt,
		TickInterval: 20 * time.Millisecond, SegmentBytes: 64 << 10,
	}
	if c.compactEvery < 1<<30 {
		cfg.SnapshotEntries, cfg.TrailEntries = c.compactEvery, c.compactEvery/2
	}
	return cfg
}

// tryStart makes a process of h.
func (c *cluster) tryStart(ctx context.Context, h *host, cfg etcdraft.Config) error {
	n, err := etcdraft.New(cfg, c.log.Named(h.name))
	if err != nil {
		return err
	}
	h.serve(n.Handler())
	m := consensustest.Open(h.disk)
	b, err := n.Start(ctx, m)
	if err != nil {
		h.serve(nil)
		return errors.Join(err, n.Close())
	}
	h.machine, h.backend = m, b
	return nil
}

func (c *cluster) start(h *host) {
	c.t.Helper()
	if err := c.tryStart(consensustest.Context(c.t), h, c.config(h)); err != nil {
		c.t.Fatalf("start %s: %v", h.name, err)
	}
}

func (c *cluster) startAll() {
	c.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(c.hosts))
	for i, h := range c.hosts {
		wg.Go(func() { errs[i] = c.tryStart(consensustest.Context(c.t), h, c.config(h)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatalf("start: %v", err)
	}
}

func (c *cluster) stop(h *host) {
	c.t.Helper()
	h.serve(nil)
	if err := h.backend.Stop(); err != nil {
		c.t.Fatalf("stop %s: %v", h.name, err)
	}
}

func (c *cluster) Len() int                             { return len(c.hosts) }
func (c *cluster) Backend(i int) consensus.Backend      { return c.hosts[i].backend }
func (c *cluster) Machine(i int) *consensustest.Machine { return c.hosts[i].machine }
func (c *cluster) Isolate(i int, cut bool)              { c.w.set(c.hosts[i].address, cut) }

func (c *cluster) Restart(i int) {
	c.t.Helper()
	c.stop(c.hosts[i])
	c.start(c.hosts[i])
}

// Crash takes the directory as it is while the process runs, cut off, and starts from that.
func (c *cluster) Crash(i int) {
	c.t.Helper()
	h := c.hosts[i]
	c.Isolate(i, true)
	h.machine.Abandon()
	image := filepath.Join(c.t.TempDir(), "raft")
	if err := os.CopyFS(image, os.DirFS(h.dir)); err != nil {
		c.t.Fatalf("copy the directory: %v", err)
	}
	c.stop(h)
	h.dir = image
	c.Isolate(i, false)
	c.start(h)
}

func (c *cluster) Join() int {
	c.t.Helper()
	h := c.addHost()
	cfg := c.config(h)
	cfg.InitialMembers = nil
	// The store id is made by New, which the joining process calls before it asks to be admitted.
	n, err := etcdraft.New(cfg, c.log.Named(h.name))
	if err != nil {
		c.t.Fatal(err)
	}
	self := consensus.Member{ID: consensus.ID(c.made), Name: h.name, Address: h.address, StoreID: n.StoreID()}
	if err := n.Close(); err != nil {
		c.t.Fatal(err)
	}
	join := &etcdraft.JoinInfo{Self: self}
	consensustest.Eventually(c.t, "the new member is admitted", func() bool {
		for i, o := range c.hosts[:len(c.hosts)-1] {
			if c.w.isCut(o.address) || !c.Backend(i).Status().IsLeader() {
				continue
			}
			err := o.backend.AddLearner(consensustest.Context(c.t), self)
			if err != nil && !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, consensus.ErrBusy) {
				c.t.Fatalf("add a learner: %v", err)
			}
			join.ClusterID = o.backend.ClusterID()
			join.Members = nil
			for _, m := range o.backend.Status().Members {
				join.Members = append(join.Members, m.Member)
			}
			return err == nil
		}
		return false
	})
	cfg.Join = join
	if err := c.tryStart(consensustest.Context(c.t), h, cfg); err != nil {
		c.t.Fatalf("join: %v", err)
	}
	return len(c.hosts) - 1
}

func TestConformance(t *testing.T) { consensustest.Run(t, newCluster) }
