package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/api"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/config"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/nodeagent"
)

// handOverTimeout bounds the attempt of a stopping leader to hand leadership over.
const handOverTimeout = 3 * time.Second

// controllerNode is a wired controller: consensus, state machine, the leader's loop and the API.
type controllerNode struct {
	cfg     config.Controller
	log     *zap.Logger
	meter   metric.Meter // nil for none
	creds   *credentials // nil for plain HTTP
	ln      net.Listener
	address string
	node    *etcdraft.Node
	machine *fsm.Machine
	// inner answers everything but raft and metrics; it is replaced when the cluster was found.
	inner   atomic.Pointer[http.Handler]
	serving atomic.Bool
}

// openController locks and reads the data directory, and lets a fresh one join when it is told to.
// Ownership of ln passes to the controllerNode when it succeeds.
func openController(ctx context.Context, c config.Controller, ln net.Listener, creds *credentials, log *zap.Logger, meter metric.Meter) (*controllerNode, error) {
	if _, err := os.Stat(filepath.Join(c.DataDir, restoringDir)); err == nil {
		return nil, cluster.Errorf(cluster.ReasonBlocked, "a restore into %s was not completed: run \"naradctl-plane cluster snapshot restore\" again", c.DataDir)
	}
	n := &controllerNode{cfg: c, log: log, meter: meter, creds: creds, ln: ln, address: advertised(c.AdvertiseAddress(), ln)}
	cfg := n.consensusConfig()
	node, err := etcdraft.New(cfg, log)
	if err != nil {
		return nil, err
	}
	if len(c.Join) > 0 && !node.Initialized() {
		if cfg.Join, err = askToJoin(ctx, c, creds, n.address, node.StoreID()); err != nil {
			return nil, errors.Join(err, node.Close())
		}
		// The directory's identity had to be known first.
		if err := node.Close(); err != nil {
			return nil, err
		}
		if node, err = etcdraft.New(cfg, log); err != nil {
			return nil, err
		}
	}
	n.node = node
	n.machine, err = fsm.Open(filepath.Join(c.DataDir, "state"), fsm.Options{})
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return n, nil
}

func (n *controllerNode) consensusConfig() etcdraft.Config {
	c := n.cfg
	cfg := etcdraft.Config{
		Name:             c.Name,
		AdvertiseAddress: n.address,
		DataDir:          c.DataDir,
		TickInterval:     c.Tick,
		ElectionTicks:    c.ElectionTicks,
		HeartbeatTicks:   c.HeartbeatTicks,
		Scheme:           n.creds.scheme(),
	}
	if n.creds != nil {
		cfg.RoundTripper = n.creds.http1(c.Tick*time.Duration(c.ElectionTicks), 4)
	}
	for _, p := range c.ParsePeers() {
		cfg.InitialMembers = append(cfg.InitialMembers, etcdraft.Peer{Name: string(p.Name), Address: p.Address})
	}
	if len(cfg.InitialMembers) == 0 && len(c.Join) == 0 {
		cfg.InitialMembers = []etcdraft.Peer{{Name: c.Name, Address: n.address}}
	}
	return cfg
}

// handler mounts everything on the controller's one listener.
func (n *controllerNode) handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mountCommon(mux, metrics)
	mux.Handle("/raft/v1/", n.node.Handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		(*n.inner.Load()).ServeHTTP(w, r)
	})
	return mux
}

func (n *controllerNode) answerWith(h http.Handler) { n.inner.Store(&h) }

// run serves, finds the cluster, and leads when elected, until ctx ends or the backend stops. started is
// called when the listener serves, which is before there is a leader.
func (n *controllerNode) run(ctx context.Context, metrics http.Handler, started func()) error {
	n.answerWith(waitingHandler("the other first controllers were not all reached yet"))
	web := serveHTTP(n.ln, n.handler(metrics), n.creds, n.log)
	started()
	backend, err := n.node.Start(ctx, stateMachine{n.machine})
	if err != nil {
		web.stop(context.WithoutCancel(ctx))
		return errors.Join(err, n.node.Close(), n.machine.Close())
	}
	lead := controller.New(n.leaderConfig(cluster.ClusterID(backend.ClusterID())), backend, n.machine, n.log)
	server, err := api.New(api.Deps{
		Controller: lead, Backend: backend, Machine: n.machine, Logger: n.log,
		Forward: n.creds.http2(), Scheme: n.creds.scheme(), Version: version,
	})
	if err != nil {
		web.stop(context.WithoutCancel(ctx))
		return errors.Join(err, backend.Stop(), n.machine.Close())
	}
	n.answerWith(server)
	n.serving.Store(true)

	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var wg sync.WaitGroup
	var failure error
	// It ends with life, or with the backend, whose error is told below.
	wg.Go(func() { _ = lead.Run(life) })
	select {
	case <-ctx.Done():
		handOver(ctx, backend, n.log)
	case <-backend.Done():
		failure = backend.Err()
	case failure = <-web.failed:
	}
	// Watches end first, so that agents go to other controllers; then requests; then what they use.
	server.Close()
	web.stop(context.WithoutCancel(ctx))
	end()
	wg.Wait()
	return errors.Join(failure, backend.Stop(), n.machine.Close())
}

