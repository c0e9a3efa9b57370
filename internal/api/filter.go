package api

import (
	"slices"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// filter says what one watcher may see. It may remember what it has seen; it belongs to one stream.
type filter interface {
	// snapshot lists the state that the watcher sees, as changes.
	snapshot(r fsm.Reader) []cluster.Change
	// begin prepares for going on after a revision, from the present state.
	begin(r fsm.Reader)
	// pass says whether the watcher sees a change. It is called for every change, in order.
	pass(c cluster.Change) bool
}

// restored says what the state was made from; nothing when it was not restored.
func restored(r fsm.Reader) []cluster.Change {
	if from := r.Restored(); from.Base != 0 {
		return []cluster.Change{{Restored: &from}}
	}
	return nil
}

// nodeFilter is what an agent must act on.
type nodeFilter struct{ node cluster.NodeID }

func (f nodeFilter) snapshot(r fsm.Reader) []cluster.Change {
	settings := r.Settings()
	out := append(restored(r), cluster.Change{Settings: &settings})
	for _, c := range r.Controllers() {
		out = append(out, cluster.Change{Controller: &c})
	}
	for _, n := range r.Nodes() {
		out = append(out, cluster.Change{Node: &n})
	}
	for _, t := range r.Topics() {
		out = append(out, cluster.Change{Topic: &t})
	}
	for _, a := range r.Assignments() {
		if f.holds(&a) {
			out = append(out, cluster.Change{Assignment: &a})
		}
	}
	for _, o := range r.Outcomes() {
		if o.Source == f.node || o.Destination == f.node {
			out = append(out, cluster.Change{Outcome: &o})
		}
	}
	return out
}

func (nodeFilter) begin(fsm.Reader) {}

func (f nodeFilter) holds(a *cluster.Assignment) bool {
	// Who owns an unconfirmed one is not known: all nodes must know that they can't judge it.
	return a != nil && (a.Owner == f.node || a.Target == f.node || a.Unconfirmed)
}

func (f nodeFilter) pass(c cluster.Change) bool {
	switch {
	case c.Assignment != nil, c.AssignmentRemoved != nil:
		// The revision in which the node loses a partition is the one it must see.
		return f.holds(c.Assignment) || f.holds(c.Before)
	case c.Outcome != nil:
		return c.Outcome.Source == f.node || c.Outcome.Destination == f.node
	case c.OutcomeRemoved != nil:
		return c.OutcomeRemoved.Source == f.node || c.OutcomeRemoved.Destination == f.node
	}
	return true
}

// routesFilter is what a router needs: nodes, and topics with their assignments.
type routesFilter struct {
	names []string // empty: all topics
	ids   map[cluster.TopicID]bool
}

func newRoutesFilter(names []string) *routesFilter {
	return &routesFilter{names: names, ids: map[cluster.TopicID]bool{}}
}

func (f *routesFilter) wants(name string) bool {
	return len(f.names) == 0 || slices.Contains(f.names, name)
}

func (f *routesFilter) begin(r fsm.Reader) {
	for _, t := range r.Topics() {
		if f.wants(t.Name) {
			f.ids[t.ID] = true
		}
	}
}

func (f *routesFilter) snapshot(r fsm.Reader) []cluster.Change {
	f.begin(r)
	out := restored(r)
	for _, n := range r.Nodes() {
		out = append(out, cluster.Change{Node: &n})
	}
	for _, t := range r.Topics() {
		if !f.ids[t.ID] {
			continue
		}
		out = append(out, cluster.Change{Topic: &t})
		for _, a := range r.TopicAssignments(t.ID) {
			out = append(out, cluster.Change{Assignment: &a})
		}
	}
	return out
}

func (f *routesFilter) pass(c cluster.Change) bool {
	switch {
	case c.Node != nil, c.NodeRemoved != "":
		return true
	case c.Topic != nil:
		if f.wants(c.Topic.Name) {
			f.ids[c.Topic.ID] = true
			return true
		}
		return false
	case c.Assignment != nil:
		// A topic that was deleted between the watcher's revision and now is not known any more; its
		// assignments are of no use without it.
		return len(f.names) == 0 || f.ids[c.Assignment.Partition.Topic]
	case c.TopicRemoved != 0, c.AssignmentRemoved != nil:
		return true // removing what the watcher does not have changes nothing
	}
	return false
}
