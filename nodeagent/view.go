package nodeagent

import (
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// View is the folded watch stream of one node: what it must act on. It is never ahead of the
// replicated state and may be behind, so nothing is destroyed on its word (I9). The zero value is an
// empty view at revision zero. Not safe for concurrent use.
type View struct {
	// Revision is the last one folded; zero before the first snapshot of this process.
	Revision    cluster.Revision
	Nodes       map[cluster.NodeID]cluster.Node
	Topics      map[cluster.TopicID]cluster.Topic
	Assignments map[cluster.PartitionID]cluster.Assignment
	Outcomes    map[cluster.PartitionID]map[cluster.MoveID]cluster.Outcome
	Controllers map[cluster.ControllerName]cluster.Controller
	Settings    cluster.Settings
	// Restored says from what the controllers' state was restored, if it was.
	Restored cluster.Restored
}

// NewView returns an empty view with default settings.
func NewView() *View {
	return &View{
		Nodes:       map[cluster.NodeID]cluster.Node{},
		Topics:      map[cluster.TopicID]cluster.Topic{},
		Assignments: map[cluster.PartitionID]cluster.Assignment{},
		Outcomes:    map[cluster.PartitionID]map[cluster.MoveID]cluster.Outcome{},
		Controllers: map[cluster.ControllerName]cluster.Controller{},
		Settings:    cluster.DefaultSettings(),
	}
}

// Touched says what a fold changed, so that only that is looked at again.
type Touched struct {
	// All is set by a snapshot.
	All bool
	// Partitions whose assignment or outcomes changed.
	Partitions map[cluster.PartitionID]bool
	Topics     map[cluster.TopicID]bool
	Nodes      map[cluster.NodeID]bool
	Settings   bool
	// Controllers says that an address may have changed.
	Controllers bool
}

// Fold applies one whole revision, or a whole snapshot when reset is set. What is older than the view
// changes nothing: a controller that lags must not take it back in time.
func (v *View) Fold(reset bool, rev cluster.Revision, changes []cluster.Change) Touched {
	t := Touched{
		All:        reset,
		Partitions: map[cluster.PartitionID]bool{},
		Topics:     map[cluster.TopicID]bool{},
		Nodes:      map[cluster.NodeID]bool{},
	}
	switch {
	case reset && rev < v.Revision:
		t.All = false
		return t
	case reset:
		topics := v.Topics
		*v = *NewView()
		defer v.keepUnknown(topics)
	case rev <= v.Revision:
		return t
	}
	v.Revision = rev
	for _, c := range changes {
		v.fold(c, &t)
	}
	return t
}

// keepUnknown keeps the topics that the controllers, restored from an older backup, can't know: this node may hold all that
// is left of them.
func (v *View) keepUnknown(topics map[cluster.TopicID]cluster.Topic) {
	for id, topic := range topics {
		if _, ok := v.Topics[id]; !ok && v.Restored.Unknown(cluster.Revision(id)) {
			v.Topics[id] = topic
		}
	}
}

func (v *View) fold(c cluster.Change, t *Touched) {
	switch {
	case c.Node != nil:
		v.Nodes[c.Node.ID] = *c.Node
		t.Nodes[c.Node.ID] = true
	case c.NodeRemoved != "":
		delete(v.Nodes, c.NodeRemoved)
		t.Nodes[c.NodeRemoved] = true
	case c.Topic != nil:
		v.Topics[c.Topic.ID] = *c.Topic
		t.Topics[c.Topic.ID] = true
	case c.TopicRemoved != 0:
		delete(v.Topics, c.TopicRemoved)
		t.Topics[c.TopicRemoved] = true
	case c.Assignment != nil:
		v.Assignments[c.Assignment.Partition] = *c.Assignment
		t.Partitions[c.Assignment.Partition] = true
	case c.AssignmentRemoved != nil:
		delete(v.Assignments, *c.AssignmentRemoved)
		t.Partitions[*c.AssignmentRemoved] = true
	case c.Outcome != nil:
		of := v.Outcomes[c.Outcome.Partition]
		if of == nil {
			of = map[cluster.MoveID]cluster.Outcome{}
			v.Outcomes[c.Outcome.Partition] = of
		}
		of[c.Outcome.MoveID] = *c.Outcome
		t.Partitions[c.Outcome.Partition] = true
	case c.OutcomeRemoved != nil:
		of := v.Outcomes[c.OutcomeRemoved.Partition]
		if delete(of, c.OutcomeRemoved.MoveID); len(of) == 0 {
			delete(v.Outcomes, c.OutcomeRemoved.Partition)
		}
		t.Partitions[c.OutcomeRemoved.Partition] = true
	case c.Settings != nil:
		v.Settings = *c.Settings
		t.Settings = true
	case c.Controller != nil:
		v.Controllers[c.Controller.Name] = *c.Controller
		t.Controllers = true
	case c.ControllerRemoved != "":
		delete(v.Controllers, c.ControllerRemoved)
		t.Controllers = true
	case c.Restored != nil:
		v.Restored = *c.Restored
	}
}

// ControllerAddresses returns where the controllers listen, in order.
func (v *View) ControllerAddresses() []string {
	var out []string
	for _, c := range v.Controllers {
		if c.Address != "" {
			out = append(out, c.Address)
		}
	}
	slices.Sort(out)
	return out
}

// Arrived reports whether an outcome is recorded by which node became the owner of p.
func (v *View) Arrived(p cluster.PartitionID, node cluster.NodeID) bool {
	for _, o := range v.Outcomes[p] {
		if o.Destination == node && o.Kind != cluster.OutcomeCancelled {
			return true
		}
	}
	return false
}

// Adopted returns the latest forced outcome of p with node as source; zero when there is none. Without a marker here it is
// an operator's: the node is to put the records of its copy into the topic again.
func (v *View) Adopted(p cluster.PartitionID, node cluster.NodeID) cluster.MoveID {
	var latest cluster.MoveID
	for _, o := range v.Outcomes[p] {
		if o.Source == node && o.Kind == cluster.OutcomeForced {
			latest = max(latest, o.MoveID)
		}
	}
	return latest
}

// Cancelled returns the moves of p away from node that are recorded as cancelled, in order.
func (v *View) Cancelled(p cluster.PartitionID, node cluster.NodeID) []cluster.MoveID {
	var out []cluster.MoveID
	for _, o := range v.Outcomes[p] {
		if o.Source == node && o.Kind == cluster.OutcomeCancelled {
			out = append(out, o.MoveID)
		}
	}
	slices.Sort(out)
	return out
}

// Owned returns the partitions that node owns, in order.
func (v *View) Owned(node cluster.NodeID) []cluster.Assignment {
	var out []cluster.Assignment
	for _, a := range v.Assignments {
		if a.Owner == node {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b cluster.Assignment) int { return a.Partition.Compare(b.Partition) })
	return out
}

// PartitionName returns what operators call a partition: by its topic's name when that is known.
func (v *View) PartitionName(p cluster.PartitionID) string {
	if t, ok := v.Topics[p.Topic]; ok {
		return cluster.FormatPartition(t.Name, p.Index)
	}
	return p.String()
}
