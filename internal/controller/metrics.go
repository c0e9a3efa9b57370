package controller

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// instruments are the controller's metrics. Their series are bounded: by phase, by outcome, by status; none
// by partition. Gauges about the cluster come from the leader only, so that sums over controllers are
// right; counters count what was applied through this controller.
type instruments struct {
	ended        metric.Int64Counter
	bytes        metric.Int64Counter
	freeze       metric.Float64Histogram
	nonConverged metric.Int64Counter
	retries      metric.Int64Counter
	registration metric.Registration
}

// freezeBounds are in seconds: the freeze is meant to last milliseconds.
var freezeBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func newInstruments(c *Controller) *instruments {
	m := c.cfg.meter()
	i := &instruments{}
	// The names and units below are valid, so making an instrument can't fail; if it ever does, the
	// instrument that is returned still works as a no-op.
	i.ended, _ = m.Int64Counter("naradplane_moves_total", metric.WithDescription("Ended moves by outcome."))
	i.bytes, _ = m.Int64Counter("naradplane_move_bytes_total", metric.WithUnit("By"), metric.WithDescription("Bytes of moves that opened at their destination."))
	i.freeze, _ = m.Float64Histogram("naradplane_move_freeze_seconds", metric.WithUnit("s"),
		metric.WithDescription("From the source's lock to the committed flip."), metric.WithExplicitBucketBoundaries(freezeBounds...))
	i.nonConverged, _ = m.Int64Counter("naradplane_move_non_converged_total", metric.WithDescription("Moves whose catch-up ended without converging."))
	i.retries, _ = m.Int64Counter("naradplane_move_retries_total", metric.WithDescription("Attempts of moves beyond the first."))
	inFlight, _ := m.Int64ObservableGauge("naradplane_moves_in_flight", metric.WithDescription("Moves by phase."))
	nodes, _ := m.Int64ObservableGauge("naradplane_nodes", metric.WithDescription("Nodes by status."))
	drain, _ := m.Int64ObservableGauge("naradplane_drain_blocked", metric.WithDescription("What draining nodes wait for, by reason: partitions, copies or records."))
	revision, _ := m.Int64ObservableGauge("naradplane_revision", metric.WithDescription("Revision of this controller's state."))
	i.registration, _ = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		g := c.gauges()
		o.ObserveInt64(revision, int64(g.revision))
		for phase, n := range g.phases {
			o.ObserveInt64(inFlight, int64(n), metric.WithAttributes(attribute.String("phase", string(phase))))
		}
		for status, n := range g.nodes {
			o.ObserveInt64(nodes, int64(n), metric.WithAttributes(attribute.String("status", status)))
		}
		for reason, n := range g.blocked {
			o.ObserveInt64(drain, int64(n), metric.WithAttributes(attribute.String("reason", reason)))
		}
		return nil
	}, inFlight, nodes, drain, revision)
	i.begin()
	return i
}

// begin makes the series of the counters, so that "none yet" is a zero and not an absent series.
func (i *instruments) begin() {
	ctx := context.Background()
	for _, k := range []cluster.OutcomeKind{cluster.OutcomeFlipped, cluster.OutcomeForced, cluster.OutcomeCancelled} {
		i.ended.Add(ctx, 0, metric.WithAttributes(attribute.String("outcome", k.String())))
	}
	i.bytes.Add(ctx, 0)
	i.nonConverged.Add(ctx, 0)
	i.retries.Add(ctx, 0)
}

// close ends the observation; counters may still be used.
func (i *instruments) close() {
	if i.registration != nil {
		_ = i.registration.Unregister() // it only fails when it was never registered
	}
}

type gauges struct {
	revision cluster.Revision
	phases   map[cluster.MovePhase]int // nil unless leading
	nodes    map[string]int            // nil unless leading
	blocked  map[string]int            // by reason; nil unless leading
}

func (c *Controller) gauges() gauges {
	var g gauges
	var moving []cluster.Assignment
	var all []cluster.Node
	leads := c.backend.Status().IsLeader()
	c.machine.Read(func(r fsm.Reader) {
		g.revision = r.Revision()
		if !leads {
			return
		}
		all = r.Nodes()
		for _, a := range r.Assignments() {
			if a.Moving() {
				moving = append(moving, a)
			}
		}
	})
	if !leads {
		return g
	}
	g.phases, g.nodes = map[cluster.MovePhase]int{}, map[string]int{"alive": 0, "dead": 0, "draining": 0}
	for _, p := range []cluster.MovePhase{
		cluster.PhasePending, cluster.PhaseCatchingUp, cluster.PhaseFrozen, cluster.PhaseFlipping,
		cluster.PhaseOpening, cluster.PhaseWaiting, cluster.PhaseBlocked,
	} {
		g.phases[p] = 0
	}
	for _, n := range all {
		switch {
		case n.Status == cluster.NodeDead:
			g.nodes["dead"]++
		case n.Draining:
			g.nodes["draining"]++
		default:
			g.nodes["alive"]++
		}
	}
	g.blocked = map[string]int{}
	for _, reason := range blockReasons {
		g.blocked[reason] = 0
	}
	c.soft.Lock()
	defer c.soft.Unlock()
	for _, list := range c.soft.draining {
		for _, b := range list {
			g.blocked[b.Reason] += b.Count
		}
	}
	for _, a := range moving {
		phase := cluster.PhasePending
		if p, ok := c.soft.progress(a); ok && p.Phase != "" {
			phase = p.Phase
		}
		g.phases[phase]++
	}
	return g
}

// applied counts a command that changed something.
func (i *instruments) applied(cmd *storagev1.Command) {
	ctx := context.Background()
	ended := func(k cluster.OutcomeKind) {
		i.ended.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", k.String())))
	}
	switch v := cmd.GetCommand().(type) {
	case *storagev1.Command_CompleteMove:
		ended(cluster.OutcomeFlipped)
	case *storagev1.Command_ForceCompleteMove:
		ended(cluster.OutcomeForced)
	case *storagev1.Command_CancelMove:
		ended(cluster.OutcomeCancelled)
	case *storagev1.Command_SetTarget:
		if v.SetTarget.GetExpectTarget() != "" { // a retarget cancels the move before
			ended(cluster.OutcomeCancelled)
		}
	case *storagev1.Command_ReportOpened:
		s := v.ReportOpened.GetStats()
		if s == nil {
			return
		}
		i.bytes.Add(ctx, int64(s.GetBytes()))
		i.freeze.Record(ctx, time.Duration(s.GetFreeze()).Seconds())
		if !s.GetConverged() {
			i.nonConverged.Add(ctx, 1)
		}
		if s.GetAttempts() > 1 {
			i.retries.Add(ctx, int64(s.GetAttempts()-1))
		}
	}
}