func (n *controllerNode) leaderConfig(id cluster.ClusterID) controller.Config {
	cfg := controller.DefaultConfig()
	cfg.Name = cluster.ControllerName(n.cfg.Name)
	cfg.ClusterID = id
	cfg.LeaseTTL = n.cfg.LeaseTTL
	cfg.HeartbeatInterval = n.cfg.LeaseTTL / 5
	cfg.DeadAfter = n.cfg.DeadAfter
	cfg.SlowTick = n.cfg.PlanInterval
	cfg.Meter = n.meter
	return cfg
}

// handOver lets a stopping leader name its successor, which saves the others an election time-out.
func handOver(ctx context.Context, b consensus.Backend, log *zap.Logger) {
	st := b.Status()
	voters := 0
	for _, m := range st.Members {
		if m.Role == consensus.Voter {
			voters++
		}
	}
	if !st.IsLeader() || voters < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverTimeout)
	defer cancel()
	if err := b.TransferLeadership(ctx, 0); err != nil {
		log.Info("leadership was not handed over, the others elect", zap.Error(err))
	}
}

// runController is the controller daemon.
func runController(ctx context.Context, d *daemonEnv, c config.Config) error {
	creds, err := loadCredentials(c.TLS)
	if err != nil {
		return withCode(codeUsage, err)
	}
	ln, err := listen("controller.listen", c.Controller.Listen)
	if err != nil {
		return err
	}
	n, err := openController(ctx, c.Controller, ln, creds, d.Log, d.Meters.Meter("naradplane"))
	if err != nil {
		return errors.Join(startRefused("controller", c.Controller.DataDir, err), ln.Close())
	}
	err = n.run(ctx, d.Metrics, func() {
		d.announce("controller %s listening on %s, advertised as %s", c.Controller.Name, ln.Addr(), n.address)
		d.Log.Info("controller started", zap.String("name", c.Controller.Name), zap.String("listen", ln.Addr().String()),
			zap.String("advertise", n.address), zap.String("data_dir", c.Controller.DataDir), zap.Strings("peers", c.Controller.Peers))
		notify := notifyReady(d.Log, "serving on "+n.address, selfCheck(ln, n.address, creds))
		context.AfterFunc(ctx, notify.stopping)
	})
	switch {
	case errors.Is(err, consensus.ErrRemoved) && n.serving.Load():
		// The end that a removal leads to.
		d.announce("controller %s was removed from the cluster: its data directory %s is of no use any more", c.Controller.Name, c.Controller.DataDir)
		return nil
	case err != nil && !n.serving.Load() && ctx.Err() == nil:
		return startRefused("controller", c.Controller.DataDir, err)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil // asked to stop before the cluster was found
	}
	return err
}

// refusals are faults that a restart does not cure.
var refusals = []error{etcdraft.ErrInUse, etcdraft.ErrForeignStore, etcdraft.ErrStateMismatch, consensus.ErrRemoved, nodeagent.ErrRemoved}

// hopeless reports whether starting again would end the same way.
func hopeless(err error) bool {
	var damage *etcdraft.DamageError
	if errors.As(err, &damage) {
		return true
	}
	for _, r := range refusals {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// startRefused says which daemon did not start, and marks what a restart does not cure, so that a service
// manager does not try.
func startRefused(daemon, dir string, err error) error {
	wrapped := fmt.Errorf("%s does not start with data directory %s: %w", daemon, dir, err)
	if errors.Is(err, fs.ErrPermission) {
		wrapped = fmt.Errorf("%w; the directory must be writable for this user, or choose another one with --data-dir", wrapped)
	}
	if hopeless(err) {
		return withCode(codeRefused, wrapped)
	}
	return wrapped
}
