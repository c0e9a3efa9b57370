package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// copyRounds is how often each copy is measured; the bare loop is measured before each.
const copyRounds = 3

// copies measures the throughput of whole moves: begun, copied, synced, verified, flipped.
func copies(ctx context.Context, e *env) error {
	plain, bareRate, err := e.copyOnce(ctx, harness.Options{}, 1)
	if err != nil {
		return err
	}
	note := "against a bare loop: read, one loopback TCP connection, write, sync"
	if err := e.add(compared(fmt.Sprintf("copy of one partition of %d MiB", e.sizeMiB), plain, bareRate, "MB/s", ratioAtLeast(0.9), note)); err != nil {
		return err
	}
	eight, bareEight, err := e.copyOnce(ctx, harness.Options{}, 8)
	if err != nil {
		return err
	}
	note = "against 8 such loops at once"
	if err := e.add(compared(fmt.Sprintf("copy of 8 partitions at once, %d MiB in all", e.sizeMiB), eight, bareEight, "MB/s", ratioAtLeast(0.9), note)); err != nil {
		return err
	}
	opts, err := tlsOptions(e.dir)
	if err != nil {
		return err
	}
	defer harness.Plain()
	secured, _, err := e.copyOnce(ctx, opts, 1)
	if err != nil {
		return err
	}
	return e.add(compared(fmt.Sprintf("copy of one partition of %d MiB with TLS", e.sizeMiB), secured, plain, "MB/s", reported, "against the same without"))
}

// copyOnce moves n partitions that hold the size in all to and fro. It returns the medians of the moves and of the bare loop,
// in megabytes per second.
func (e *env) copyOnce(ctx context.Context, opts harness.Options, n int) (moved, limit float64, err error) {
	c, topicID, err := e.filled(ctx, opts, n)
	if err != nil {
		return 0, 0, err
	}
	defer c.KillAll()
	var rates, limits []float64
	owner, other := "agent-1", "agent-2"
	for range copyRounds {
		files := segments(c.Dir, owner, topicID, n)
		if err := evictAll(files); err != nil {
			return 0, 0, err
		}
		l, err := bare(ctx, e.dir, files)
		if err != nil {
			return 0, 0, err
		}
		if err := evictAll(files); err != nil {
			return 0, 0, err
		}
		stop := e.profile(ctx, fmt.Sprintf("copy-%d", n), c.Agents...)
		r, err := e.moveAll(ctx, c, "copied", topicID, n)
		stop()
		if err != nil {
			return 0, 0, err
		}
		e.log("%d partitions: %.0f MB/s, bare %.0f MB/s", n, r/1e6, l/1e6)
		rates, limits = append(rates, r/1e6), append(limits, l/1e6)
		owner, other = other, owner
	}
	return median(rates), median(limits), nil
}

// filled runs a cluster of two agents, the first of which owns the n partitions of "copied".
func (e *env) filled(ctx context.Context, opts harness.Options, n int) (*harness.Cluster, uint64, error) {
	opts.Dir = filepath.Join(e.dir, fmt.Sprintf("cluster-%d-%d", n, time.Now().UnixNano()))
	c, err := e.cluster(ctx, opts, "agent-1")
	if err != nil {
		return nil, 0, err
	}
	t, err := c.API.CreateTopic(ctx, "copied", uint32(n), "")
	if err == nil {
		err = fill(ctx, c, harness.NewLedger(), "copied", e.sizeMiB)
	}
	if err == nil {
		_, err = c.AddAgent(ctx, "agent-2")
	}
	if err != nil {
		c.KillAll()
		return nil, 0, err
	}
	return c, t.GetTopicId(), nil
}

// fill writes a number of MiB to a topic, all of which its owners have appended on return.
func fill(ctx context.Context, c *harness.Cluster, ledger *harness.Ledger, topic string, mib int) error {
	load := harness.NewLoad(ledger, c.AgentAddresses())
	const producers, value = 4, 4096
	for range producers {
		load.Produce(ctx, harness.Producer{Topic: topic, Batch: 200, Size: value, Records: uint64(mib<<20) / value / producers})
	}
	load.WaitProducers()
	if t := ledger.Tally(); len(t.ProduceFailed) > 0 {
		return fmt.Errorf("produce: %s", t.ProduceFailed[0])
	}
	return harness.Poll(ctx, "the ingress queues are empty", func() error {
		members, err := c.API.Members(ctx)
		for id, m := range members {
			if m.GetIngressRecords() > 0 {
				return fmt.Errorf("%s has %d records", id, m.GetIngressRecords())
			}
		}
		return err
	})
}

// segments lists the files of each partition at an agent.
func segments(dir, agent string, topicID uint64, n int) [][]string {
	out := make([][]string, n)
	for i := range out {
		// The pattern is well-formed.
		out[i], _ = filepath.Glob(filepath.Join(dir, agent, "store", "partitions", fmt.Sprint(topicID), fmt.Sprint(i), "*.log"))
	}
	return out
}

func evictAll(streams [][]string) error {
	for _, files := range streams {
		if err := evict(files); err != nil {
			return err
		}
	}
	return nil
}

// moveAll moves all partitions of a topic to the other agent at once and returns bytes per second, from the first target to the
// last flip.
func (e *env) moveAll(ctx context.Context, c *harness.Cluster, topic string, topicID uint64, n int) (float64, error) {
	moves := make([]uint64, n)
	g, gctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			_, move, err := start(gctx, c, topic, uint32(i), "agent-1", "agent-2")
			moves[i] = move
			if err != nil {
				return err
			}
			return ended(gctx, c, topicID, uint32(i), move)
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	got, err := c.API.Moves(ctx, true)
	if err != nil {
		return 0, err
	}
	var first, last time.Time
	var bytes uint64
	for _, r := range got.GetHistory() {
		for i, move := range moves {
			if r.GetMoveId() != move || r.GetPartition().GetIndex() != uint32(i) {
				continue
			}
			began, end := r.GetStartedAt().AsTime(), r.GetEndedAt().AsTime()
			if first.IsZero() || began.Before(first) {
				first = began
			}
			if end.After(last) {
				last = end
			}
			bytes += r.GetStats().GetBytes()
		}
	}
	if bytes == 0 {
		return 0, fmt.Errorf("the history has none of the moves %v", moves)
	}
	return float64(bytes) / last.Sub(first).Seconds(), nil
}
