package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// clientMiB is what the topic holds, in all, whose drain clients see.
const clientMiB = 1024

// clients measures produce latency and the longest gap of consumers while a node with half of the data is drained,
// against the same load without a move.
func clients(ctx context.Context, e *env) error {
	for _, throttled := range []bool{true, false} {
		if err := e.drainUnderLoad(ctx, throttled); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) drainUnderLoad(ctx context.Context, throttled bool) error {
	c, err := e.cluster(ctx, harness.Options{Dir: fmt.Sprintf("%s/throttled-%t", e.dir, throttled)}, "agent-1", "agent-2", "agent-3")
	if err != nil {
		return err
	}
	defer c.KillAll()
	t, err := c.API.CreateTopic(ctx, "served", 9, "")
	if err == nil {
		err = c.API.AwaitOpen(ctx, "served")
	}
	if err != nil {
		return err
	}
	// Consumers first work off what was filled in.
	ledger := harness.NewLedger()
	consuming, end := context.WithCancel(ctx)
	defer end()
	load := harness.NewLoad(ledger, c.AgentAddresses()[:2])
	defer load.WaitConsumers()
	defer end()
	for i := range 2 {
		load.Consume(consuming, "served", "bench", i)
	}
	if err := fill(ctx, c, ledger, "served", clientMiB); err != nil {
		return err
	}
	if err := load.Drain(ctx); err != nil {
		return err
	}
	name, g := "unthrottled", reported
	running := false
	change := &planev1.Settings{RebalancePaused: &running}
	if throttled {
		name, g = "copies at a quarter of the limit", ratioAtMost(1.1)
		limit, err := bare(ctx, e.dir, [][]string{slices.Concat(segments(c.Dir, "agent-3", t.GetTopicId(), 9)...)})
		if err != nil {
			return err
		}
		rate := uint64(limit / 4)
		change.CopyRatePerNode = &rate
		e.log("the limit is %.0f MB/s", limit/1e6)
	}
	for i := range 4 {
		load.Produce(ctx, harness.Producer{Topic: "served", Batch: 10, Size: 1024, Every: 20 * time.Millisecond, Start: i})
	}
	defer load.StopProducers()
	pause(ctx, e.round)
	ledger.Measure()
	pause(ctx, 5*e.round)
	before := ledger.Tally()
	ledger.Measure()
	if err := c.API.UpdateSettings(ctx, change); err != nil {
		return err
	}
	if err := decommission(ctx, c, "agent-3"); err != nil {
		return err
	}
	during := ledger.Tally()
	got, err := stats(ctx, c, "served")
	if err != nil {
		return err
	}
	var frozen []time.Duration
	for _, s := range got {
		frozen = append(frozen, s.GetFreeze().AsDuration())
	}
	longest := harness.Quantile(frozen, 1)
	note := fmt.Sprintf("against without a move; p50 %.1f against %.1f, %d moves", milli(during.ProduceP50), milli(before.ProduceP50), len(got))
	if err := e.add(compared("produce p99 in a drain, "+name, milli(during.ProduceP99), milli(before.ProduceP99), "ms", g, note)); err != nil {
		return err
	}
	note = fmt.Sprintf("against the gap without a move + the longest freeze of %.1f", milli(longest))
	return e.add(compared("longest gap in consume in a drain, "+name, milli(during.ConsumeGapMax), milli(before.ConsumeGapMax+longest), "ms", ratioAtMost(1), note))
}

// pause lets the load run for a while.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// decommission drains a node and waits until it owns nothing.
func decommission(ctx context.Context, c *harness.Cluster, node string) error {
	_, err := harness.Call(ctx, c.API, func(ctx context.Context, s harness.Clients) (*planev1.DecommissionResponse, error) {
		return s.Decommission(ctx, &planev1.DecommissionRequest{Id: node})
	})
	if err != nil {
		return err
	}
	return harness.Poll(ctx, node+" owns nothing", func() error {
		members, err := c.API.Members(ctx)
		if err == nil && members[node].GetOwned() > 0 {
			err = fmt.Errorf("it owns %d", members[node].GetOwned())
		}
		return err
	})
}
