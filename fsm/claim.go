package fsm

import (
	"cmp"
	"maps"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// After a restore the nodes' disks know more than the state does. Each node says once which copies it holds, and a partition is
// confirmed by that: identities of copies only grow, and a copy that was given away has a marker.

// claimKey names a claim on a partition.
type claimKey struct {
	node     cluster.NodeID
	identity uint64
}

func claimKeyOf(c *storagev1.ClaimRecord) claimKey {
	return claimKey{cluster.NodeID(c.GetNodeId()), c.GetIdentity()}
}

func claimedPartition(c *storagev1.ClaimRecord) cluster.PartitionID {
	return cluster.PartitionID{Topic: cluster.TopicID(c.GetTopicId()), Index: c.GetIndex()}
}

func (st *state) keepClaim(c *storagev1.ClaimRecord) {
	p := claimedPartition(c)
	if st.claims[p] == nil {
		st.claims[p] = map[claimKey]*storagev1.ClaimRecord{}
	}
	st.claims[p][claimKeyOf(c)] = c
}

func (st *state) dropClaim(c *storagev1.ClaimRecord) {
	p, k := claimedPartition(c), claimKeyOf(c)
	st.delete(keyClaim(p, k.node, k.identity))
	if delete(st.claims[p], k); len(st.claims[p]) == 0 {
		delete(st.claims, p)
	}
}

func (st *state) claimPartitions(c *storagev1.ClaimPartitions) Result {
	id := cluster.NodeID(c.GetNodeId())
	n, ok := st.nodes[id]
	switch {
	case !ok:
		return refused(cluster.NotFound("node %s is no member", id))
	case n.Status != cluster.NodeAlive || n.Incarnation != cluster.Incarnation(c.GetIncarnation()):
		return refused(cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s is %s with incarnation %d, not %d", id, n.Status, n.Incarnation, c.GetIncarnation()))
	case !n.Unclaimed:
		return Result{}
	}
	for _, t := range c.GetTopics() {
		st.revive(id, topic(t))
	}
	for _, r := range c.GetClaims() {
		r.NodeId = string(id)
		st.claim(r)
	}
	if c.GetLast() {
		n.Unclaimed = false
		st.putNode(n)
		st.settleAll()
	}
	return Result{}
}

// revive takes over a topic that was created after the backup. A name that is taken meanwhile stays with whom it has.
func (st *state) revive(from cluster.NodeID, t cluster.Topic) {
	if _, known := st.topics[t.ID]; known || !st.restored.Unknown(cluster.Revision(t.ID)) ||
		t.Partitions < 1 || t.Partitions > cluster.MaxPartitions || cluster.ValidateTopicName(t.Name) != nil {
		return
	}
	if _, taken := st.topicNames[t.Name]; taken {
		return
	}
	as := make([]cluster.Assignment, t.Partitions)
	for i := range as {
		e := cluster.Epoch(st.next)
		as[i] = cluster.Assignment{
			Partition: cluster.PartitionID{Topic: t.ID, Index: uint32(i)}, Owner: from, Epoch: e, OwnerEpoch: e, Opened: true, Unconfirmed: true,
		}
	}
	st.putTopic(t)
	st.addAssignments(t.ID, as)
}

// claim takes note of one copy, and confirms its partition when that follows.
func (st *state) claim(r *storagev1.ClaimRecord) {
	p := claimedPartition(r)
	a, ok := st.assignment(p)
	if !ok {
		return
	}
	if !a.Unconfirmed {
		if cluster.NodeID(r.GetNodeId()) != a.Owner || !r.GetActive() {
			st.supersede(r, a, cluster.OutcomeForced)
		}
		return
	}
	st.keepClaim(r)
	k := claimKeyOf(r)
	st.set(keyClaim(p, k.node, k.identity), marshal(r))
	st.settle(a, false)
}

// settleAll confirms what can be when every node has said what it holds.
func (st *state) settleAll() {
	for _, n := range st.nodes {
		if n.Unclaimed {
			return
		}
	}
	for _, id := range slices.Sorted(maps.Keys(st.assignments)) {
		for _, a := range slices.Clone(st.assignments[id]) {
			if a.Unconfirmed {
				st.settle(a, true)
			}
		}
	}
}

// settle confirms the owner of a partition, if it is proven. The latest copy that is in its place is the owner's. Without an
// outbound marker it was never given away, whatever else there is; with one, another node may hold a later copy, so that
// all of them have to have spoken.
func (st *state) settle(a cluster.Assignment, all bool) {
	top := st.topClaim(a.Partition)
	switch {
	case top != nil && (all || len(top.GetMarkers()) == 0):
		st.confirm(a, cluster.NodeID(top.GetNodeId()), top)
	case top == nil && all && !a.Opened:
		// Its owner had not made it yet, or nobody would be without a copy.
		if _, ok := st.nodes[a.Owner]; ok {
			st.confirm(a, a.Owner, nil)
		}
	}
}

// claimsOf returns the claims on a partition by node and identity.
func (st *state) claimsOf(p cluster.PartitionID) []*storagev1.ClaimRecord {
	return slices.SortedFunc(maps.Values(st.claims[p]), func(a, b *storagev1.ClaimRecord) int {
		return cmp.Or(cmp.Compare(a.GetNodeId(), b.GetNodeId()), cmp.Compare(a.GetIdentity(), b.GetIdentity()))
	})
}

func (st *state) topClaim(p cluster.PartitionID) *storagev1.ClaimRecord {
	var top *storagev1.ClaimRecord
	for _, c := range st.claimsOf(p) {
		if c.GetActive() && (top == nil || c.GetIdentity() > top.GetIdentity()) {
			top = c
		}
	}
	return top
}

// confirm settles who owns a partition. top is the owner's copy; nil when it has to make one.
//
// Invariant I1: beside flip, this and forgetNode are the only places where an owner changes. Nobody serves a partition that is not
// confirmed but a node whose copy was never given away, and that is who is confirmed.
func (st *state) confirm(a cluster.Assignment, owner cluster.NodeID, top *storagev1.ClaimRecord) {
	after := stable(a)
	after.Owner, after.OwnerEpoch, after.Opened, after.Unconfirmed = owner, after.Epoch, false, false
	if top != nil {
		after.Fresh = 0 // there is a copy; none must be made in its place
	} else if after.Fresh == 0 {
		after.Fresh = uint64(a.Partition.Topic)
	}
	st.putAssignment(after)
	for _, c := range st.claimsOf(a.Partition) {
		if c != top {
			kind := cluster.OutcomeForced
			if m := newestMarker(c); m != nil && top != nil && !top.GetForced() &&
				m.GetMoveId() == top.GetIdentity() && m.GetDestination() == top.GetNodeId() {
				// The owner's copy came by this very move and with its freeze: it has all that the source had.
				kind = cluster.OutcomeFlipped
			}
			st.supersede(c, after, kind)
		}
		st.dropClaim(c)
	}
}

func newestMarker(c *storagev1.ClaimRecord) *storagev1.ClaimMarker {
	var newest *storagev1.ClaimMarker
	for _, m := range c.GetMarkers() {
		if newest == nil || m.GetMoveId() > newest.GetMoveId() {
			newest = m
		}
	}
	return newest
}

// supersede gives a copy that another owner's replaced an outcome, so that its node knows what to do with it. Where the present
// owner's copy is not known to have all of it, it ends as after a promotion: what it holds is put into the topic again.
func (st *state) supersede(c *storagev1.ClaimRecord, a cluster.Assignment, kind cluster.OutcomeKind) {
	m := newestMarker(c)
	if m == nil {
		return // no move is known by which it went; it is kept until an operator has it adopted
	}
	move := cluster.MoveID(m.GetMoveId())
	if o, ok := st.outcomes[outcomeKey{a.Partition, move}]; ok && o.Kind != cluster.OutcomeCancelled {
		return
	}
	st.putOutcome(cluster.Outcome{
		Partition: a.Partition, MoveID: move, Kind: kind, Source: cluster.NodeID(c.GetNodeId()),
		Destination: cluster.NodeID(m.GetDestination()), Epoch: a.OwnerEpoch, Opened: false,
	})
}

// settlePartition confirms a partition by an operator's word.
func (st *state) settlePartition(c *storagev1.SettlePartition) Result {
	p, id := partitionOf(c.GetPartition()), cluster.NodeID(c.GetNodeId())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if !a.Unconfirmed {
		return refused(cluster.Errorf(cluster.ReasonBlocked, "partition %s is owned by %s", st.partitionName(p), a.Owner))
	}
	var r *storagev1.ClaimRecord
	for _, c := range st.claimsOf(p) {
		if cluster.NodeID(c.GetNodeId()) == id && c.GetActive() {
			r = c
		}
	}
	if r == nil {
		err := cluster.Errorf(cluster.ReasonBlocked, "node %s has not said that it holds a copy of partition %s", id, st.partitionName(p))
		for _, c := range st.claimsOf(p) {
			err.Blockers = append(err.Blockers, "held by "+c.GetNodeId())
		}
		return refused(err)
	}
	st.confirm(a, id, r)
	after, _ := st.assignment(p)
	return Result{Assignment: &after}
}
