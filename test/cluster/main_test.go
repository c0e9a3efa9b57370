// Package cluster_test runs whole clusters of real processes on loopback and real disks. Each test ends with the
// ledger's verdict: what was acknowledged was delivered.
package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// binaries are built once for all tests, or named by the environment (make cluster does).
var binaries = struct{ release, faults string }{os.Getenv("CLUSTER_TEST_RELEASE"), os.Getenv("CLUSTER_TEST_FAULTS")}

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if binaries.release != "" && binaries.faults != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "naradctl-plane-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries.release, binaries.faults = filepath.Join(dir, "naradctl-plane"), filepath.Join(dir, "naradctl-plane-faults")
	for out, tags := range map[string]string{binaries.release: "", binaries.faults: "faults"} {
		cmd := exec.Command("go", "build", "-tags", tags, "-o", out, "github.com/naradctl/naradctl-plane/cmd/naradctl-plane")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, text)
			return 1
		}
	}
	return m.Run()
}

// env is a running cluster with a ledger.
type env struct {
	*testing.T
	ctx     context.Context
	cluster *harness.Cluster
	ledger  *harness.Ledger
	load    *harness.Load
	owners  *harness.Owners
	finish  func()
}

// fast are timings that keep tests short and the relations between them as they are by default.
var fast = struct{ controller, agent []string }{
	controller: []string{"--lease-ttl", "1s", "--dead-after", "2500ms", "--tick", "50ms", "--plan-interval", "1s"},
	agent:      []string{"--heartbeat-interval", "200ms"},
}

// start runs controllers and agents and stops them at the test's end. All run the binary with fault points.
func start(t *testing.T, controllers, agents int) *env {
	t.Helper()
	return startWith(t, controllers, agents, nil)
}

// startWith is start with other options.
func startWith(t *testing.T, controllers, agents int, change func(*harness.Options)) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	opts := harness.Options{
		Dir: t.TempDir(), Release: binaries.release, Faults: binaries.faults, Controllers: controllers,
		ControllerArgs: fast.controller, AgentArgs: fast.agent, FaultsFor: func(string) bool { return true },
	}
	if change != nil {
		change(&opts)
	}
	c, err := harness.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{T: t, ctx: ctx, cluster: c, ledger: harness.NewLedger()}
	t.Cleanup(func() {
		if t.Failed() {
			e.logTails()
		}
		c.KillAll()
	})
	e.must(c.Start(ctx))
	for i := range agents {
		_, err := c.AddAgent(ctx, fmt.Sprintf("agent-%d", i+1))
		e.must(err)
	}
	e.must(c.API.UpdateSettings(ctx, &planev1.Settings{
		RebalanceDelay: durationpb.New(100 * time.Millisecond), ReclaimAfter: durationpb.New(200 * time.Millisecond),
		HandoffTtl: durationpb.New(2 * time.Second), ForcePromoteAfter: durationpb.New(time.Second),
	}))
	watchCtx, stopWatch := context.WithCancel(ctx)
	e.owners = harness.WatchOwners(watchCtx, c.ControllerAddresses())
	e.load = harness.NewLoad(e.ledger, c.AgentAddresses())
	t.Cleanup(func() { stopWatch(); e.owners.Wait() })
	return e
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) logTails() {
	for _, list := range [][]*harness.Process{e.cluster.Controllers, e.cluster.Agents} {
		for _, p := range list {
			e.Logf("=== %s (running: %t, %v)\n%s", p.Name, p.Running(), p.Err(), p.LogTail(3000))
		}
	}
}

// topic creates a topic, waits until it is open everywhere, and pauses rebalancing, so that a test's own moves are the only
// changes.
func (e *env) topic(name string, partitions uint32) *planev1.Topic {
	e.Helper()
	paused := true
	e.must(e.cluster.API.UpdateSettings(e.ctx, &planev1.Settings{RebalancePaused: &paused}))
	t, err := e.cluster.API.CreateTopic(e.ctx, name, partitions, "")
	e.must(err)
	e.must(harness.Poll(e.ctx, name+" is open", func() error {
		as, err := e.cluster.API.Assignments(e.ctx, name)
		if err != nil {
			return err
		}
		for _, a := range as {
			if !a.GetOpened() {
				return fmt.Errorf("it is %v", a)
			}
		}
		return nil
	}))
	return t
}

// traffic runs keyed producers and consumers of a topic until verdict is called.
func (e *env) traffic(topic string) {
	consumeCtx, stopConsumers := context.WithCancel(e.ctx)
	e.finish = func() { stopConsumers(); e.load.WaitConsumers() }
	e.Cleanup(e.finish)
	for i := range 2 {
		e.load.Consume(consumeCtx, topic, "test", i)
		e.load.Produce(e.ctx, harness.Producer{Topic: topic, Batch: 5, Size: 100, Pause: 5 * time.Millisecond, Start: i,
			Key: func(seq uint64) []byte { return fmt.Appendf(nil, "key-%d", seq%64) }})
	}
}

