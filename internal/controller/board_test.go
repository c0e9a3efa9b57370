package controller

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestI8ProposedTargetsCountAsDone: targets that are proposed and not answered hold their slots and are not planned once
// more, though rounds go on. When their outcome is unknown they are planned again, and the compare-and-swap
// keeps each from being set twice.
func TestI8ProposedTargetsCountAsDone(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.pass(10 * time.Second)
		l.topic("t", 40)
		l.settings(func(s *cluster.Settings) { s.MaxInFlightMoves, s.MaxMovesPerNode = 12, 12 })
		l.join("b")
		l.pass(4 * time.Second)
		l.g.Hold()
		l.pass(8 * time.Second)
		if n := l.g.Held(); n != 12 {
			t.Fatalf("%d targets are proposed, want those of the free slots, 12", n)
		}
		l.pass(10 * time.Second) // proposals time out
		if n := l.g.Held(); n <= 12 {
			t.Fatalf("%d targets were proposed; those with an unknown outcome are planned again", n)
		}
		l.g.Release()
		synctest.Wait()
		ids := map[cluster.MoveID]bool{}
		for _, a := range l.moving() {
			ids[a.MoveID] = true
		}
		if len(ids) != 12 || len(l.moving()) != 12 {
			t.Fatalf("%d moves in flight, want 12", len(l.moving()))
		}
	})
}

// TestI8LostProposalsArePlannedAgain: the leader loses what it had proposed, and its successor plans from the state.
func TestI8LostProposalsArePlannedAgain(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		l.join("a")
		l.pass(10 * time.Second)
		l.topic("t", 10)
		l.join("b")
		l.pass(4 * time.Second)
		l.g.Hold()
		l.pass(3 * time.Second)
		if l.g.Held() == 0 {
			t.Fatal("nothing was proposed")
		}
		l.g.Lead(2)
		l.g.Release()
		l.pass(15 * time.Second)
		if n := len(l.moving()); n != 4 {
			t.Fatalf("%d moves under the next leader, want 4", n)
		}
		l.g.Lead(1)
		l.pass(15 * time.Second)
		for _, a := range l.moving() {
			l.flip(a, true)
		}
		l.pass(5 * time.Second)
		if n := len(l.moving()); n != 1 {
			t.Fatalf("%d moves are left under the first leader, want 1", n)
		}
	})
}

// TestC30NoPingPongWithinTheCooldown: what a drain brought does not go back when the drain is cancelled, until
// move_cooldown has passed. Another drain does not wait for it.
func TestC30NoPingPongWithinTheCooldown(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.pass(10 * time.Second)
		l.topic("t", 8)
		drain := func(id cluster.NodeID) {
			t.Helper()
			if _, err := l.leader().Decommission(l.ctx, []cluster.NodeID{id}, "", false, ""); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				synctest.Wait()
				for _, a := range l.moving() {
					l.flip(a, true)
				}
			}
			if _, err := l.leader().CancelDecommission(l.ctx, id, ""); err != nil {
				t.Fatal(err)
			}
		}
		// All eight are on b then, and all of them have moved or none: four had been there.
		drain("a")
		l.pass(time.Minute)
		moved := map[cluster.PartitionID]bool{}
		for _, a := range l.state().assignments {
			moved[a.Partition] = !a.MovedAt.IsZero()
		}
		for _, a := range l.moving() {
			if moved[a.Partition] {
				t.Fatalf("%v goes back to a within the cool-down", a.Partition)
			}
			l.flip(a, true)
		}
		synctest.Wait()
		drain("a")
		drain("b")
		l.pass(time.Minute)
		if n := len(l.moving()); n != 0 {
			t.Fatalf("%d moves, though all partitions moved a moment ago", n)
		}
		if s := l.leader().Status(l.ctx); !slices.ContainsFunc(s.Reasons(), func(r string) bool { return strings.Contains(r, "move_cooldown=2m0s") }) {
			t.Fatalf("status says nothing of the cool-down: %q", s.Reasons())
		}
		l.pass(70 * time.Second)
		if n := len(l.moving()); n != 4 {
			t.Fatalf("%d moves after the cool-down, want 4", n)
		}
	})
}

// TestRebalancingHoldsWhileTooManyAreAway: with more than max_away_percent of the nodes dead or silent nothing moves for
// balance, drains go on, and the status says so.
func TestRebalancingHoldsWhileTooManyAreAway(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b", "c", "d")
		l.pass(10 * time.Second)
		l.topic("t", 8)
		for _, id := range []cluster.NodeID{"c", "d"} {
			l.agent(id, func(a *agent) { a.silent = true })
		}
		l.settings(func(s *cluster.Settings) { s.MaxAwayPercent = 35 })
		l.pass(40 * time.Second)
		l.join("e")
		l.pass(20 * time.Second) // two of five
		if n := len(l.moving()); n != 0 {
			t.Fatalf("%d moves for balance with two of five nodes dead", n)
		}
		if s := l.leader().Status(l.ctx); !slices.ContainsFunc(s.Reasons(), func(r string) bool {
			return strings.Contains(r, "rebalancing holds: 2 of 5 nodes are dead or silent (max_away_percent=35)")
		}) {
			t.Fatalf("status says nothing of the hold: %q", s.Reasons())
		}
		l.settings(func(s *cluster.Settings) { s.MaxAwayPercent = 40 })
		if n := len(l.moving()); n != 1 {
			t.Fatalf("%d moves with two of five away, which is 40 percent; want 1", n)
		}
		l.flip(l.moving()[0], true)
		l.settings(func(s *cluster.Settings) { s.MaxAwayPercent = 35 })
		if _, err := l.leader().Decommission(l.ctx, []cluster.NodeID{"a"}, "", false, ""); err != nil {
			t.Fatal(err)
		}
		l.pass(time.Second)
		if n := len(l.moving()); n != l.state().owned["a"] || n == 0 {
			t.Fatalf("%d moves, want those of the drain, %d", n, l.state().owned["a"])
		}
	})
}

// TestC42WhatHasArrivedCountsBeforeItIsReported: between a flip and the next report of the destination its disk looks
// emptier than it is.
func TestC42WhatHasArrivedCountsBeforeItIsReported(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.agent("b", func(a *agent) { a.report.DiskTotal, a.report.DiskFree = 100, 25 })
		l.pass(10 * time.Second)
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		topic := l.topic("t", 20)
		mine := map[cluster.NodeID][]PartitionSize{}
		for _, a := range l.state().assignments {
			mine[a.Owner] = append(mine[a.Owner], PartitionSize{a.Partition, 10})
		}
		l.agent("a", func(a *agent) { a.report.Sizes = mine["a"] })
		l.pass(5 * time.Second)
		if len(mine["a"]) != 10 || topic.Partitions != 20 {
			t.Fatalf("a owns %d", len(mine["a"]))
		}
		if _, err := l.leader().Decommission(l.ctx, []cluster.NodeID{"a"}, "", false, ""); err != nil {
			t.Fatal(err)
		}
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = false })
		free, moves := cluster.Bytes(25), 0
		for range 8 {
			synctest.Wait()
			for _, a := range l.moving() {
				l.flip(a, true)
				moves, free = moves+1, free-10
			}
			if moves == 1 {
				l.pass(2 * time.Second) // the report that comes next was on its way
				l.agent("b", func(a *agent) { a.report.DiskFree = free })
				l.pass(10 * time.Second)
			}
			if moves > 1 {
				t.Fatalf("%d partitions of 10%% each went to a disk that was 75%% full", moves)
			}
		}
		if moves != 1 {
			t.Fatalf("%d moves, want the one that fits", moves)
		}
	})
}
