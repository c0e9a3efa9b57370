package nodeagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Store is the data plane's partition store. The agent shuts it down.
type Store interface {
	store.PartitionStore
	// Shutdown closes every partition and releases the store's files.
	Shutdown() error
}

// Routes follows the watch of all routes.
type Routes interface {
	// Apply folds a whole snapshot (reset) or one whole revision. Revision zero is the cached view of a
	// start without a control plane.
	Apply(reset bool, rev cluster.Revision, changes []cluster.Change)
}

// Ingress is the queue of records that were accepted and not yet appended.
type Ingress interface {
	Depth() (records uint64, bytes cluster.Bytes)
}

// Plane is what the agent needs of a data plane. Nil fields are left out: no routes are watched, the
// queue counts as empty, and salvage waits.
type Plane struct {
	Routes   Routes
	Ingress  Ingress
	Producer transfer.Producer
}

// Deps are what an agent is given.
type Deps struct {
	// OpenStore opens the partition store, which asks lease before it acknowledges an append to a
	// partition with an outbound marker. Required.
	OpenStore func(lease store.LeaseCheck) (Store, error)
	// FS holds the agent's database; nil is the real disk.
	FS vfs.FS
	// TLS secures calls to controllers and peers; nil is plain HTTP.
	TLS *tls.Config
	// Log may be nil.
	Log *zap.Logger
	// OnMoveFinished, when set, is called when a move has come to its end here. It must not block.
	OnMoveFinished func(p cluster.PartitionID, move cluster.MoveID, stats cluster.MoveStats)
	// OnOpened, when set, is called for every open partition with its topic's record: soon after it was
	// opened or the topic changed, and now and then. It must not block.
	OnOpened func(p cluster.PartitionID, topic cluster.Topic)
}

// Agent is a node's life. New makes it, Attach gives it a data plane, Run runs it once, Close releases
// its files. All other methods are safe for concurrent use.
type Agent struct {
	cfg       Config
	deps      Deps
	log       *zap.Logger
	db        *DB
	store     Store
	client    *Client
	control   control
	peers     *http.Client
	session   *session
	source    *transfer.Source
	mover     *transfer.Mover
	reclaimer *transfer.Reclaimer
	plane     Plane
	rec       *reconciler
	reporter  reporter
	watches   []*watcher

	registeredOnce  sync.Once
	registeredFirst chan struct{}

	mu struct {
		sync.Mutex
		view *View
		// synced: the view came from the control plane in this process. resumed: journaled moves were
		// taken up, so that what no move claims really is an orphan.
		synced, resumed bool
		cacheDirty      bool
		// self is this node's latest record. It outlives the node's removal, which the watch may show
		// before a heartbeat is refused.
		self         cluster.Node
		refusedSince time.Time // since when produce is refused; zero when it is not
	}
}

// New opens the data directory, takes the next incarnation, and opens the store. No partition is served
// yet and nothing is dialled.
func New(cfg Config, deps Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.FS == nil {
		deps.FS = vfs.Default
	}
	if deps.Log == nil {
		deps.Log = zap.NewNop()
	}
	log := deps.Log.With(zap.String("node", string(cfg.NodeID)))
	db, err := OpenDB(DBOptions{Dir: cfg.DataDir, NodeID: cfg.NodeID, FS: deps.FS, Log: log})
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, deps: deps, log: log, db: db, registeredFirst: make(chan struct{})}
	if err := a.build(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) build() error {
	removed, err := a.db.Removed()
	if err != nil {
		return err
	}
	if removed {
		return fmt.Errorf("data directory %s: %w", a.cfg.DataDir, ErrRemoved)
	}
	if _, err := a.db.NextIncarnation(); err != nil {
		return err
	}
	a.mu.view = NewView()
	a.client = NewClient(ClientOptions{
		Controllers: a.cfg.Controllers, CallTimeout: a.cfg.CallTimeout, DialTimeout: a.cfg.DialTimeout,
		TLS: a.deps.TLS, Log: a.log,
	})
	a.control = control{client: a.client, node: a.cfg.NodeID}
	a.session = newSession(a.cfg, a.db, a.control, sessionHooks{
		report: a.report, accepted: a.reporter.accepted, superseded: a.fence,
		registered: a.registered, unknown: a.unknownNode, suspect: a.suspect, claim: a.claim, orders: a.orders,
	}, a.log)
	if a.store, err = a.deps.OpenStore(a.session.LeaseValid); err != nil {
		return fmt.Errorf("open the partition store: %w", err)
	}
	a.rec = newReconciler(a)
	a.peers = &http.Client{Transport: peerTransport(a.cfg.DialTimeout, a.deps.TLS)}
	return a.buildTransfer()
}

