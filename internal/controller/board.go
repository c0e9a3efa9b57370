package controller

import (
	"container/heap"
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// board is the planner's view, kept from round to round: it follows the revisions of the state and what the nodes
// report, so that a round costs what changed. It is used with work held.
type board struct {
	planner  *planner.Board // nil: to be made from the state
	term     uint64
	revision cluster.Revision // up to which it follows the state
	cooldown time.Duration    // with which partitions were judged
	cools    coolingHeap
}

// followLimit bounds the revisions that are read at once.
const followLimit = 1000

// follow brings the board up to the present state and reports.
func (c *Controller) follow(w world, now time.Time) error {
	b := &c.board
	c.soft.Lock()
	term := c.soft.term
	c.soft.Unlock()
	if b.planner == nil || b.term != term || b.cooldown != w.settings.MoveCooldown {
		c.rebuild(w, term, now)
	}
	c.putNodes(w, now)
	changed, err := c.changedPartitions()
	if cluster.ReasonOf(err) == cluster.ReasonRevisionCompacted {
		c.rebuild(w, term, now)
		c.putNodes(w, now)
		changed, err = c.changedPartitions()
	}
	if err != nil {
		return err
	}
	c.soft.Lock()
	for p := range c.soft.dirty {
		changed = append(changed, p)
	}
	clear(c.soft.dirty)
	c.soft.Unlock()
	for len(b.cools) > 0 && !b.cools[0].until.After(now) {
		changed = append(changed, heap.Pop(&b.cools).(cooling).partition)
	}
	if len(changed) == 0 {
		return nil
	}
	slices.SortFunc(changed, cluster.PartitionID.Compare)
	c.putPartitions(slices.Compact(changed), now)
	return nil
}

// rebuild makes the board from the state, topic by topic, so that the state is never held up for long. What changes
// meanwhile is followed afterwards.
func (c *Controller) rebuild(w world, term uint64, now time.Time) {
	b := &c.board
	*b = board{planner: planner.NewBoard(planner.View{}), term: term, cooldown: w.settings.MoveCooldown}
	var topics []cluster.Topic
	c.machine.Read(func(r fsm.Reader) { b.revision, topics = r.Revision(), r.Topics() })
	slices.SortFunc(topics, func(a, b cluster.Topic) int { return int(int64(a.ID) - int64(b.ID)) })
	c.soft.Lock()
	clear(c.soft.dirty)
	c.soft.Unlock()
	c.putNodes(w, now)
	for _, t := range topics {
		var as []cluster.Assignment
		c.machine.Read(func(r fsm.Reader) { as = r.TopicAssignments(t.ID) })
		c.soft.Lock()
		for _, a := range as {
			c.take(a, t.Parent, now)
		}
		c.soft.Unlock()
	}
}

// changedPartitions moves the board's revision on, drops the topics that are gone, and returns the partitions that
// changed.
func (c *Controller) changedPartitions() ([]cluster.PartitionID, error) {
	b := &c.board
	var out []cluster.PartitionID
	for {
		revisions, err := c.machine.Changes(b.revision, followLimit)
		if err != nil || len(revisions) == 0 {
			return out, err
		}
		for _, rc := range revisions {
			for _, ch := range rc.Changes {
				switch {
				case ch.Assignment != nil:
					out = append(out, ch.Assignment.Partition)
					c.soft.arrived(ch)
				case ch.TopicRemoved != 0:
					b.planner.DropTopic(ch.TopicRemoved)
				case ch.AssignmentRemoved != nil:
					c.soft.forgetSize(*ch.AssignmentRemoved)
				}
			}
		}
		b.revision = revisions[len(revisions)-1].Revision
	}
}

// arrived counts what a flip has brought to its destination's disk until that has reported twice: the first report may
// have been on its way (C42).
func (s *soft) arrived(ch cluster.Change) {
	was, now := ch.Before, ch.Assignment
	if was == nil || was.Target == "" || was.Target != now.Owner {
		return
	}
	s.Lock()
	defer s.Unlock()
	if e := s.sessions[now.Owner]; e != nil {
		m := e.progress(*was)
		size := max(s.sizes[now.Partition], m.Total)
		e.landed[0] += size - min(size, m.Done)
	}
}

// forgetSize drops the size of a partition that is gone.
func (s *soft) forgetSize(p cluster.PartitionID) {
	s.Lock()
	defer s.Unlock()
	delete(s.sizes, p)
}

// putPartitions takes over the present state of some partitions, in order.
func (c *Controller) putPartitions(ids []cluster.PartitionID, now time.Time) {
	as := make([]cluster.Assignment, 0, len(ids))
	parents := make([]cluster.TopicID, 0, len(ids))
	c.machine.Read(func(r fsm.Reader) {
		for _, p := range ids {
			// One that is gone is dropped with its topic.
			if a, ok := r.Assignment(p); ok {
				t, _ := r.Topic(p.Topic)
				as, parents = append(as, a), append(parents, t.Parent)
			}
		}
	})
	c.soft.Lock()
	defer c.soft.Unlock()
	for i, a := range as {
		c.take(a, parents[i], now)
	}
}

// take takes over one partition. The caller holds the soft state's lock.
func (c *Controller) take(a cluster.Assignment, parent cluster.TopicID, now time.Time) {
	b := &c.board
	p := c.soft.planned(a, parent, b.cooldown, now)
	if p.Cooling {
		heap.Push(&b.cools, cooling{a.Partition, coolUntil(a, b.cooldown)})
	}
	b.planner.Set(p)
}

// putNodes takes over what is known of the nodes.
func (c *Controller) putNodes(w world, now time.Time) {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	nodes := make([]planner.Node, 0, len(w.nodes))
	for _, n := range w.nodes {
		nodes = append(nodes, c.planned(n, w.settings, now))
	}
	c.board.planner.SetNodes(nodes)
}

// planned is a node as the planner sees it. The caller holds the soft state's lock.
func (c *Controller) planned(n cluster.Node, set cluster.Settings, now time.Time) planner.Node {
	s := &c.soft
	e := s.of(n.ID)
	out := planner.Node{
		ID: n.ID, Alive: n.Status == cluster.NodeAlive, Draining: n.Draining, Maintenance: n.Maintenance, Zone: n.Zone, Weight: int(n.Weight),
		DiskTotal: e.report.DiskTotal, DiskFree: e.free(),
	}
	if out.Alive {
		out.Silent = s.silent(e, now, c.cfg.LeaseTTL)
		out.Settling = e.settling(n, now, set.RebalanceDelay)
	}
	return out
}

// cooling is a partition that cools down.
type cooling struct {
	partition cluster.PartitionID
	until     time.Time
}

// coolingHeap has the next one to be free again on top.
type coolingHeap []cooling

func (h coolingHeap) Len() int           { return len(h) }
func (h coolingHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h coolingHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *coolingHeap) Push(x any)        { *h = append(*h, x.(cooling)) }
func (h *coolingHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
