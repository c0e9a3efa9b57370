package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

func (st *state) registerNode(c *storagev1.RegisterNode) Result {
	id, store := cluster.NodeID(c.GetNodeId()), cluster.StoreID(c.GetStoreId())
	incarnation := cluster.Incarnation(c.GetIncarnation())
	if err := cluster.ValidateNodeID(id); err != nil {
		return asRefusal(err)
	}
	switch {
	case store == "":
		return refused(cluster.Invalid("store_id", "is missing"))
	case c.GetAddress() == "":
		return refused(cluster.Invalid("address", "is missing"))
	case incarnation == 0:
		return refused(cluster.Invalid("incarnation", "must be at least 1"))
	}
	old, known := st.nodes[id]
	if err := st.checkStore(id, store, old, known); err != nil {
		return refused(err)
	}
	if known && incarnation <= old.Incarnation {
		if incarnation == old.Incarnation && old.Status == cluster.NodeAlive && old.Address == c.GetAddress() {
			return Result{}
		}
		// C79: a delayed registration never replaces a newer one.
		return refused(cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s has registered with incarnation %d (%s); incarnation %d is not higher", id, old.Incarnation, old.Status, incarnation))
	}
	n := cluster.Node{
		ID: id, StoreID: store, Incarnation: incarnation, Address: c.GetAddress(), Zone: c.GetZone(),
		Status: cluster.NodeAlive, Voter: cluster.ControllerName(c.GetVoter()),
		// C36: only the operator sets and clears the draining mark.
		Draining: old.Draining, DrainReason: old.DrainReason, JoinedAt: old.JoinedAt,
		Weight: max(c.GetCapacityWeight(), 1), AliveSince: old.AliveSince, Flaps: old.Flaps,
		Maintenance: old.Maintenance, MaintenanceReason: old.MaintenanceReason, Unclaimed: old.Unclaimed,
	}
	if !known {
		// The backup may be older than the node.
		n.JoinedAt, n.Unclaimed = st.now, st.restored.Base != 0
	}
	if !known || old.Status == cluster.NodeDead {
		n.AliveSince = st.now
	}
	st.putNode(n)
	st.revokeGrantsOf(id)
	st.registered(n, old, known)
	return Result{}
}

func (st *state) registered(n, old cluster.Node, known bool) {
	at := fmt.Sprintf("at %s, incarnation %d", n.Address, n.Incarnation)
	switch {
	case !known:
		st.event(cluster.EventNodeJoined, string(n.ID), "", at, n.ID)
	case old.Status == cluster.NodeDead:
		st.event(cluster.EventNodeReturned, string(n.ID), "", at, n.ID)
	default:
		st.event(cluster.EventNodeRestarted, string(n.ID), "", at, n.ID)
	}
}

// checkStore refuses a wiped, foreign or copied data directory (C37).
func (st *state) checkStore(id cluster.NodeID, store cluster.StoreID, old cluster.Node, known bool) *cluster.Error {
	if known && old.StoreID != store {
		return cluster.Errorf(cluster.ReasonForeignStore,
			"node %s is known with data directory %s, not %s: its disk was wiped, or another host uses its id; "+
				"bring the old directory back, or give this host a node_id of its own and run "+
				"\"naradctl-plane cluster decommission %s\" once that node owns nothing", id, old.StoreID, store, id)
	}
	for _, other := range sortedNodes(st.nodes) {
		if other.ID != id && other.StoreID == store {
			return cluster.Errorf(cluster.ReasonForeignStore,
				"data directory %s belongs to node %s: it was copied, or node_id was changed; set node_id back to %s, or use an empty directory",
				store, other.ID, other.ID)
		}
	}
	return nil
}

// revokeGrantsOf ends the live grants that a node holds as source.
//
// Invariant I7: it is part of the entry that registers a new incarnation, so that no flip can follow the
// freeze of an earlier one.
func (st *state) revokeGrantsOf(id cluster.NodeID) {
	var ps []cluster.PartitionID
	for p := range st.granted {
		if a, ok := st.assignment(p); ok && a.Owner == id {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, cluster.PartitionID.Compare)
	for _, p := range ps {
		a, _ := st.assignment(p)
		a.Granted = false
		a.Epoch++
		st.putAssignment(a)
	}
}

func (st *state) markDead(c *storagev1.MarkDead) Result {
	n, ok := st.nodes[cluster.NodeID(c.GetNodeId())]
	if !ok {
		return refused(cluster.NotFound("node %s is no member", c.GetNodeId()))
	}
	// Invariant I10: a verdict is about one incarnation; a node that came back meanwhile is not hit.
	if n.Status != cluster.NodeAlive || n.Incarnation != cluster.Incarnation(c.GetIncarnation()) {
		return refused(cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s is %s with incarnation %d; the verdict is about %d", n.ID, n.Status, n.Incarnation, c.GetIncarnation()))
	}
	n.Status = cluster.NodeDead
	n.DeadAt = st.now
	n.Flaps = flaps(n, st.now)
	n.DeadHWMs, n.DeadHWMsUnknown = offsets(c.GetHwms()), c.GetHwmsUnknown()
	st.putNode(n)
	st.event(cluster.EventNodeDead, string(n.ID), "no heartbeat for dead_after",
		fmt.Sprintf("incarnation %d, owns %d partitions", n.Incarnation, st.owned[n.ID]), n.ID)
	return Result{}
}

// flaps counts a verdict now among those that came soon after the return from the one before.
func flaps(n cluster.Node, now time.Time) uint32 {
	const most = 100
	switch {
	case n.AliveSince.IsZero() || now.Sub(n.AliveSince) > cluster.FlapWindow:
		return 0 // it was well for long
	case n.AliveSince.Equal(n.JoinedAt):
		return 0 // its first one
	}
	return min(n.Flaps+1, most)
}

func (st *state) setDraining(c *storagev1.SetDraining) Result {
	drain := map[cluster.NodeID]bool{}
	for _, s := range c.GetNodeIds() {
		id := cluster.NodeID(s)
		n, ok := st.nodes[id]
		if !ok {
			return refused(cluster.NotFound("node %s is no member", id))
		}
		if c.GetDraining() && n.Maintenance && !n.Draining {
			return refused(inMaintenance(n))
		}
		drain[id] = true
	}
	if c.GetDraining() {
		if err := st.checkReceivers(drain); err != nil {
			return refused(err)
		}
	}
	for _, n := range sortedNodes(st.nodes) {
		if !drain[n.ID] || n.Draining == c.GetDraining() {
			continue
		}
		n.Draining, n.DrainReason = c.GetDraining(), ""
		if n.Draining {
			n.DrainReason = c.GetReason()
		}
		st.putNode(n)
		result := fmt.Sprintf("it owns %d partitions", st.owned[n.ID])
		if n.Draining {
			st.event(cluster.EventDrainBegun, string(n.ID), c.GetReason(), result, n.ID)
		} else {
			st.event(cluster.EventDrainCancelled, string(n.ID), c.GetReason(), result, n.ID)
		}
	}
	return Result{}
}

// checkReceivers refuses a drain that leaves no living node to receive partitions (C39).
func (st *state) checkReceivers(drain map[cluster.NodeID]bool) *cluster.Error {
	left, dead := 0, 0
	for _, n := range st.nodes {
		switch {
		case drain[n.ID] || n.Draining:
		case n.Status == cluster.NodeDead:
			dead++
		default:
			left++
		}
	}
	if left > 0 {
		return nil
	}
	err := cluster.Errorf(cluster.ReasonBlocked,
		"no receivers: of %d nodes none would be alive and not draining (%d dead); add a node first, or cancel another drain", len(st.nodes), dead)
	err.Blockers = []string{"no receivers"}
	return err
}

// removeNode forgets a node that drained. Its conditions are those of the protocol's removal that the state
// machine can see; the controller adds the node's own report (ingress queue, quarantine).
func (st *state) removeNode(c *storagev1.RemoveNode) Result {
	id := cluster.NodeID(c.GetNodeId())
	n, ok := st.nodes[id]
	if !ok {
		return Result{}
	}
	if n.Incarnation != cluster.Incarnation(c.GetIncarnation()) {
		return refused(cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s has incarnation %d, not %d", id, n.Incarnation, c.GetIncarnation()))
	}
	outcomes := st.outcomesFrom(id)
	if blockers := st.removalBlockers(n, outcomes); len(blockers) > 0 {
		err := cluster.Errorf(cluster.ReasonBlocked, "node %s can't be removed: %s", id, blockers[0].Text)
		for _, b := range blockers {
			err.Blockers = append(err.Blockers, b.Text)
		}
		return refused(err)
	}
	for _, o := range outcomes {
		st.dropOutcome(o)
	}
	st.dropNode(id)
	st.event(cluster.EventNodeRemoved, string(id), n.DrainReason, "nothing is left on it", id)
	return Result{}
}

// RemovalBlocker is one thing for which the state machine refuses to remove a node.
type RemovalBlocker struct {
	// Reason is "not_draining", "owned", "inbound", "not_salvaged" or "unopened".
	Reason string
	// Partition is what it is about; nil when it is about more than one, which Count counts.
	Partition *cluster.PartitionID
	Count     int
	// Text is a sentence without the node's name.
	Text string
}

func (st *state) removalBlockers(n cluster.Node, outcomes []cluster.Outcome) []RemovalBlocker {
	var blockers []RemovalBlocker
	add := func(reason string, p *cluster.PartitionID, count int, format string, args ...any) {
		blockers = append(blockers, RemovalBlocker{reason, p, count, fmt.Sprintf(format, args...)})
	}
	if !n.Draining {
		add("not_draining", nil, 1, "it is not draining")
	}
	if k := st.owned[n.ID]; k > 0 {
		add("owned", nil, k, "it owns %d partitions", k)
	}
	// C32: a node that owns nothing may still be a target.
	if k := st.inbound[n.ID]; k > 0 {
		add("inbound", nil, k, "it is the target of %d moves", k)
	}
	for _, o := range outcomes {
		switch {
		case o.Kind == cluster.OutcomeForced:
			add("not_salvaged", &o.Partition, 1, "its copy of %s is not salvaged", st.partitionName(o.Partition))
		case o.Kind == cluster.OutcomeFlipped && !o.Opened:
			// C80: until the new owner opened it, this node's copy may be the only good one.
			add("unopened", &o.Partition, 1, "its copy of %s is not opened by %s", st.partitionName(o.Partition), o.Destination)
		}
	}
	return blockers
}

func (st *state) partitionName(p cluster.PartitionID) string {
	if t, ok := st.topics[p.Topic]; ok {
		return cluster.FormatPartition(t.Name, p.Index)
	}
	return p.String()
}

// inMaintenance refuses a drain that could not begin.
func inMaintenance(n cluster.Node) *cluster.Error {
	err := cluster.Errorf(cluster.ReasonBlocked, "node %s is in maintenance: nothing moves off it (override: cluster maintenance stop %s)", n.ID, n.ID)
	err.Blockers = []string{string(n.ID) + " is in maintenance"}
	return err
}

func (st *state) setMaintenance(c *storagev1.SetMaintenance) Result {
	n, ok := st.nodes[cluster.NodeID(c.GetNodeId())]
	if !ok {
		return refused(cluster.NotFound("node %s is no member", c.GetNodeId()))
	}
	reason := c.GetReason()
	if !c.GetMaintenance() {
		reason = ""
	}
	if n.Maintenance == c.GetMaintenance() && n.MaintenanceReason == reason {
		return Result{}
	}
	n.Maintenance, n.MaintenanceReason = c.GetMaintenance(), reason
	kind := cluster.EventMaintenanceEnded
	if n.Maintenance {
		kind = cluster.EventMaintenanceBegun
	}
	st.event(kind, string(n.ID), c.GetReason(), "", n.ID)
	st.putNode(n)
	return Result{}
}
