package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// says fails unless a finding with these words has the verdict and points to the command.
func says(t *testing.T, s Status, v Verdict, words, next string) {
	t.Helper()
	for _, f := range s.Findings {
		if strings.Contains(f.Text, words) {
			if f.Verdict != v || !strings.Contains(f.Next, next) {
				t.Errorf("%q has verdict %d and points to %q; want %d and %q", f.Text, f.Verdict, f.Next, v, next)
			}
			return
		}
	}
	t.Errorf("no finding says %q: %+v", words, s.Findings)
}

// report makes an agent say how its moves stand.
func (l *lab) report(id cluster.NodeID, moves ...cluster.MoveProgress) {
	l.agent(id, func(a *agent) { a.report.Moves = moves })
	l.beat()
}

// gaugesOf collects the controller's gauges by series.
func gaugesOf(t *testing.T, l *lab, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(l.ctx, &rm); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if d, ok := m.Data.(metricdata.Gauge[int64]); ok {
				for _, p := range d.DataPoints {
					got[series(m.Name, p.Attributes)] = p.Value
				}
			}
		}
	}
	return got
}

// TestC25C41StuckDrainIsNamed: each partition that keeps a draining node is named with its reason, in the list of members, the
// status and the metric, while the others have gone.
func TestC25C41StuckDrainIsNamed(t *testing.T) {
	reader := metric.NewManualReader()
	inLab(t, 1, func(l *lab) {
		c := l.ctls[0]
		cfg := c.cfg
		cfg.Meter = metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
		observed := New(cfg, l.g.Member(1), l.g.Member(1).Machine, nil)
		defer observed.metrics.close()
		l.join("a", "b")
		l.topic("t", 4)
		l.pass(8 * time.Second)
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.pass(time.Second)
		moving := l.moving()
		if len(moving) != 2 {
			t.Fatalf("moving: %v", moving)
		}
		stuck, failing := moving[0], moving[1]
		l.report("b",
			cluster.MoveProgress{Partition: stuck.Partition, MoveID: stuck.MoveID, Phase: cluster.PhaseBlocked, Attempt: 1, LastError: "not enough room: needs 2 GiB, has 1 GiB"},
			cluster.MoveProgress{Partition: failing.Partition, MoveID: failing.MoveID, Phase: cluster.PhaseWaiting, Attempt: 4, LastError: "read 0.log: input/output error"})
		l.pass(6 * time.Second)
		want := map[string]string{
			blockMove:     fmt.Sprintf("partition t/%d: its move to b is blocked: not enough room: needs 2 GiB, has 1 GiB", stuck.Partition.Index),
			blockRetrying: fmt.Sprintf("partition t/%d: its move to b failed 4 times and comes again by itself: read 0.log: input/output error", failing.Partition.Index),
			"owned":       "it owns 2 partitions",
		}
		ms, err := c.Members(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, b := range ms.Members[0].Blockers {
			got[b.Reason] = b.Text
			if (b.Partition != nil) != (b.Reason == blockMove || b.Reason == blockRetrying) {
				t.Errorf("%+v names its partition wrongly", b)
			}
		}
		for reason, text := range want {
			if got[reason] != text {
				t.Errorf("%s: got %q, want %q", reason, got[reason], text)
			}
		}
		s := c.Status(l.ctx)
		if s.Verdict != Stalled {
			t.Errorf("verdict %d: %+v", s.Verdict, s.Findings)
		}
		says(t, s, Stalled, "node a can't leave: "+want[blockMove], "cluster members a")
		// The metric is the leader's own.
		observed.soft.Lock()
		observed.soft.draining = map[cluster.NodeID][]Blocker{"a": ms.Members[0].Blockers}
		observed.soft.Unlock()
		g := gaugesOf(t, l, reader)
		for series, n := range map[string]int64{
			"naradplane_drain_blocked{reason=move_blocked}": 1, "naradplane_drain_blocked{reason=move_retrying}": 1,
			"naradplane_drain_blocked{reason=owned}": 2, "naradplane_drain_blocked{reason=no_space}": 0,
		} {
			if v, ok := g[series]; !ok || v != n {
				t.Errorf("%s is %d (%t), want %d", series, v, ok, n)
			}
		}
		// C41: the stuck moves hold no slot, so that others go on; once the disk has room, the drain ends.
		l.report("b")
		for _, a := range l.moving() {
			l.flip(a, true)
		}
		l.pass(2 * time.Second)
		if got := l.state().owned["a"]; got != 0 {
			t.Errorf("a still owns %d", got)
		}
	})
}

// TestStatusNamesEachTrouble, with the command to run next.
func TestStatusNamesEachTrouble(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b", "c")
		l.topic("t", 6)
		l.pass(8 * time.Second)
		l.agent("b", func(a *agent) { a.report.DiskFree = disk / 100 })
		l.pass(3 * time.Second)
		says(t, l.leader().Status(l.ctx), Degraded, "node b's disk is 99 % full (high_disk_percent=90)", "cluster plan --add 1")
		l.agent("b", func(a *agent) { a.report.DiskFree = disk / 2 })
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		l.pass(6 * time.Second)
		s := l.leader().Status(l.ctx)
		says(t, s, Stalled, "rebalancing is paused: 2 moves wait", "rebalance resume")
		says(t, s, Stalled, "node a can't leave: rebalancing is paused", "cluster members a")
		if s.Verdict != Stalled || s.Next == "" || s.Estimate == nil || s.Estimate.Waiting != 2 {
			t.Errorf("status %+v, estimate %+v", s, s.Estimate)
		}
		l.agent("c", func(a *agent) { a.silent = true })
		l.pass(15 * time.Second)
		says(t, l.leader().Status(l.ctx), Degraded, "node c has been silent", "cluster members")
		l.pass(30 * time.Second)
		says(t, l.leader().Status(l.ctx), Degraded, "node c is dead and owns 2 partitions", "cluster members")
	})
}

