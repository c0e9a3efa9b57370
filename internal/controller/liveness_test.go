package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

func (l *lab) heartbeat(id cluster.NodeID, inc cluster.Incarnation) error {
	l.t.Helper()
	_, err := l.leader().Heartbeat(l.ctx, id, inc, address(id), Report{})
	return err
}

func TestI10VerdictNamesIncarnationAndLastHWMs(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		p := cluster.PartitionID{Topic: l.topic("t", 1).ID}
		l.agent("a", func(a *agent) { a.report.OutboundHWMs = []cluster.PartitionOffset{{Partition: p, Offset: 42}} })
		l.pass(4 * time.Second)
		l.agent("a", func(a *agent) { a.silent = true })
		l.pass(27 * time.Second)
		if n := l.node("a"); n.Status != cluster.NodeAlive {
			t.Fatal("declared dead before dead_after")
		}
		l.pass(5 * time.Second)
		n := l.node("a")
		if n.Status != cluster.NodeDead || len(n.DeadHWMs) != 1 || n.DeadHWMs[0].Offset != 42 {
			t.Fatalf("after dead_after: %+v", n)
		}
		if l.node("b").Status != cluster.NodeAlive {
			t.Fatal("b sent heartbeats and was declared dead")
		}
		l.wants(cluster.ReasonStaleIncarnation, l.heartbeat("a", 1))
		l.register("a", 2, "")
		if err := l.heartbeat("a", 2); err != nil {
			t.Fatalf("after registering anew: %v", err)
		}
		l.wants(cluster.ReasonStaleIncarnation, l.heartbeat("a", 1))
	})
}

// TestC35LeaderChangesDeclareNobodyDead: a hundred leaders in turn, each gone before dead_after, with no
// heartbeat at all: silence that no leader has lived through is no silence.
func TestC35LeaderChangesDeclareNobodyDead(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a", "b")
		l.agent("a", func(a *agent) { a.silent = true })
		l.agent("b", func(a *agent) { a.silent = true })
		for i := range 100 {
			l.g.Lead(i%3 + 1)
			l.pass(29 * time.Second)
		}
		for _, id := range []cluster.NodeID{"a", "b"} {
			if n := l.node(id); n.Status != cluster.NodeAlive {
				t.Fatalf("node %s was declared dead", id)
			}
		}
		l.pass(2 * time.Second)
		if n := l.node("a"); n.Status != cluster.NodeDead {
			t.Fatal("a leader that lived through dead_after gave no verdict")
		}
	})
}

// TestC75I10NoLeaseWhileAVerdictIsOutstanding: the verdict is in the log, not applied; a heartbeat arrives.
func TestC75I10NoLeaseWhileAVerdictIsOutstanding(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a")
		l.agent("a", func(a *agent) { a.silent = true })
		l.g.Hold()
		l.pass(31 * time.Second)
		if l.g.Held() != 1 {
			t.Fatalf("%d proposals are on their way, want the verdict", l.g.Held())
		}
		if l.node("a").Status != cluster.NodeAlive {
			t.Fatal("the verdict is applied already")
		}
		l.wants(cluster.ReasonStaleIncarnation, l.heartbeat("a", 1))
		// The proposal times out: its outcome is unknown, so it stays outstanding.
		l.pass(15 * time.Second)
		l.wants(cluster.ReasonStaleIncarnation, l.heartbeat("a", 1))
		l.g.Release()
		synctest.Wait()
		if l.node("a").Status != cluster.NodeDead {
			t.Fatal("the verdict was not applied")
		}
		l.wants(cluster.ReasonStaleIncarnation, l.heartbeat("a", 1))
	})
}

// TestC75VerdictLostWithItsLeader: the next leader knows that it can't be applied any more.
func TestC75VerdictLostWithItsLeader(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a")
		l.agent("a", func(a *agent) { a.silent = true })
		l.g.Hold()
		l.pass(31 * time.Second)
		l.g.Lead(0)
		l.g.Release()
		l.g.Lead(2)
		synctest.Wait()
		if err := l.heartbeat("a", 1); err != nil {
			t.Fatalf("the new leader refused a living node: %v", err)
		}
		// Leading again, the old one starts anew too.
		l.g.Lead(1)
		synctest.Wait()
		if err := l.heartbeat("a", 1); err != nil {
			t.Fatalf("after leading again: %v", err)
		}
	})
}

func TestI10DeposedLeaderRenewsNoLease(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a")
		old := l.leader()
		l.g.Lead(2)
		_, err := old.Heartbeat(l.ctx, "a", 1, address("a"), Report{})
		l.wants(cluster.ReasonNoLeader, err)
		// A new leader that has not applied its own first entry renews none either.
		l.g.Lag(3)
		l.g.Lead(3)
		_, err = l.ctls[2].Heartbeat(l.ctx, "a", 1, address("a"), Report{})
		l.wants(cluster.ReasonNoLeader, err)
		l.g.Catch(3)
		if err := l.heartbeat("a", 1); err != nil {
			t.Fatalf("once current: %v", err)
		}
	})
}

