package main

import (
	"context"
	"fmt"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// frozenCase is a partition whose freezes are measured.
type frozenCase struct {
	size string
	mib  int
	// writes is the write rate as a share of the copy rate, which is limited to copyRate then; zero is no writes.
	writes float64
	// moves divides the number of moves.
	moves int
}

// copyRate is what copies are limited to, in bytes per second, when writes are to keep up with them. The limit does
// not apply inside a freeze.
const copyRate = 64 << 20

var frozenCases = []frozenCase{
	{"empty", 0, 0, 1},
	{"1 MiB", 1, 0, 1},
	{"1 MiB", 1, 0.25, 1},
	{"100 MiB", 100, 0, 1},
	{"100 MiB", 100, 0.25, 1},
	{"100 MiB", 100, 0.5, 1},
	{"100 MiB", 100, 0.9, 4},
	{"2 GiB", 2048, 0, 2},
	{"2 GiB", 2048, 0.25, 4},
}

// freezes measures from the source's lock to the committed flip, by size and write rate.
func freezes(ctx context.Context, e *env) error {
	c, err := e.cluster(ctx, harness.Options{}, "agent-1", "agent-2")
	if err != nil {
		return err
	}
	defer c.KillAll()
	for i, k := range frozenCases {
		if err := e.frozen(ctx, c, fmt.Sprintf("frozen-%d", i), k); err != nil {
			return fmt.Errorf("%s, writes %g: %w", k.size, k.writes, err)
		}
	}
	return nil
}

func (e *env) frozen(ctx context.Context, c *harness.Cluster, topic string, k frozenCase) error {
	// What a freeze is made of depends on what else the machine does, so it is measured each time.
	parts, err := measureCosts(ctx, e, c)
	if err != nil {
		return err
	}
	t, err := c.API.CreateTopic(ctx, topic, 1, "")
	if err == nil {
		err = c.API.AwaitOpen(ctx, topic)
	}
	if err == nil && k.mib > 0 {
		err = fill(ctx, c, harness.NewLedger(), topic, k.mib)
	}
	if err != nil {
		return err
	}
	var rate uint64
	if k.writes > 0 {
		rate = copyRate
	}
	if err := c.API.UpdateSettings(ctx, &planev1.Settings{CopyRatePerNode: &rate}); err != nil {
		return err
	}
	load := harness.NewLoad(harness.NewLedger(), c.AgentAddresses())
	write(ctx, load, topic, k.writes*copyRate)
	for range max(2, e.moves/k.moves) {
		_, move, err := start(ctx, c, topic, 0, "agent-1", "agent-2")
		if err == nil {
			err = ended(ctx, c, t.GetTopicId(), 0, move)
		}
		if err != nil {
			return err
		}
	}
	load.StopProducers()
	got, err := stats(ctx, c, topic)
	if err != nil {
		return err
	}
	var frozen, reads []time.Duration
	converged, speed := 0, 1.0
	for _, s := range got {
		frozen = append(frozen, s.GetFreeze().AsDuration())
		reads = append(reads, time.Duration(s.GetFrozenReadBytes()))
		if s.GetConverged() {
			converged++
		}
		speed = max(speed, float64(s.GetBytes())/max(1e-3, s.GetDuration().AsDuration().Seconds()))
	}
	p99, tail := harness.Quantile(frozen, 0.99), float64(harness.Quantile(reads, 0.99))
	if k.writes > 0 {
		speed = max(speed, unthrottled)
	}
	bound := 3*parts.sum() + time.Duration(tail/speed*float64(time.Second))
	note := fmt.Sprintf("p50 %.1f, max %.1f, %d moves, %d converged; against 3 x (2 syncs + commit) + drain of the tail",
		milli(harness.Quantile(frozen, 0.5)), milli(harness.Quantile(frozen, 1)), len(frozen), converged)
	name := "freeze p99, " + k.size
	if k.writes > 0 {
		name += fmt.Sprintf(", writes %g of the copy rate", k.writes)
	}
	return e.add(compared(name, milli(p99), milli(bound), "ms", ratioAtMost(1), note))
}

// unthrottled is the copy rate of a tail, inside a freeze, when the moves themselves are throttled and do not show it: a low
// guess in bytes per second, which makes the bound harder the higher it is.
const unthrottled = 400e6

// write produces at about a rate in bytes per second until the load's producers are stopped.
func write(ctx context.Context, load *harness.Load, topic string, rate float64) {
	const batch, value = 64, 4096
	if rate <= 0 {
		return
	}
	producers := 1 + int(rate/(16<<20))
	pause := time.Duration(float64(batch*value*producers) / rate * float64(time.Second))
	for range producers {
		load.Produce(ctx, harness.Producer{Topic: topic, Batch: batch, Size: value, Every: pause})
	}
}
