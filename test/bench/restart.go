package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// restarts measures how long a controller takes to come back with a large state, and a new one to receive it, and the memory
// of both.
func restarts(ctx context.Context, e *env) error {
	c, err := e.cluster(ctx, harness.Options{})
	if err != nil {
		return err
	}
	defer c.KillAll()
	ns, err := registerNodes(ctx, c, "node", 100)
	if err != nil {
		return err
	}
	defer ns.keepAlive(ctx)()
	if err := e.assign(ctx, c); err != nil {
		return err
	}
	name, err := c.API.Leader(ctx)
	if err != nil {
		return err
	}
	var follower *harness.Process
	for _, p := range c.Controllers {
		if p.Name != name {
			follower = p
		}
	}
	if err := e.restart(ctx, c, follower); err != nil {
		return err
	}
	return e.restore(ctx, c, follower, c.Process(name))
}

// assign creates topics with the wanted number of partitions in all.
func (e *env) assign(ctx context.Context, c *harness.Cluster) error {
	const topic = 50_000
	began := time.Now()
	for left, i := e.assignments, 0; left > 0; left, i = left-topic, i+1 {
		n := uint32(min(left, topic))
		_, err := harness.Call(ctx, c.API, func(context.Context, harness.Clients) (*planev1.Topic, error) {
			long, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			address, err := leaderAddress(long, c)
			if err != nil {
				return nil, err
			}
			r, err := harness.ClientsOf(address).CreateTopic(long, &planev1.CreateTopicRequest{
				Name: fmt.Sprintf("large-%d", i), Partitions: n, RequestId: fmt.Sprintf("bench-large-%d", i),
			})
			return r.GetTopic(), err
		})
		if err != nil {
			return err
		}
	}
	e.log("%d assignments were made in %s", e.assignments, time.Since(began).Round(time.Second))
	return nil
}

// restart kills a controller and starts it again.
func (e *env) restart(ctx context.Context, c *harness.Cluster, p *harness.Process) error {
	if err := p.Kill(); err != nil {
		return err
	}
	began := time.Now()
	if err := p.Start(); err != nil {
		return err
	}
	if err := current(ctx, c, p); err != nil {
		return err
	}
	took := time.Since(began)
	_, peak, err := memory(p.PID())
	if err != nil {
		return err
	}
	name := fmt.Sprintf("controller restart, %d assignments", e.assignments)
	if err := e.add(row(name, took.Seconds(), "s", valueAtMost(10), "until it serves a linearizable read")); err != nil {
		return err
	}
	return e.add(row(name+", peak memory", peak/(1<<30), "GiB", valueAtMost(1), ""))
}

// current waits until a controller answers a linearizable read, which it does with all that was committed.
func current(ctx context.Context, c *harness.Cluster, p *harness.Process) error {
	if err := c.WaitReady(ctx, p); err != nil {
		return err
	}
	return harness.Poll(ctx, p.Name+" is current", func() error {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := harness.ClientsOf(p.Address).GetAssignment(attempt, &planev1.GetAssignmentRequest{TopicId: 1})
		return err
	})
}

// restore replaces a controller by a new one, which receives a snapshot from the leader.
func (e *env) restore(ctx context.Context, c *harness.Cluster, old, leader *harness.Process) error {
	if err := old.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(c.Dir, old.Name)); err != nil {
		return err
	}
	two := uint32(2)
	if err := c.API.UpdateSettings(ctx, &planev1.Settings{MinVoters: &two}); err != nil {
		return err
	}
	_, err := harness.Call(ctx, c.API, func(ctx context.Context, s harness.Clients) (*planev1.RemoveControllerResponse, error) {
		return s.RemoveController(ctx, &planev1.RemoveControllerRequest{Name: old.Name})
	})
	if err != nil {
		return err
	}
	began := time.Now()
	p, err := c.AddController("ctl-4")
	if err != nil {
		return err
	}
	if err := current(ctx, c, p); err != nil {
		return err
	}
	took := time.Since(began)
	_, peak, err := memory(p.PID())
	if err != nil {
		return err
	}
	_, leaderPeak, err := memory(leader.PID())
	if err != nil {
		return err
	}
	name := fmt.Sprintf("snapshot and restore, %d assignments", e.assignments)
	if err := e.add(row(name, took.Seconds(), "s", valueAtMost(10), "from the start of a new controller until it serves a linearizable read")); err != nil {
		return err
	}
	if err := e.add(row(name+", peak memory", peak/(1<<30), "GiB", valueAtMost(1), "of the controller that receives")); err != nil {
		return err
	}
	return e.add(row(name+", peak memory of the leader", leaderPeak/(1<<30), "GiB", valueAtMost(1), "since it began; it created the topics, too"))
}
