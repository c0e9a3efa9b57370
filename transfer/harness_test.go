package transfer_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// node is a host: a store, both sides of a move, and a listener on loopback.
type node struct {
	t       *testing.T
	p       *plane
	id      cluster.NodeID
	fs      *vfs.MemFS
	journal *memJournal
	// wrapFS may put faults between the store and fs.
	wrapFS  func(vfs.FS) vfs.FS
	segment cluster.Bytes
	// freeDisk is set before start; nil measures nothing.
	freeDisk func() (cluster.Bytes, error)
	// observe, settings and wrap are set before start.
	observe  func(p cluster.PartitionID, effect string) error
	settings cluster.Settings
	wrap     func(http.Handler) http.Handler
	// observeSource is called before and after every effect of the source's side.
	observeSource func(effect string, after bool) error

	// hook is called before every effect, in addition.
	hook atomic.Pointer[func(effect string)]
	// crash may end the move's goroutine before an effect.
	crash atomic.Pointer[func(effect string) error]

	mu    sync.Mutex
	inc   cluster.Incarnation
	reg   bool
	lease bool

	store   *partitionlog.Store
	source  *transfer.Source
	mover   *transfer.Mover
	reclaim *transfer.Reclaimer
	server  *http.Server
	// failAfter makes Produce fail once so many records were salvaged; zero never does.
	failAfter int
	salvaged  []store.Record
	stop      chan struct{}
	wg        sync.WaitGroup
	client    *http.Client
}

func (n *node) observed(p cluster.PartitionID, effect string) error {
	if f := n.hook.Load(); f != nil {
		(*f)(effect)
	}
	if f := n.crash.Load(); f != nil {
		return (*f)(effect)
	}
	if n.observe != nil {
		return n.observe(p, effect)
	}
	return nil
}