// fill produces a number of bytes into a topic, in records of 4 KiB, and waits for their acknowledgement.
func (e *env) fill(topic string, bytes int) {
	e.Helper()
	load := harness.NewLoad(e.ledger, e.cluster.AgentAddresses())
	load.Produce(e.ctx, harness.Producer{Topic: topic, Batch: 200, Size: 4096, Records: uint64(bytes / 4096),
		Key: func(seq uint64) []byte { return fmt.Appendf(nil, "fill-%d", seq%64) }})
	load.WaitProducers()
}

// verdict stops the traffic and demands that nothing acknowledged is missing and no two owners were seen.
func (e *env) verdict() {
	e.Helper()
	e.load.StopProducers()
	limit, cancel := context.WithTimeout(e.ctx, 60*time.Second)
	defer cancel()
	drained := e.load.Drain(limit)
	e.finish()
	t := e.ledger.Tally()
	e.Logf("ledger: acknowledged=%d delivered=%d lost=%d duplicates=%d produce_max=%s consume_gap_max=%s",
		t.Acknowledged, t.Delivered, t.Lost, t.Duplicates, t.ProduceMax, t.ConsumeGapMax)
	if drained != nil || t.Lost > 0 {
		e.Errorf("I2: %v; lost %d of %d: %v", drained, t.Lost, t.Acknowledged, t.FirstLost)
	}
	if t.Acknowledged == 0 {
		e.Error("nothing was acknowledged: the test showed nothing")
	}
	if t.Unknown > 0 {
		e.Errorf("%d records were delivered that nobody produced", t.Unknown)
	}
	if len(t.ProduceFailed) > 0 {
		e.Errorf("%d produce requests failed at every agent; first: %s", len(t.ProduceFailed), t.ProduceFailed[0])
	}
	for _, v := range e.owners.Violations() {
		e.Errorf("I1: %s", v)
	}
}

// arm makes a process die, block or see an error at a point, in any partition of a topic (zero: any at all). A process that
// was just started again may not listen yet.
func (e *env) arm(process, point, action string, topic uint64) (record string) {
	e.Helper()
	record = filepath.Join(e.TempDir(), "struck.json")
	arm := harness.Arm{Point: point, Action: action, TopicID: topic, Record: record}
	e.must(harness.Poll(e.ctx, "arm "+process, func() error { return harness.ArmFault(e.ctx, e.cluster.Process(process), arm) }))
	return record
}

// armNext arms the death of a process's next run, from its beginning on; with no point that run has none.
func (e *env) armNext(process, point string, topic uint64) (record string) {
	e.Helper()
	p := e.cluster.Process(process)
	p.Env = nil
	if point == "" {
		return ""
	}
	record = filepath.Join(e.TempDir(), "struck.json")
	b, err := json.Marshal([]harness.Arm{{Point: point, Action: "kill", TopicID: topic, Record: record}})
	e.must(err)
	p.Env = []string{"NARADPLANE_FAULTS=" + string(b)}
	return record
}

// struck waits until an armed fault has struck.
func (e *env) struck(record string) {
	e.Helper()
	limit, cancel := context.WithTimeout(e.ctx, 30*time.Second)
	defer cancel()
	e.must(harness.Poll(limit, "the fault strikes", func() error { _, err := harness.Struck(record); return err }))
}

// diesAt waits for a kill at a point, and starts the process again.
func (e *env) diesAt(process, record string) {
	e.Helper()
	e.struck(record)
	p := e.cluster.Process(process)
	select {
	case <-p.Done():
	case <-e.ctx.Done():
		e.Fatalf("%s did not die", process)
	}
	e.must(p.Start())
}

// assignment returns the present assignment of a partition.
func (e *env) assignment(topic string, index uint32) *planev1.Assignment {
	e.Helper()
	as, err := e.cluster.API.Assignments(e.ctx, topic)
	e.must(err)
	return as[index]
}

// other returns the agent of two that does not own a partition.
func (e *env) other(a *planev1.Assignment) string {
	if a.GetOwner() == "agent-1" {
		return "agent-2"
	}
	return "agent-1"
}

// moved waits until a partition is owned and opened by a node.
func (e *env) moved(topic string, index uint32, to string) {
	e.Helper()
	limit, cancel := context.WithTimeout(e.ctx, 60*time.Second)
	defer cancel()
	e.must(harness.Poll(limit, fmt.Sprintf("%s/%d is at %s", topic, index, to), func() error {
		as, err := e.cluster.API.Assignments(limit, topic)
		if err != nil {
			return err
		}
		if a := as[index]; a.GetOwner() != to || a.GetTarget() != "" || !a.GetOpened() {
			return fmt.Errorf("it is %v", a)
		}
		return nil
	}))
}

// copiesOnDisk lists the agents' directories of a partition.
func (e *env) copiesOnDisk(topic *planev1.Topic, index uint32) []string {
	files, err := filepath.Glob(filepath.Join(e.cluster.Dir, "agent-*", "store", "partitions", fmt.Sprint(topic.GetTopicId()), fmt.Sprint(index)))
	e.must(err)
	return files
}
