package cluster_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// cli runs the command line tool against the cluster and returns its output and exit code.
func (e *env) cli(args ...string) (string, int) {
	e.Helper()
	return e.local(append(args, "--addr", strings.Join(e.cluster.ControllerAddresses(), ","))...)
}

// local runs a command that asks nobody.
func (e *env) local(args ...string) (string, int) {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, binaries.release, args...)
	out, err := cmd.CombinedOutput()
	code := cmd.ProcessState.ExitCode()
	if err != nil && code <= 0 {
		e.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out), code
}

// TestC40DecommissionWait: the command returns when the node is no member, owns nothing, and its process may go.
func TestC40DecommissionWait(t *testing.T) {
	e := start(t, 3, 3)
	e.must2(e.cluster.API.CreateTopic(e.ctx, "orders", 12, ""))
	e.fill("orders", 8<<20)
	e.traffic("orders")
	if out, code := e.cli("cluster", "decommission", "agent-1", "--dry-run"); code != 0 || !strings.Contains(out, "orders/") {
		t.Fatalf("dry run: exit code %d\n%s", code, out)
	}
	out, code := e.cli("cluster", "decommission", "agent-1", "--wait", "--yes", "--timeout", "90s")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	members, err := e.cluster.API.Members(e.ctx)
	e.must(err)
	if members["agent-1"] != nil {
		t.Errorf("agent-1 is a member: %v", members["agent-1"])
	}
	for _, id := range []string{"agent-2", "agent-3"} {
		if n := members[id].GetOwned(); n != 6 {
			t.Errorf("%s owns %d of 12, want 6", id, n)
		}
	}
	e.load.SetAgents(e.cluster.AgentAddresses()[1:])
	e.must(e.cluster.Agents[0].Stop(15 * time.Second))
	e.verdict()
}

func (e *env) must2(_ any, err error) {
	e.Helper()
	e.must(err)
}

// TestC39RefusedDrains: a node that does not exist, and the last receiver, are refused; nothing changes.
func TestC39RefusedDrains(t *testing.T) {
	e := start(t, 1, 2)
	e.topic("orders", 4)
	before, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	if out, code := e.cli("cluster", "decommission", "agent-9", "--yes"); code != 5 || !strings.Contains(out, "agent-9") {
		t.Errorf("unknown node: exit code %d, want 5\n%s", code, out)
	}
	if out, code := e.cli("cluster", "decommission", "agent-1", "agent-2", "--yes"); code != 3 || !strings.Contains(out, "no receivers") {
		t.Errorf("last receivers: exit code %d, want 3\n%s", code, out)
	}
	after, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	if after.GetRevision() != before.GetRevision() {
		t.Errorf("the revision went from %d to %d: something changed", before.GetRevision(), after.GetRevision())
	}
}

// TestC43LeaderOffDeparting: four hosts run a controller and an agent each. The host whose controller leads is decommissioned: leadership
// moves, its voter goes, it is no member. The next such decommission is refused by min_voters with the numbers.
func TestC43LeaderOffDeparting(t *testing.T) {
	e := start(t, 3, 0)
	_, err := e.cluster.AddController("ctl-4")
	e.must(err)
	voters := func(want uint32) {
		t.Helper()
		limit, cancel := context.WithTimeout(e.ctx, 60*time.Second)
		defer cancel()
		e.must(harness.Poll(limit, fmt.Sprintf("%d voters", want), func() error {
			s, err := e.cluster.API.Status(limit)
			if err != nil {
				return err
			}
			if s.GetVoters() != want || s.GetLearners() != 0 {
				return fmt.Errorf("%d voters, %d learners", s.GetVoters(), s.GetLearners())
			}
			return nil
		}))
	}
	voters(4)
	for i := range 4 {
		e.must2(e.cluster.AddAgent(e.ctx, fmt.Sprintf("agent-%d", i+1), "--voter", fmt.Sprintf("ctl-%d", i+1)))
	}
	e.load.SetAgents(e.cluster.AgentAddresses())
	e.must2(e.cluster.API.CreateTopic(e.ctx, "orders", 8, ""))
	e.traffic("orders")
	leader, err := e.cluster.API.Leader(e.ctx)
	e.must(err)
	host := "agent-" + strings.TrimPrefix(leader, "ctl-")
	if out, code := e.cli("cluster", "decommission", host, "--wait", "--yes", "--timeout", "90s"); code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	voters(3)
	now, err := e.cluster.API.Leader(e.ctx)
	e.must(err)
	if now == leader {
		t.Errorf("%s still leads", leader)
	}
	var left []string
	for _, p := range e.cluster.Agents {
		if p.Name != host {
			left = append(left, p.Address)
		}
	}
	e.load.SetAgents(left)
	e.must(e.cluster.Process(host).Stop(15 * time.Second))
	next := "agent-" + strings.TrimPrefix(now, "ctl-")
	out, code := e.cli("cluster", "decommission", next, "--yes")
	if code != 3 || !strings.Contains(out, "min_voters=3") || !strings.Contains(out, "voters=3") {
		t.Errorf("exit code %d, want 3 and the numbers of min_voters\n%s", code, out)
	}
	e.verdict()
}

// TestC23ThousandEmptyPartitions: partitions that were never written move like all others, a thousand of them by one
// drain, under traffic on others.
func TestC23ThousandEmptyPartitions(t *testing.T) {
	e := start(t, 3, 2)
	e.must2(e.cluster.API.CreateTopic(e.ctx, "empty", 2000, ""))
	e.must2(e.cluster.API.CreateTopic(e.ctx, "orders", 2, ""))
	e.must(e.cluster.API.AwaitOpen(e.ctx, "empty"))
	e.must(e.cluster.API.AwaitOpen(e.ctx, "orders"))
	e.traffic("orders")
	members, err := e.cluster.API.Members(e.ctx)
	e.must(err)
	moves := members["agent-2"].GetOwned()
	if moves < 1000 {
		t.Fatalf("agent-2 owns %d partitions, want at least 1000", moves)
	}
	began := time.Now()
	if out, code := e.cli("cluster", "decommission", "agent-2", "--wait", "--yes", "--timeout", "300s"); code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	took := time.Since(began)
	t.Logf("%d partitions drained in %s, %.0f/s", moves, took.Round(time.Millisecond), float64(moves)/took.Seconds())
	as, err := e.cluster.API.Assignments(e.ctx, "empty")
	e.must(err)
	for _, a := range as {
		if a.GetOwner() != "agent-1" || a.GetTarget() != "" {
			t.Fatalf("partition %d is at %s, target %q", a.GetPartition().GetIndex(), a.GetOwner(), a.GetTarget())
		}
	}
	e.load.SetAgents(e.cluster.AgentAddresses()[:1])
	e.verdict()
}
