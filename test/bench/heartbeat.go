package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/naradctl/naradctl-plane/internal/config"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// heartbeats measures how many heartbeats the leader answers, against how many the agents of a large cluster send.
func heartbeats(ctx context.Context, e *env) error {
	c, err := e.cluster(ctx, harness.Options{})
	if err != nil {
		return err
	}
	defer c.KillAll()
	ns, err := registerNodes(ctx, c, "node", e.agents)
	if err != nil {
		return err
	}
	defer ns.http.CloseIdleConnections()
	e.log("%d nodes are registered", e.agents)
	const connections = 256
	var next atomic.Uint64
	before := cpuTime(c)
	rate, took, err := hammer(ctx, connections, 2*e.round, func(ctx context.Context, _ int) error {
		return ns.beat(ctx, int(next.Add(1)%uint64(e.agents)))
	})
	if err != nil {
		return err
	}
	cpu := cpuTime(c) - before
	every := config.DefaultConfig().Agent.HeartbeatInterval
	note := fmt.Sprintf("against what they send, one each %s; p99 %.1f ms with %d at once, %.0f us of processor time each",
		every, milli(harness.Quantile(took, 0.99)), connections, 1000*milli(cpu)/float64(len(took)))
	return e.add(compared(fmt.Sprintf("heartbeats of %d agents", e.agents), rate, float64(e.agents)/every.Seconds(), "/s", ratioAtLeast(1), note))
}
