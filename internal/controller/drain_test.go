package controller

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

func (l *lab) drain(ids ...cluster.NodeID) (Drain, error) {
	l.t.Helper()
	d, err := l.leader().Decommission(l.ctx, ids, "", false, "")
	synctest.Wait()
	return d, err
}

func (l *lab) blockers(id cluster.NodeID) []string {
	l.t.Helper()
	ms, err := l.leader().Members(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, m := range ms.Members {
		if m.Node.ID == id {
			return m.Short
		}
	}
	l.t.Fatalf("node %s is no member", id)
	return nil
}

func (l *lab) gone(id cluster.NodeID) bool {
	l.t.Helper()
	_, ok := l.state().node(id)
	return !ok
}

// TestC40DrainedNodeLeavesWhenNothingIsLeft goes through all conditions one after the other.
func TestC40DrainedNodeLeavesWhenNothingIsLeft(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b", "c")
		l.topic("t", 9)
		l.agent("a", func(a *agent) { a.report.IngressRecords = 7 })
		l.pass(10 * time.Second)
		d, err := l.drain("a")
		if err != nil || len(d.Moves) != 3 || len(d.Blockers) != 0 {
			t.Fatalf("decommission: %+v %v", d, err)
		}
		stays := func(why string) {
			t.Helper()
			l.pass(6 * time.Second)
			if l.gone("a") {
				t.Fatalf("removed although: %s", why)
			}
			if bs := l.blockers("a"); !slices.ContainsFunc(bs, func(s string) bool { return strings.Contains(s, why) }) {
				t.Fatalf("blockers %q, want one with %q", bs, why)
			}
		}
		stays("owns 3 partitions")
		var unopened []cluster.Assignment
		for _, m := range l.moving() {
			l.flip(m, false)
			a, _ := l.state().assignment(m.Partition)
			a.MoveID = m.MoveID
			unopened = append(unopened, a)
		}
		stays("not opened")
		for _, a := range unopened {
			l.open(a, a.MoveID)
		}
		stays("ingress queue holds 7 records")
		// An empty queue is not enough: the node may accept another record.
		l.agent("a", func(a *agent) { a.report.IngressRecords = 0 })
		stays("still accepts records")
		l.agent("a", func(a *agent) { a.report.IngressClosed, a.report.Quarantined = true, 1 })
		stays("quarantine")
		l.agent("a", func(a *agent) { a.report.Quarantined = 0 })
		l.pass(3 * time.Second)
		if !l.gone("a") {
			t.Fatalf("still there: %q", l.blockers("a"))
		}
		l.wants(cluster.ReasonNotFound, l.heartbeat("a", 1))
	})
}

// TestC32TargetIsNotRemoved: it owns nothing, but something is on its way to it.
func TestC32TargetIsNotRemoved(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 4)
		l.join("c")
		l.pass(8 * time.Second)
		ms := l.moving()
		if len(ms) == 0 || ms[0].Target != "c" {
			t.Fatalf("moves %v", ms)
		}
		l.agent("c", func(a *agent) { a.report.IngressClosed = true })
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true }) // so that it stays a target
		if _, err := l.drain("c"); err != nil {
			t.Fatal(err)
		}
		l.pass(10 * time.Second)
		if l.gone("c") {
			t.Fatal("a target was removed")
		}
	})
}

// TestIngressReportOfAnEarlierDrainDoesNotCount: taken back, the node accepted records again.
func TestIngressReportOfAnEarlierDrainDoesNotCount(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b", "c")
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		l.agent("a", func(a *agent) { a.report.IngressClosed, a.report.Quarantined = true, 1 })
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.pass(5 * time.Second)
		if _, err := l.leader().CancelDecommission(l.ctx, "a", ""); err != nil {
			t.Fatal(err)
		}
		l.agent("a", func(a *agent) { a.silent, a.report.Quarantined = true, 0 })
		l.leader().soft.Lock()
		l.leader().soft.sessions["a"].report.Quarantined = 0
		l.leader().soft.Unlock()
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.pass(6 * time.Second)
		if l.gone("a") {
			t.Fatal("removed on the report of an earlier drain")
		}
	})
}

func TestC39GuardsRefuseAndChangeNothing(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 4)
		l.register("v", 1, "ctl-2")
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		refused := func(r cluster.Reason, want string, ids ...cluster.NodeID) {
			t.Helper()
			before := l.state().revision
			_, err := l.drain(ids...)
			if e := l.wants(r, err); !strings.Contains(e.Message, want) {
				t.Fatalf("%q does not say %q", e.Message, want)
			}
			if now := l.state().revision; now != before {
				t.Fatal("a refused decommission changed the state")
			}
		}
		refused(cluster.ReasonNotFound, "nobody", "nobody")
		refused(cluster.ReasonNotFound, "nobody", "a", "nobody")
		refused(cluster.ReasonBlocked, "min_voters=3, voters=3, removing ctl-2 leaves 2", "v")
		refused(cluster.ReasonBlocked, "no receivers", "a", "b", "v")
		d, err := l.leader().Decommission(l.ctx, []cluster.NodeID{"a", "b", "v"}, "", true, "")
		if err != nil || !slices.Contains(d.Blockers, "no receivers") || !slices.Contains(d.Blockers, "min_voters=3, voters=3, removing ctl-2 leaves 2") {
			t.Fatalf("dry run: %+v %v", d, err)
		}
		// One after the other: the last receiver stays.
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.agent("a", func(a *agent) { a.silent = false })
		_, err = l.drain("b", "v")
		l.wants(cluster.ReasonBlocked, err)
	})
}

