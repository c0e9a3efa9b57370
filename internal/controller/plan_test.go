package controller

import (
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

func TestRebalanceAfterTheDelayAndRefill(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.pass(10 * time.Second)
		l.topic("t", 40)
		l.settings(func(s *cluster.Settings) { s.MaxInFlightMoves, s.MaxMovesPerNode = 4, 4 })
		l.join("b")
		l.pass(4 * time.Second)
		if n := len(l.moving()); n != 0 {
			t.Fatalf("%d moves before rebalance_delay", n)
		}
		l.pass(2 * time.Second)
		for moved := 0; ; moved++ {
			ms := l.moving()
			if len(ms) == 0 {
				if moved != 20 {
					t.Fatalf("%d moves, want the minimum, 20", moved)
				}
				return
			}
			// A slot that became free is filled without waiting for a tick.
			if want := min(4, 20-moved); len(ms) != want {
				t.Fatalf("after %d moves %d are in flight, want %d", moved, len(ms), want)
			}
			l.flip(ms[0], true)
			synctest.Wait()
		}
	})
}

// TestC30FlappingNodeDrawsNoMoves: it comes and goes faster than rebalance_delay.
func TestC30FlappingNodeDrawsNoMoves(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.topic("t", 10)
		l.settings(func(s *cluster.Settings) { s.RebalanceDelay = time.Minute })
		l.join("b")
		for inc := cluster.Incarnation(2); inc < 8; inc++ {
			l.pass(20 * time.Second)
			l.agent("b", func(a *agent) { a.silent = true })
			l.pass(35 * time.Second)
			if l.node("b").Status != cluster.NodeDead {
				t.Fatal("b is not dead")
			}
			l.register("b", inc, "")
			l.agent("b", func(a *agent) { a.silent, a.incarnation = false, inc })
		}
		if n := len(l.moving()); n != 0 {
			t.Fatalf("%d moves to a flapping node", n)
		}
		// It died six times, five of them soon after it had come back: 32 times the delay.
		l.pass(30 * time.Minute)
		if n := len(l.moving()); n != 0 {
			t.Fatalf("%d moves to a node that has flapped five times, before it has stayed 32 times rebalance_delay", n)
		}
		l.pass(3 * time.Minute)
		if n := len(l.moving()); n == 0 {
			t.Fatal("no move to a node that stayed")
		}
	})
}

func TestC31DeadTargetIsRetargeted(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.topic("t", 12)
		l.join("b", "c")
		l.pass(8 * time.Second)
		before := map[cluster.PartitionID]cluster.Assignment{}
		for _, a := range l.moving() {
			if a.Target == "b" {
				before[a.Partition] = a
			}
		}
		if len(before) == 0 {
			t.Fatal("nothing moves to b")
		}
		l.agent("b", func(a *agent) { a.silent = true })
		l.pass(40 * time.Second)
		for _, a := range l.state().assignments {
			old, ok := before[a.Partition]
			if a.Target == "b" {
				t.Fatalf("%v still moves to a dead node", a.Partition)
			}
			if ok && a.Moving() && a.MoveID == old.MoveID {
				t.Fatalf("%v was retargeted within the same move", a.Partition)
			}
		}
	})
}

// TestC34FreshLeaderWaitsForItsBarrier: a leader whose state is behind neither plans nor places.
func TestC34FreshLeaderWaitsForItsBarrier(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		l.join("a")
		l.g.Lag(2)
		l.topic("t", 6)
		l.join("b", "c")
		var before cluster.Revision = l.state().revision
		l.g.Lead(2)
		_, _, err := l.ctls[1].CreateTopic(l.ctx, "u", 3, "", 0, "")
		l.wants(cluster.ReasonNoLeader, err)
		l.pass(20 * time.Second)
		if now := l.ctls[0].readWorld().revision; now != before {
			t.Fatalf("a leader that is behind proposed %d revisions", now-before)
		}
		l.g.Catch(2)
		l.pass(20 * time.Second)
		if len(l.moving()) == 0 {
			t.Fatal("no plan once current")
		}
	})
}

// TestC34InitialPlacementIsACompareAndSwap: a name that exists is not placed again.
func TestC34InitialPlacementIsACompareAndSwap(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		first := l.topic("t", 3)
		_, _, err := l.leader().CreateTopic(l.ctx, "t", 3, "", 0, "")
		l.wants(cluster.ReasonAlreadyExists, err)
		// The same request again is answered like the first time.
		_, u1, err := l.leader().CreateTopic(l.ctx, "u", 3, "", 0, "request-1")
		if err != nil {
			t.Fatal(err)
		}
		_, u2, err := l.leader().CreateTopic(l.ctx, "u", 3, "", 0, "request-1")
		if err != nil || u1.ID != u2.ID || u1.ID == first.ID {
			t.Fatalf("repeated: %v %v %v", u1, u2, err)
		}
	})
}

