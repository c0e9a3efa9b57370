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
	removal map[cluster.NodeID][]string
}

func (c *Controller) readWorld() world {
	var w world
	c.machine.Read(func(r fsm.Reader) {
		w = world{
			revision: r.Revision(), nodes: r.Nodes(), assignments: r.Assignments(), settings: r.Settings(),
			controllers: r.Controllers(), topics: map[cluster.TopicID]cluster.Topic{},
			owned: map[cluster.NodeID]int{}, removal: map[cluster.NodeID][]string{},
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
	})
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

// view is what the planner sees. With placing, nodes that joined a moment ago receive as well: a new
// topic moves nothing.
func (c *Controller) view(w world, now time.Time, placing bool) planner.View {
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	c.observeAll(w.nodes, now)
	delay := w.settings.RebalanceDelay
	if placing {
		delay = 0
	}
	v := planner.View{
		Nodes:      make([]planner.Node, 0, len(w.nodes)),
		Partitions: make([]planner.Partition, 0, len(w.assignments)),
	}
	dead := map[cluster.NodeID]bool{}
	for _, n := range w.nodes {
		e := s.of(n.ID)
		alive := n.Status == cluster.NodeAlive
		dead[n.ID] = !alive
		v.Nodes = append(v.Nodes, planner.Node{
			ID: n.ID, Alive: alive, Draining: n.Draining, Zone: n.Zone,
			Settling:  alive && s.settling(e, now, c.cfg.LeaseTTL, delay),
			DiskTotal: e.report.DiskTotal, DiskFree: e.report.DiskFree,
		})
	}
	staged := s.staged()
	for _, a := range w.assignments {
		p := planner.Partition{
			ID: a.Partition, Owner: a.Owner, Target: a.Target, Epoch: a.Epoch,
			Parent: w.topics[a.Partition.Topic].Parent, Bytes: s.sizes[a.Partition],
		}
		if a.Moving() {
			m := staged[moveKey{a.Partition, a.MoveID}]
			p.Staged, p.Bytes = m.Done, max(p.Bytes, m.Total)
			e := s.sessions[a.Target]
			p.Stuck = dead[a.Owner] || (e != nil && e.stuck[a.Partition] == a.MoveID)
		}
		v.Partitions = append(v.Partitions, p)
	}
	return v
}

type moveKey struct {
	partition cluster.PartitionID
	move      cluster.MoveID
}

// staged indexes what destinations report. The caller holds the lock.
func (s *soft) staged() map[moveKey]cluster.MoveProgress {
	out := map[moveKey]cluster.MoveProgress{}
	for _, e := range s.sessions {
		for _, m := range e.report.Moves {
			out[moveKey{m.Partition, m.MoveID}] = m
		}
	}
	return out
}

// prune forgets sizes of partitions that are gone. The caller holds no lock.
func (c *Controller) prune(w world) {
	c.soft.Lock()
	defer c.soft.Unlock()
	if len(c.soft.sizes) <= len(w.assignments) {
		return
	}
	for p := range c.soft.sizes {
		if _, ok := w.assignment(p); !ok {
			delete(c.soft.sizes, p)
		}
	}
}
