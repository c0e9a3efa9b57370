package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// drains takes an agent away while it owns partitions that were never written: what a move costs beside its bytes.
func drains(ctx context.Context, e *env) error {
	c, err := e.cluster(ctx, harness.Options{}, "agent-1", "agent-2")
	if err != nil {
		return err
	}
	defer c.KillAll()
	if _, err := c.API.CreateTopic(ctx, "drained", uint32(2*e.drained), ""); err != nil {
		return err
	}
	e.log("%d partitions are made", 2*e.drained)
	if err := c.API.AwaitOpen(ctx, "drained"); err != nil {
		return err
	}
	members, err := c.API.Members(ctx)
	if err != nil {
		return err
	}
	moves := members["agent-2"].GetOwned()
	running := false
	after := durationpb.New(cluster.DefaultSettings().ReclaimAfter)
	if err := c.API.UpdateSettings(ctx, &planev1.Settings{RebalancePaused: &running, ReclaimAfter: after}); err != nil {
		return err
	}
	stop := e.profile(ctx, "drain", append(c.Agents, c.Controllers...)...)
	before := cpuTime(c)
	began := time.Now()
	err = decommission(ctx, c, "agent-2")
	took, cpu := time.Since(began), cpuTime(c)-before
	stop()
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%d moves in %s, %.1f ms of processor time each, of all daemons", moves, took.Round(time.Second/10), milli(cpu)/float64(moves))
	return e.add(row(fmt.Sprintf("%d empty partitions drained", e.drained), float64(moves)/took.Seconds(), "moves/s", valueAtLeast(200), note))
}
