package controller

import (
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// world is one consistent copy of what a round decides on.
type world struct {
	revision    cluster.Revision
	nodes       []cluster.Node       // by id
	assignments []cluster.Assignment // by partition
	topics      map[cluster.TopicID]cluster.Topic
	settings    cluster.Settings
	controllers []cluster.Controller
	owned       map[cluster.NodeID]int
	// removal is what the state machine would refuse the removal of a draining node for.
	removal map[cluster.NodeID][]fsm.RemovalBlocker
}

func (c *Controller) readWorld() world {
	var w world
	c.machine.Read(func(r fsm.Reader) {
		w = summary(r)
		w.assignments = r.Assignments()
	})
	return w
}

func summary(r fsm.Reader) world {
	w := world{
		revision: r.Revision(), nodes: r.Nodes(), settings: r.Settings(),
		controllers: r.Controllers(), topics: map[cluster.TopicID]cluster.Topic{},
		owned: map[cluster.NodeID]int{}, removal: map[cluster.NodeID][]fsm.RemovalBlocker{},
	}
	for _, t := range r.Topics() {
		w.topics[t.ID] = t
	}
	for _, n := range w.nodes {
		w.owned[n.ID] = r.Owned(n.ID)
		if n.Draining {
			w.removal[n.ID] = r.RemovalBlockers(n.ID)
		}
	}
	return w
}

// name is a partition's name for people.
func (w world) name(p cluster.PartitionID) string {
	if t, ok := w.topics[p.Topic]; ok {
		return cluster.FormatPartition(t.Name, p.Index)
	}
	return p.String()
}

// assignment finds a partition.
func (w world) assignment(p cluster.PartitionID) (cluster.Assignment, bool) {
	i, ok := slices.BinarySearchFunc(w.assignments, p, func(a cluster.Assignment, p cluster.PartitionID) int {
		return a.Partition.Compare(p)
	})
	if !ok {
		return cluster.Assignment{}, false
	}
	return w.assignments[i], true
}

func (w world) node(id cluster.NodeID) (cluster.Node, bool) {
	for _, n := range w.nodes {
		if n.ID == id {
			return n, true
		}
	}
	return cluster.Node{}, false
}

// readSummary is readWorld without the assignments, of which there may be millions.
func (c *Controller) readSummary() world {
	var w world
	c.machine.Read(func(r fsm.Reader) { w = summary(r) })
	return w
}

// view is what the planner sees, for a plan that is not carried out. With placing, nodes that joined a moment ago
// receive as well: a new topic moves nothing.
func (c *Controller) view(w world, now time.Time, placing bool) planner.View {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	c.observeAll(w.nodes, now)
	v := planner.View{
		Nodes:      make([]planner.Node, 0, len(w.nodes)),
		Partitions: make([]planner.Partition, 0, len(w.assignments)),
	}
	for _, n := range w.nodes {
		p := c.planned(n, w.settings, now)
		p.Settling = p.Settling && !placing
		v.Nodes = append(v.Nodes, p)
	}
	for _, a := range w.assignments {
		v.Partitions = append(v.Partitions, s.planned(a, w.topics[a.Partition.Topic].Parent, w.settings.MoveCooldown, now))
	}
	return v
}

// planned is a partition as the planner sees it. The caller holds the lock.
func (s *soft) planned(a cluster.Assignment, parent cluster.TopicID, cooldown time.Duration, now time.Time) planner.Partition {
	p := planner.Partition{
		ID: a.Partition, Owner: a.Owner, Target: a.Target, Epoch: a.Epoch, Parent: parent, Bytes: s.sizes[a.Partition],
		// A time in the future is not believed: some leader's clock was wrong.
		Cooling: coolUntil(a, cooldown).After(now) && !a.MovedAt.After(now),
	}
	if a.Unconfirmed {
		p.Owner = "" // nobody's yet, since a restore: it stays where it is
	}
	if a.Moving() {
		if e := s.sessions[a.Target]; e != nil {
			p.Stuck = e.stuck[a.Partition] == a.MoveID
			m := e.progress(a)
			p.Staged, p.Bytes = m.Done, max(p.Bytes, m.Total)
		}
	}
	// What was proposed and is not answered yet counts as done: it must not be planned once more. If it fails, the
	// partition is taken over again as it is.
	if q := s.proposed[a.Partition]; q != nil && q.Epoch == a.Epoch {
		p.Target, p.Stuck, p.Staged = q.To, false, 0
	}
	return p
}

// coolUntil is when a partition that moved may move again for balance; zero when it may.
func coolUntil(a cluster.Assignment, cooldown time.Duration) time.Time {
	if a.MovedAt.IsZero() || cooldown <= 0 {
		return time.Time{}
	}
	return a.MovedAt.Add(cooldown)
}
