package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/config"
	"github.com/naradctl/naradctl-plane/internal/rest"
	"github.com/naradctl/naradctl-plane/nodeagent"
	"github.com/naradctl/naradctl-plane/nodeagent/dataplane"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// agentNode is a wired agent: its life, its data plane, and the partitions' store below both.
type agentNode struct {
	log     *zap.Logger
	ln      net.Listener
	address string
	creds   *credentials // nil for plain HTTP
	agent   *nodeagent.Agent
	logs    *partitionlog.Store
	plane   *dataplane.Service
}

// openAgent opens the data directory and wires the parts. Nothing is served or dialled yet. Ownership of
// ln passes to the agentNode when it succeeds.
func openAgent(c config.Agent, ln net.Listener, creds *credentials, log *zap.Logger) (*agentNode, error) {
	n := &agentNode{log: log, ln: ln, creds: creds, address: advertised(c.AdvertiseAddress(), ln)}
	cfg := nodeagent.DefaultConfig()
	cfg.NodeID = cluster.NodeID(c.NodeID)
	cfg.DataDir = c.DataDir
	cfg.Listen = ln.Addr().String()
	cfg.Advertise = n.address
	cfg.Controllers, cfg.FollowControllers = c.Controllers, c.FollowControllers
	cfg.Zone = c.Zone
	cfg.CapacityWeight = uint32(c.CapacityWeight)
	cfg.Voter = cluster.ControllerName(c.Voter)
	cfg.HeartbeatInterval = c.HeartbeatInterval

	var err error
	n.agent, err = nodeagent.New(cfg, nodeagent.Deps{
		Log: log,
		TLS: creds.client(),
		OpenStore: func(lease store.LeaseCheck) (nodeagent.Store, error) {
			n.logs, err = partitionlog.Open(partitionlog.Options{
				Dir: nodeagent.PartitionsDir(c.DataDir), Lease: lease, SegmentBytes: cluster.Bytes(c.SegmentBytes),
			})
			if err != nil {
				return nil, err
			}
			return n.logs, nil
		},
		OnOpened: n.setRetention,
	})
	if err != nil {
		return nil, err
	}
	if err := n.openPlane(c); err != nil {
		return nil, errors.Join(err, n.agent.Close())
	}
	return n, nil
}

func (n *agentNode) openPlane(c config.Agent) error {
	cfg := dataplane.DefaultConfig()
	cfg.IngressMaxBytes = cluster.Bytes(c.IngressBytes)
	cfg.DiskReserve = cluster.Bytes(c.MinDiskFree)
	cfg.RerouteAfter = c.RerouteAfter
	router := dataplane.NewRouter()
	deps := dataplane.Deps{
		DB:             n.agent.Pebble(),
		Prefix:         []byte(nodeagent.IngressPrefix),
		Logs:           dataplane.StoreLogs(n.logs),
		Router:         router,
		Self:           cluster.NodeID(c.NodeID),
		LeaseTTL:       n.agent.LeaseTTL,
		AcceptsProduce: n.agent.AcceptsProduce,
		DiskFree:       diskFree(c.DataDir),
		WireError:      apierr.ToConnect,
		Logger:         n.log,
		Scheme:         n.creds.scheme(),
	}
	if n.creds != nil {
		deps.HTTPClient = &http.Client{Transport: n.creds.http1(2*time.Second, cfg.AppendsPerOwner)}
	}
	var err error
	if n.plane, err = dataplane.New(cfg, deps); err != nil {
		return fmt.Errorf("open the ingress queue: %w", err)
	}
	n.agent.Attach(nodeagent.Plane{
		Routes:   router,
		Ingress:  ingressDepth{n.plane},
		Producer: salvager{plane: n.plane, router: router},
	})
	return nil
}

// setRetention gives an opened log what its topic asks for.
func (n *agentNode) setRetention(p cluster.PartitionID, topic cluster.Topic) {
	if topic.Retention <= 0 {
		return
	}
	if l, err := n.logs.Log(p); err == nil {
		l.SetRetention(topic.Retention)
	}
}

// handler mounts everything on the agent's one listener.
func (n *agentNode) handler(metrics http.Handler) (http.Handler, error) {
	mux := http.NewServeMux()
	server := connect.NewServer()
	n.plane.Register(server)
	n.agent.Handlers(mux, server)
	services, err := rest.NewHandler(rest.Options{
		Server: server, MaxBytes: maxRequestBytes, Ready: n.ready, REST: []string{nodev1connect.DataServiceName},
	})
	if err != nil {
		return nil, err
	}
	mux.Handle("/", services)
	mountHealth(mux, n.ready)
	mountCommon(mux, metrics)
	return mux, nil
}

func (n *agentNode) ready() []string { return n.agent.Ready() }

// run serves until ctx ends or the cluster refuses the node, then releases everything. started is called
// when the listener serves.
func (n *agentNode) run(ctx context.Context, metrics http.Handler, started func()) error {
	handler, err := n.handler(metrics)
	if err != nil {
		return errors.Join(err, n.ln.Close(), n.agent.Close())
	}
	web := serveHTTP(n.ln, handler, n.creds, n.log)
	started()
	life, end := context.WithCancel(ctx)
	defer end()
	var wg sync.WaitGroup
	failed := make(chan error, 2)
	wg.Go(func() { n.plane.Run(life) })
	wg.Go(func() {
		if err := n.agent.Run(life); err != nil {
			failed <- err
		}
		end()
	})
	select {
	case <-life.Done():
	case err := <-web.failed:
		if err != nil {
			failed <- err
		}
	}
	// Requests end first, while what they use still runs; then the loops; then the files.
	web.stop(context.WithoutCancel(ctx))
	end()
	wg.Wait()
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, n.agent.Close())...)
}

// runAgent is the agent daemon.
func runAgent(ctx context.Context, d *daemonEnv, c config.Config) error {
	creds, err := loadCredentials(c.TLS)
	if err != nil {
		return withCode(codeUsage, err)
	}
	ln, err := listen("agent.listen", c.Agent.Listen)
	if err != nil {
		return err
	}
	n, err := openAgent(c.Agent, ln, creds, d.Log)
	if err != nil {
		return errors.Join(startRefused("agent", c.Agent.DataDir, err), ln.Close())
	}
	if err := n.observe(d.Meters.Meter("naradnode")); err != nil {
		return errors.Join(err, n.agent.Close(), ln.Close())
	}
	var notify *notifier
	err = n.run(ctx, d.Metrics, func() {
		d.announce("agent %s listening on %s, advertised as %s", c.Agent.NodeID, ln.Addr(), n.address)
		d.Log.Info("agent started", zap.String("node", c.Agent.NodeID), zap.String("listen", ln.Addr().String()),
			zap.String("advertise", n.address), zap.String("data_dir", c.Agent.DataDir), zap.Strings("controllers", c.Agent.Controllers))
		notify = notifyReady(d.Log, "serving on "+n.address, selfCheck(ln, n.address, creds))
		context.AfterFunc(ctx, notify.stopping)
	})
	if errors.Is(err, nodeagent.ErrRemoved) {
		// The end that a decommission leads to.
		d.announce("agent %s was decommissioned: it holds nothing that is needed; the data directory %s may be deleted", c.Agent.NodeID, c.Agent.DataDir)
		return nil
	}
	return err
}
