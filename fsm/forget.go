package fsm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// forgetNode removes a dead node whose disk is gone, and gives what it owned a new, empty beginning on the nodes that the command
// names. It is all or nothing: a partition that the command does not name, or that changed since, refuses it.
//
// The new ownership has an epoch and a copy of its own, so that a disk that comes back all the same can't serve. Copies that
// earlier owners still hold are salvaged into the new partition.
func (st *state) forgetNode(c *storagev1.ForgetNode) Result {
	id := cluster.NodeID(c.GetNodeId())
	n, ok := st.nodes[id]
	switch {
	case !ok:
		return refused(cluster.NotFound("node %s is no member", id))
	case n.Incarnation != cluster.Incarnation(c.GetIncarnation()):
		return refused(cluster.Errorf(cluster.ReasonStaleIncarnation, "node %s has incarnation %d, not %d", id, n.Incarnation, c.GetIncarnation()))
	case n.Status != cluster.NodeDead:
		err := cluster.Errorf(cluster.ReasonBlocked, "node %s is alive and owns %d partitions: decommission it", id, st.owned[id])
		err.Blockers = []string{fmt.Sprintf("node %s is alive", id)}
		return refused(err)
	}
	owners, refusal := st.replacements(id, c.GetReplacements())
	if refusal != nil {
		return refused(refusal)
	}
	st.event(cluster.EventNodeForgotten, string(id), "its disk is gone", fmt.Sprintf("%d partitions began anew, empty", len(owners)), id)
	for _, topic := range slices.Sorted(maps.Keys(st.assignments)) {
		for _, a := range slices.Clone(st.assignments[topic]) {
			switch {
			case a.Owner == id:
				st.beginAnew(a, owners[a.Partition])
			case a.Target == id:
				st.endMove(a, cluster.OutcomeCancelled, cluster.Outcome{Epoch: a.Epoch + 1})
				st.putAssignment(stable(a))
			}
		}
	}
	for _, o := range st.outcomesWhere(func(o cluster.Outcome) bool { return o.Source == id }) {
		st.dropOutcome(o)
	}
	for _, p := range slices.SortedFunc(maps.Keys(st.claims), cluster.PartitionID.Compare) {
		for _, claim := range st.claimsOf(p) {
			if cluster.NodeID(claim.GetNodeId()) == id {
				st.dropClaim(claim)
			}
		}
	}
	st.dropNode(id)
	if st.restored.Base != 0 {
		st.settleAll() // it may have been the last one that was waited for
	}
	return Result{}
}

// replacements returns the new owner of each partition that id owns.
func (st *state) replacements(id cluster.NodeID, list []*storagev1.Replacement) (map[cluster.PartitionID]cluster.NodeID, *cluster.Error) {
	owners := map[cluster.PartitionID]cluster.NodeID{}
	for _, r := range list {
		p, to := partitionOf(r.GetPartition()), cluster.NodeID(r.GetOwner())
		a, ok := st.assignment(p)
		if !ok || a.Owner != id || uint64(a.Epoch) != r.GetExpectEpoch() {
			return nil, cluster.Errorf(cluster.ReasonStaleEpoch, "partition %s has changed since the request; ask again", st.partitionName(p))
		}
		if err := st.checkReceiver(to); err != nil {
			return nil, err
		}
		owners[p] = to
	}
	if n := st.owned[id]; n != len(owners) {
		return nil, cluster.Errorf(cluster.ReasonStaleEpoch, "node %s owns %d partitions, the request names %d; ask again", id, n, len(owners))
	}
	return owners, nil
}

// beginAnew gives a lost partition an empty beginning at a node.
func (st *state) beginAnew(a cluster.Assignment, owner cluster.NodeID) {
	if a.Moving() {
		st.endMove(a, cluster.OutcomeCancelled, cluster.Outcome{Epoch: a.Epoch + 1})
	}
	after := stable(a)
	after.Owner, after.OwnerEpoch, after.Opened, after.Fresh = owner, after.Epoch, false, uint64(st.next)
	st.putAssignment(after)
	st.keepEarlier(after, 0)
}

// adoptCopy has a node put what it holds of a partition, beside the owner's copy, into the topic as new records. It makes an
// outcome as of a forced promotion: the copy is salvaged like one that came back after it, and goes only then.
func (st *state) adoptCopy(c *storagev1.AdoptCopy) Result {
	p, id := partitionOf(c.GetPartition()), cluster.NodeID(c.GetNodeId())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	n, known := st.nodes[id]
	switch {
	case !known:
		return refused(cluster.NotFound("node %s is no member", id))
	case a.Unconfirmed:
		return refused(st.unconfirmed(a))
	case n.Status != cluster.NodeAlive:
		err := cluster.Errorf(cluster.ReasonBlocked, "node %s is dead: start it, so that it can put its copy's records into %s", id, st.partitionName(p))
		err.Blockers = []string{"node " + string(id) + " is dead"}
		return refused(err)
	}
	for _, o := range st.outcomesWhere(func(o cluster.Outcome) bool {
		return o.Partition == p && o.Source == id && o.Kind == cluster.OutcomeForced
	}) {
		return Result{Value: uint64(o.MoveID), Assignment: &a, Outcome: &o} // it does so already
	}
	o := cluster.Outcome{
		Partition: p, MoveID: cluster.MoveID(st.next), Kind: cluster.OutcomeForced, Source: id, Destination: a.Owner,
		Epoch: a.OwnerEpoch, Opened: a.Opened,
	}
	st.putOutcome(o)
	st.event(cluster.EventCopyAdopted, st.partitionName(p), "", fmt.Sprintf("%s puts what its copy has into the topic", id), id, a.Owner)
	return Result{Value: uint64(o.MoveID), Assignment: &a, Outcome: &o}
}
