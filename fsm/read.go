package fsm

import (
	"cmp"
	"maps"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Reader reads one consistent state, inside Machine.Read only. What it returns is a copy unless stated.
type Reader struct{ st *state }

// Read calls fn with the present state. Nothing is applied meanwhile: fn should be short and must not
// call the machine.
func (m *Machine) Read(fn func(r Reader)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(Reader{m.mu.state})
}

// Revision is the state's revision.
func (r Reader) Revision() cluster.Revision { return r.st.revision }

// Nodes returns all nodes by id.
func (r Reader) Nodes() []cluster.Node { return sortedNodes(r.st.nodes) }

func sortedNodes(nodes map[cluster.NodeID]cluster.Node) []cluster.Node {
	return slices.SortedFunc(maps.Values(nodes), func(a, b cluster.Node) int { return cmp.Compare(a.ID, b.ID) })
}

// Node returns one node.
func (r Reader) Node(id cluster.NodeID) (cluster.Node, bool) {
	n, ok := r.st.nodes[id]
	return n, ok
}

// Owned and Inbound count the partitions that a node owns, and those with it as target.
func (r Reader) Owned(id cluster.NodeID) int { return r.st.owned[id] }

// Inbound counts the moves with a node as target.
func (r Reader) Inbound(id cluster.NodeID) int { return r.st.inbound[id] }

// Topics returns all topics by name.
func (r Reader) Topics() []cluster.Topic {
	return slices.SortedFunc(maps.Values(r.st.topics), func(a, b cluster.Topic) int { return cmp.Compare(a.Name, b.Name) })
}

// Topic returns one topic.
func (r Reader) Topic(id cluster.TopicID) (cluster.Topic, bool) {
	t, ok := r.st.topics[id]
	return t, ok
}

// TopicByName returns one topic.
func (r Reader) TopicByName(name string) (cluster.Topic, bool) {
	id, ok := r.st.topicNames[name]
	return r.st.topics[id], ok
}

// PartitionName returns "topic/index", or the topic's id when the topic is gone.
func (r Reader) PartitionName(p cluster.PartitionID) string { return r.st.partitionName(p) }

// Assignments returns all assignments by partition.
func (r Reader) Assignments() []cluster.Assignment {
	n := 0
	for _, as := range r.st.assignments {
		n += len(as)
	}
	out := make([]cluster.Assignment, 0, n)
	for _, id := range slices.Sorted(maps.Keys(r.st.assignments)) {
		out = append(out, r.st.assignments[id]...)
	}
	return out
}

// TopicAssignments returns a topic's assignments by index.
func (r Reader) TopicAssignments(id cluster.TopicID) []cluster.Assignment {
	return slices.Clone(r.st.assignments[id])
}

// Assignment returns one assignment.
func (r Reader) Assignment(p cluster.PartitionID) (cluster.Assignment, bool) {
	return r.st.assignment(p)
}

// Outcome returns how a move ended, while that is remembered.
func (r Reader) Outcome(p cluster.PartitionID, move cluster.MoveID) (cluster.Outcome, bool) {
	o, ok := r.st.outcomes[outcomeKey{p, move}]
	return o, ok
}

// Outcomes returns all outcomes by partition and move.
func (r Reader) Outcomes() []cluster.Outcome {
	return r.st.outcomesWhere(func(cluster.Outcome) bool { return true })
}

// RemovalBlockers says why the state machine would refuse to remove a node.
func (r Reader) RemovalBlockers(id cluster.NodeID) []RemovalBlocker {
	n, ok := r.st.nodes[id]
	if !ok {
		return nil
	}
	return r.st.removalBlockers(n, r.st.outcomesFrom(id))
}

// Restored says whether, and from what, the state was made from a backup.
func (r Reader) Restored() cluster.Restored { return r.st.restored }

// Claimants returns the nodes that said, after a restore, that they hold a partition that is not confirmed yet; by name.
func (r Reader) Claimants(p cluster.PartitionID) []cluster.NodeID {
	var out []cluster.NodeID
	for _, c := range r.st.claimsOf(p) {
		if id := cluster.NodeID(c.GetNodeId()); len(out) == 0 || out[len(out)-1] != id {
			out = append(out, id)
		}
	}
	return out
}

// Settings returns the live settings.
func (r Reader) Settings() cluster.Settings { return r.st.settings }

// Controllers returns all consensus members by raft id.
func (r Reader) Controllers() []cluster.Controller {
	return slices.SortedFunc(maps.Values(r.st.controllers), func(a, b cluster.Controller) int { return cmp.Compare(a.RaftID, b.RaftID) })
}

// MoveHistory returns the ended moves that are remembered, oldest first.
func (r Reader) MoveHistory() []cluster.MoveRecord {
	out := make([]cluster.MoveRecord, len(r.st.ended))
	for i, e := range r.st.ended {
		out[i] = e.record
	}
	return out
}

// NewestMoves returns the newest ended moves, at most limit of them (zero: all), oldest first, and how many are
// remembered.
func (r Reader) NewestMoves(limit int) (out []cluster.MoveRecord, kept int) {
	kept = len(r.st.ended)
	from := 0
	if limit > 0 {
		from = max(0, kept-limit)
	}
	for _, e := range r.st.ended[from:] {
		out = append(out, e.record)
	}
	return out, kept
}
