package cluster_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// TestC07KillAtEveryPoint: kill -9 of source, destination or leader after every effect of a move. Each time the
// process is started again, the move ends, and nothing is lost.
func TestC07KillAtEveryPoint(t *testing.T) {
	e := start(t, 3, 2)
	topic := e.topic("orders", 4)
	e.fill("orders", 4<<20)
	e.traffic("orders")
	type victim string
	const source, destination, leader victim = "source", "destination", "leader"
	for _, k := range []struct {
		point string
		who   victim
	}{
		{faults.MoveBegun, destination}, {faults.MoveFileStaged, destination}, {faults.MoveSealedSynced, destination},
		{faults.MoveConverged, destination}, {faults.MoveFrozen, destination}, {faults.MoveDrained, destination},
		{faults.MoveVerified, destination}, {faults.MoveInstalled, destination}, {faults.MoveFlipReply, destination},
		{faults.MoveFlipped, destination}, {faults.MoveOpened, destination}, {faults.MoveReported, destination},
		{faults.HandoffMarked, source}, {faults.HandoffGranted, source}, {faults.HandoffFrozen, source},
		{faults.ReclaimConfirmed, source}, {faults.ReclaimDeleted, source},
		{faults.LeaderFlipAsked, leader}, {faults.LeaderFlipApplied, leader},
		{faults.LeaderProposed, leader}, {faults.LeaderPlanned, leader},
	} {
		a := e.assignment("orders", 0)
		from, to := a.GetOwner(), e.other(a)
		process := to
		switch k.who {
		case source:
			process = from
		case leader:
			name, err := e.cluster.API.Leader(e.ctx)
			e.must(err)
			process = name
		}
		began := time.Now()
		if k.point == faults.LeaderProposed || k.point == faults.LeaderPlanned {
			e.leaderDiesPlanning(process, k.point)
			continue
		}
		record := e.arm(process, k.point, "kill", topic.GetTopicId())
		_, err := e.cluster.API.StartMove(e.ctx, "orders", 0, to)
		e.must(err)
		e.diesAt(process, record)
		e.moved("orders", 0, to)
		e.must(harness.Poll(e.ctx, "the stale copy is reclaimed", func() error {
			if left := e.copiesOnDisk(topic, 0); len(left) != 1 {
				return fmt.Errorf("copies: %v", left)
			}
			return nil
		}))
		e.Logf("%s killed at %s: %s -> %s, ended after %s", process, k.point, from, to, time.Since(began).Round(time.Millisecond))
	}
	e.verdict()
}

// TestC07LeaderDiesAtEveryStep: kill -9 of the leader while the destination, or the source, is between two effects of a move. The
// move goes on under the next leader.
func TestC07LeaderDiesAtEveryStep(t *testing.T) {
	e := start(t, 3, 2)
	topic := e.topic("orders", 2)
	e.fill("orders", 2<<20)
	e.traffic("orders")
	source := []string{faults.HandoffMarked, faults.HandoffGranted, faults.HandoffFrozen, faults.ReclaimConfirmed, faults.ReclaimDeleted}
	for _, point := range append(source,
		faults.MoveBegun, faults.MoveFileStaged, faults.MoveSealedSynced, faults.MoveConverged, faults.MoveFrozen, faults.MoveDrained,
		faults.MoveVerified, faults.MoveInstalled, faults.MoveFlipReply, faults.MoveFlipped, faults.MoveOpened, faults.MoveReported,
	) {
		a := e.assignment("orders", 0)
		from, to := a.GetOwner(), e.other(a)
		process := to
		if slices.Contains(source, point) {
			process = from
		}
		record := e.arm(process, point, "block", topic.GetTopicId())
		_, err := e.cluster.API.StartMove(e.ctx, "orders", 0, to)
		e.must(err)
		e.struck(record)
		name, err := e.cluster.API.Leader(e.ctx)
		e.must(err)
		leader := e.cluster.Process(name)
		e.must(leader.Kill())
		e.must(leader.Start())
		e.must(harness.DisarmFaults(e.ctx, e.cluster.Process(process)))
		e.moved("orders", 0, to)
		e.must(harness.Poll(e.ctx, "the stale copy is reclaimed", func() error {
			if left := e.copiesOnDisk(topic, 0); len(left) != 1 {
				return fmt.Errorf("copies: %v", left)
			}
			return nil
		}))
		e.Logf("leader %s killed while %s was at %s", name, process, point)
	}
	e.verdict()
}

