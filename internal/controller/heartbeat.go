package controller

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// Registration begins a node session.
type Registration struct {
	Node        cluster.NodeID
	StoreID     cluster.StoreID
	Incarnation cluster.Incarnation
	Address     string
	Zone        string
	// Weight is how much the node should hold beside the others; zero means 1.
	Weight uint32
	Voter  cluster.ControllerName
}

// Register registers a node's incarnation. Errors: ReasonStaleIncarnation when it is not higher than the
// recorded one, ReasonForeignStore when another data directory has the id, ReasonBlocked when an agent with
// the same directory holds a lease at another address, ReasonNoLeader.
func (c *Controller) Register(ctx context.Context, reg Registration) (fsm.Result, cluster.Node, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return fsm.Result{}, cluster.Node{}, err
	}
	if err := c.twin(reg); err != nil {
		return fsm.Result{}, cluster.Node{}, err
	}
	r, err := c.do(ctx, &storagev1.Command{Command: &storagev1.Command_RegisterNode{RegisterNode: &storagev1.RegisterNode{
		NodeId: string(reg.Node), StoreId: string(reg.StoreID), Incarnation: uint64(reg.Incarnation),
		Address: reg.Address, Zone: reg.Zone, Voter: string(reg.Voter), CapacityWeight: reg.Weight,
	}}})
	if err != nil {
		return r, cluster.Node{}, err
	}
	var n cluster.Node
	c.machine.Read(func(rd fsm.Reader) { n, _ = rd.Node(reg.Node) })
	c.soft.Lock()
	c.soft.observe(n, c.now())
	c.soft.Unlock()
	c.wake()
	return r, n, nil
}

// twin refuses a second agent that runs on a copy of a living agent's directory (C37): its
// registration would end the first one's session.
func (c *Controller) twin(reg Registration) error {
	var n cluster.Node
	var ok bool
	c.machine.Read(func(r fsm.Reader) { n, ok = r.Node(reg.Node) })
	if !ok || n.StoreID != reg.StoreID || n.Address == reg.Address || n.Status != cluster.NodeAlive {
		return nil
	}
	c.soft.Lock()
	defer c.soft.Unlock()
	e := c.soft.sessions[reg.Node]
	if e == nil || !e.heard || e.incarnation != n.Incarnation {
		return nil
	}
	left := c.cfg.LeaseTTL - c.now().Sub(e.last)
	if left <= 0 {
		return nil
	}
	err := cluster.Errorf(cluster.ReasonBlocked,
		"node %s is alive at %s with the same data directory %s; stop that agent, or give the one at %s a node_id and a directory of its own",
		reg.Node, n.Address, n.StoreID, reg.Address)
	err.RetryAfter = left
	err.Blockers = []string{"node " + string(reg.Node) + " is alive at " + n.Address}
	return err
}

// Lease answers a heartbeat.
type Lease struct {
	TTL time.Duration
	// WantSizes asks for the sizes of all owned partitions next time.
	WantSizes bool
}

// Heartbeat renews a node's lease and takes over its report. ReasonStaleIncarnation: the node must take a
// new incarnation and register.
func (c *Controller) Heartbeat(ctx context.Context, id cluster.NodeID, inc cluster.Incarnation, address string, rep Report) (Lease, error) {
	arrived := c.now()
	// Invariant I10: leadership is confirmed after the heartbeat arrived, with the own term's first entry
	// applied. Confirming it before would let a deposed leader renew leases.
	if _, err := c.Confirm(ctx); err != nil {
		return Lease{}, err
	}
	var n cluster.Node
	var ok bool
	owned := map[cluster.PartitionID]bool{}
	c.machine.Read(func(r fsm.Reader) {
		n, ok = r.Node(id)
		for _, s := range rep.Sizes {
			if a, found := r.Assignment(s.Partition); found && a.Owner == id {
				owned[s.Partition] = true
			}
		}
	})
	switch {
	case !ok:
		return Lease{}, cluster.NotFound("node %s is no member: it never registered, or it was removed", id)
	case n.Status != cluster.NodeAlive || n.Incarnation != inc:
		return Lease{}, cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s is %s with incarnation %d; the heartbeat is from %d", id, n.Status, n.Incarnation, inc)
	case address != "" && address != n.Address:
		return Lease{}, cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s registered at %s; the heartbeat is from %s", id, n.Address, address)
	}
	return c.accept(n, arrived, rep, owned)
}

// accept renews the lease of n, whose record was read after the barrier.
func (c *Controller) accept(n cluster.Node, arrived time.Time, rep Report, owned map[cluster.PartitionID]bool) (Lease, error) {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	e := s.observe(n, arrived)
	// Invariant I10: the flag and the renewal are under one lock, and the flag is set before the verdict
	// is proposed. So there is no lease that a verdict overtakes (C75).
	if e.incarnation != n.Incarnation || e.dead {
		return Lease{}, cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s: incarnation %d was declared dead or superseded", n.ID, n.Incarnation)
	}
	if e.verdict {
		return Lease{}, cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s was silent for too long: a verdict on incarnation %d is on its way", n.ID, n.Incarnation)
	}
	first := !e.heard
	e.heard = true
	if arrived.After(e.last) {
		e.last = arrived
	}
	for _, z := range rep.Sizes {
		if owned[z.Partition] && s.sizes[z.Partition] != z.Bytes {
			s.sizes[z.Partition] = z.Bytes
			s.dirty[z.Partition] = struct{}{}
		}
	}
	e.sizes = e.sizes || rep.SizesComplete
	rep.Sizes = nil
	s.touch(e)
	before, at := e.report, e.reported
	e.report, e.reported = rep, c.now()
	e.report.Moves = withRates(rep.Moves, before.Moves, e.reported.Sub(at))
	e.landed = [2]cluster.Bytes{0, e.landed[0]}
	stuck := e.mark()
	s.touch(e)
	left := n.Draining && (before.IngressRecords != rep.IngressRecords || before.IngressClosed != rep.IngressClosed ||
		before.Quarantined != rep.Quarantined)
	if first || stuck || left {
		c.wake()
	}
	return Lease{TTL: c.cfg.LeaseTTL, WantSizes: !e.sizes}, nil
}

// silent marks the nodes whose silence is over dead_after and returns the verdicts to propose. The flag is
// set here, before anything is proposed.
func (c *Controller) silent(nodes []cluster.Node, now time.Time) []*storagev1.MarkDead {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	var out []*storagev1.MarkDead
	for _, n := range nodes {
		e := s.sessions[n.ID]
		if n.Status != cluster.NodeAlive || e == nil || e.incarnation != n.Incarnation || now.Sub(e.last) < c.cfg.DeadAfter {
			continue
		}
		e.verdict = true
		v := &storagev1.MarkDead{NodeId: string(n.ID), Incarnation: uint64(n.Incarnation)}
		for _, h := range e.report.OutboundHWMs {
			v.Hwms = append(v.Hwms, &storagev1.PartitionOffsetRecord{
				TopicId: uint64(h.Partition.Topic), Index: h.Partition.Index, Offset: uint64(h.Offset),
			})
		}
		out = append(out, v)
	}
	return out
}

// acquit takes back a verdict that will definitely never be applied.
func (c *Controller) acquit(v *storagev1.MarkDead) {
	c.soft.Lock()
	defer c.soft.Unlock()
	if e := c.soft.sessions[cluster.NodeID(v.GetNodeId())]; e != nil && e.incarnation == cluster.Incarnation(v.GetIncarnation()) {
		e.verdict = false
	}
}