// TestDryRunChangesNothing and names what would move where.
func TestDryRunChangesNothing(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b", "c")
		l.topic("t", 9)
		l.pass(10 * time.Second)
		before := l.state().revision
		d, err := l.leader().Decommission(l.ctx, []cluster.NodeID{"a"}, "", true, "")
		if err != nil || len(d.Moves) != 3 || len(d.Blockers) != 0 {
			t.Fatalf("dry run: %+v %v", d, err)
		}
		for _, m := range d.Moves {
			if m.From != "a" || m.To == "a" || d.Topics[m.Partition.Topic] != "t" {
				t.Fatalf("move %+v", m)
			}
		}
		l.pass(10 * time.Second)
		if l.state().revision != before || l.node("a").Draining {
			t.Fatal("a dry run changed the state")
		}
	})
}

func TestDrainOfADeadNodeSaysWhy(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.topic("orders", 4)
		l.agent("a", func(a *agent) { a.silent = true })
		l.pass(40 * time.Second)
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.pass(6 * time.Second)
		bs := strings.Join(l.blockers("a"), "; ")
		for _, want := range []string{"partition orders/", "owner dead", "ingress queue and quarantine are unknown"} {
			if !strings.Contains(bs, want) {
				t.Errorf("blockers %q do not say %q", bs, want)
			}
		}
		s := l.leader().Status(l.ctx)
		if s.Verdict != Degraded || s.Draining != 1 {
			t.Fatalf("status %+v", s)
		}
	})
}

// TestC43CoLocatedVoterLeavesBehindTheGuards: it leads, so leadership goes first; the new leader
// finishes both removals.
func TestC43CoLocatedVoterLeavesBehindTheGuards(t *testing.T) {
	inLab(t, 4, func(l *lab) {
		l.join("b", "c")
		l.register("a", 1, "ctl-1")
		l.put("a", &agent{incarnation: 1, address: address("a"), report: Report{DiskTotal: disk, DiskFree: disk / 2, SizesComplete: true, IngressClosed: true}})
		l.pass(4 * time.Second)
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.pass(20 * time.Second)
		if l.g.Member(1).Status().IsLeader() {
			t.Fatal("the voter to be removed still leads")
		}
		if !l.gone("a") {
			t.Fatalf("node is still there: %q", l.blockers("a"))
		}
		if _, ok := memberByName(l.g.Member(2).Status(), "ctl-1"); ok {
			t.Fatal("its voter is still a member")
		}
		if slices.ContainsFunc(l.state().controllers, func(k cluster.Controller) bool { return k.Name == "ctl-1" }) {
			t.Fatal("its voter is still recorded")
		}
	})
}

// TestC43GuardHoldsWhenItMatters: it was fine when asked, but a voter left since.
func TestC43GuardHoldsWhenItMatters(t *testing.T) {
	inLab(t, 4, func(l *lab) {
		l.join("b", "c")
		l.register("a", 1, "ctl-4")
		l.put("a", &agent{incarnation: 1, address: address("a"), report: Report{DiskTotal: disk, DiskFree: disk / 2, SizesComplete: true}})
		l.pass(4 * time.Second)
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.leader().RemoveController(l.ctx, "ctl-3", false); err != nil {
			t.Fatal(err)
		}
		l.agent("a", func(a *agent) { a.report.IngressClosed = true })
		l.pass(10 * time.Second)
		if l.gone("a") {
			t.Fatal("removed below min_voters")
		}
		want := "min_voters=3, voters=3, removing ctl-4 leaves 2"
		if bs := l.blockers("a"); !slices.Contains(bs, want) {
			t.Fatalf("blockers %q", bs)
		}
		if s := l.leader().Status(l.ctx); s.Verdict != Stalled {
			t.Fatalf("status %+v", s)
		}
	})
}

func TestC43VoterGuard(t *testing.T) {
	members := func(active ...bool) []consensus.MemberStatus {
		var out []consensus.MemberStatus
		for i, a := range active {
			out = append(out, consensus.MemberStatus{Active: a, Member: consensus.Member{
				ID: consensus.ID(i + 1), Name: string(rune('a' + i)), Role: consensus.Voter,
			}})
		}
		return out
	}
	for _, c := range []struct {
		name   string
		in     []consensus.MemberStatus
		remove []consensus.ID
		min    uint32
		force  bool
		want   string
	}{
		{"four to three", members(true, true, true, true), []consensus.ID{4}, 3, false, ""},
		{"three to two", members(true, true, true), []consensus.ID{3}, 3, false, "min_voters=3, voters=3, removing c leaves 2"},
		{"three to two by force", members(true, true, true), []consensus.ID{3}, 3, true, ""},
		{"two at once", members(true, true, true, true), []consensus.ID{3, 4}, 3, false, "min_voters=3, voters=4, removing c, d leaves 2"},
		{"the last one, by force", members(true), []consensus.ID{1}, 1, true, "leaves none"},
		{"a living one of five with two away", members(true, true, true, false, false), []consensus.ID{3}, 3, false, "no majority"},
		{"by force neither", members(true, true, true, false, false), []consensus.ID{3}, 3, true, "no majority"},
		{"a dead one of five with two away", members(true, true, true, false, false), []consensus.ID{5}, 3, false, ""},
		{"nobody", members(true), nil, 3, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			remove := map[consensus.ID]bool{}
			for _, id := range c.remove {
				remove[id] = true
			}
			err := voterGuard(c.in, 1, remove, c.min, c.force)
			if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Message, c.want)) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}
