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
	// JoinedAt is when the node registered first.
	JoinedAt time.Time
}

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
