package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// env is what groups are given.
type env struct {
	release, etcd, etcdClient string
	work, profiles            string
	sizeMiB, moves, drained   int
	assignments, agents       int
	round                     time.Duration
	sink                      sink

	// Of the group that runs.
	name string
	dir  string
}

// group runs one group in a directory of its own.
func (e *env) group(ctx context.Context, g group) error {
	dir, err := os.MkdirTemp(e.work, "naradctl-plane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e.name, e.dir = g.name, dir
	began := time.Now()
	e.log("begins")
	if err := g.run(ctx, e); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	e.log("took %s", time.Since(began).Round(time.Second))
	return nil
}

// log tells of the progress.
func (e *env) log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %-9s %s (load %.1f)\n", time.Now().Format("15:04:05"), e.name, fmt.Sprintf(format, args...), load())
}

// add emits a row.
func (e *env) add(r Row) error {
	r.Load = load()
	e.log("%s: %s %s, ratio %s %s", r.Name, figure(&r.Value), r.Unit, figure(r.Ratio), r.verdict())
	return e.sink.add(r)
}

// load is the one-minute load average.
func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	return v
}

// cluster runs three controllers and some agents with default settings, but that nothing is rebalanced and that stale copies
// go at once. The caller kills it.
func (e *env) cluster(ctx context.Context, opts harness.Options, agents ...string) (*harness.Cluster, error) {
	opts.Release, opts.Debug = e.release, e.profiles != ""
	if opts.Dir == "" {
		opts.Dir = filepath.Join(e.dir, "cluster")
	}
	c, err := harness.New(opts)
	if err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		c.KillAll()
		return nil, err
	}
	for _, name := range agents {
		if _, err := c.AddAgent(ctx, name); err != nil {
			c.KillAll()
			return nil, err
		}
	}
	paused := true
	err = c.API.UpdateSettings(ctx, &planev1.Settings{RebalancePaused: &paused, ReclaimAfter: durationpb.New(0)})
	if err != nil {
		c.KillAll()
		return nil, err
	}
	return c, nil
}

// start begins the move of a partition to the agent of the two that does not own it.
func start(ctx context.Context, c *harness.Cluster, topic string, index uint32, a, b string) (*planev1.Assignment, uint64, error) {
	as, err := c.API.Assignments(ctx, topic)
	if err != nil {
		return nil, 0, err
	}
	to := a
	if as[index].GetOwner() == a {
		to = b
	}
	move, err := c.API.StartMove(ctx, topic, index, to)
	return as[index], move, err
}

// ended waits until a move is over and its stale copy gone.
func ended(ctx context.Context, c *harness.Cluster, topicID uint64, index uint32, move uint64) error {
	return harness.Poll(ctx, "the move ends", func() error {
		got, err := c.API.Assignment(ctx, topicID, index, move)
		if err != nil {
			return err
		}
		if got.GetMoveState() != planev1.MoveState_MOVE_STATE_FORGOTTEN {
			return errors.New("it has not, or the stale copy is not reclaimed")
		}
		return nil
	})
}

// stats returns what was measured of a topic's flipped moves, the oldest first.
func stats(ctx context.Context, c *harness.Cluster, topic string) ([]*planev1.MoveStats, error) {
	moves, err := c.API.Moves(ctx, true)
	if err != nil {
		return nil, err
	}
	var out []*planev1.MoveStats
	for _, r := range moves.GetHistory() {
		if r.GetPartition().GetTopic() == topic && r.GetKind() == planev1.OutcomeKind_OUTCOME_KIND_FLIPPED {
			out = append(out, r.GetStats())
		}
	}
	return out, nil
}

// memory returns a process's resident bytes now and at their highest.
func memory(pid int) (now, peak float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			now = kib * 1024
		case "VmHWM:":
			peak = kib * 1024
		}
	}
	return now, peak, nil
}

func milli(d time.Duration) float64 { return float64(d) / 1e6 }