// observeError makes an effect fail as a crash would, from now on.
func (n *node) observeError(effect string, f func() error) {
	g := func(e string) error {
		if e == effect {
			return f()
		}
		return nil
	}
	n.crash.Store(&g)
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

func decodeState(t *testing.T, b []byte) move.State {
	t.Helper()
	st, err := move.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func fastSettings() cluster.Settings {
	s := cluster.DefaultSettings()
	s.HandoffTTL = 300 * time.Millisecond
	s.ForcePromoteAfter = 50 * time.Millisecond
	return s
}

func newNode(t *testing.T, p *plane, id cluster.NodeID) *node {
	n := &node{
		t: t, p: p, id: id, fs: vfs.NewCrashableMem(), journal: &memJournal{}, segment: 64 << 10,
		settings: fastSettings(), lease: true,
	}
	t.Cleanup(func() {
		if n.stop != nil {
			n.kill()
		}
	})
	return n
}

func (n *node) session() (cluster.Incarnation, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inc, n.reg
}

func (n *node) leased() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lease
}

// boot starts the processes without registering.
func (n *node) boot() {
	t := n.t
	t.Helper()
	var err error
	var fs vfs.FS = n.fs
	if n.wrapFS != nil {
		fs = n.wrapFS(fs)
	}
	n.store, err = partitionlog.Open(partitionlog.Options{
		Dir: "store", FS: fs, SegmentBytes: n.segment, RetentionInterval: -1, Lease: n.leased,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.inc++
	n.reg = false
	n.mu.Unlock()
	errs := transfer.Errors{ToWire: apierr.ToConnect, FromWire: apierr.FromConnect}
	control := nodePlane{n.p, n.id}
	n.source, err = transfer.NewSource(transfer.SourceConfig{
		Node: n.id, Store: n.store, Control: control, Journal: n.journal, Session: n.session, Errors: errs,
		CallTimeout: 2 * time.Second,
		Observe: func(_ cluster.PartitionID, effect string, after bool) error {
			if n.observeSource == nil {
				return nil
			}
			return n.observeSource(effect, after)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}}
	n.mover, err = transfer.NewMover(transfer.MoverConfig{
		Node: n.id, Store: n.store, Control: control, Journal: n.journal, HTTP: n.client, Errors: errs,
		Settings: n.settings, CallTimeout: 2 * time.Second, ProgressTimeout: 2 * time.Second, Observe: n.observed, Open: n.source.Owned,
		FreeDisk: n.freeDisk,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.reclaim = &transfer.Reclaimer{
		Node: n.id, Store: n.store, Control: control, Source: n.source, Producer: n,
		After: func() time.Duration { return 0 }, HTTP: n.client, Errors: errs, Address: n.p.address,
	}
	server := connect.NewServer()
	n.source.RegisterConnect(server)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	mux.Handle("GET "+transfer.BulkPath, n.source.Handler())
	var h http.Handler = mux
	if n.wrap != nil {
		h = n.wrap(mux)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.server = &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	n.wg.Go(func() { _ = n.server.Serve(ln) })
	n.stop = make(chan struct{})
	if err := n.source.Fence(context.Background(), func(id cluster.PartitionID) (cluster.Epoch, bool) {
		a := n.p.assignment(id)
		return a.Epoch, a.Owner == n.id
	}); err != nil {
		t.Fatal(err)
	}
	n.server.Addr = ln.Addr().String()
}

func (p *plane) address(id cluster.NodeID) (addr string, ok bool) {
	p.m.Read(func(r fsm.Reader) {
		n, found := r.Node(id)
		addr, ok = n.Address, found
	})
	return addr, ok
}

// register begins the session and lets the watch run.
func (n *node) register() {
	n.t.Helper()
	inc, _ := n.session()
	n.p.must(&storagev1.Command{Command: &storagev1.Command_RegisterNode{RegisterNode: &storagev1.RegisterNode{
		NodeId: string(n.id), StoreId: "store-" + string(n.id), Incarnation: uint64(inc), Address: n.server.Addr,
	}}})
	n.mu.Lock()
	n.reg = true
	n.mu.Unlock()
	n.source.Registered()
	if err := n.mover.Resume(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	stop := n.stop
	n.wg.Go(func() { n.watch(stop) })
}

func (n *node) start() {
	n.t.Helper()
	n.boot()
	n.register()
}

// watch does what an agent does with its watch stream.
func (n *node) watch(stop chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		updated := n.p.m.Updated()
		var nodes []cluster.Node
		var as []cluster.Assignment
		n.p.m.Read(func(r fsm.Reader) {
			nodes, as = append(nodes, r.Nodes()...), append(as, r.Assignments()...)
		})
		for _, x := range nodes {
			n.mover.ObserveNode(x)
		}
		for _, a := range as {
			n.source.Observe(a)
			n.mover.Observe(a)
			if a.Owner == n.id && !n.mover.Busy(a.Partition) {
				n.serve(a)
			}
		}
		for _, m := range n.source.Ended() {
			_, _, err := n.reclaim.Step(context.Background(), m)
			_ = err // tried again with the next tick
		}
		select {
		case <-updated:
		case <-tick.C:
		case <-stop:
			return
		}
	}
}

// serve creates the copy of an initial placement, once, and opens what the node owns.
func (n *node) serve(a cluster.Assignment) {
	if a.OwnerEpoch == 1 && !a.Opened {
		if err := n.store.Create(a.Partition, store.Identity(a.Partition.Topic)); err != nil {
			return
		}
	}
	if err := n.source.Owned(a.Partition, a.Epoch); err == nil && !a.Opened {
		_ = nodePlane{n.p, n.id}.ReportOpened(context.Background(), a.Partition, a.OwnerEpoch, 0, nil)
	}
}

// kill ends the processes; what was not synced is lost.
func (n *node) kill() {
	n.t.Helper()
	fs := n.fs
	n.fs = fs.CrashClone(vfs.CrashCloneCfg{})
	close(n.stop)
	n.stop = nil
	_ = n.server.Close()
	n.mover.Close()
	n.source.Close()
	n.wg.Wait()
	n.client.CloseIdleConnections()
	_ = n.store.Shutdown()
}

func (n *node) restart() {
	n.t.Helper()
	n.kill()
	n.start()
}

// Produce implements transfer.Producer.
func (n *node) Produce(_ context.Context, _ cluster.TopicID, recs []store.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failAfter > 0 && len(n.salvaged) >= n.failAfter {
		return errCrash
	}
	n.salvaged = append(n.salvaged, recs...)
	return nil
}

func (n *node) append(id cluster.PartitionID, values ...string) error {
	l, err := n.store.Log(id)
	if err != nil {
		return err
	}
	recs := make([]store.Record, len(values))
	for i, v := range values {
		recs[i] = store.Record{Time: 1, Key: []byte("k"), Value: []byte(v)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = l.Append(ctx, recs)
	return err
}

// read returns every visible value of an open partition.
func (n *node) read(id cluster.PartitionID) ([]string, error) {
	l, err := n.store.Log(id)
	if err != nil {
		return nil, err
	}
	var out []string
	for at := l.LogStart(); at < l.HWM(); {
		recs, err := l.Read(at, 1000, 1<<20)
		if err != nil || len(recs) == 0 {
			return out, fmt.Errorf("read at %d: %d records, %w", at, len(recs), err)
		}
		for _, r := range recs {
			out = append(out, string(r.Value))
		}
		at = recs[len(recs)-1].Offset + 1
	}
	return out, nil
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

// settled says that a partition is stable at an owner who serves it, and that the source has let go.
func (p *plane) settled(id cluster.PartitionID, owner cluster.NodeID) bool {
	a := p.assignment(id)
	return a.Owner == owner && !a.Moving() && a.Opened
}

// pair is two running nodes and a topic with partitions on a.
func pair(t *testing.T, partitions int) (p *plane, a, b *node, topic cluster.TopicID) {
	t.Helper()
	p = newPlane(t)
	a, b = newNode(t, p, "a"), newNode(t, p, "b")
	a.start()
	b.start()
	owners := make([]string, partitions)
	for i := range owners {
		owners[i] = "a"
	}
	topic = p.createTopic("orders", owners...)
	eventually(t, "all partitions open", func() bool {
		for i := range partitions {
			if !p.assignment(cluster.PartitionID{Topic: topic, Index: uint32(i)}).Opened {
				return false
			}
		}
		return true
	})
	return p, a, b, topic
}
