package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// leaders kills the leader again and again and measures until the next proposal succeeds.
func leaders(ctx context.Context, e *env) error {
	c, err := e.cluster(ctx, harness.Options{})
	if err != nil {
		return err
	}
	defer c.KillAll()
	const kills, election = 7, time.Second // the default of election_ticks and tick
	var took []time.Duration
	for range kills {
		name, err := c.API.Leader(ctx)
		if err != nil {
			return err
		}
		p := c.Process(name)
		if err := p.Kill(); err != nil {
			return err
		}
		began := time.Now()
		if err := proposeSoon(ctx, c, p.Address, uint32(len(took))); err != nil {
			return err
		}
		took = append(took, time.Since(began))
		e.log("%s killed, %s until the next proposal", name, took[len(took)-1].Round(time.Millisecond))
		if err := p.Start(); err != nil {
			return err
		}
		if err := c.WaitReady(ctx, p); err != nil {
			return err
		}
	}
	note := fmt.Sprintf("against the election time-out; max %.0f of %d kills", milli(harness.Quantile(took, 1)), kills)
	return e.add(compared("leader killed to the next proposal, p50", milli(harness.Quantile(took, 0.5)), milli(election), "ms", ratioAtMost(2), note))
}

// proposeSoon asks all but one controller in turn until one commits a change.
func proposeSoon(ctx context.Context, c *harness.Cluster, but string, n uint32) error {
	addresses := slices.DeleteFunc(c.ControllerAddresses(), func(a string) bool { return a == but })
	passes := 100 + n
	var last error
	for ctx.Err() == nil {
		for _, a := range addresses {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			_, err := harness.ClientsOf(a).UpdateSettings(attempt, &planev1.UpdateSettingsRequest{Settings: &planev1.Settings{MaxPasses: &passes}})
			cancel()
			if err == nil {
				return nil
			}
			last = err
		}
		pause(ctx, 5*time.Millisecond)
	}
	return fmt.Errorf("no proposal succeeds: %w", last)
}
