package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// Updated returns a channel that is closed when the revision next advances, or the state is restored, or
// the machine is closed. Take it before reading, so that nothing is missed.
func (m *Machine) Updated() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.updated
}

// Changes returns whole revisions after a revision, at most limit of them, in order and without a gap; none
// when after is the present one. ReasonRevisionCompacted: the next revision is no longer kept, or after is
// ahead of this replica's history; start from a snapshot of the state. The result is not to be modified.
func (m *Machine) Changes(after cluster.Revision, limit int) ([]cluster.RevisionChanges, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.closed {
		return nil, cluster.Errorf(cluster.ReasonNoLeader, "this controller is stopping")
	}
	st := m.mu.state
	if after == st.revision {
		return nil, nil
	}
	if oldest := st.oldest(); after > st.revision || after+1 < oldest {
		err := cluster.Errorf(cluster.ReasonRevisionCompacted, "revision %d is not kept (kept: %d to %d)", after+1, oldest, st.revision)
		err.Oldest = oldest
		return nil, err
	}
	n := min(uint64(limit), uint64(st.revision-after))
	if len(st.recent) > 0 && st.recent[0].Revision <= after+1 {
		from := after + 1 - st.recent[0].Revision
		return st.recent[from : uint64(from)+n : uint64(from)+n], nil
	}
	return readHistory(m.mu.db.DB, after+1, after+cluster.Revision(n))
}

// oldest is the first revision that is kept. A restored state has none of its predecessor's.
func (st *state) oldest() cluster.Revision {
	first := st.restored.Base + 1
	if uint64(st.revision) > st.limit {
		first = max(first, st.revision-cluster.Revision(st.limit)+1)
	}
	return first
}

func readHistory(db *pebble.DB, from, to cluster.Revision) (out []cluster.RevisionChanges, err error) {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: key64(prefixHistory, uint64(from)), UpperBound: key64(prefixHistory, uint64(to)+1)})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		r := &storagev1.RevisionRecord{}
		if err := proto.Unmarshal(it.Value(), r); err != nil {
			return nil, fmt.Errorf("read history: revision %d: %w", binary.BigEndian.Uint64(it.Key()[1:]), err)
		}
		out = append(out, revisionChanges(r))
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if uint64(len(out)) != uint64(to-from)+1 {
		return nil, fmt.Errorf("read history: revisions %d to %d have a gap", from, to)
	}
	return out, nil
}

func revisionRecord(rc cluster.RevisionChanges) *storagev1.RevisionRecord {
	r := &storagev1.RevisionRecord{Revision: uint64(rc.Revision)}
	for _, c := range rc.Changes {
		r.Changes = append(r.Changes, changeRecord(c))
	}
	return r
}

func changeRecord(c cluster.Change) *storagev1.ChangeRecord {
	r := &storagev1.ChangeRecord{}
	if c.Before != nil {
		r.Before = assignmentRecord(*c.Before)
	}
	switch {
	case c.Node != nil:
		r.Change = &storagev1.ChangeRecord_Node{Node: nodeRecord(*c.Node)}
	case c.NodeRemoved != "":
		r.Change = &storagev1.ChangeRecord_NodeRemoved{NodeRemoved: string(c.NodeRemoved)}
	case c.Topic != nil:
		r.Change = &storagev1.ChangeRecord_Topic{Topic: topicRecord(*c.Topic)}
	case c.TopicRemoved != 0:
		r.Change = &storagev1.ChangeRecord_TopicRemoved{TopicRemoved: uint64(c.TopicRemoved)}
	case c.Assignment != nil:
		r.Change = &storagev1.ChangeRecord_Assignment{Assignment: assignmentRecord(*c.Assignment)}
	case c.AssignmentRemoved != nil:
		r.Change = &storagev1.ChangeRecord_AssignmentRemoved{AssignmentRemoved: &storagev1.AssignmentRecord{
			TopicId: uint64(c.AssignmentRemoved.Topic), Index: c.AssignmentRemoved.Index}}
	case c.Outcome != nil:
		r.Change = &storagev1.ChangeRecord_Outcome{Outcome: outcomeRecord(*c.Outcome)}
	case c.OutcomeRemoved != nil:
		k := c.OutcomeRemoved
		r.Change = &storagev1.ChangeRecord_OutcomeRemoved{OutcomeRemoved: &storagev1.OutcomeKeyRecord{
			TopicId: uint64(k.Partition.Topic), Index: k.Partition.Index, MoveId: uint64(k.MoveID),
			Source: string(k.Source), Destination: string(k.Destination)}}
	case c.Settings != nil:
		r.Change = &storagev1.ChangeRecord_Settings{Settings: SettingsRecord(*c.Settings)}
	case c.Controller != nil:
		r.Change = &storagev1.ChangeRecord_Controller{Controller: controllerRecord(*c.Controller)}
	case c.ControllerRemoved != "":
		r.Change = &storagev1.ChangeRecord_ControllerRemoved{ControllerRemoved: string(c.ControllerRemoved)}
	}
	return r
}

func revisionChanges(r *storagev1.RevisionRecord) cluster.RevisionChanges {
	rc := cluster.RevisionChanges{Revision: cluster.Revision(r.GetRevision())}
	for _, c := range r.GetChanges() {
		rc.Changes = append(rc.Changes, changeOf(c))
	}
	return rc
}

func changeOf(r *storagev1.ChangeRecord) cluster.Change {
	var c cluster.Change
	if r.GetBefore() != nil {
		b := assignment(r.GetBefore())
		c.Before = &b
	}
	switch v := r.GetChange().(type) {
	case *storagev1.ChangeRecord_Node:
		n := node(v.Node)
		c.Node = &n
	case *storagev1.ChangeRecord_NodeRemoved:
		c.NodeRemoved = cluster.NodeID(v.NodeRemoved)
	case *storagev1.ChangeRecord_Topic:
		t := topic(v.Topic)
		c.Topic = &t
	case *storagev1.ChangeRecord_TopicRemoved:
		c.TopicRemoved = cluster.TopicID(v.TopicRemoved)
	case *storagev1.ChangeRecord_Assignment:
		a := assignment(v.Assignment)
		c.Assignment = &a
	case *storagev1.ChangeRecord_AssignmentRemoved:
		p := assignment(v.AssignmentRemoved).Partition
		c.AssignmentRemoved = &p
	case *storagev1.ChangeRecord_Outcome:
		o := outcome(v.Outcome)
		c.Outcome = &o
	case *storagev1.ChangeRecord_OutcomeRemoved:
		k := v.OutcomeRemoved
		c.OutcomeRemoved = &cluster.OutcomeKey{
			Partition: cluster.PartitionID{Topic: cluster.TopicID(k.GetTopicId()), Index: k.GetIndex()},
			MoveID:    cluster.MoveID(k.GetMoveId()), Source: cluster.NodeID(k.GetSource()), Destination: cluster.NodeID(k.GetDestination())}
	case *storagev1.ChangeRecord_Settings:
		s := settings(v.Settings)
		c.Settings = &s
	case *storagev1.ChangeRecord_Controller:
		k := controller(v.Controller)
		c.Controller = &k
	case *storagev1.ChangeRecord_ControllerRemoved:
		c.ControllerRemoved = cluster.ControllerName(v.ControllerRemoved)
	}
	return c
}