func (a *Agent) buildTransfer() (err error) {
	errs := transfer.Errors{ToWire: apierr.ToConnect, FromWire: apierr.FromConnect}
	a.source, err = transfer.NewSource(transfer.SourceConfig{
		Node: a.cfg.NodeID, Store: a.store, Control: a.control, Journal: a.db.Journal(),
		Session: a.session.Incarnation, Errors: errs, Log: a.log,
		OnRedirected: func(p cluster.PartitionID) { a.rec.touch(p) },
		OnEnded:      func(p cluster.PartitionID) { a.rec.touch(p) },
		CallTimeout:  a.callTimeout(),
	})
	if err != nil {
		return fmt.Errorf("load outbound markers: %w", err)
	}
	a.mover, err = transfer.NewMover(transfer.MoverConfig{
		Node: a.cfg.NodeID, Store: a.store, Control: a.control, Journal: a.db.Journal(),
		HTTP: a.peers, BaseURL: a.baseURL, Errors: errs, Settings: cluster.DefaultSettings(), Log: a.log,
		Open:          a.source.Owned,
		OnOpened:      a.opened,
		OnClosedStale: func(p cluster.PartitionID) { a.rec.touch(p) },
		OnFinished: func(p cluster.PartitionID, m cluster.MoveID, st cluster.MoveStats) {
			a.rec.touch(p)
			if a.deps.OnMoveFinished != nil {
				a.deps.OnMoveFinished(p, m, st)
			}
		},
		FreeDisk:    a.freeDisk,
		CallTimeout: a.callTimeout(),
	})
	if err != nil {
		return fmt.Errorf("load the move journal: %w", err)
	}
	return nil
}

// newReclaimer makes what works on copies that moves took away.
func (a *Agent) newReclaimer() *transfer.Reclaimer {
	producer := a.plane.Producer
	if producer == nil {
		producer = noProducer{}
	}
	return &transfer.Reclaimer{
		Node: a.cfg.NodeID, Store: a.store, Control: a.control, Source: a.source, Producer: producer,
		After: a.reclaimAfter, HTTP: a.peers, BaseURL: a.baseURL, Address: a.addressOf, Log: a.log,
		Errors: transfer.Errors{ToWire: apierr.ToConnect, FromWire: apierr.FromConnect},
	}
}

// noProducer keeps salvage waiting.
type noProducer struct{}

// Produce refuses.
func (noProducer) Produce(context.Context, cluster.TopicID, []store.Record) error {
	return errors.New("this agent has no data plane to produce salvaged records with")
}

func (a *Agent) addressOf(id cluster.NodeID) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, ok := a.mu.view.Nodes[id]
	return n.Address, ok
}

// callTimeout lets one call of a move try every controller.
func (a *Agent) callTimeout() time.Duration {
	return a.cfg.CallTimeout * time.Duration(len(a.cfg.Controllers)+1)
}

// peerTransport dials other agents. There is no overall time-out: copies take as long as they progress.
func peerTransport(dial time.Duration, t *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dial, KeepAlive: 5 * time.Second}).DialContext,
		TLSClientConfig:     t,
		TLSHandshakeTimeout: dial,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
		ReadBufferSize:      256 << 10,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

func (a *Agent) baseURL(address string) string {
	if a.deps.TLS != nil {
		return "https://" + address
	}
	return "http://" + address
}

// Attach gives the agent its data plane. Call it before Run.
func (a *Agent) Attach(p Plane) { a.plane = p }

// Pebble is the agent's database, for the ingress queue under IngressPrefix. It is open until Close.
func (a *Agent) Pebble() *pebble.DB { return a.db.Pebble() }

// LeaseValid says whether the node's lease is valid now.
func (a *Agent) LeaseValid() bool { return a.session.LeaseValid() }

// LeaseTTL is how long a lease lasts, as the leader said last; the usual value before it has.
func (a *Agent) LeaseTTL() time.Duration { return a.session.leaseTTL() }

// Incarnation returns the present incarnation and whether the cluster has registered it.
func (a *Agent) Incarnation() (cluster.Incarnation, bool) { return a.session.Incarnation() }

// StoreID is the data directory's identity.
func (a *Agent) StoreID() cluster.StoreID { return a.db.StoreID() }

// Handlers registers the TransferService on a Connect server and mounts the bulk reads on mux. The caller
// mounts the server.
func (a *Agent) Handlers(mux *http.ServeMux, server *connect.Server) {
	a.source.RegisterConnect(server)
	mux.Handle("GET /transfer/v1/", a.source.Handler())
}