// TestPlanMovesChangesNothing: a what-if says what would come of it, and leaves everything as it is.
func TestPlanMovesChangesNothing(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 8)
		l.pass(8 * time.Second)
		l.settings(func(s *cluster.Settings) { s.MaxInFlightMoves = 3 })
		before := l.state().revision
		f, err := l.leader().PlanMoves(l.ctx, planner.WhatIf{Drain: []cluster.NodeID{"a"}, Add: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Moves) != 3 || len(f.Held) != 1 || !strings.Contains(f.Held[0].Why, "max_in_flight_moves=3") || len(f.Blocked) != 0 {
			t.Errorf("plan %+v", f)
		}
		counts := map[cluster.NodeID]int{}
		for _, n := range f.Nodes {
			counts[n.Node] = n.After
		}
		if want := map[cluster.NodeID]int{"a": 0, "b": 4, "new-1": 4}; fmt.Sprint(counts) != fmt.Sprint(want) {
			t.Errorf("after: %v, want %v", counts, want)
		}
		if l.state().revision != before || len(l.moving()) != 0 {
			t.Error("it changed something")
		}
		_, err = l.leader().PlanMoves(l.ctx, planner.WhatIf{Drain: []cluster.NodeID{"z"}})
		l.wants(cluster.ReasonNotFound, err)
		_, err = l.leader().PlanMoves(l.ctx, planner.WhatIf{Add: planner.MaxAdd + 1})
		l.wants(cluster.ReasonInvalid, err)

		e, err := l.leader().Explain(l.ctx, "t", 0)
		if err != nil || e.Placement != planner.Settled || !strings.Contains(e.Why, "is to hold 4 of 8") {
			t.Errorf("explanation %+v, %v", e, err)
		}
		_, err = l.leader().Explain(l.ctx, "t", 99)
		l.wants(cluster.ReasonNotFound, err)
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		if _, err := l.drain("a"); err != nil {
			t.Fatal(err)
		}
		a := slices.IndexFunc(l.state().assignments, func(a cluster.Assignment) bool { return a.Owner == "a" })
		e, err = l.leader().Explain(l.ctx, "t", uint32(a))
		if err != nil || e.Placement != planner.HeldBack || !strings.Contains(e.Why, "rebalancing is paused") || !strings.Contains(e.Next, "rebalance resume") {
			t.Errorf("explanation %+v, %v", e, err)
		}
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = false })
		l.pass(time.Second)
		moving := l.moving()[0]
		l.report("b", cluster.MoveProgress{Partition: moving.Partition, MoveID: moving.MoveID, Phase: cluster.PhaseBlocked, LastError: "not enough room"})
		e, err = l.leader().Explain(l.ctx, "t", moving.Partition.Index)
		if err != nil || e.Placement != planner.Moving || !slices.Contains(e.Reasons, "the move is blocked: not enough room") {
			t.Errorf("explanation %+v, %v", e, err)
		}
		l.agent("a", func(a *agent) { a.silent = true })
		l.pass(40 * time.Second)
		e, err = l.leader().Explain(l.ctx, "t", moving.Partition.Index)
		if err != nil || !slices.ContainsFunc(e.Reasons, func(r string) bool { return strings.Contains(r, "its source a is dead") }) {
			t.Errorf("explanation %+v, %v", e, err)
		}
	})
}
