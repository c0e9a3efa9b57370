package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/planner"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// maxProposals bounds the proposals of one plan that are under way at once.
const maxProposals = 64

// memberTick is how often a member that is being added or removed is looked at.
const memberTick = 500 * time.Millisecond

// round is one turn of the leader's loop: verdicts, members, plan, departures. It returns when the next one
// is due at the latest. Errors end it early; the next round starts from the state.
func (c *Controller) round(ctx context.Context) (time.Duration, error) {
	if err := c.lock(ctx); err != nil {
		return c.cfg.SlowTick, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return c.cfg.SlowTick, err
	}
	w := c.readWorld()
	now := time.Now()
	c.soft.Lock()
	c.observeAll(w.nodes, now)
	c.soft.Unlock()
	if err := c.verdicts(ctx, w, now); err != nil {
		return c.cfg.SlowTick, err
	}
	busy, err := c.converge(ctx, w)
	if err != nil {
		return c.cfg.SlowTick, err
	}
	if !c.holding(w, now) {
		if err := c.plan(ctx, w, now); err != nil {
			return c.cfg.SlowTick, err
		}
	}
	if err := c.departures(ctx); err != nil {
		return c.cfg.SlowTick, err
	}
	next := c.due(w, now)
	if busy {
		next = min(next, memberTick)
	}
	return next, nil
}

// verdicts declares dead who was silent for too long.
func (c *Controller) verdicts(ctx context.Context, w world, now time.Time) error {
	var failed error
	for _, v := range c.silent(w.nodes, now) {
		r, err := c.Propose(ctx, &storagev1.Command{Command: &storagev1.Command_MarkDead{MarkDead: v}})
		switch reason := cluster.ReasonOf(err); {
		case reason == cluster.ReasonNoLeader || reason == cluster.ReasonLimit:
			c.acquit(v) // definitely never applied
			failed = err
		case err != nil:
			failed = err // invariant I10: it may be applied yet; the flag stays
		case r.Err != nil:
			c.log.Info("verdict overtaken", zap.String("node", v.GetNodeId()), zap.Error(r.Err))
		default:
			c.log.Warn("node declared dead; it comes back by registering", zap.String("node", v.GetNodeId()),
				zap.Uint64("incarnation", v.GetIncarnation()), zap.Duration("silence", c.cfg.DeadAfter),
				zap.Uint64("revision", uint64(r.Revision)))
			c.wake()
		}
	}
	return failed
}

// holding says whether a new leader still waits for the nodes to report. Planning before would see
// nodes without disks and partitions without sizes. It ends when all have reported, at the latest
// after a lease.
func (c *Controller) holding(w world, now time.Time) bool {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	if !s.held {
		return false
	}
	held := false
	for _, n := range w.nodes {
		e := s.of(n.ID)
		if n.Status == cluster.NodeAlive && (!e.heard || !e.sizes) {
			held = true
		}
	}
	s.held = held && now.Sub(s.since) < c.cfg.LeaseTTL
	return s.held
}

// due is when time alone gives a reason for a round.
func (c *Controller) due(w world, now time.Time) time.Duration {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	next := c.cfg.SlowTick
	at := func(t time.Time) {
		if d := t.Sub(now); d > 0 {
			next = min(next, d)
		}
	}
	if s.held {
		at(s.since.Add(c.cfg.LeaseTTL))
	}
	for _, n := range w.nodes {
		e := s.sessions[n.ID]
		if e == nil || n.Status != cluster.NodeAlive {
			continue
		}
		at(e.last.Add(c.cfg.DeadAfter))
		if !e.since.IsZero() {
			at(e.since.Add(w.settings.RebalanceDelay))
		}
	}
	return next
}

// plan plans and proposes.
func (c *Controller) plan(ctx context.Context, w world, now time.Time) error {
	c.prune(w)
	p := planner.Plan(c.view(w, now, false), planner.LimitsOf(w.settings))
	c.soft.Lock()
	c.soft.blocked, c.soft.waiting = p.Blocked, p.Waiting
	c.soft.Unlock()
	if len(p.Moves) == 0 {
		return nil
	}
	if err := faults.Hit(event(faults.LeaderPlanned, p.Moves[0].Partition, 0)); err != nil {
		return err
	}
	var errs struct {
		sync.Mutex
		first error
	}
	var g errgroup.Group
	g.SetLimit(maxProposals)
	for _, m := range p.Moves {
		g.Go(func() error {
			// Each proposal stands alone: one that fails or is refused holds up no other.
			if err := c.proposeMove(ctx, w, m); err != nil {
				errs.Lock()
				defer errs.Unlock()
				errs.first = errors.Join(errs.first, err)
			}
			return nil
		})
	}
	_ = g.Wait()
	return errs.first
}

func (c *Controller) proposeMove(ctx context.Context, w world, m planner.Move) error {
	cmd, ok := moveCommand(w, m)
	if !ok {
		return nil
	}
	r, err := c.Propose(ctx, cmd)
	if err != nil {
		return err
	}
	fields := []zap.Field{
		zap.String("partition", w.name(m.Partition)), zap.String("owner", string(m.From)),
		zap.String("target", string(m.To)), zap.String("old_target", string(m.OldTarget)), zap.String("reason", m.Reason),
	}
	if r.Err != nil {
		c.log.Info("target refused; planned again from the state", append(fields, zap.Error(r.Err))...)
		return nil
	}
	move := cluster.MoveID(r.Value)
	c.log.Info("target set", append(fields, zap.Uint64("move_id", uint64(move)), zap.Uint64("revision", uint64(r.Revision)))...)
	return faults.Hit(event(faults.LeaderProposed, m.Partition, move))
}

// moveCommand is the command of one planned move. Its precondition is the assignment that the plan saw.
func moveCommand(w world, m planner.Move) (*storagev1.Command, bool) {
	ref := partitionRef(m.Partition)
	if m.Cancel() {
		a, ok := w.assignment(m.Partition)
		if !ok || !a.Moving() {
			return nil, false
		}
		return &storagev1.Command{Command: &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{
			Partition: ref, MoveId: uint64(a.MoveID), Reason: m.Reason,
		}}}, true
	}
	return &storagev1.Command{Command: &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{
		Partition: ref, ExpectOwner: string(m.From), ExpectTarget: string(m.OldTarget), ExpectEpoch: uint64(m.Epoch),
		Target: string(m.To), Reason: m.Reason,
	}}}, true
}

func partitionRef(p cluster.PartitionID) *storagev1.PartitionRef {
	return &storagev1.PartitionRef{TopicId: uint64(p.Topic), Index: p.Index}
}

func event(point string, p cluster.PartitionID, move cluster.MoveID) faults.Event {
	return faults.Event{Point: point, TopicID: uint64(p.Topic), Index: p.Index, MoveID: uint64(move)}
}
