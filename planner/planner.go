package planner

import (
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// View is what the planner knows about the cluster. Both slices should be sorted by key (Nodes by ID,
// Partitions by ID); a slice that is not is copied and sorted. Keys are unique. Nothing is written to.
type View struct {
	Nodes      []Node
	Partitions []Partition
}

// MaxWeight is the largest weight of a node; a larger one counts as this.
const MaxWeight = 1000

// Node is a data node as the planner sees it.
type Node struct {
	ID    cluster.NodeID
	Alive bool
	// Draining nodes receive nothing and shed all they own.
	Draining bool
	// Maintenance nodes receive nothing, and what they own stays.
	Maintenance bool
	// Settling nodes joined, or came back, too recently to receive. What they own stays.
	Settling bool
	// Silent nodes have not been heard of for a lease. They are treated like settling ones, by placements too.
	Silent bool
	// Zone is the failure domain; nodes with an equal zone share it. Empty is a zone like any other.
	Zone string
	// Weight is how much of everything the node should hold beside the others, 1 to MaxWeight; zero means 1.
	// A node of weight 3 gets three times the partitions of a node of weight 1.
	Weight int
	// DiskTotal is the size of the data disk; zero means unknown, and room is then not checked.
	DiskTotal cluster.Bytes
	// DiskFree is what is left of DiskTotal.
	DiskFree cluster.Bytes
}

// Partition is an assignment as the planner sees it.
type Partition struct {
	ID    cluster.PartitionID
	Owner cluster.NodeID
	// Target is empty when the partition is stable.
	Target cluster.NodeID
	// Epoch is handed through to Move.Epoch, for the compare-and-swap.
	Epoch cluster.Epoch
	// Parent is the parent topic; zero when there is none. It is equal for all partitions of a topic.
	Parent cluster.TopicID
	// Bytes is the size of the partition's data; zero when unknown or empty.
	Bytes cluster.Bytes
	// Staged is how much of Bytes is on the target's disk already.
	Staged cluster.Bytes
	// Cooling says that the partition moved a moment ago: it is not picked for balance, only to leave a draining
	// node.
	Cooling bool
	// Stuck says that the destination of the current move reports that it waits or is blocked. A stuck
	// move holds no slot.
	Stuck bool
}

// Limits bounds what a plan may start. The zero value limits nothing.
type Limits struct {
	// MaxInFlight bounds moves cluster-wide, those in flight included; zero is unlimited.
	MaxInFlight int
	// MaxPerNode bounds the moves of one node as source and, separately, as destination; zero is
	// unlimited.
	MaxPerNode int
	// HighDiskPercent is how full a destination's disk may get; zero means 100.
	HighDiskPercent int
	// HoldRebalancing stops the moves that only serve balance, retargets among them. Drains and cancellations go
	// on.
	HoldRebalancing bool
	// Paused stops all new targets, retargets and cancellations; everything is Waiting then.
	Paused bool
}

// LimitsOf returns the limits that the cluster's settings ask for.
func LimitsOf(s cluster.Settings) Limits {
	return Limits{
		MaxInFlight:     int(s.MaxInFlightMoves),
		MaxPerNode:      int(s.MaxMovesPerNode),
		HighDiskPercent: int(s.HighDiskPercent),
		Paused:          s.RebalancePaused,
	}
}

// Result is a plan: what should be proposed now, and what can't be.
type Result struct {
	// Moves is to be proposed in this order: cancellations, retargets, drains, rebalancing; by partition
	// within each.
	Moves []Move
	// Blocked lists, by partition, what should move and can't, whatever the limits.
	Blocked []Blocked
	// Waiting counts the moves that should be made and don't fit the limits now, and WaitingBytes is
	// their size. Plan again when a move ends.
	Waiting      int
	WaitingBytes cluster.Bytes
	// OnHold counts what HoldRebalancing keeps; it is not in Waiting.
	OnHold int
	// Cooling counts partitions that should move for balance and don't since they moved a moment ago.
	Cooling int
	// Held lists what is waiting or on hold, in the order in which it will be admitted. Only [Foresee] fills it.
	Held []Held
}

// Move is one change of a target.
type Move struct {
	Partition cluster.PartitionID
	// From is the owner.
	From cluster.NodeID
	// To is the new target. Empty cancels the current move: the partition stays with its owner.
	To cluster.NodeID
	// Retarget says that a current target is replaced. OldTarget names it, for cancellations too.
	Retarget  bool
	OldTarget cluster.NodeID
	// Epoch is the assignment's epoch in the view; owner, OldTarget and Epoch are the precondition.
	Epoch cluster.Epoch
	Bytes cluster.Bytes
	// Reason is a phrase for people, such as "drain agent-1".
	Reason string
}

// Cancel reports whether m cancels the current move.
func (m Move) Cancel() bool { return m.To == "" }

// Reasons of Blocked. BlockedNoSpace is a prefix; the figures follow it.
const (
	BlockedOwnerDead   = "owner dead"
	BlockedNoReceivers = "no receivers"
	BlockedNoSpace     = "not enough space"
)

// Blocked is a partition that should move and can't.
type Blocked struct {
	Partition cluster.PartitionID
	Owner     cluster.NodeID
	// Target is the current target; empty when the partition is stable.
	Target cluster.NodeID
	Bytes  cluster.Bytes
	// Reason is one of the Blocked constants, or begins with it.
	Reason string
}

// Plan decides what should move. It never fails: what can't be placed is in Result.Blocked. Places in
// a new topic come from [Place], the dry run of a drain from [Drain]. Who plans often keeps a [Board].
func Plan(v View, lim Limits) Result { return NewBoard(v).Plan(lim) }

// Place returns the owners of a new topic's partitions by index, by the rules of planning: no dead,
// draining, silent, settling or full node (settling ones when there is no other), the emptiest nodes first
// so that the cluster stays as balanced as can be without moving anything, then the preferences. The
// error is nil or a *cluster.Error: ReasonInvalid for a negative count, ReasonBlocked with one blocker
// for each node when no node may receive.
func Place(v View, lim Limits, req Request) ([]cluster.NodeID, error) {
	return NewBoard(v).Place(lim, req)
}

// Drain plans as if the nodes ids were draining, without limits on concurrency, without pause and hold. The
// error is nil or a *cluster.Error with ReasonNotFound for an unknown node.
func Drain(v View, lim Limits, ids []cluster.NodeID) (DrainPlan, error) {
	return NewBoard(v).Drain(lim, ids)
}
