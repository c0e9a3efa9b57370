package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

func TestFirstLeaderRecordsTheMembers(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		got := l.state().controllers
		if len(got) != 3 || got[0].Name != "ctl-1" || got[2].RaftID != 3 || got[1].Learner {
			t.Fatalf("recorded %+v", got)
		}
		before := l.state().revision
		l.g.Lead(2)
		l.pass(20 * time.Second)
		if l.state().revision != before {
			t.Fatal("recorded again")
		}
	})
}

func TestC43NewControllerIsALearnerUntilCaughtUp(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		_, rec, all, err := l.leader().AddController(l.ctx, "ctl-4", "10.0.0.4:7000", "store-4", "")
		if err != nil || rec.RaftID != 4 || !rec.Learner || len(all) != 4 {
			t.Fatalf("add: %+v %+v %v", rec, all, err)
		}
		// Asking again gets the same id; another disk under the name gets none (C52).
		_, again, _, err := l.leader().AddController(l.ctx, "ctl-4", "10.0.0.4:7000", "store-4", "")
		if err != nil || again != rec {
			t.Fatalf("again: %+v %v", again, err)
		}
		_, _, _, err = l.leader().AddController(l.ctx, "ctl-4", "10.0.0.4:7000", "store-other", "")
		l.wants(cluster.ReasonForeignStore, err)
		l.pass(20 * time.Second)
		if m, ok := memberByName(l.g.Member(1).Status(), "ctl-4"); !ok || m.Role != consensus.Learner {
			t.Fatalf("before it caught up: %+v", m)
		}
		_, err = l.leader().TransferLeadership(l.ctx, "ctl-4")
		l.wants(cluster.ReasonBlocked, err)
		l.g.CatchUp(4)
		l.pass(2 * time.Second)
		if m, _ := memberByName(l.g.Member(1).Status(), "ctl-4"); m.Role != consensus.Voter {
			t.Fatal("not promoted once caught up")
		}
		if k, _ := recorded(l.state().controllers, 4); k.Learner {
			t.Fatal("its record still says learner")
		}
	})
}

// TestHalfDoneMembershipIsFinished: the leader died between the record and the configuration.
func TestHalfDoneMembershipIsFinished(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		// Added to the record, not to the configuration.
		if _, err := l.leader().put(l.ctx, cluster.Controller{Name: "ctl-4", Address: "10.0.0.4:7000", StoreID: "store-4", Learner: true}, ""); err != nil {
			t.Fatal(err)
		}
		// Removed from the configuration, not from the record.
		if err := l.g.Member(1).Remove(l.ctx, 3); err != nil {
			t.Fatal(err)
		}
		l.g.Lead(2)
		synctest.Wait()
		l.pass(time.Second)
		st := l.g.Member(2).Status()
		if _, ok := memberByID(st, 4); !ok {
			t.Error("the recorded learner was not added")
		}
		if _, ok := recorded(l.state().controllers, 3); ok {
			t.Error("the removed voter is still recorded")
		}
	})
}

func TestC43RemovingTheLeaderTransfersFirst(t *testing.T) {
	inLab(t, 4, func(l *lab) {
		_, err := l.leader().RemoveController(l.ctx, "ctl-1", false)
		if e := l.wants(cluster.ReasonNoLeader, err); e.RetryAfter <= 0 {
			t.Fatal("no retry_after: the caller should ask the new leader")
		}
		if l.g.Member(1).Status().IsLeader() {
			t.Fatal("still leads")
		}
		if _, err := l.leader().RemoveController(l.ctx, "ctl-1", false); err != nil {
			t.Fatalf("at the new leader: %v", err)
		}
		if _, ok := memberByName(l.leader().backend.Status(), "ctl-1"); ok {
			t.Fatal("still a member")
		}
		_, err = l.leader().RemoveController(l.ctx, "ctl-2", false)
		e := l.wants(cluster.ReasonBlocked, err)
		if e.Message != "min_voters=3, voters=3, removing ctl-2 leaves 2 (override: --force)" {
			t.Fatalf("refusal %q", e.Message)
		}
		_, err = l.leader().RemoveController(l.ctx, "ctl-9", false)
		l.wants(cluster.ReasonNotFound, err)
	})
}

func TestRemoveLearner(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		if _, _, _, err := l.leader().AddController(l.ctx, "ctl-4", "10.0.0.4:7000", "store-4", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := l.leader().RemoveController(l.ctx, "ctl-4", false); err != nil {
			t.Fatal(err)
		}
		l.pass(10 * time.Second)
		if _, ok := memberByID(l.g.Member(1).Status(), 4); ok {
			t.Fatal("the learner came back")
		}
	})
}

func TestTransferLeadership(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		to, err := l.leader().TransferLeadership(l.ctx, "ctl-3")
		if err != nil || to != "ctl-3" || !l.g.Member(3).Status().IsLeader() {
			t.Fatalf("transferred to %s: %v", to, err)
		}
		_, err = l.leader().TransferLeadership(l.ctx, "ctl-9")
		l.wants(cluster.ReasonNotFound, err)
		_, err = l.ctls[0].TransferLeadership(l.ctx, "")
		l.wants(cluster.ReasonNoLeader, err)
	})
}

func TestConfigValidateNamesAllFaults(t *testing.T) {
	c := DefaultConfig()
	c.Name = "ctl-1"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c.DeadAfter = 2 * c.LeaseTTL
	c.SlowTick = 0
	err := c.Validate()
	e := cluster.AsError(err)
	if e == nil || e.Reason != cluster.ReasonInvalid {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"dead_after", "slow_tick"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("%q does not name %s", e.Message, want)
		}
	}
}
