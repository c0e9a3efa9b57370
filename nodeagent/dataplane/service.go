package dataplane

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
)

// Deps is what a Service uses. All fields without "may be nil" are needed.
type Deps struct {
	// DB is borrowed; it must stay open until Run has returned. Prefix is the service's own key range.
	DB     *pebble.DB
	Prefix []byte
	Logs   Logs
	Router *Router
	Self   cluster.NodeID
	// LeaseTTL is the cluster's present lease_ttl.
	LeaseTTL func() time.Duration
	// AcceptsProduce returns nil, or why this agent takes no more records (BLOCKED while draining, naming
	// other agents). May be nil.
	AcceptsProduce func() error
	// DiskFree returns the free bytes of the agent's disk. May be nil: no disk guard.
	DiskFree func() (cluster.Bytes, error)
	// HTTPClient dials other agents; may be nil. Scheme is "http" when empty.
	HTTPClient connecthttp.HTTPClient
	Scheme     string
	// Now is the clock of reservations, deliveries and record times; nil is time.Now.
	Now func() time.Time
	// WireError turns a domain error into what handlers return; may be nil when the server does that.
	WireError func(error) error
	// Logger may be nil.
	Logger *zap.Logger
}

// Service is an agent's data plane. Make it with New, drive it with Run.
type Service struct {
	cfg        Config
	deps       Deps
	router     *Router
	in         *ingress
	dispatcher *dispatcher
	peers      *peers
	owned      *ownedPartitions
	disk       diskGuard
	stats      Stats
	log        *zap.Logger

	// requests counts handlers that use the database; stopping refuses new ones.
	gate struct {
		sync.RWMutex
		stopping bool
	}
	requests sync.WaitGroup
	stop     chan struct{}
}

// Stats counts since the start of the process. Safe for concurrent use.
type Stats struct {
	accepted, delivered, rerouted, refused, late, discarded, consumed, redelivered, acked atomic.Uint64
}

// Counts is a reading of the counters; all count records but Refused and Late, which count appends.
type Counts struct {
	// Accepted records are durable in the ingress queue; Delivered were acknowledged by an owner, of
	// which Rerouted to another partition than their own. Discarded belonged to deleted topics.
	Accepted, Delivered, Rerouted, Discarded uint64
	// Refused appends were not acknowledged and repeated, of which Late were acknowledged after lease_ttl.
	Refused, Late uint64
	// Consumed records were handed out by this node as owner, of which Redelivered not for the first time.
	Consumed, Redelivered, Acked uint64
}

// New recovers the ingress queue. Nothing is delivered before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.DB == nil || deps.Logs == nil || deps.Router == nil || deps.Self == "" || deps.LeaseTTL == nil ||
		len(deps.Prefix) == 0 {
		return nil, errors.New("dataplane: DB, Prefix, Logs, Router, Self and LeaseTTL are needed")
	}
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	in, err := openIngress(deps.DB, deps.Prefix, cfg)
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deps: deps, router: deps.Router, in: in, log: deps.Logger, stop: make(chan struct{})}
	s.peers = newPeers(deps.HTTPClient, deps.Scheme, cfg.AppendsPerOwner, cfg.RequestTimeout)
	s.disk = diskGuard{free: deps.DiskFree, reserve: cfg.DiskReserve, now: deps.Now}
	s.dispatcher = &dispatcher{cfg: cfg, self: deps.Self, in: in, router: deps.Router, logs: deps.Logs,
		peers: s.peers, leaseTTL: deps.LeaseTTL, stats: &s.stats, log: deps.Logger, now: deps.Now,
		local: &peer{slots: make(chan struct{}, cfg.AppendsPerOwner)}}
	s.owned = newOwnedPartitions(cfg, deps, &s.stats)
	return s, nil
}

// Register adds the DataService and OwnerService handlers to a server.
func (s *Service) Register(server *connect.Server) {
	nodev1connect.RegisterDataServiceHandler(server, dataHandler{s})
	nodev1connect.RegisterOwnerServiceHandler(server, ownerHandler{s})
}

// Data and Owner are the clients' side and the owner's side, for who does without a server, such as a simulation.
func (s *Service) Data() nodev1connect.DataServiceHandler { return dataHandler{s} }

// Owner is documented at Data.
func (s *Service) Owner() nodev1connect.OwnerServiceHandler { return ownerHandler{s} }

// Run delivers the queue until ctx ends. When it returns no handler uses the database any more, and later
// requests are refused. It is called once.
func (s *Service) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.dispatcher.run(ctx) })
	wg.Go(func() { s.sweep(ctx) })
	<-ctx.Done()
	s.gate.Lock()
	s.gate.stopping = true
	s.gate.Unlock()
	close(s.stop)
	wg.Wait()
	s.requests.Wait()
	s.owned.clear()
}

// enter begins a request; the caller must call leave. It fails when the service stops.
func (s *Service) enter() error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.stopping {
		e := cluster.Errorf(cluster.ReasonNoLeader, "the agent is stopping")
		e.RetryAfter = retryAfter
		return e
	}
	s.requests.Add(1)
	return nil
}

func (s *Service) leave() { s.requests.Done() }

// sweep tears down now and then what belongs to logs that are no longer open. A request that meets such a
// log does it at once; this is for the memory of partitions that nobody asks for any more.
func (s *Service) sweep(ctx context.Context) {
	t := time.NewTicker(5 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.owned.sweep()
		}
	}
}

// Depth returns the records and bytes that are accepted and not yet delivered.
func (s *Service) Depth() (records, bytes uint64) { return s.in.depth() }

// Counts reads the counters.
func (s *Service) Counts() Counts {
	c := &s.stats
	return Counts{Accepted: c.accepted.Load(), Delivered: c.delivered.Load(), Rerouted: c.rerouted.Load(),
		Discarded: c.discarded.Load(), Refused: c.refused.Load(), Late: c.late.Load(),
		Consumed: c.consumed.Load(), Redelivered: c.redelivered.Load(), Acked: c.acked.Load()}
}

// wire turns an error into what a handler returns.
func (s *Service) wire(err error) error {
	if err == nil || s.deps.WireError == nil {
		return err
	}
	return s.deps.WireError(err)
}

// diskGuard refuses produce when the disk is nearly full. The reading is cached.
type diskGuard struct {
	free    func() (cluster.Bytes, error)
	reserve cluster.Bytes
	now     func() time.Time

	mu   sync.Mutex
	read time.Time
	last cluster.Bytes
	err  error
}

func (g *diskGuard) check() error {
	if g.free == nil || g.reserve == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.read.IsZero() || now.Sub(g.read) > time.Second {
		g.last, g.err = g.free()
		g.read = now
	}
	// A disk that can't be asked is judged by its writes.
	if g.err != nil || g.last >= g.reserve {
		return nil
	}
	e := cluster.Errorf(cluster.ReasonLimit, "the disk has %d bytes left, min_disk_free is %d", g.last, g.reserve)
	e.Field, e.RetryAfter = "min_disk_free", retryAfter
	return e
}
