package sim

import (
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

const (
	leaseTTL  = 2 * time.Second
	deadAfter = 5 * time.Second
)

// soft is the leader's soft state, with the rules of internal/controller: it belongs to one term, and a new
// leader gives every node a full grace.
type soft struct {
	term     uint64
	since    time.Duration
	sessions map[cluster.NodeID]*softSession
}

type softSession struct {
	incarnation cluster.Incarnation
	last        time.Duration
	heard       bool
	since       time.Duration
	dead        bool
	verdict     bool
	report      report
}

// report is a heartbeat's soft state.
type report struct {
	hwms  []cluster.PartitionOffset
	moves []cluster.MoveProgress
}

func (c *controller) adopt(term uint64) {
	s := &c.soft
	if term <= s.term {
		return
	}
	now := c.clk.now()
	*s = soft{term: term, since: now, sessions: map[cluster.NodeID]*softSession{}}
	c.w.log("%s leads term %d", c.host, term)
	c.machine.Read(func(r fsm.Reader) {
		for _, n := range r.Nodes() {
			s.sessions[n.ID] = &softSession{incarnation: n.Incarnation, last: now, dead: n.Status == cluster.NodeDead}
		}
	})
}

func (s *soft) observe(n cluster.Node, now time.Duration) *softSession {
	dead := n.Status == cluster.NodeDead
	e := s.sessions[n.ID]
	switch {
	case e == nil:
		e = &softSession{incarnation: n.Incarnation, last: now, since: now, dead: dead}
		s.sessions[n.ID] = e
	case n.Incarnation < e.incarnation:
	case e.incarnation != n.Incarnation:
		fresh := softSession{incarnation: n.Incarnation, last: now, since: e.since, dead: dead}
		if e.dead {
			fresh.since = now
		}
		*e = fresh
	case dead:
		e.dead = true
	}
	return e
}

// lead is the leader's loop: verdicts, plan, departures.
func (c *controller) lead(p *proc) {
	for {
		p.sleep(p.w.between(150*time.Millisecond, 350*time.Millisecond))
		if !c.leads() || c.confirm(p) != nil {
			continue
		}
		var nodes []cluster.Node
		var as []cluster.Assignment
		var set cluster.Settings
		c.machine.Read(func(r fsm.Reader) { nodes, as, set = r.Nodes(), r.Assignments(), r.Settings() })
		now := c.clk.now()
		for _, n := range nodes {
			c.soft.observe(n, now)
		}
		if c.verdicts(p, nodes, now) != nil {
			continue
		}
		if now-c.soft.since >= leaseTTL && c.plan(p, nodes, as, set) != nil {
			continue
		}
		c.departures(p, nodes)
	}
}

func (c *controller) verdicts(p *proc, nodes []cluster.Node, now time.Duration) error {
	for _, n := range nodes {
		e := c.soft.sessions[n.ID]
		if n.Status != cluster.NodeAlive || e == nil || e.incarnation != n.Incarnation || now-e.last < deadAfter {
			continue
		}
		// Invariant I10: the flag is set before the verdict is proposed.
		e.verdict = true
		v := &storagev1.MarkDead{NodeId: string(n.ID), Incarnation: uint64(n.Incarnation)}
		for _, h := range e.report.hwms {
			v.Hwms = append(v.Hwms, &storagev1.PartitionOffsetRecord{TopicId: uint64(h.Partition.Topic), Index: h.Partition.Index, Offset: uint64(h.Offset)})
		}
		c.w.log("%s: verdict on %s incarnation %d", c.host, n.ID, n.Incarnation)
		_, err := c.propose(p, &storagev1.Command{Command: &storagev1.Command_MarkDead{MarkDead: v}})
		if cluster.ReasonOf(err) == cluster.ReasonNoLeader {
			e.verdict = false
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plan calls the planner and proposes what it returns.
func (c *controller) plan(p *proc, nodes []cluster.Node, as []cluster.Assignment, set cluster.Settings) error {
	now := c.clk.now()
	dead := map[cluster.NodeID]bool{}
	var v planner.View
	for _, n := range nodes {
		alive := n.Status == cluster.NodeAlive
		dead[n.ID] = !alive
		e := c.soft.sessions[n.ID]
		settling := alive && (e == nil || !e.heard || now-e.last > leaseTTL || (e.since != 0 && now-e.since < set.RebalanceDelay))
		v.Nodes = append(v.Nodes, planner.Node{ID: n.ID, Alive: alive, Draining: n.Draining, Settling: settling})
	}
	moving := map[cluster.PartitionID]cluster.MoveID{}
	for _, a := range as {
		q := planner.Partition{ID: a.Partition, Owner: a.Owner, Target: a.Target, Epoch: a.Epoch}
		if a.Moving() {
			moving[a.Partition] = a.MoveID
			q.Stuck = dead[a.Owner] || c.stuck(a)
		}
		v.Partitions = append(v.Partitions, q)
	}
	for _, m := range planner.Plan(v, planner.LimitsOf(set)).Moves {
		ref := refOf(m.Partition)
		cmd := &storagev1.Command{Command: &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{
			Partition: ref, ExpectOwner: string(m.From), ExpectTarget: string(m.OldTarget), ExpectEpoch: uint64(m.Epoch),
			Target: string(m.To), Reason: m.Reason,
		}}}
		if m.Cancel() {
			cmd = &storagev1.Command{Command: &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{
				Partition: ref, MoveId: uint64(moving[m.Partition]), Reason: m.Reason,
			}}}
		}
		if _, err := c.propose(p, cmd); err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) stuck(a cluster.Assignment) bool {
	e := c.soft.sessions[a.Target]
	if e == nil {
		return false
	}
	for _, m := range e.report.moves {
		if m.Partition == a.Partition && m.MoveID == a.MoveID {
			return m.Phase == cluster.PhaseBlocked || m.Phase == cluster.PhaseWaiting && m.Attempt >= 3
		}
	}
	return false
}

// departures removes who has drained. The state machine has the last word; nodes report an empty quarantine.
func (c *controller) departures(p *proc, nodes []cluster.Node) {
	for _, n := range nodes {
		var blockers []fsm.RemovalBlocker
		c.machine.Read(func(r fsm.Reader) { blockers = r.RemovalBlockers(n.ID) })
		if !n.Draining || n.Status != cluster.NodeAlive || len(blockers) > 0 || !c.w.ops.mayLeave(n.ID) {
			continue
		}
		_, _ = c.propose(p, &storagev1.Command{Command: &storagev1.Command_RemoveNode{RemoveNode: &storagev1.RemoveNode{
			NodeId: string(n.ID), Incarnation: uint64(n.Incarnation),
		}}})
	}
}

// register begins a session, heartbeat renews its lease.
func (c *controller) register(p *proc, id cluster.NodeID, inc cluster.Incarnation) error {
	if err := c.confirm(p); err != nil {
		return err
	}
	_, err := c.do(p, &storagev1.Command{Command: &storagev1.Command_RegisterNode{RegisterNode: &storagev1.RegisterNode{
		NodeId: string(id), StoreId: "store-" + string(id), Incarnation: uint64(inc), Address: string(id),
	}}})
	if err != nil {
		return err
	}
	c.machine.Read(func(r fsm.Reader) {
		if n, ok := r.Node(id); ok && c.soft.sessions != nil {
			c.soft.observe(n, c.clk.now())
		}
	})
	return nil
}

func (c *controller) heartbeat(p *proc, id cluster.NodeID, inc cluster.Incarnation, rep report) error {
	arrived := c.clk.now()
	// Invariant I10: leadership is confirmed after the heartbeat arrived.
	if err := c.confirm(p); err != nil {
		return err
	}
	var n cluster.Node
	var ok bool
	c.machine.Read(func(r fsm.Reader) { n, ok = r.Node(id) })
	if !ok {
		return cluster.NotFound("node %s is no member", id)
	}
	e := c.soft.observe(n, arrived)
	if n.Status != cluster.NodeAlive || n.Incarnation != inc || e.incarnation != inc || e.dead || e.verdict {
		return cluster.Errorf(cluster.ReasonStaleIncarnation, "node %s: incarnation %d is dead or superseded", id, inc)
	}
	e.heard, e.last, e.report = true, max(e.last, arrived), rep
	return nil
}

func refOf(p cluster.PartitionID) *storagev1.PartitionRef {
	return &storagev1.PartitionRef{TopicId: uint64(p.Topic), Index: p.Index}
}
