package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

const (
	// watchCommits is how many commits are followed to the last watcher.
	watchCommits = 30
	// watchesPerProcess bounds the watches of one client process.
	watchesPerProcess = 5000
)

// watches measures how long it takes from the request of a commit until the last of many agents has it, and what a stream
// costs the controllers in memory. Both sides have one stream for each watcher, many of which share a connection, from
// processes of their own, spread over the members.
func watches(ctx context.Context, e *env) error {
	for _, n := range []int{e.agents / 10, e.agents} {
		ours, err := e.watchOurs(ctx, n)
		if err != nil {
			return fmt.Errorf("%d agents: %w", n, err)
		}
		theirs, why, err := e.watchEtcd(ctx, n)
		if err != nil {
			return fmt.Errorf("%d watchers of etcd: %w", n, err)
		}
		name, memory := fmt.Sprintf("watch fan-out to %d agents, p99", n), fmt.Sprintf("memory of a stream, %d agents", n)
		// Time is better when it is less: the ratio is of speeds.
		if theirs == nil {
			err = e.add(row(name, ours.p99, "ms", reported, "not compared with etcd: "+why))
		} else {
			r := compared(name, ours.p99, theirs.p99, "ms", reported, fmt.Sprintf("against etcd; p50 %.1f against %.1f; the ratio is of speeds", ours.p50, theirs.p50))
			speed := theirs.p99 / ours.p99
			r.Ratio = &speed
			err = e.add(r.judged(ratioAtLeast(1)))
		}
		if err != nil {
			return err
		}
		if theirs == nil {
			err = e.add(row(memory, ours.perStream/1024, "KiB", valueAtMost(32), ""))
		} else {
			err = e.add(compared(memory, ours.perStream/1024, theirs.perStream/1024, "KiB", valueAtMost(32), "against etcd"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fanOut is what was measured of one side.
type fanOut struct {
	p50, p99  float64 // milliseconds
	perStream float64 // bytes
}

func (e *env) watchOurs(ctx context.Context, n int) (fanOut, error) {
	c, err := e.cluster(ctx, harness.Options{Dir: fmt.Sprintf("%s/watch-%d", e.dir, n)})
	if err != nil {
		return fanOut{}, err
	}
	defer c.KillAll()
	before, err := resident(pids(c.Controllers))
	if err != nil {
		return fanOut{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return fanOut{}, err
	}
	w, err := startWatchers(ctx, n, self, "client", strings.Join(c.ControllerAddresses(), ","))
	if err != nil {
		return fanOut{}, err
	}
	defer w.stop()
	e.log("%d streams are open", n)
	stop := e.profile(ctx, fmt.Sprintf("watch-%d", n), c.Controllers...)
	defer stop()
	times, err := w.follow(ctx, func(i int) (uint64, error) {
		passes := uint32(1000 + i)
		r, err := harness.Call(ctx, c.API, func(ctx context.Context, s harness.Clients) (*planev1.UpdateSettingsResponse, error) {
			return s.UpdateSettings(ctx, &planev1.UpdateSettingsRequest{Settings: &planev1.Settings{MaxPasses: &passes}})
		})
		return r.GetRevision(), err
	})
	if err != nil {
		return fanOut{}, err
	}
	return fanned(times, before, pids(c.Controllers), n)
}

func fanned(times []time.Duration, before float64, of []int, n int) (fanOut, error) {
	after, err := resident(of)
	slices.Sort(times)
	return fanOut{
		p50: milli(harness.Quantile(times, 0.5)), p99: milli(harness.Quantile(times, 0.99)), perStream: (after - before) / float64(n),
	}, err
}

func pids(ps []*harness.Process) []int {
	var out []int
	for _, p := range ps {
		out = append(out, p.PID())
	}
	return out
}

// resident is the memory of processes, in bytes.
func resident(of []int) (sum float64, err error) {
	for _, pid := range of {
		now, _, err := memory(pid)
		if err != nil {
			return 0, err
		}
		sum += now
	}
	return sum, nil
}
