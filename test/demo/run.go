package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// The demo's topics.
const (
	topicOrders = "orders"
	topicAudit  = "orders-audit"
	topicEmpty  = "returns"
)

var topics = map[string]uint32{topicOrders: 24, topicAudit: 24, topicEmpty: 16}

const (
	// bulkSize is the size of a bulk record's value, bulkBatch how many go in one request.
	bulkSize  = 4 << 10
	bulkBatch = 200
	// stageTimeout bounds each stage; none takes a fraction of it when nothing is wrong.
	stageTimeout = 3 * time.Minute
)

type demo struct {
	flags
	start   time.Time
	cluster *harness.Cluster
	ledger  *harness.Ledger
	load    *harness.Load
	owners  *harness.Owners
	topicID map[string]uint64
	kills   []*kill
}

func newDemo(f flags) *demo {
	return &demo{flags: f, start: time.Now(), ledger: harness.NewLedger(), topicID: map[string]uint64{}}
}

func (d *demo) sayf(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) killAll() {
	if d.cluster != nil {
		d.cluster.KillAll()
	}
}

// run plays all stages. The verdict is whole even when a stage fails.
func (d *demo) run(ctx context.Context) (*verdict, error) {
	watchCtx, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	consumeCtx, stopConsumers := context.WithCancel(ctx)
	defer stopConsumers()
	err := d.stages(ctx, watchCtx, consumeCtx)
	if d.load != nil {
		if err == nil {
			err = d.produceEnough(ctx)
		}
		d.load.StopProducers()
		if err == nil {
			err = d.settle(ctx, consumeCtx)
		}
		stopConsumers()
		d.load.WaitConsumers()
	}
	v := d.judge(ctx)
	stopWatch()
	if d.owners != nil {
		d.owners.Wait()
	}
	return v, err
}