// Run runs the agent until ctx ends (nil), or until the cluster refuses the node for good, which the
// error says with its remedy; ErrRemoved after a decommission. It waits for all that it started.
func (a *Agent) Run(ctx context.Context) error {
	a.reclaimer = a.newReclaimer()
	if err := a.boot(ctx); err != nil {
		return err
	}
	a.watches = []*watcher{a.newWatcher("node", a.client.openNodeWatch(a.cfg.NodeID), folderFunc(a.applyNode))}
	if a.plane.Routes != nil {
		a.watches = append(a.watches, a.newWatcher("routes", a.client.openRoutesWatch, a.plane.Routes))
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.session.run(gctx) })
	g.Go(func() error { a.rec.run(gctx); return nil })
	g.Go(func() error { a.resume(gctx); return nil })
	g.Go(func() error { a.housekeep(gctx); return nil })
	for _, w := range a.watches {
		g.Go(func() error { w.run(gctx); return nil })
	}
	err := g.Wait()
	a.mover.Close()
	a.source.Close()
	a.saveCache()
	return err
}

// Close releases the store, the database and the directory's lock. Run must have ended, and whoever uses
// Pebble.
func (a *Agent) Close() error {
	var errs []error
	if a.client != nil {
		a.client.Close()
	}
	if a.peers != nil {
		a.peers.CloseIdleConnections()
	}
	if a.store != nil {
		errs = append(errs, a.store.Shutdown())
	}
	errs = append(errs, a.db.Close())
	return errors.Join(errs...)
}

// boot serves what can be served without a control plane: owned partitions without an outbound marker, by
// the cached view. Invariant I7: marked ones are fenced first.
func (a *Agent) boot(ctx context.Context) error {
	cached, err := a.db.LoadView()
	if err != nil {
		// A cache that can't be read is no reason not to start: the watch brings it anew.
		a.log.Warn("cached view unreadable, waiting for the controllers", zap.Error(err))
	}
	a.mu.Lock()
	a.mu.view.Fold(true, 0, cached)
	if a.cfg.FollowControllers {
		a.client.Learn(a.mu.view.ControllerAddresses())
	}
	a.mu.Unlock()
	if a.plane.Routes != nil && len(cached) > 0 {
		a.plane.Routes.Apply(true, 0, cached)
	}
	if err := a.fence(ctx); err != nil {
		// Nothing is open yet, and what could not be opened frozen stays closed.
		a.log.Error("marked partitions that can't be opened for reading stay closed", zap.Error(err))
	}
	a.rec.touchAll()
	return nil
}

func (a *Agent) newWatcher(name string, open func(context.Context, cluster.Revision) (watchStream, error), f folder) *watcher {
	return &watcher{name: name, open: open, sink: f, idle: a.cfg.WatchIdle, log: a.log}
}

// folderFunc makes a folder of a function.
type folderFunc func(reset bool, rev cluster.Revision, changes []cluster.Change)

// Apply calls f.
func (f folderFunc) Apply(reset bool, rev cluster.Revision, changes []cluster.Change) {
	f(reset, rev, changes)
}

// fence freezes every marked partition.
func (a *Agent) fence(ctx context.Context) error {
	return a.source.Fence(ctx, func(p cluster.PartitionID) (cluster.Epoch, bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		as, ok := a.mu.view.Assignments[p]
		return as.OwnerEpoch, ok && as.Owner == a.cfg.NodeID && !as.Unconfirmed
	})
}

// registered lets the source side resolve what it fenced, and, the first time, moves go on.
func (a *Agent) registered(cluster.Incarnation) {
	a.source.Registered()
	a.registeredOnce.Do(func() { close(a.registeredFirst) })
}

// unknownNode is asked when the cluster does not know this node. A decommissioned node with nothing left stops for good;
// any other (a control plane restored from an older copy) registers again, since it has data.
func (a *Agent) unknownNode() error {
	if !a.drained() || !a.empty() {
		a.log.Warn("the cluster does not know this node, registering again")
		return nil
	}
	if err := a.db.SetRemoved(); err != nil {
		return err
	}
	return ErrRemoved
}

// empty reports whether nothing on this disk is needed: no record waits, no copy lies aside, no copy is marked.
func (a *Agent) empty() bool {
	if a.plane.Ingress != nil {
		if n, _ := a.plane.Ingress.Depth(); n > 0 {
			return false
		}
	}
	copies, err := a.store.Copies()
	if err != nil {
		return false
	}
	for _, c := range copies {
		if c.Place == store.Quarantined {
			return false
		}
	}
	return true
}

// orders passes on what operators ask of moves towards this node.
func (a *Agent) orders(list []*planev1.MoveOrder) {
	for _, o := range list {
		p, m := wire.PartitionFromProto(o.GetPartition()), cluster.MoveID(o.GetMoveId())
		if o.GetPromote() {
			a.mover.Promote(p, m, o.GetAcceptLoss())
		} else {
			a.mover.Retry(p)
		}
	}
}

// suspect leaves watch streams that may lead nowhere.
func (a *Agent) suspect() {
	for _, w := range a.watches {
		w.kick(a.cfg.HeartbeatInterval)
	}
}
