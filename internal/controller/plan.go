package controller

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/planner"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// maxProposals bounds the planned moves whose proposals are not answered yet.
const maxProposals = 64

// memberTick is how often a member that is being added or removed is looked at.
const memberTick = 500 * time.Millisecond

// Round is one turn of the leader's loop: verdicts, members, plan, departures. It returns when the next one
// is due at the latest. Errors end it early; the next round starts from the state. Run calls it; so does who drives a
// controller by hand.
func (c *Controller) Round(ctx context.Context) (time.Duration, error) {
	if err := c.lock(ctx); err != nil {
		return c.cfg.SlowTick, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return c.cfg.SlowTick, err
	}
	var w world
	c.machine.Read(func(r fsm.Reader) {
		w = world{revision: r.Revision(), nodes: r.Nodes(), settings: r.Settings(), controllers: r.Controllers()}
	})
	now := c.now()
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
	at(s.retry)
	if s.held {
		at(s.since.Add(c.cfg.LeaseTTL))
	}
	for _, n := range w.nodes {
		e := s.sessions[n.ID]
		if e == nil || n.Status != cluster.NodeAlive {
			continue
		}
		at(e.last.Add(c.cfg.DeadAfter))
		at(e.last.Add(c.cfg.LeaseTTL))
		if !e.since.IsZero() {
			at(e.since.Add(settleAfter(n, w.settings.RebalanceDelay)))
		}
	}
	if s.cooling > 0 && len(c.board.cools) > 0 {
		at(c.board.cools[0].until)
	}
	return next
}

// plan plans and proposes. It does not wait for the answers: a slot that gets free meanwhile is filled by the next
// round, for which what is proposed counts as done.
func (c *Controller) plan(ctx context.Context, w world, now time.Time) error {
	if err := c.follow(w, now); err != nil {
		return err
	}
	s := &c.soft
	lim := planner.LimitsOf(w.settings)
	s.Lock()
	defer s.Unlock()
	if s.retry.After(now) {
		return nil
	}
	lim.HoldRebalancing = c.tooManyAway(w, now)
	p := c.board.planner.Plan(lim)
	s.blocked, s.waiting, s.onHold, s.cooling = p.Blocked, p.Waiting, p.OnHold, p.Cooling
	moves := p.Moves[:min(len(p.Moves), max(0, maxProposals-len(s.proposed)))]
	if len(moves) == 0 {
		return nil
	}
	if err := faults.Hit(event(faults.LeaderPlanned, moves[0].Partition, 0)); err != nil {
		return err
	}
	for i := range moves {
		s.proposed[moves[i].Partition] = &moves[i]
		s.dirty[moves[i].Partition] = struct{}{}
		c.start(ctx, func(ctx context.Context) { c.proposeMove(ctx, &moves[i]) })
	}
	return nil
}

// start runs a proposal beside the round.
func (c *Controller) start(ctx context.Context, propose func(context.Context)) {
	if c.cfg.Start != nil {
		c.cfg.Start(propose)
		return
	}
	c.proposals.Go(func() { propose(ctx) })
}

// proposeMove proposes one planned move. Each stands alone: one that fails or is refused holds up no other.
func (c *Controller) proposeMove(ctx context.Context, m *planner.Move) {
	err := c.setTarget(ctx, m)
	s := &c.soft
	s.Lock()
	if s.proposed[m.Partition] == m {
		// Invariant I8: whatever became of it, the next round takes the partition over as the state has it.
		delete(s.proposed, m.Partition)
		s.dirty[m.Partition] = struct{}{}
	}
	if err != nil {
		s.retry = c.now().Add(retryAfter)
	}
	s.Unlock()
	switch {
	case err == nil || ctx.Err() != nil:
	case cluster.ReasonOf(err) == cluster.ReasonNoLeader:
		c.log.Debug("target not set: not the leader", zap.Error(err))
	default:
		c.log.Warn("target not set; planned again from the state", zap.Error(err))
	}
	c.wake()
}

func (c *Controller) setTarget(ctx context.Context, m *planner.Move) error {
	var name string
	var a cluster.Assignment
	c.machine.Read(func(r fsm.Reader) {
		name = r.PartitionName(m.Partition)
		a, _ = r.Assignment(m.Partition)
	})
	cmd, ok := moveCommand(a, m)
	if !ok {
		return nil
	}
	r, err := c.Propose(ctx, cmd)
	if err != nil {
		return err
	}
	fields := []zap.Field{
		zap.String("partition", name), zap.String("owner", string(m.From)),
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

// moveCommand is the command of one planned move. Its precondition is the assignment that the plan saw; a is the
// present one, and names the move to cancel.
func moveCommand(a cluster.Assignment, m *planner.Move) (*storagev1.Command, bool) {
	ref := partitionRef(m.Partition)
	if m.Cancel() {
		if a.Epoch != m.Epoch || !a.Moving() {
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