// leaderDiesPlanning kills the leader when it has planned, or has set, the move towards another agent.
func (e *env) leaderDiesPlanning(leader, point string) {
	e.Helper()
	record := e.arm(leader, point, "kill", 0)
	name := fmt.Sprintf("agent-%d", len(e.cluster.Agents)+1)
	_, err := e.cluster.AddAgent(e.ctx, name)
	e.must(err)
	resume := false
	e.must(e.settings(func(s *settings) { s.RebalancePaused = &resume }))
	e.diesAt(leader, record)
	e.must(harness.Poll(e.ctx, name+" has its share", func() error {
		members, err := e.cluster.API.Members(e.ctx)
		if err != nil {
			return err
		}
		if m := members[name]; m.GetOwned() != 1 || m.GetInbound() != 0 {
			return fmt.Errorf("it owns %d, %d inbound", m.GetOwned(), m.GetInbound())
		}
		return nil
	}))
}

// TestC01LostFlipReply: the flip is committed and its reply is lost. Both copies stay until a linearizable read says who
// owns; a peer deleted the only copy here.
func TestC01LostFlipReply(t *testing.T) {
	e := start(t, 3, 2)
	topic := e.topic("orders", 1)
	e.fill("orders", 1<<20)
	e.traffic("orders")
	a := e.assignment("orders", 0)
	to := e.other(a)
	record := e.arm(to, faults.MoveFlipReply, "error", topic.GetTopicId())
	_, err := e.cluster.API.StartMove(e.ctx, "orders", 0, to)
	e.must(err)
	e.struck(record)
	e.moved("orders", 0, to)
	e.verdict()
}

// TestC05SilentDestination: the destination is silent between install and flip; the TTL passes, the source revokes and
// accepts writes again; the flip that arrives afterwards is refused, and a later attempt completes.
func TestC05SilentDestination(t *testing.T) {
	e := start(t, 3, 2)
	topic := e.topic("orders", 1)
	e.fill("orders", 1<<20)
	e.traffic("orders")
	a := e.assignment("orders", 0)
	to := e.other(a)
	record := e.arm(to, faults.MoveInstalled, "block", topic.GetTopicId())
	move, err := e.cluster.API.StartMove(e.ctx, "orders", 0, to)
	e.must(err)
	e.struck(record)
	// C09: the source takes writes again within the TTL plus the time to revoke.
	e.must(harness.Poll(e.ctx, "the source revokes", func() error {
		if a := e.assignment("orders", 0); a.GetMoveId() != move || a.GetHandoff() != 1 || a.GetGranted() {
			return fmt.Errorf("it is %v", a)
		}
		return nil
	}))
	before := e.ledger.Tally().Delivered
	e.must(harness.Poll(e.ctx, "records flow again", func() error {
		if n := e.ledger.Tally().Delivered; n < before+500 {
			return fmt.Errorf("%d were delivered since", n-before)
		}
		return nil
	}))
	e.must(harness.DisarmFaults(e.ctx, e.cluster.Process(to)))
	e.moved("orders", 0, to)
	got, err := e.cluster.API.Assignment(e.ctx, topic.GetTopicId(), 0, move)
	e.must(err)
	if h := got.GetOutcome().GetHandoff(); got.GetOutcome() != nil && h < 2 {
		t.Errorf("the move flipped by handoff %d, want a later one than the revoked", h)
	}
	e.verdict()
}
