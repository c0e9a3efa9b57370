package controller

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Order is an operator's word to the destination of a move. It is soft state: a new leader does not know it.
type Order struct {
	Partition cluster.PartitionID
	MoveID    cluster.MoveID
	// Promote has the copy promoted now, the source being dead; with AcceptLoss an incomplete one, too. Otherwise the
	// back-off ends.
	Promote, AcceptLoss bool
	// left is how many more heartbeats carry it: an answer may be lost, and repeating it is harmless.
	left int
}

// orderDeliveries is how many heartbeats' answers carry an order.
const orderDeliveries = 3

// takeOrders returns what the next answer carries. The caller holds the soft state's lock.
func (e *session) takeOrders() []Order {
	if len(e.orders) == 0 {
		return nil
	}
	out := e.orders
	e.orders = nil
	for _, o := range out {
		if o.left--; o.left > 0 {
			e.orders = append(e.orders, o)
		}
	}
	return out
}

// order leaves an order for the destination of a's move. The caller holds the soft state's lock.
func (s *soft) order(a cluster.Assignment, promote, acceptLoss bool) {
	e := s.of(a.Target)
	var kept []Order
	for _, o := range e.orders {
		if o.Partition != a.Partition {
			kept = append(kept, o)
		}
	}
	e.orders = append(kept, Order{a.Partition, a.MoveID, promote, acceptLoss, orderDeliveries})
}

// RetryMove ends the back-off of a partition's move. Errors: ReasonNotFound without a move, ReasonBlocked when its destination is
// not heard, ReasonNoLeader.
func (c *Controller) RetryMove(ctx context.Context, topic string, index uint32) (Move, string, error) {
	return c.orderMove(ctx, topic, index, false, false)
}

// ForcePromoteMove has the destination of a partition's move promote its copy now. Errors: as RetryMove, and ReasonGate while the
// source is not dead, or is in maintenance. What only the destination knows (whether the copy is complete) is in the move's
// progress, and in its outcome.
func (c *Controller) ForcePromoteMove(ctx context.Context, topic string, index uint32, acceptLoss bool) (m Move, name string, known cluster.Offset, err error) {
	m, name, err = c.orderMove(ctx, topic, index, true, acceptLoss)
	if err != nil {
		return m, name, 0, err
	}
	c.machine.Read(func(r fsm.Reader) {
		owner, _ := r.Node(m.Assignment.Owner)
		for _, h := range owner.DeadHWMs {
			if h.Partition == m.Assignment.Partition {
				known = max(known, h.Offset)
			}
		}
	})
	return m, name, known, nil
}

func (c *Controller) orderMove(ctx context.Context, topic string, index uint32, promote, acceptLoss bool) (Move, string, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return Move{}, "", err
	}
	a, err := c.partition(topic, index)
	if err != nil {
		return Move{}, "", err
	}
	name := cluster.FormatPartition(topic, index)
	if !a.Moving() {
		return Move{}, "", cluster.NotFound("partition %s has no move", name)
	}
	var owner, target cluster.Node
	c.machine.Read(func(r fsm.Reader) {
		owner, _ = r.Node(a.Owner)
		target, _ = r.Node(a.Target)
	})
	c.soft.Lock()
	defer c.soft.Unlock()
	e := c.soft.of(target.ID)
	gate := func(field, format string, args ...any) (Move, string, error) {
		err := cluster.Errorf(cluster.ReasonGate, "partition %s can't be promoted: "+format, append([]any{name}, args...)...)
		err.Field, err.MoveID = field, a.MoveID
		return Move{}, "", err
	}
	switch {
	case target.Status != cluster.NodeAlive || !e.heard:
		err := cluster.Errorf(cluster.ReasonBlocked, "the destination of %s, node %s, is not heard: start it, or cancel the move", name, a.Target)
		err.Blockers = []string{"node " + string(a.Target) + " is not heard"}
		return Move{}, "", err
	case promote && owner.Status != cluster.NodeDead:
		return gate("source_dead", "its owner %s is alive (last heartbeat %.1fs ago): it would go on acknowledging; it is declared dead after %s of silence",
			owner.ID, time.Since(c.soft.of(owner.ID).last).Seconds(), c.cfg.DeadAfter)
	case promote && owner.Maintenance:
		return gate("maintenance", "its owner %s is in maintenance (override: cluster maintenance stop %s)", owner.ID, owner.ID)
	}
	c.soft.order(a, promote, acceptLoss)
	m := Move{Assignment: a}
	if p, ok := c.soft.progress(a); ok {
		m.Progress = &p
	}
	return m, name, nil
}