func TestC36DrainFlagSurvivesRegistrations(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 4)
		if _, err := l.leader().Decommission(l.ctx, []cluster.NodeID{"a"}, "disk swap", false, ""); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			l.register("a", cluster.Incarnation(i+2), "")
			if i%10 == 0 {
				l.g.Lead(i/10%3 + 1)
				synctest.Wait()
			}
		}
		if n := l.node("a"); !n.Draining || n.DrainReason != "disk swap" {
			t.Fatalf("after 50 registrations: %+v", n)
		}
		if _, err := l.leader().CancelDecommission(l.ctx, "a", ""); err != nil {
			t.Fatal(err)
		}
		if l.node("a").Draining {
			t.Fatal("the operator's cancellation did not clear the mark")
		}
	})
}

func TestC37SecondAgentWithOneID(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		reg := func(store cluster.StoreID, inc cluster.Incarnation, addr string) error {
			_, _, err := l.leader().Register(l.ctx, Registration{Node: "a", StoreID: store, Incarnation: inc, Address: addr})
			return err
		}
		// Another disk: refused for ever, with the command to run.
		err := l.wants(cluster.ReasonForeignStore, reg("store-other", 9, address("a")))
		if err.Message == "" {
			t.Fatal("the refusal says nothing")
		}
		// A copy of the disk elsewhere: refused while the first one lives.
		e := l.wants(cluster.ReasonBlocked, reg("store-a", 9, "elsewhere.example:7000"))
		if e.RetryAfter <= 0 || e.RetryAfter > 10*time.Second {
			t.Fatalf("retry after %s", e.RetryAfter)
		}
		if err := l.heartbeat("a", 1); err != nil {
			t.Fatalf("the first agent lost its session: %v", err)
		}
		// The copy's heartbeats do not count as the first one's.
		_, herr := l.leader().Heartbeat(l.ctx, "a", 1, "elsewhere.example:7000", Report{})
		l.wants(cluster.ReasonStaleIncarnation, herr)
		// The first one is gone: its disk may start on another host.
		l.agent("a", func(a *agent) { a.silent = true })
		l.pass(12 * time.Second)
		if err := reg("store-a", 9, "elsewhere.example:7000"); err != nil {
			t.Fatalf("after the lease ran out: %v", err)
		}
	})
}

func TestC79LateRegistrationReplacesNothing(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.register("a", 5, "")
		_, _, err := l.leader().Register(l.ctx, Registration{Node: "a", StoreID: "store-a", Incarnation: 3, Address: address("a")})
		l.wants(cluster.ReasonStaleIncarnation, err)
		if err := l.heartbeat("a", 5); err != nil {
			t.Fatal(err)
		}
	})
}

// TestI10ObservationNeverGoesBack: a record that was read before a newer one changes nothing.
func TestI10ObservationNeverGoesBack(t *testing.T) {
	now := time.Now()
	s := &soft{sessions: map[cluster.NodeID]*session{}}
	n := cluster.Node{ID: "a", Incarnation: 5, Status: cluster.NodeAlive}
	s.observe(n, now).verdict = true
	older := n
	older.Incarnation = 4
	s.observe(older, now)
	if e := s.observe(n, now); !e.verdict {
		t.Fatal("an older record took the verdict back")
	}
	dead := n
	dead.Status = cluster.NodeDead
	s.observe(dead, now)
	if e := s.observe(n, now); !e.dead {
		t.Fatal("an older record raised the dead")
	}
}

// TestRegistrationDuringARoundKeepsItsSession: the round's copy of the state is older than the node.
func TestRegistrationDuringARoundKeepsItsSession(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		c := l.leader()
		before := c.readWorld()
		l.join("b")
		c.soft.Lock()
		c.observeAll(before.nodes, time.Now())
		e := c.soft.sessions["b"]
		c.soft.Unlock()
		if e == nil || !e.heard {
			t.Fatal("the session of a node that registered meanwhile was forgotten")
		}
	})
}

// TestI8UnknownOutcomeIsNoAnswer: a proposal that was not committed in time is no refusal.
func TestI8UnknownOutcomeIsNoAnswer(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.g.Hold()
		_, err := l.leader().Propose(l.ctx, &storagev1.Command{Command: &storagev1.Command_Noop{Noop: &storagev1.Noop{}}})
		if !errors.Is(err, consensus.ErrOutcomeUnknown) || cluster.AsError(err) != nil {
			t.Fatalf("after the time-out: %v", err)
		}
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		defer cancel()
		_, err = l.leader().Propose(ctx, &storagev1.Command{Command: &storagev1.Command_Noop{Noop: &storagev1.Noop{}}})
		if !errors.Is(err, consensus.ErrOutcomeUnknown) || cluster.AsError(err) != nil {
			t.Fatalf("after the caller's: %v", err)
		}
		// Where it can never be applied, that is an answer.
		_, err = l.ctls[1].Propose(l.ctx, &storagev1.Command{Command: &storagev1.Command_Noop{Noop: &storagev1.Noop{}}})
		l.wants(cluster.ReasonNoLeader, err)
	})
}
