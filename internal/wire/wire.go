// Package wire converts between the vocabulary (internal/cluster) and the API's messages
// (naradplane.v1), both ways.
//
// It decides nothing and validates nothing: a message from a client is judged where it is used. What
// the vocabulary keeps from clients (a grant's nonce hash and incarnation) has no field in the messages
// and comes back as zero.
//
// All functions are pure and safe for concurrent use. A nil message converts to a zero value.
//
// Files: wire.go (scalars, partitions, nodes, topics, controllers), moves.go (assignments, outcomes,
// progress, history), settings.go, change.go.
package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// MaxMessageBytes bounds one message that a client of the controllers reads. The largest is a revision on a watch:
// creating a topic of cluster.MaxPartitions partitions is one.
const MaxMessageBytes = 64 << 20

// TimeToProto returns nil for the zero time.
func TimeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// TimeFromProto returns the zero time for nil, else a time in UTC.
func TimeFromProto(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// durationToProto returns nil for zero, which the messages read as "absent".
func durationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// PartitionToProto leaves the topic's name empty; see PartitionWithTopic.
func PartitionToProto(p cluster.PartitionID) *planev1.Partition {
	return &planev1.Partition{TopicId: uint64(p.Topic), Index: p.Index}
}

// PartitionWithTopic adds the topic's name, for people.
func PartitionWithTopic(p cluster.PartitionID, topic string) *planev1.Partition {
	return &planev1.Partition{TopicId: uint64(p.Topic), Index: p.Index, Topic: topic}
}

// PartitionFromProto ignores the topic's name.
func PartitionFromProto(p *planev1.Partition) cluster.PartitionID {
	return cluster.PartitionID{Topic: cluster.TopicID(p.GetTopicId()), Index: p.GetIndex()}
}

// PartitionOffsetsToProto converts a list; nil stays nil.
func PartitionOffsetsToProto(in []cluster.PartitionOffset) []*planev1.PartitionOffset {
	var out []*planev1.PartitionOffset
	for _, o := range in {
		out = append(out, &planev1.PartitionOffset{
			Partition: PartitionToProto(o.Partition), Offset: uint64(o.Offset),
		})
	}
	return out
}

// PartitionOffsetsFromProto converts a list; an empty one becomes nil.
func PartitionOffsetsFromProto(in []*planev1.PartitionOffset) []cluster.PartitionOffset {
	var out []cluster.PartitionOffset
	for _, o := range in {
		out = append(out, cluster.PartitionOffset{
			Partition: PartitionFromProto(o.GetPartition()), Offset: cluster.Offset(o.GetOffset()),
		})
	}
	return out
}

// NodeStatusToProto converts a verdict.
func NodeStatusToProto(s cluster.NodeStatus) planev1.NodeStatus {
	switch s {
	case cluster.NodeAlive:
		return planev1.NodeStatus_NODE_STATUS_ALIVE
	case cluster.NodeDead:
		return planev1.NodeStatus_NODE_STATUS_DEAD
	}
	return planev1.NodeStatus_NODE_STATUS_UNSPECIFIED
}

// NodeStatusFromProto returns zero for an unknown value.
func NodeStatusFromProto(s planev1.NodeStatus) cluster.NodeStatus {
	switch s {
	case planev1.NodeStatus_NODE_STATUS_ALIVE:
		return cluster.NodeAlive
	case planev1.NodeStatus_NODE_STATUS_DEAD:
		return cluster.NodeDead
	}
	return 0
}

// NodeToProto converts a node's record.
func NodeToProto(n cluster.Node) *planev1.Node {
	return &planev1.Node{
		NodeId:      string(n.ID),
		StoreId:     string(n.StoreID),
		Incarnation: uint64(n.Incarnation),
		Address:     n.Address,
		Zone:        n.Zone,
		Status:      NodeStatusToProto(n.Status),
		Draining:    n.Draining,
		DrainReason: n.DrainReason,
		Voter:       string(n.Voter),
		DeadAt:      TimeToProto(n.DeadAt),
		JoinedAt:    TimeToProto(n.JoinedAt),
		DeadHwms:    PartitionOffsetsToProto(n.DeadHWMs),

		CapacityWeight: n.Weight,
		Flaps:          n.Flaps,
		AliveSince:     TimeToProto(n.AliveSince),
		Unclaimed:      n.Unclaimed, Maintenance: n.Maintenance, MaintenanceReason: n.MaintenanceReason, DeadHwmsUnknown: n.DeadHWMsUnknown,
	}
}

// NodeFromProto converts a node's record.
func NodeFromProto(n *planev1.Node) cluster.Node {
	return cluster.Node{
		ID:          cluster.NodeID(n.GetNodeId()),
		StoreID:     cluster.StoreID(n.GetStoreId()),
		Incarnation: cluster.Incarnation(n.GetIncarnation()),
		Address:     n.GetAddress(),
		Zone:        n.GetZone(),
		Status:      NodeStatusFromProto(n.GetStatus()),
		Draining:    n.GetDraining(),
		DrainReason: n.GetDrainReason(),
		Voter:       cluster.ControllerName(n.GetVoter()),
		DeadAt:      TimeFromProto(n.GetDeadAt()),
		DeadHWMs:    PartitionOffsetsFromProto(n.GetDeadHwms()),
		JoinedAt:    TimeFromProto(n.GetJoinedAt()),

		Weight: n.GetCapacityWeight(),
		Flaps:  n.GetFlaps(),

		AliveSince: TimeFromProto(n.GetAliveSince()),
		Unclaimed:  n.GetUnclaimed(), Maintenance: n.GetMaintenance(), MaintenanceReason: n.GetMaintenanceReason(),
		DeadHWMsUnknown: n.GetDeadHwmsUnknown(),
	}
}

// TopicToProto leaves the parent's name empty.
func TopicToProto(t cluster.Topic) *planev1.Topic {
	return &planev1.Topic{
		TopicId:    uint64(t.ID),
		Name:       t.Name,
		Partitions: t.Partitions,
		ParentId:   uint64(t.Parent),
		Retention:  durationToProto(t.Retention),
		CreatedAt:  TimeToProto(t.CreatedAt),
	}
}

// TopicFromProto ignores the parent's name.
func TopicFromProto(t *planev1.Topic) cluster.Topic {
	return cluster.Topic{
		ID:         cluster.TopicID(t.GetTopicId()),
		Name:       t.GetName(),
		Partitions: t.GetPartitions(),
		Parent:     cluster.TopicID(t.GetParentId()),
		Retention:  t.GetRetention().AsDuration(),
		CreatedAt:  TimeFromProto(t.GetCreatedAt()),
	}
}

// ControllerToProto converts a consensus member's record.
func ControllerToProto(c cluster.Controller) *planev1.Controller {
	return &planev1.Controller{
		Name: string(c.Name), RaftId: uint64(c.RaftID), Address: c.Address,
		StoreId: string(c.StoreID), Learner: c.Learner,
	}
}

// ControllerFromProto converts a consensus member's record.
func ControllerFromProto(c *planev1.Controller) cluster.Controller {
	return cluster.Controller{
		Name: cluster.ControllerName(c.GetName()), RaftID: cluster.RaftID(c.GetRaftId()),
		Address: c.GetAddress(), StoreID: cluster.StoreID(c.GetStoreId()), Learner: c.GetLearner(),
	}
}

// RestoredToProto converts what a restored state was made from.
func RestoredToProto(r cluster.Restored) *planev1.Restored {
	out := &planev1.Restored{FromRevision: uint64(r.From), BaseRevision: uint64(r.Base), At: TimeToProto(r.At)}
	for _, id := range r.Predecessors {
		out.Predecessors = append(out.Predecessors, string(id))
	}
	return out
}

// RestoredFromProto converts what a restored state was made from.
func RestoredFromProto(r *planev1.Restored) cluster.Restored {
	out := cluster.Restored{From: cluster.Revision(r.GetFromRevision()), Base: cluster.Revision(r.GetBaseRevision()), At: TimeFromProto(r.GetAt())}
	for _, id := range r.GetPredecessors() {
		out.Predecessors = append(out.Predecessors, cluster.ClusterID(id))
	}
	return out
}
