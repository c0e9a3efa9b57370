package cluster

import "time"

// NodeStatus is the replicated verdict on a node, not its soft liveness.
type NodeStatus uint8

// The values of NodeStatus.
const (
	NodeAlive NodeStatus = iota + 1
	NodeDead
)

// String returns "alive" or "dead".
func (s NodeStatus) String() string {
	if s == NodeDead {
		return "dead"
	}
	return "alive"
}

// Node is the replicated record of a data node.
type Node struct {
	ID          NodeID
	StoreID     StoreID
	Incarnation Incarnation
	// Address is what others dial: host:port.
	Address  string
	Zone     string
	Status   NodeStatus
	Draining bool
	// DrainReason is the operator's note.
	DrainReason string
	// Voter names the controller on the same host; empty when there is none. Decommissioning the
	// node then removes that controller too.
	Voter ControllerName
	// DeadAt is when the verdict was proposed (leader's clock, for people and for
	// force_promote_after only); zero when alive.
	DeadAt time.Time
	// DeadHWMs are the last high watermarks that the node reported before the verdict, for
	// partitions with an outbound marker. Empty when alive.
	DeadHWMs []PartitionOffset
	// DeadHWMsUnknown says that who pronounced the verdict had never heard them: DeadHWMs says nothing.
	DeadHWMsUnknown bool
	// Unclaimed says that the cluster was restored from a backup and the node has not said yet which
	// copies it holds.
	Unclaimed bool
	// Maintenance says that no move to or from the node is begun, and that what it owns is not promoted
	// elsewhere. Only the operator sets and clears it.
	Maintenance       bool
	MaintenanceReason string
	// JoinedAt is when the node registered first.
	JoinedAt time.Time
	// Weight is how much the node should hold beside the others, 1 to MaxWeight. A node of weight 3 gets three
	// times the partitions of a node of weight 1. Zero means 1.
	Weight uint32
	// AliveSince is when the node joined or came back from its last verdict, by the proposer's clock.
	AliveSince time.Time
	// Flaps counts verdicts in a row that each came within FlapWindow after AliveSince.
	Flaps uint32
}

// MaxWeight bounds a node's weight.
const MaxWeight = 1000

// FlapWindow is how long a node must have been alive for its next verdict not to count as a flap. All replicas must
// agree on it: changing it is a format change.
const FlapWindow = time.Hour

// PartitionOffset is an offset in a partition.
type PartitionOffset struct {
	Partition PartitionID
	Offset    Offset
}

// Controller is the replicated record of a consensus member.
type Controller struct {
	Name    ControllerName
	RaftID  RaftID
	Address string
	StoreID StoreID
	// Learner is true until the member is caught up and promoted.
	Learner bool
}
