package fsm

import (
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// createTopic creates a topic and its assignments: a compare-and-swap on the name's absence (C34).
func (st *state) createTopic(c *storagev1.CreateTopic) Result {
	if err := cluster.ValidateTopicName(c.GetName()); err != nil {
		return asRefusal(err)
	}
	if n := len(c.GetOwners()); n < 1 || n > cluster.MaxPartitions {
		return refused(cluster.Invalid("partitions", "must be 1 to %d, is %d", cluster.MaxPartitions, n))
	}
	if c.GetRetentionNanos() < 0 {
		return refused(cluster.Invalid("retention", "must not be negative"))
	}
	if id, ok := st.topicNames[c.GetName()]; ok {
		return refused(cluster.Errorf(cluster.ReasonAlreadyExists, "topic %s exists with %d partitions", c.GetName(), st.topics[id].Partitions))
	}
	var parent cluster.TopicID
	if c.GetParent() != "" {
		id, ok := st.topicNames[c.GetParent()]
		if !ok {
			return refused(cluster.NotFound("parent topic %s does not exist", c.GetParent()))
		}
		parent = id
	}
	t := cluster.Topic{
		ID: cluster.TopicID(st.next), Name: c.GetName(), Partitions: uint32(len(c.GetOwners())), Parent: parent,
		Retention: time.Duration(c.GetRetentionNanos()), CreatedAt: st.now,
	}
	as := make([]cluster.Assignment, len(c.GetOwners()))
	for i, owner := range c.GetOwners() {
		// C33: the placement may be older than a drain or a verdict.
		if err := st.checkReceiver(cluster.NodeID(owner)); err != nil {
			return refused(err)
		}
		as[i] = cluster.Assignment{
			Partition: cluster.PartitionID{Topic: t.ID, Index: uint32(i)},
			Owner:     cluster.NodeID(owner), Epoch: 1, OwnerEpoch: 1,
		}
	}
	st.putTopic(t)
	st.addAssignments(t.ID, as)
	st.event(cluster.EventTopicCreated, t.Name, "", fmt.Sprintf("%d partitions, id %d", t.Partitions, t.ID))
	return Result{Value: uint64(t.ID)}
}

// checkReceiver says why a node may not receive partitions.
func (st *state) checkReceiver(id cluster.NodeID) *cluster.Error {
	n, ok := st.nodes[id]
	why := ""
	switch {
	case !ok:
		return cluster.NotFound("node %s is no member", id)
	case n.Status != cluster.NodeAlive:
		why = "is dead"
	case n.Draining:
		why = "is draining"
	case n.Maintenance:
		why = "is in maintenance"
	default:
		return nil
	}
	err := cluster.Errorf(cluster.ReasonBlocked, "node %s can't receive partitions: it %s", id, why)
	err.Blockers = []string{string(id) + " " + why}
	return err
}

// deleteTopic removes a topic, its assignments, and the outcomes of its moves: copies of a topic that does
// not exist are set aside and removed by the nodes that hold them, whatever became of their moves.
func (st *state) deleteTopic(c *storagev1.DeleteTopic) Result {
	t, ok := st.topics[cluster.TopicID(c.GetTopicId())]
	if !ok {
		return refused(cluster.NotFound("topic %d does not exist", c.GetTopicId()))
	}
	for _, a := range st.assignments[t.ID] {
		if a.Moving() {
			st.putEnded(st.endedRecordOf(a, cluster.OutcomeCancelled))
		}
	}
	for _, o := range st.outcomesWhere(func(o cluster.Outcome) bool { return o.Partition.Topic == t.ID }) {
		st.dropOutcome(o)
	}
	for _, a := range st.assignments[t.ID] {
		for _, c := range st.claimsOf(a.Partition) {
			st.dropClaim(c)
		}
	}
	st.dropAssignments(t.ID)
	st.dropTopic(t)
	st.event(cluster.EventTopicDeleted, t.Name, "", fmt.Sprintf("%d partitions, id %d", t.Partitions, t.ID))
	return Result{Value: uint64(t.ID)}
}
