package api

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func verdictMessage(v controller.Verdict) planev1.ClusterVerdict {
	switch v {
	case controller.OK:
		return planev1.ClusterVerdict_CLUSTER_VERDICT_OK
	case controller.Moving:
		return planev1.ClusterVerdict_CLUSTER_VERDICT_MOVING
	case controller.Stalled:
		return planev1.ClusterVerdict_CLUSTER_VERDICT_STALLED
	case controller.Degraded:
		return planev1.ClusterVerdict_CLUSTER_VERDICT_DEGRADED
	case controller.NoLeader:
		return planev1.ClusterVerdict_CLUSTER_VERDICT_NO_LEADER
	}
	return planev1.ClusterVerdict_CLUSTER_VERDICT_UNSPECIFIED
}

func statusMessage(s controller.Status, id cluster.ClusterID) *planev1.GetClusterStatusResponse {
	return &planev1.GetClusterStatusResponse{
		Revision: uint64(s.Revision), Verdict: verdictMessage(s.Verdict), Reasons: s.Reasons, NextCommand: s.Next,
		ClusterId: string(id), Leader: string(s.Leader), Term: s.Term, Voters: uint32(s.Voters), Learners: uint32(s.Learners),
		NodesAlive: uint32(s.Alive), NodesDead: uint32(s.Dead), NodesDraining: uint32(s.Draining), Topics: uint32(s.Topics),
		Partitions: uint32(s.Partitions), MovesInFlight: uint32(s.Moves), MovesBlocked: uint32(s.Blocked), Bytes: uint64(s.Bytes),
		MovesWaiting: uint32(s.Waiting),
	}
}

func memberMessage(m controller.Member) *planev1.Member {
	out := &planev1.Member{
		Node: wire.NodeToProto(m.Node), Owned: uint32(m.Owned), Inbound: uint32(m.Inbound), Outbound: uint32(m.Outbound),
		Bytes: uint64(m.Bytes), DiskTotalBytes: uint64(m.Report.DiskTotal), DiskFreeBytes: uint64(m.Report.DiskFree),
		IngressRecords: m.Report.IngressRecords, IngressBytes: uint64(m.Report.IngressBytes), Quarantined: m.Report.Quarantined,
		Blockers: m.Blockers, Unopened: uint32(m.Unopened),
	}
	if m.Silence >= 0 {
		out.HeartbeatAge = durationpb.New(m.Silence)
	}
	return out
}

func movesMessage(m controller.Moves) *planev1.ListMovesResponse {
	res := &planev1.ListMovesResponse{Revision: uint64(m.Revision)}
	for _, v := range m.Moves {
		out := &planev1.Move{Assignment: wire.AssignmentToProto(v.Assignment)}
		out.Assignment.Partition.Topic = m.Topics[v.Assignment.Partition.Topic]
		if v.Progress != nil {
			out.Progress = wire.MoveProgressToProto(*v.Progress)
			out.Progress.Partition.Topic = out.Assignment.Partition.Topic
		}
		if v.ETA > 0 {
			out.Eta = durationpb.New(v.ETA)
		}
		res.Moves = append(res.Moves, out)
	}
	for _, b := range m.Blocked {
		res.Blocked = append(res.Blocked, &planev1.BlockedMove{
			Partition: wire.PartitionWithTopic(b.Partition, m.Topics[b.Partition.Topic]), Owner: string(b.Owner),
			Bytes: uint64(b.Bytes), Reason: b.Reason,
		})
	}
	for _, h := range m.History {
		out := wire.MoveRecordToProto(h)
		out.Partition.Topic = m.Topics[h.Partition.Topic]
		res.History = append(res.History, out)
	}
	return res
}

func drainMessage(d controller.Drain, dryRun bool) *planev1.DecommissionResponse {
	res := &planev1.DecommissionResponse{
		Revision: uint64(d.Revision), DryRun: dryRun, Bytes: uint64(d.Bytes), Blockers: d.Blockers,
	}
	for _, m := range d.Moves {
		res.Moves = append(res.Moves, &planev1.PlannedMove{
			Partition: wire.PartitionWithTopic(m.Partition, d.Topics[m.Partition.Topic]), From: string(m.From), To: string(m.To),
			Bytes: uint64(m.Bytes), Reason: m.Reason,
		})
	}
	return res
}
