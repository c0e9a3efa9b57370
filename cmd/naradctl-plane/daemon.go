package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/naradctl/naradctl-plane/internal/config"
	"github.com/naradctl/naradctl-plane/internal/telemetry"
)

func (a *app) controllerCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run a controller",
		Long: `Run a controller: a member of the group that keeps the desired state and plans moves. Three or five
make a cluster; one is enough to try.

The first controllers of a cluster are started with the same --peers list, in any order; each waits
until all of the list were reached once, and serves "no leader" meanwhile. Later ones --join.
Every flag is a key of the file and a variable, too: naradctl-plane config show`,
		Example: `  naradctl-plane controller
  naradctl-plane controller --name ctl-1 --listen 10.0.0.1:7400 --insecure \
      --peers ctl-1=10.0.0.1:7400,ctl-2=10.0.0.2:7400,ctl-3=10.0.0.3:7400
  naradctl-plane controller --name ctl-4 --listen 10.0.0.4:7400 --insecure --join 10.0.0.1:7400`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, file)
			if err != nil {
				return err
			}
			if err := c.ValidateController(); err != nil {
				return withCode(codeUsage, err)
			}
			return a.runDaemon(cmd.Context(), "controller", c.Controller.Name, c, func(ctx context.Context, d *daemonEnv) error {
				return runController(ctx, d, c)
			})
		},
	}
	cmd.Flags().StringVar(&file, "config", "", configFlagHelp)
	config.AddFlags(cmd.Flags(), "controller")
	return cmd
}

func (a *app) agentCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run a node agent",
		Long: `Run a node agent: it stores partitions, takes records from producers, gives them to consumers, and
performs moves as the controllers want them. One runs on each host with data.
Every flag is a key of the file and a variable, too: naradctl-plane config show`,
		Example: `  naradctl-plane agent --node-id node-1
  naradctl-plane agent --node-id node-7 --listen 10.0.0.7:7500 --insecure --zone rack-2 \
      --controllers 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, file)
			if err != nil {
				return err
			}
			if err := c.ValidateAgent(); err != nil {
				return withCode(codeUsage, err)
			}
			return a.runDaemon(cmd.Context(), "agent", c.Agent.NodeID, c, func(ctx context.Context, d *daemonEnv) error {
				return runAgent(ctx, d, c)
			})
		},
	}
	cmd.Flags().StringVar(&file, "config", "", configFlagHelp)
	config.AddFlags(cmd.Flags(), "agent")
	return cmd
}

// daemonEnv is what a daemon gets from the process around it.
type daemonEnv struct {
	*telemetry.Telemetry
	// announce prints a line for the operator, such as the address.
	announce func(format string, args ...any)
}

// runDaemon sets telemetry up, runs fn until it ends or a signal comes, and shuts telemetry down. A
// second signal ends the process at once.
func (a *app) runDaemon(ctx context.Context, service, instance string, c config.Config, fn func(context.Context, *daemonEnv) error) error {
	tel, err := telemetry.New(ctx, telemetryConfig(service, instance, c))
	if err != nil {
		return err
	}
	endDebug, err := serveDebug(c.Debug.Listen, tel.Log)
	if err != nil {
		return err
	}
	defer endDebug()
	ctx, stop := interruptible(ctx)
	defer stop()
	context.AfterFunc(ctx, stop)
	d := &daemonEnv{Telemetry: tel, announce: func(format string, args ...any) {
		fmt.Fprintf(a.stdout, format+"\n", args...)
	}}
	ended := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() { a.boundStop(ctx, ended) })
	err = fn(ctx, d)
	close(ended)
	guard.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil // asked to stop while starting
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	// A collector that is away must not turn a clean stop into a failure.
	_ = tel.Shutdown(flush)
	return err
}

// boundStop ends the process when a stop takes too long. What is durable stays so: a stop is only ever a
// tidier crash.
func (a *app) boundStop(ctx context.Context, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		fmt.Fprintf(a.stderr, "error: not stopped within %s, giving up; the next start recovers\n", stopTimeout)
		os.Exit(codeError)
	}
}

func telemetryConfig(service, instance string, c config.Config) telemetry.Config {
	return telemetry.Config{
		Level: c.Log.Level, Format: c.Log.Format,
		OTLPEndpoint: c.Telemetry.OTLPEndpoint, Interval: c.Telemetry.Interval, Traces: c.Telemetry.Traces,
		Service: service, Instance: instance, Version: version,
	}
}
