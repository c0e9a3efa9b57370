package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/config"
	"github.com/naradctl/naradctl-plane/internal/telemetry"
	"github.com/naradctl/naradctl-plane/nodeagent"
)

// dev is controllers and agents in one process.
type dev struct {
	*daemonEnv
	base        config.Config
	dataDir     string
	controllers int
	agents      int

	addresses []string // of the controllers
	agentsAt  []string // what to print of the agents
	parts     []devPart
}

// devPart is one of them.
type devPart struct {
	name string
	run  func(ctx context.Context, started func()) error
}

func (a *app) devCommand() *cobra.Command {
	d := &dev{base: config.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run controllers and agents in one process on loopback, to try things",
		Long: `Run controllers and agents in one process on loopback, to try things. The code and the defaults are
those of the daemons; data stays in --data-dir and is found again by the next run. Controllers listen
from port 7400 on, agents from 7500 on, or on free ports where those are taken. Each of them serves its
own /healthz, /readyz and /metrics, as a daemon does.`,
		Example: "  naradctl-plane dev\n  naradctl-plane dev --controllers 3 --agents 5 --data-dir /tmp/narad",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.controllers < 1 || d.controllers > 7 || d.agents < 1 || d.agents > 50 {
				return withCode(codeUsage, errors.New("--controllers must be 1 to 7, --agents 1 to 50"))
			}
			return a.runDaemon(cmd.Context(), "dev", "dev", d.base, func(ctx context.Context, env *daemonEnv) error {
				d.daemonEnv = env
				return d.run(ctx)
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&d.controllers, "controllers", 1, "number of controllers")
	f.IntVar(&d.agents, "agents", 3, "number of agents")
	f.StringVar(&d.dataDir, "data-dir", "naradplane-data/dev", "directory of all data")
	f.StringVar(&d.base.Log.Level, "log-level", "warn", "debug, info, warn or error")
	f.StringVar(&d.base.Log.Format, "log-format", "console", "json or console")
	return cmd
}

// run opens everything, runs it until ctx ends or a part fails, and waits for all.
func (d *dev) run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	if err := d.addControllers(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	failed := make(chan error, d.controllers+d.agents)
	d.start(ctx, end, &wg, failed)
	// Agents come when the controllers serve, so that they need not wait for a first retry.
	err := d.addAgents()
	if err != nil {
		end()
	} else {
		d.start(ctx, end, &wg, failed)
		d.greet()
	}
	wg.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	return err
}

// start runs the parts that were added and returns when all of them serve.
func (d *dev) start(ctx context.Context, end context.CancelFunc, wg *sync.WaitGroup, failed chan<- error) {
	var serving sync.WaitGroup
	for _, p := range d.parts {
		serving.Add(1)
		once := sync.OnceFunc(serving.Done)
		wg.Go(func() {
			defer once()
			err := p.run(ctx, once)
			switch {
			case errors.Is(err, nodeagent.ErrRemoved):
				d.announce("%s was decommissioned and has stopped", p.name)
			case err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)):
				failed <- fmt.Errorf("%s: %w", p.name, err)
				end()
			}
		})
	}
	serving.Wait()
	d.parts = nil
}

// listenNear binds a port, or a free one when it is taken and may differ.
func listenNear(port int, fixed bool) (net.Listener, error) {
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil || fixed {
		return ln, err
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

func (d *dev) addControllers(ctx context.Context) error {
	var listeners []net.Listener
	var peers []string
	for i := range d.controllers {
		// Several controllers know each other by address, also the next time.
		ln, err := listenNear(7400+i, d.controllers > 1)
		if err != nil {
			return fmt.Errorf("controllers need the ports from 7400 on: %w", err)
		}
		listeners = append(listeners, ln)
		d.addresses = append(d.addresses, ln.Addr().String())
		peers = append(peers, fmt.Sprintf("ctl-%d=%s", i+1, ln.Addr()))
	}
	for i, ln := range listeners {
		c := d.base.Controller
		c.Name = fmt.Sprintf("ctl-%d", i+1)
		c.Listen, c.Advertise = ln.Addr().String(), ""
		c.DataDir = filepath.Join(d.dataDir, c.Name)
		if d.controllers > 1 {
			c.Peers = peers
		}
		meters, page, err := telemetry.NewPage()
		if err != nil {
			return err
		}
		n, err := openController(ctx, c, ln, nil, d.Log.With(zap.String("controller", c.Name)), meters.Meter("naradplane"))
		if err != nil {
			return startRefused("controller", c.DataDir, err)
		}
		d.parts = append(d.parts, devPart{c.Name, func(ctx context.Context, started func()) error {
			return n.run(ctx, page, started)
		}})
	}
	return nil
}

func (d *dev) addAgents() error {
	for i := range d.agents {
		ln, err := listenNear(7500+i, false)
		if err != nil {
			return err
		}
		c := d.base.Agent
		c.NodeID = fmt.Sprintf("node-%d", i+1)
		c.Listen, c.Advertise = ln.Addr().String(), ""
		c.DataDir = filepath.Join(d.dataDir, c.NodeID)
		c.Controllers = d.addresses
		n, err := openAgent(c, ln, nil, d.Log.With(zap.String("agent", c.NodeID)))
		if errors.Is(err, nodeagent.ErrRemoved) {
			d.announce("%s was decommissioned in an earlier run and stays away (its data: %s)", c.NodeID, c.DataDir)
			if err := ln.Close(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return errors.Join(startRefused("agent", c.DataDir, err), ln.Close())
		}
		meters, page, err := telemetry.NewPage()
		if err == nil {
			err = n.observe(meters.Meter("naradnode"))
		}
		if err != nil {
			return errors.Join(err, n.agent.Close(), ln.Close())
		}
		d.agentsAt = append(d.agentsAt, fmt.Sprintf("agent %s listening on %s", c.NodeID, ln.Addr()))
		d.parts = append(d.parts, devPart{c.NodeID, func(ctx context.Context, started func()) error {
			return n.run(ctx, page, started)
		}})
	}
	return nil
}

// program is what the operator typed to start this, so that the lines that are printed can be pasted.
func program() string {
	if name := os.Args[0]; strings.HasSuffix(name, "naradctl-plane") && !strings.ContainsAny(name, " \t'\"") {
		return name
	}
	return "naradctl-plane"
}

func (d *dev) greet() {
	addr := ""
	if d.addresses[0] != "127.0.0.1:7400" {
		addr = " --addr " + strings.Join(d.addresses, ",")
	}
	for i, a := range d.addresses {
		d.announce("controller ctl-%d listening on %s", i+1, a)
	}
	for _, line := range d.agentsAt {
		d.announce("%s", line)
	}
	d.announce(`
Ready. In another terminal:

  %[3]s topic create orders --partitions 6%[1]s
  seq 1000 | %[3]s produce orders%[1]s
  %[3]s cluster members%[1]s
  %[3]s cluster decommission node-1 --wait%[1]s
  %[3]s cluster moves --history%[1]s
  %[3]s consume orders --group me --ack%[1]s

Ctrl-C stops everything; the data stays in %[2]s.`, addr, d.dataDir, program())
}
