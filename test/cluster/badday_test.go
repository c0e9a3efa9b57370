package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/faults"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// wants runs a command and demands its exit code and what it prints.
func (e *env) wants(code int, text string, args ...string) string {
	e.Helper()
	out, got := e.cli(args...)
	if got != code || !strings.Contains(out, text) {
		e.Errorf("%s: exit code %d, want %d and %q\n%s", strings.Join(args, " "), got, code, text, out)
	}
	return out
}

// nodeIs waits until a node has a status.
func (e *env) nodeIs(id string, want planev1.NodeStatus) {
	e.Helper()
	e.must(harness.Poll(e.ctx, fmt.Sprintf("%s is %s", id, want), func() error {
		members, err := e.cluster.API.Members(e.ctx)
		if got := members[id].GetNode().GetStatus(); err == nil && got != want {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	}))
}

// TestForgetAndAdopt: a node's disk is gone. It is not forgotten while it lives, nor by mistake; then its partitions begin anew, and
// what an earlier owner still holds is put into the topic. The disk turns up after all: it can't serve, and its records are brought back.
// In the end nothing is lost.
func TestForgetAndAdopt(t *testing.T) {
	e := start(t, 1, 3)
	e.must(e.settings(func(s *settings) { s.ReclaimAfter = durationpb.New(time.Hour) }))
	e.topic("orders", 3)
	e.fill("orders", 1<<20)
	e.traffic("orders")
	// The partition that moves leaves its copy, which is not reclaimed for an hour.
	victim := "agent-3"
	for i := range uint32(3) {
		if a := e.assignment("orders", i); a.GetOwner() != victim {
			e.must2(e.cluster.API.StartMove(e.ctx, "orders", i, victim))
			e.moved("orders", i, victim)
			break
		}
	}
	e.wants(5, "agent-9", "cluster", "members", "forget", "agent-9", "--accept-loss")
	e.wants(3, "is alive", "cluster", "members", "forget", victim, "--accept-loss")
	e.wants(5, "no member", "cluster", "maintenance", "start", "agent-9")

	dead := e.cluster.Process(victim)
	e.must(dead.Kill())
	disk := filepath.Join(e.cluster.Dir, victim)
	e.must(os.Rename(disk, disk+".away"))
	e.load.SetAgents(e.cluster.AgentAddresses()[:2])
	e.nodeIs(victim, planev1.NodeStatus_NODE_STATUS_DEAD)
	before, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	e.wants(3, "loses 2 partitions", "cluster", "members", "forget", victim)
	e.wants(0, "nothing was changed", "cluster", "members", "forget", victim, "--dry-run")
	after, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	if after.GetRevision() != before.GetRevision() {
		t.Errorf("the revision went from %d to %d: something changed", before.GetRevision(), after.GetRevision())
	}
	t.Log(e.wants(0, "2 partitions began anew", "cluster", "members", "forget", victim, "--accept-loss"))
	e.confirmed("orders")
	for i := range uint32(3) {
		if a := e.assignment("orders", i); a.GetOwner() == victim {
			t.Fatalf("orders/%d is still at %s", i, victim)
		}
	}

	e.must(e.settings(func(s *settings) { s.ReclaimAfter = durationpb.New(200 * time.Millisecond) }))

	// The disk is back. It joins as a member that owns nothing.
	e.must(os.Rename(disk+".away", disk))
	e.must(dead.Start())
	e.must(e.cluster.WaitReady(e.ctx, dead))
	e.load.SetAgents(e.cluster.AgentAddresses())
	for i := range uint32(3) {
		copies := fmt.Sprintf("%s/store/partitions/%d/%d", disk, e.assignment("orders", i).GetPartition().GetTopicId(), i)
		if _, err := os.Stat(copies); err == nil {
			t.Log(e.wants(0, "is in the topic again", "cluster", "partition", "adopt", fmt.Sprintf("orders/%d", i), "--from", victim, "--wait"))
			if _, err := os.Stat(copies); err == nil {
				t.Errorf("%s is still there", copies)
			}
		}
	}
	e.verdict()
}

// TestPromoteRetryAndMaintenance: an operator ends a back-off, promotes a copy by hand with and without a loss, and keeps the planner's
// hands off a node.
func TestPromoteRetryAndMaintenance(t *testing.T) {
	e := start(t, 1, 3)
	e.must(e.settings(func(s *settings) { s.ForcePromoteAfter = durationpb.New(0) }))
	topic := e.topic("orders", 3)
	e.fill("orders", 12<<20)
	e.traffic("orders")
	a := e.assignment("orders", 0)
	from, to := a.GetOwner(), e.another(a.GetOwner())
	name := "orders/0"
	e.wants(5, "no move", "cluster", "move", "retry", name)
	e.wants(5, "no move", "cluster", "move", "force-promote", name)

	// Maintenance: nothing is moved to or from the node, and it is not drained.
	e.wants(0, "in maintenance", "cluster", "maintenance", "start", from, "--reason", "new memory")
	e.wants(0, "new memory", "cluster", "members")
	e.wants(3, "maintenance stop", "cluster", "move", "start", name, "--to", to)
	e.wants(3, "maintenance stop", "cluster", "decommission", from, "--yes")
	e.wants(0, "not in maintenance any more", "cluster", "maintenance", "stop", from)

	// The pause and the settings say what they changed.
	e.wants(0, "paused already", "cluster", "rebalance", "pause")
	e.wants(0, "rebalancing", "cluster", "rebalance", "status")
	e.wants(0, "max_in_flight_moves: 8 → 5", "cluster", "settings", "set", "max_in_flight_moves=5")
	e.wants(0, "copy_rate_per_node: unlimited → 64 KiB/s", "cluster", "settings", "set", "copy_rate_per_node=64KiB")

	// A move that copies slowly, and its source dies: the copy is not complete.
	record := e.arm(to, faults.MoveBegun, "error", topic.GetTopicId())
	e.wants(0, "moving", "cluster", "move", "start", name, "--to", to)
	e.struck(record)
	e.wants(3, "is alive", "cluster", "move", "force-promote", name)
	e.wants(0, "tries again", "cluster", "move", "retry", name)
	e.must(harness.Poll(e.ctx, "some of it is copied", func() error {
		m, err := e.cluster.API.Moves(e.ctx, false)
		if err == nil && (len(m.GetMoves()) == 0 || m.GetMoves()[0].GetProgress().GetDoneBytes() == 0) {
			err = fmt.Errorf("%v", m.GetMoves())
		}
		return err
	}))
	source := e.cluster.Process(from)
	e.must(source.Kill())
	var left []string
	for _, p := range e.cluster.Agents {
		if p.Name != from {
			left = append(left, p.Address)
		}
	}
	e.load.SetAgents(left)
	e.nodeIs(from, planev1.NodeStatus_NODE_STATUS_DEAD)
	// Who is about to be forgotten has a copy that could be promoted.
	e.wants(3, "force-promote orders/0", "cluster", "members", "forget", from, "--accept-loss")
	e.wants(3, "--accept-loss", "cluster", "move", "force-promote", name)
	t.Log(e.wants(0, "lost: at most", "cluster", "move", "force-promote", name, "--accept-loss"))
	e.moved("orders", 0, to)
	// The disk is not gone after all: what the copy never had comes back.
	e.must(e.settings(func(s *settings) { unlimited := uint64(0); s.CopyRatePerNode = &unlimited }))
	e.must(source.Start())
	e.must(e.cluster.WaitReady(e.ctx, source))
	e.load.SetAgents(e.cluster.AgentAddresses())
	e.verdict()
}

// TestControllersByHand: a controller is admitted, promoted and removed by commands; a learner that is behind is refused with the numbers.
func TestControllersByHand(t *testing.T) {
	e := start(t, 3, 0)
	e.wants(5, "ctl-9", "cluster", "controllers", "promote", "ctl-9")
	e.wants(0, "voter already", "cluster", "controllers", "promote", "ctl-2")
	e.wants(2, "--store-id", "cluster", "controllers", "add", "ctl-4")
	addr, err := harness.FreeAddress()
	e.must(err)
	e.wants(0, "learner", "cluster", "controllers", "add", "ctl-4", "--address", addr, "--store-id", "0d2f1f6e-3f0a-4f53-9c38-111111111111")
	e.wants(0, "learner", "cluster", "controllers", "list")
	e.wants(3, "entries behind", "cluster", "controllers", "promote", "ctl-4")
	e.wants(3, "learner", "cluster", "controllers", "transfer-leader", "ctl-4")
	e.wants(0, "no controller any more", "cluster", "controllers", "remove", "ctl-4")
	e.wants(3, "min_voters=3", "cluster", "controllers", "remove", "ctl-3")
	e.wants(0, "1 of 3 voters may be away", "cluster", "controllers", "list")
}
