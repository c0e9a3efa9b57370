package main

import (
	"context"
	"fmt"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// proposeRounds is how often each number of clients is measured, in turn with etcd.
const proposeRounds = 3

// proposals compares commands of agents with puts of the same size to etcd; clients call the leader of either.
func proposals(ctx context.Context, e *env) error {
	counts := []int{1, 16, 64, 256}
	c, err := e.cluster(ctx, harness.Options{})
	if err != nil {
		return err
	}
	defer c.KillAll()
	h, end, err := newHandoffs(ctx, c, counts[len(counts)-1])
	if err != nil {
		return err
	}
	defer end()
	rival, why, err := e.startEtcd(ctx)
	if err != nil {
		return err
	}
	defer rival.stop()
	for _, n := range counts {
		if err := e.proposeAt(ctx, c, h, rival, why, n); err != nil {
			return fmt.Errorf("%d clients: %w", n, err)
		}
	}
	return nil
}

func (e *env) proposeAt(ctx context.Context, c *harness.Cluster, h *handoffs, rival *etcdCluster, why string, n int) error {
	var rates, p50s, p99s, theirRates, theirP50s, theirP99s []float64
	for range proposeRounds {
		stop := e.profile(ctx, fmt.Sprintf("propose-%d", n), c.Controllers...)
		rate, took, err := hammer(ctx, n, e.round, h.propose)
		stop()
		if err != nil {
			return err
		}
		rates = append(rates, rate)
		p50s, p99s = append(p50s, milli(harness.Quantile(took, 0.5))), append(p99s, milli(harness.Quantile(took, 0.99)))
		if rival == nil {
			continue
		}
		r, err := rival.put(ctx, n, e.round)
		if err != nil {
			return err
		}
		e.log("%d clients: %.0f/s, etcd %.0f/s", n, rate, r.PerSecond)
		theirRates, theirP50s, theirP99s = append(theirRates, r.PerSecond), append(theirP50s, r.P50), append(theirP99s, r.P99)
	}
	name, latency := fmt.Sprintf("proposals, %d clients", n), fmt.Sprintf("proposal p99, %d clients", n)
	if rival == nil {
		if err := e.add(row(name, median(rates), "/s", reported, "not compared with etcd: "+why)); err != nil {
			return err
		}
		return e.add(row(latency, median(p99s), "ms", reported, "not compared with etcd: "+why))
	}
	if err := e.add(compared(name, median(rates), median(theirRates), "/s", ratioAtLeast(1), "against puts to etcd with 3 members")); err != nil {
		return err
	}
	note := fmt.Sprintf("against etcd; p50 %.2f against %.2f", median(p50s), median(theirP50s))
	return e.add(compared(latency, median(p99s), median(theirP99s), "ms", reported, note))
}
