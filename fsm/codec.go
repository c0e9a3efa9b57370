package fsm

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

var marshalOptions = proto.MarshalOptions{Deterministic: true}

// Encode returns the log entry of a command.
func Encode(cmd *storagev1.Command) ([]byte, error) {
	b, err := marshalOptions.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return b, nil
}

// decode returns the command of a log entry. A field that this version does not know is an error: it
// could be a command, or part of one, that other replicas act on.
func decode(b []byte) (*storagev1.Command, error) {
	cmd := &storagev1.Command{}
	if err := proto.Unmarshal(b, cmd); err != nil {
		return nil, fmt.Errorf("decode command: %w", err)
	}
	if hasUnknown(cmd.ProtoReflect()) || cmd.GetCommand() == nil {
		return nil, fmt.Errorf("decode command: of a kind that this version does not know; upgrade this process")
	}
	return cmd, nil
}

func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	unknown := false
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() == nil {
			return true
		}
		if f.IsList() {
			for i := range v.List().Len() {
				unknown = unknown || hasUnknown(v.List().Get(i).Message())
			}
		} else {
			unknown = hasUnknown(v.Message())
		}
		return !unknown
	})
	return unknown
}

func marshal(m proto.Message) []byte {
	b, err := marshalOptions.Marshal(m)
	if err != nil {
		// Only invalid UTF-8 can get here, and commands are checked for it when they are decoded.
		panic(fmt.Sprintf("invariant: record can't be encoded: %v", err))
	}
	return b
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func nodeRecord(n cluster.Node) *storagev1.NodeRecord {
	r := &storagev1.NodeRecord{
		NodeId: string(n.ID), StoreId: string(n.StoreID), Incarnation: uint64(n.Incarnation),
		Address: n.Address, Zone: n.Zone, Status: uint32(n.Status), Draining: n.Draining,
		DrainReason: n.DrainReason, Voter: string(n.Voter), DeadAt: nanos(n.DeadAt), JoinedAt: nanos(n.JoinedAt),
		CapacityWeight: n.Weight, Flaps: n.Flaps, AliveSince: nanos(n.AliveSince),
		Unclaimed: n.Unclaimed, Maintenance: n.Maintenance, MaintenanceReason: n.MaintenanceReason, DeadHwmsUnknown: n.DeadHWMsUnknown,
	}
	for _, h := range n.DeadHWMs {
		r.DeadHwms = append(r.DeadHwms, &storagev1.PartitionOffsetRecord{
			TopicId: uint64(h.Partition.Topic), Index: h.Partition.Index, Offset: uint64(h.Offset)})
	}
	return r
}

func node(r *storagev1.NodeRecord) cluster.Node {
	n := cluster.Node{
		ID: cluster.NodeID(r.GetNodeId()), StoreID: cluster.StoreID(r.GetStoreId()),
		Incarnation: cluster.Incarnation(r.GetIncarnation()), Address: r.GetAddress(), Zone: r.GetZone(),
		Status: cluster.NodeStatus(r.GetStatus()), Draining: r.GetDraining(), DrainReason: r.GetDrainReason(),
		Voter: cluster.ControllerName(r.GetVoter()), DeadAt: fromNanos(r.GetDeadAt()), JoinedAt: fromNanos(r.GetJoinedAt()),
		Weight: r.GetCapacityWeight(), Flaps: r.GetFlaps(), AliveSince: fromNanos(r.GetAliveSince()),
		Unclaimed: r.GetUnclaimed(), Maintenance: r.GetMaintenance(), MaintenanceReason: r.GetMaintenanceReason(),
		DeadHWMsUnknown: r.GetDeadHwmsUnknown(),
	}
	n.DeadHWMs = offsets(r.GetDeadHwms())
	return n
}

func offsets(rs []*storagev1.PartitionOffsetRecord) []cluster.PartitionOffset {
	var out []cluster.PartitionOffset
	for _, h := range rs {
		out = append(out, cluster.PartitionOffset{
			Partition: cluster.PartitionID{Topic: cluster.TopicID(h.GetTopicId()), Index: h.GetIndex()},
			Offset:    cluster.Offset(h.GetOffset())})
	}
	return out
}

// TopicRecord returns the record of a topic, for ClaimPartitions.
func TopicRecord(t cluster.Topic) *storagev1.TopicRecord { return topicRecord(t) }

func topicRecord(t cluster.Topic) *storagev1.TopicRecord {
	return &storagev1.TopicRecord{
		TopicId: uint64(t.ID), Name: t.Name, Partitions: t.Partitions, ParentId: uint64(t.Parent),
		RetentionNanos: int64(t.Retention), CreatedAt: nanos(t.CreatedAt),
	}
}

func topic(r *storagev1.TopicRecord) cluster.Topic {
	return cluster.Topic{
		ID: cluster.TopicID(r.GetTopicId()), Name: r.GetName(), Partitions: r.GetPartitions(),
		Parent: cluster.TopicID(r.GetParentId()), Retention: time.Duration(r.GetRetentionNanos()),
		CreatedAt: fromNanos(r.GetCreatedAt()),
	}
}

func assignmentRecord(a cluster.Assignment) *storagev1.AssignmentRecord {
	r := &storagev1.AssignmentRecord{
		TopicId: uint64(a.Partition.Topic), Index: a.Partition.Index, Owner: string(a.Owner), Target: string(a.Target),
		Epoch: uint64(a.Epoch), OwnerEpoch: uint64(a.OwnerEpoch), MoveId: uint64(a.MoveID), Handoff: uint32(a.Handoff),
		Granted: a.Granted, GrantIncarnation: uint64(a.GrantIncarnation), Opened: a.Opened, Reason: a.Reason,
		MoveStartedAt: nanos(a.MoveStartedAt), MovedAt: nanos(a.MovedAt), Unconfirmed: a.Unconfirmed, Fresh: a.Fresh,
	}
	if a.NonceHash != (cluster.NonceHash{}) {
		r.NonceHash = a.NonceHash[:]
	}
	return r
}

func assignment(r *storagev1.AssignmentRecord) cluster.Assignment {
	a := cluster.Assignment{
		Partition: cluster.PartitionID{Topic: cluster.TopicID(r.GetTopicId()), Index: r.GetIndex()},
		Owner:     cluster.NodeID(r.GetOwner()), Target: cluster.NodeID(r.GetTarget()), Epoch: cluster.Epoch(r.GetEpoch()),
		OwnerEpoch: cluster.Epoch(r.GetOwnerEpoch()), MoveID: cluster.MoveID(r.GetMoveId()),
		Handoff: cluster.Handoff(r.GetHandoff()), Granted: r.GetGranted(),
		GrantIncarnation: cluster.Incarnation(r.GetGrantIncarnation()), Opened: r.GetOpened(), Reason: r.GetReason(),
		MoveStartedAt: fromNanos(r.GetMoveStartedAt()), MovedAt: fromNanos(r.GetMovedAt()),
		Unconfirmed: r.GetUnconfirmed(), Fresh: r.GetFresh(),
	}
	copy(a.NonceHash[:], r.GetNonceHash())
	return a
}

func outcomeRecord(o cluster.Outcome) *storagev1.OutcomeRecord {
	return &storagev1.OutcomeRecord{
		TopicId: uint64(o.Partition.Topic), Index: o.Partition.Index, MoveId: uint64(o.MoveID), Kind: uint32(o.Kind),
		Source: string(o.Source), Destination: string(o.Destination), Handoff: uint32(o.Handoff), Epoch: uint64(o.Epoch),
		PromotedLeo: uint64(o.PromotedLEO), MissingAtMost: o.MissingAtMost, Opened: o.Opened,
	}
}

func outcome(r *storagev1.OutcomeRecord) cluster.Outcome {
	return cluster.Outcome{
		Partition: cluster.PartitionID{Topic: cluster.TopicID(r.GetTopicId()), Index: r.GetIndex()},
		MoveID:    cluster.MoveID(r.GetMoveId()), Kind: cluster.OutcomeKind(r.GetKind()),
		Source: cluster.NodeID(r.GetSource()), Destination: cluster.NodeID(r.GetDestination()),
		Handoff: cluster.Handoff(r.GetHandoff()), Epoch: cluster.Epoch(r.GetEpoch()),
		PromotedLEO: cluster.Offset(r.GetPromotedLeo()), MissingAtMost: r.GetMissingAtMost(), Opened: r.GetOpened(),
	}
}

func statsRecord(s cluster.MoveStats) *storagev1.MoveStatsRecord {
	return &storagev1.MoveStatsRecord{
		Bytes: uint64(s.Bytes), Duration: int64(s.Duration), Freeze: int64(s.Freeze), Passes: s.Passes,
		Attempts: s.Attempts, Converged: s.Converged, FrozenReadBytes: uint64(s.FrozenReadBytes),
	}
}

func stats(r *storagev1.MoveStatsRecord) cluster.MoveStats {
	return cluster.MoveStats{
		Bytes: cluster.Bytes(r.GetBytes()), Duration: time.Duration(r.GetDuration()), Freeze: time.Duration(r.GetFreeze()),
		Passes: r.GetPasses(), Attempts: r.GetAttempts(), Converged: r.GetConverged(),
		FrozenReadBytes: cluster.Bytes(r.GetFrozenReadBytes()),
	}
}

func endedRecord(m cluster.MoveRecord) *storagev1.MoveHistoryRecord {
	return &storagev1.MoveHistoryRecord{
		TopicId: uint64(m.Partition.Topic), Index: m.Partition.Index, MoveId: uint64(m.MoveID), Kind: uint32(m.Kind),
		Source: string(m.Source), Destination: string(m.Destination), Reason: m.Reason,
		StartedAt: nanos(m.StartedAt), EndedAt: nanos(m.EndedAt), Stats: statsRecord(m.Stats),
	}
}

func ended(r *storagev1.MoveHistoryRecord) cluster.MoveRecord {
	return cluster.MoveRecord{
		Partition: cluster.PartitionID{Topic: cluster.TopicID(r.GetTopicId()), Index: r.GetIndex()},
		MoveID:    cluster.MoveID(r.GetMoveId()), Kind: cluster.OutcomeKind(r.GetKind()),
		Source: cluster.NodeID(r.GetSource()), Destination: cluster.NodeID(r.GetDestination()), Reason: r.GetReason(),
		StartedAt: fromNanos(r.GetStartedAt()), EndedAt: fromNanos(r.GetEndedAt()), Stats: stats(r.GetStats()),
	}
}

// SettingsRecord returns the record of a SetSettings command.
func SettingsRecord(s cluster.Settings) *storagev1.SettingsRecord {
	return &storagev1.SettingsRecord{
		MaxInFlightMoves: s.MaxInFlightMoves, MaxMovesPerNode: s.MaxMovesPerNode, CopyRatePerNode: uint64(s.CopyRatePerNode),
		LagBytes: uint64(s.LagBytes), FreezeBudget: int64(s.FreezeBudget), MaxPasses: s.MaxPasses, StallPasses: s.StallPasses,
		HandoffTtl: int64(s.HandoffTTL), ReclaimAfter: int64(s.ReclaimAfter), ForcePromoteAfter: int64(s.ForcePromoteAfter),
		RebalanceDelay: int64(s.RebalanceDelay), RebalancePaused: s.RebalancePaused, MinVoters: s.MinVoters,
		HighDiskPercent: s.HighDiskPercent, MoveCooldown: int64(s.MoveCooldown), MaxAwayPercent: s.MaxAwayPercent,
	}
}

func settings(r *storagev1.SettingsRecord) cluster.Settings {
	s := cluster.Settings{
		MaxInFlightMoves: r.GetMaxInFlightMoves(), MaxMovesPerNode: r.GetMaxMovesPerNode(),
		CopyRatePerNode: cluster.Bytes(r.GetCopyRatePerNode()), LagBytes: cluster.Bytes(r.GetLagBytes()),
		FreezeBudget: time.Duration(r.GetFreezeBudget()), MaxPasses: r.GetMaxPasses(), StallPasses: r.GetStallPasses(),
		HandoffTTL: time.Duration(r.GetHandoffTtl()), ReclaimAfter: time.Duration(r.GetReclaimAfter()),
		ForcePromoteAfter: time.Duration(r.GetForcePromoteAfter()), RebalanceDelay: time.Duration(r.GetRebalanceDelay()),
		RebalancePaused: r.GetRebalancePaused(), MinVoters: r.GetMinVoters(), HighDiskPercent: r.GetHighDiskPercent(),
		MoveCooldown: time.Duration(r.GetMoveCooldown()), MaxAwayPercent: r.GetMaxAwayPercent(),
	}
	if s.MaxAwayPercent == 0 { // a record of a version that did not have it
		s.MaxAwayPercent = cluster.DefaultSettings().MaxAwayPercent
	}
	return s
}

func controllerRecord(c cluster.Controller) *storagev1.ControllerRecord {
	return &storagev1.ControllerRecord{
		Name: string(c.Name), RaftId: uint64(c.RaftID), Address: c.Address, StoreId: string(c.StoreID), Learner: c.Learner,
	}
}

func controller(r *storagev1.ControllerRecord) cluster.Controller {
	return cluster.Controller{
		Name: cluster.ControllerName(r.GetName()), RaftID: cluster.RaftID(r.GetRaftId()), Address: r.GetAddress(),
		StoreID: cluster.StoreID(r.GetStoreId()), Learner: r.GetLearner(),
	}
}