func TestC33NewTopicsAvoidDrainingDeadAndFullNodes(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("draining", "dead", "full", "good-1", "good-2")
		l.agent("full", func(a *agent) { a.report.DiskFree = disk / 50 })
		l.agent("dead", func(a *agent) { a.silent = true })
		l.pass(40 * time.Second)
		if _, err := l.leader().Decommission(l.ctx, []cluster.NodeID{"draining"}, "", false, ""); err != nil {
			t.Fatal(err)
		}
		topic := l.topic("t", 20)
		for _, a := range l.state().assignments {
			if a.Partition.Topic == topic.ID && a.Owner != "good-1" && a.Owner != "good-2" {
				t.Fatalf("%v was placed on %s", a.Partition, a.Owner)
			}
		}
	})
}

// TestC41StuckMoveFreesItsSlot: what can't go on holds up nobody, and gets its slot back by going on.
func TestC41StuckMoveFreesItsSlot(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.topic("t", 10)
		l.settings(func(s *cluster.Settings) { s.MaxInFlightMoves = 1 })
		l.join("b")
		l.pass(8 * time.Second)
		ms := l.moving()
		if len(ms) != 1 {
			t.Fatalf("%d moves, want 1", len(ms))
		}
		l.agent("b", func(a *agent) {
			a.report.Moves = []cluster.MoveProgress{{Partition: ms[0].Partition, MoveID: ms[0].MoveID, Phase: cluster.PhaseBlocked}}
		})
		l.pass(3 * time.Second)
		if n := len(l.moving()); n != 2 {
			t.Fatalf("%d moves beside a blocked one, want 2 in all", n)
		}
		l.agent("b", func(a *agent) { a.report.Moves[0].Phase = cluster.PhaseCatchingUp })
		l.pass(3 * time.Second)
		for _, a := range l.moving() {
			if a.MoveID != ms[0].MoveID {
				l.flip(a, true)
			}
		}
		l.pass(10 * time.Second)
		if n := len(l.moving()); n != 1 {
			t.Fatalf("%d moves with max_in_flight_moves=1", n)
		}
	})
}

func TestNewLeaderPlansOnlyWhenNodesReported(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 4)
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		l.join("c")
		l.pass(10 * time.Second)
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = false; s.MaxInFlightMoves = 8 })
		for _, id := range []cluster.NodeID{"a", "b", "c"} {
			l.agent(id, func(a *agent) { a.silent = true })
		}
		moves := len(l.moving())
		l.g.Lead(2)
		l.pass(9 * time.Second)
		if n := len(l.moving()); n != moves {
			t.Fatalf("%d moves planned by a leader that has heard of nobody", n-moves)
		}
	})
}

func TestPausedRebalancingPlansNothing(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a")
		l.topic("t", 10)
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = true })
		l.join("b")
		l.pass(20 * time.Second)
		if n := len(l.moving()); n != 0 {
			t.Fatalf("%d moves while paused", n)
		}
		s := l.leader().Status(l.ctx)
		if s.Verdict != Stalled || s.Next != nextResume {
			t.Fatalf("status %+v", s)
		}
		l.settings(func(s *cluster.Settings) { s.RebalancePaused = false })
		if len(l.moving()) == 0 {
			t.Fatal("nothing moves after resuming")
		}
	})
}

// TestC08FlipByHand: nothing was frozen, so nothing can flip.
func TestC08FlipByHand(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 1)
		a := l.state().assignments[0]
		to := cluster.NodeID("a")
		if a.Owner == "a" {
			to = "b"
		}
		r, err := l.leader().StartMove(l.ctx, "t", 0, to, "")
		if err != nil {
			t.Fatal(err)
		}
		nonce := cluster.Nonce{1}
		for _, handoff := range []uint32{0, 1} {
			_, err = l.leader().do(l.ctx, &storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
				Partition: partitionRef(a.Partition), MoveId: r.Value, Handoff: handoff, Nonce: nonce[:],
			}}})
			if got := cluster.ReasonOf(err); got != cluster.ReasonHandoffRevoked && got != cluster.ReasonInvalid {
				t.Fatalf("flip by hand with handoff %d: %v", handoff, err)
			}
		}
		if now := l.state().assignments[0]; now.Owner != a.Owner {
			t.Fatal("it flipped")
		}
	})
}