func (d *demo) stages(ctx, watchCtx, consumeCtx context.Context) error {
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"start 3 controllers and 3 agents", d.startCluster},
		{"create topics", d.createTopics},
		{"start producers and consumers, load", func(ctx context.Context) error {
			d.owners = harness.WatchOwners(watchCtx, d.cluster.ControllerAddresses())
			return d.loadTopics(ctx, consumeCtx)
		}},
		{"add agent-4: rebalance; kill -9 the source agent-2 while it is frozen", d.rebalance},
		{"decommission agent-1; kill -9 a destination during catch-up and the leader between freeze and flip", d.decommission},
	} {
		d.sayf("%s", s.name)
		stage, cancel := context.WithTimeout(ctx, stageTimeout)
		err := s.do(stage)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (d *demo) startCluster(ctx context.Context) error {
	var err error
	d.cluster, err = harness.New(harness.Options{
		Dir: d.dir, Release: d.release, Faults: d.faults,
		// Whoever is killed at a fault point runs the binary that has them.
		FaultsFor: func(name string) bool {
			return strings.HasPrefix(name, "ctl-") || name == "agent-2" || name == "agent-3"
		},
	})
	if err != nil {
		return err
	}
	if err := d.cluster.Start(ctx); err != nil {
		return err
	}
	for _, name := range []string{"agent-1", "agent-2", "agent-3"} {
		if _, err := d.cluster.AddAgent(ctx, name); err != nil {
			return err
		}
	}
	return d.cluster.API.UpdateSettings(ctx, &planev1.Settings{
		RebalanceDelay: durationpb.New(time.Second), ReclaimAfter: durationpb.New(5 * time.Second)})
}

func (d *demo) createTopics(ctx context.Context) error {
	for _, t := range []struct{ name, parent string }{{topicOrders, ""}, {topicAudit, topicOrders}, {topicEmpty, ""}} {
		topic, err := d.cluster.API.CreateTopic(ctx, t.name, topics[t.name], t.parent)
		if err != nil {
			return err
		}
		d.topicID[t.name] = topic.GetTopicId()
	}
	return nil
}

func (d *demo) loadTopics(ctx, consumeCtx context.Context) error {
	d.load = harness.NewLoad(d.ledger, d.cluster.AgentAddresses())
	for i, topic := range []string{topicOrders, topicAudit} {
		for n := range 2 {
			d.load.Consume(consumeCtx, topic, "demo", i+n)
			d.load.Produce(consumeCtx, harness.Producer{Topic: topic, Batch: 20, Size: 200, Pause: 15 * time.Millisecond, Start: i + n,
				Key: func(seq uint64) []byte { return fmt.Appendf(nil, "customer-%d", seq%997) }})
		}
	}
	bulk := harness.NewLoad(d.ledger, d.cluster.AgentAddresses())
	records := uint64(d.loadMiB) << 20 / bulkSize
	for i := range uint64(4) {
		p := harness.Producer{Topic: topicOrders, Batch: bulkBatch, Size: bulkSize, Records: records / 4, Start: int(i)}
		switch i {
		case 0:
			p.Key = func(uint64) []byte { return []byte("hot") }
		case 1:
			p.Topic = topicAudit
			fallthrough
		default:
			p.Key = func(seq uint64) []byte { return fmt.Appendf(nil, "bulk-%d-%d", i, seq%499) }
		}
		bulk.Produce(ctx, p)
	}
	done := make(chan struct{})
	go func() { bulk.WaitProducers(); close(done) }()
	for {
		select {
		case <-done:
			return ctx.Err()
		case <-time.After(2 * time.Second):
			t := d.ledger.Tally()
			d.sayf("  acknowledged %d, delivered %d", t.Acknowledged, t.Delivered)
		}
	}
}

func (d *demo) rebalance(ctx context.Context) error {
	if d.sabotage != sabotageSkipKill {
		if err := d.arm(ctx, "agent-2", "handoff.frozen"); err != nil {
			return err
		}
	} else {
		d.kills = append(d.kills, &kill{process: "agent-2", point: "handoff.frozen"})
	}
	if _, err := d.cluster.AddAgent(ctx, "agent-4"); err != nil {
		return err
	}
	d.load.SetAgents(d.cluster.AgentAddresses())
	return d.waitMoves(ctx, func(members map[string]*planev1.Member) error {
		return evenly(members, 4)
	})
}

func (d *demo) decommission(ctx context.Context) error {
	leader, err := d.cluster.API.Leader(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(d.arm(ctx, "agent-3", "move.file_staged"), d.arm(ctx, leader, "leader.flip_asked")); err != nil {
		return err
	}
	d.sayf("  %s", "naradctl-plane cluster decommission agent-1 --wait")
	cmd := exec.CommandContext(ctx, d.release, "cluster", "decommission", "agent-1", "--wait", "--yes",
		"--addr", strings.Join(d.cluster.ControllerAddresses(), ","))
	out, err := os.Create(filepath.Join(d.dir, "logs", "decommission.log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err = d.waitMoves(ctx, func(members map[string]*planev1.Member) error {
		if members["agent-1"] != nil {
			return fmt.Errorf("agent-1 is a member: %s", strings.Join(members["agent-1"].GetBlockers(), "; "))
		}
		return evenly(members, 3)
	})
	if err != nil {
		return err
	}
	if err := <-ended; err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("decommission --wait: %w\n%s", err, text)
	}
	// The command has returned: the process may go.
	p := d.cluster.Process("agent-1")
	d.load.SetAgents(d.cluster.AgentAddresses()[1:])
	if err := p.Stop(15 * time.Second); err != nil {
		return err
	}
	d.sayf("  agent-1 is gone, its process has ended")
	return nil
}

// waitMoves shows progress, restarts what was killed, and returns when done says so and nothing moves.
func (d *demo) waitMoves(ctx context.Context, done func(map[string]*planev1.Member) error) error {
	last := time.Now()
	for {
		if err := d.tendKills(ctx); err != nil {
			return err
		}
		members, err := d.cluster.API.Members(ctx)
		if err != nil {
			return err
		}
		moves, err := d.cluster.API.Moves(ctx, true)
		if err != nil {
			return err
		}
		why := done(members)
		if why == nil && len(moves.GetMoves()) == 0 && d.killsSettled() {
			d.sayf("  balanced: %s", shares(members))
			return nil
		}
		if time.Since(last) > 2*time.Second {
			last = time.Now()
			d.sayf("  moves: %d in flight, %d ended; owned: %s", len(moves.GetMoves()), len(moves.GetHistory()), shares(members))
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), why, d.killsError())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// produceEnough lets the producers go on until enough records were acknowledged for the verdict.
func (d *demo) produceEnough(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return harness.Poll(limit, "enough records are acknowledged", func() error {
		if n := d.ledger.Tally().Acknowledged; n < d.minRecords+d.minRecords/20 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// settle stops the load and waits until everything acknowledged was delivered.
func (d *demo) settle(ctx, consumeCtx context.Context) error {
	if d.sabotage == sabotageDropRecord {
		if err := d.dropRecord(ctx); err != nil {
			return err
		}
	}
	d.sayf("producers stopped; consumers drain")
	if d.sabotage == sabotageDropRecord {
		// What was dropped never comes; the verdict says so.
		limit, cancel := context.WithTimeout(consumeCtx, 15*time.Second)
		defer cancel()
		_ = d.load.Drain(limit)
		return nil
	}
	limit, cancel := context.WithTimeout(consumeCtx, 45*time.Second)
	defer cancel()
	return d.load.Drain(limit)
}
