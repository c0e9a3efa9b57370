package controller

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// Controller is one controller's part in leading. See the package comment.
type Controller struct {
	cfg     Config
	backend consensus.Backend
	machine *fsm.Machine
	log     *zap.Logger
	metrics *instruments
	kick    chan struct{} // one pending reason to plan

	// work serializes rounds, placements, drains, settings and membership changes, so that each decides
	// on a state that the others do not change under it. It is a mutex that gives up with its caller.
	work  chan struct{}
	board board // with work
	soft  soft

	// proposals counts the goroutines that propose moves; Run waits for them.
	proposals sync.WaitGroup
}

// New returns a controller that does nothing until Run is called; its other methods work at once. It does
// not own backend and machine. cfg must be valid. The logger may be nil.
func New(cfg Config, backend consensus.Backend, machine *fsm.Machine, logger *zap.Logger) *Controller {
	if logger == nil {
		logger = zap.NewNop()
	}
	c := &Controller{cfg: cfg, backend: backend, machine: machine, log: logger, kick: make(chan struct{}, 1), work: make(chan struct{}, 1)}
	c.soft.sessions = map[cluster.NodeID]*session{}
	c.soft.sizes = map[cluster.PartitionID]cluster.Bytes{}
	c.soft.dirty = map[cluster.PartitionID]struct{}{}
	c.soft.proposed = map[cluster.PartitionID]*planner.Move{}
	c.soft.draining = map[cluster.NodeID][]blocker{}
	c.metrics = newInstruments(c)
	return c
}

// Config returns what the controller was made with.
func (c *Controller) Config() Config { return c.cfg }

func (c *Controller) now() time.Time {
	if c.cfg.Now != nil {
		return c.cfg.Now()
	}
	return time.Now()
}

// lock takes work, or gives up when ctx ends: nothing was done then.
func (c *Controller) lock(ctx context.Context) error {
	select {
	case c.work <- struct{}{}:
		return nil
	case <-ctx.Done():
		return noLeader("controller %s is busy: %v", c.cfg.Name, ctx.Err())
	}
}

func (c *Controller) unlock() { <-c.work }

// wake asks for a round; it never blocks.
func (c *Controller) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Run leads whenever the member leads, until ctx ends or the backend stops. It returns nil when ctx ended,
// and the backend's error otherwise. When it returns, nothing of it runs any more.
func (c *Controller) Run(ctx context.Context) error {
	defer c.metrics.close()
	defer c.proposals.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen cluster.Revision // up to which changes were judged
	due := true               // a reason other than a change of the state
	for {
		// The channels before the state, so that nothing falls between.
		changed, updated := c.backend.Changed(), c.machine.Updated()
		wait := c.cfg.SlowTick
		if c.backend.Status().IsLeader() {
			if matters := c.matters(&seen); due || matters {
				wait = c.turn(ctx)
			}
		}
		timer.Reset(wait)
		due = true
		select {
		case <-ctx.Done():
			return nil
		case <-c.backend.Done():
			return c.backend.Err()
		case <-changed:
		case <-c.kick:
		case <-timer.C:
		case <-updated:
			due = false
		}
	}
}

// turn runs one round and returns when the next one is due at the latest.
func (c *Controller) turn(ctx context.Context) time.Duration {
	next, err := c.Round(ctx)
	if err == nil || ctx.Err() != nil {
		return next
	}
	if cluster.ReasonOf(err) == cluster.ReasonNoLeader {
		c.log.Debug("round ended: not the leader", zap.Error(err))
	} else {
		c.log.Warn("round ended early; the next one plans from the state", zap.Error(err))
	}
	return min(c.cfg.SlowTick, retryAfter)
}

// matters says whether anything that planning depends on changed after *seen, and moves *seen on.
func (c *Controller) matters(seen *cluster.Revision) bool {
	var now cluster.Revision
	c.machine.Read(func(r fsm.Reader) { now = r.Revision() })
	if now == *seen {
		return false
	}
	const limit = 1000
	changes, err := c.machine.Changes(*seen, limit)
	*seen = now
	if err != nil || len(changes) == limit {
		return true
	}
	for _, rc := range changes {
		for _, ch := range rc.Changes {
			if relevant(ch) {
				return true
			}
		}
	}
	return false
}

// relevant is false for grants and revocations of handoffs, which are most changes of a move.
func relevant(ch cluster.Change) bool {
	a, b := ch.Assignment, ch.Before
	return a == nil || b == nil || a.Owner != b.Owner || a.Target != b.Target || a.MoveID != b.MoveID || a.Opened != b.Opened
}