func TestManualMoves(t *testing.T) {
	inLab(t, 1, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 2)
		ctl := l.leader()
		_, err := ctl.StartMove(l.ctx, "nope", 0, "a", "")
		l.wants(cluster.ReasonNotFound, err)
		_, err = ctl.StartMove(l.ctx, "t", 2, "a", "")
		l.wants(cluster.ReasonNotFound, err)
		_, err = ctl.StartMove(l.ctx, "t", 0, "nobody", "")
		l.wants(cluster.ReasonNotFound, err)
		_, err = ctl.CancelMove(l.ctx, "t", 0, 0, "")
		l.wants(cluster.ReasonNotFound, err)
		a := l.state().assignments[0]
		to := map[cluster.NodeID]cluster.NodeID{"a": "b", "b": "a"}[a.Owner]
		r, err := ctl.StartMove(l.ctx, "t", 0, to, "")
		if err != nil {
			t.Fatal(err)
		}
		l.flip(*r.Assignment, true)
		// Too late: the answer says how it ended.
		c, err := ctl.CancelMove(l.ctx, "t", 0, cluster.MoveID(r.Value), "")
		if err != nil || c.Outcome == nil || c.Outcome.Kind != cluster.OutcomeFlipped {
			t.Fatalf("cancel after the flip: %+v %v", c, err)
		}
	})
}

func TestStatusVerdicts(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		l.join("a", "b")
		l.topic("t", 4)
		l.pass(10 * time.Second)
		verdict := func(want Verdict) Status {
			t.Helper()
			s := l.leader().Status(l.ctx)
			if s.Verdict != want {
				t.Fatalf("verdict %d, want %d: %+v", s.Verdict, want, s)
			}
			return s
		}
		if s := verdict(OK); s.Next != "" || len(s.Findings) != 0 || s.Leader != "ctl-1" || s.Voters != 3 || s.Alive != 2 {
			t.Fatalf("status %+v", s)
		}
		l.join("c")
		l.pass(8 * time.Second)
		verdict(Moving)
		l.g.SetActive(3, false)
		s := verdict(Degraded)
		says(t, s, Degraded, "controller ctl-3 is away", "controllers list")
		says(t, s, Degraded, "of 3 voters 2 are active and 2 are needed", "controllers list")
		l.g.SetActive(3, true)
		l.agent("c", func(a *agent) { a.silent = true })
		l.pass(40 * time.Second)
		if s := verdict(Degraded); s.Dead != 1 || s.Next == "" {
			t.Fatalf("status %+v", s)
		}
		l.g.Lead(0)
		s = l.ctls[1].Status(l.ctx)
		if s.Verdict != NoLeader || len(s.Findings) == 0 || s.Next == "" || s.Partitions != 4 {
			t.Fatalf("without a leader: %+v", s)
		}
	})
}

func TestMetricsAreBoundedAndCount(t *testing.T) {
	reader := metric.NewManualReader()
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	inLab(t, 1, func(l *lab) {
		c := New(l.ctls[0].cfg, l.g.Member(1), l.g.Member(1).Machine, nil)
		cfg := c.cfg
		cfg.Meter = meter
		c = New(cfg, l.g.Member(1), l.g.Member(1).Machine, nil)
		defer c.metrics.close()
		l.ctls[0].metrics = c.metrics
		l.join("a")
		l.topic("t", 6)
		l.join("b")
		l.pass(8 * time.Second)
		for _, a := range l.moving() {
			l.flip(a, true)
		}
		var rm metricdata.ResourceMetrics
		if err := reader.Collect(l.ctx, &rm); err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				switch d := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range d.DataPoints {
						got[series(m.Name, p.Attributes)] = p.Value
					}
				case metricdata.Gauge[int64]:
					for _, p := range d.DataPoints {
						got[series(m.Name, p.Attributes)] = p.Value
					}
				case metricdata.Histogram[float64]:
					got[m.Name] = int64(d.DataPoints[0].Count)
				}
			}
		}
		for name, want := range map[string]int64{
			"naradplane_moves_total{outcome=flipped}": 3, "naradplane_move_bytes_total": 300, "naradplane_move_freeze_seconds": 3,
			"naradplane_move_non_converged_total": 3, "naradplane_move_retries_total": 6, "naradplane_nodes{status=alive}": 2,
			"naradplane_moves_in_flight{phase=pending}": 0, "naradplane_moves_total{outcome=forced}": 0,
			"naradplane_moves_total{outcome=cancelled}": 0,
		} {
			if n, ok := got[name]; n != want || !ok {
				t.Errorf("%s is %d, want %d (all: %v)", name, got[name], want, got)
			}
		}
		if got["naradplane_revision"] == 0 {
			t.Error("naradplane_revision is missing")
		}
	})
}

func series(name string, set attribute.Set) string {
	if set.Len() == 0 {
		return name
	}
	kv := set.ToSlice()[0]
	return name + "{" + string(kv.Key) + "=" + kv.Value.AsString() + "}"
}
