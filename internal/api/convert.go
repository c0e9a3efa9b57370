package api

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/internal/wire"
	"github.com/naradctl/naradctl-plane/planner"
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
	out := &planev1.GetClusterStatusResponse{
		Revision: uint64(s.Revision), Verdict: verdictMessage(s.Verdict), NextCommand: s.Next, Reasons: s.Reasons(),
		ClusterId: string(id), Leader: string(s.Leader), Term: s.Term, Voters: uint32(s.Voters), Learners: uint32(s.Learners),
		NodesAlive: uint32(s.Alive), NodesDead: uint32(s.Dead), NodesDraining: uint32(s.Draining), Topics: uint32(s.Topics),
		Partitions: uint32(s.Partitions), MovesInFlight: uint32(s.Moves), MovesBlocked: uint32(s.Blocked), Bytes: uint64(s.Bytes),
		MovesWaiting: uint32(s.Waiting),
	}
	for _, f := range s.Findings {
		out.Findings = append(out.Findings, &planev1.StatusFinding{Verdict: verdictMessage(f.Verdict), Text: f.Text, NextCommand: f.Next})
	}
	if s.Estimate != nil {
		out.Estimate = estimateMessage(*s.Estimate)
	}
	return out
}

func memberMessage(m controller.Member, topics map[cluster.TopicID]string) *planev1.Member {
	out := &planev1.Member{
		Node: wire.NodeToProto(m.Node), Owned: uint32(m.Owned), Inbound: uint32(m.Inbound), Outbound: uint32(m.Outbound),
		Bytes: uint64(m.Bytes), DiskTotalBytes: uint64(m.Report.DiskTotal), DiskFreeBytes: uint64(m.Report.DiskFree),
		IngressRecords: m.Report.IngressRecords, IngressBytes: uint64(m.Report.IngressBytes), Quarantined: m.Report.Quarantined,
		Blockers: m.Short, Unopened: uint32(m.Unopened),
	}
	for _, b := range m.Blockers {
		d := &planev1.DrainBlocker{Reason: b.Reason, Text: b.Text, Act: b.Act, Count: uint64(b.Count)}
		if b.Partition != nil {
			d.Partition = wire.PartitionWithTopic(*b.Partition, topics[b.Partition.Topic])
		}
		out.DrainBlockers = append(out.DrainBlockers, d)
	}
	if m.Drain != nil {
		out.Drain = estimateMessage(*m.Drain)
	}
	if m.Silence >= 0 {
		out.HeartbeatAge = durationpb.New(m.Silence)
	}
	return out
}

func movesMessage(m controller.Moves) *planev1.ListMovesResponse {
	res := &planev1.ListMovesResponse{
		Revision: uint64(m.Revision), HistoryKept: uint32(m.Kept), HistoryKeptLimit: fsm.EndedLimit, Estimate: estimateMessage(m.Estimate),
	}
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
	res.Blocked = blockedMessages(m.Blocked, m.Topics)
	for _, h := range m.History {
		out := wire.MoveRecordToProto(h)
		out.Partition.Topic = m.Topics[h.Partition.Topic]
		res.History = append(res.History, out)
	}
	return res
}

func blockedMessages(list []planner.Blocked, topics map[cluster.TopicID]string) []*planev1.BlockedMove {
	var out []*planev1.BlockedMove
	for _, b := range list {
		out = append(out, &planev1.BlockedMove{
			Partition: wire.PartitionWithTopic(b.Partition, topics[b.Partition.Topic]), Owner: string(b.Owner),
			Bytes: uint64(b.Bytes), Reason: b.Reason,
		})
	}
	return out
}

func plannedMessage(m planner.Move, waits string, topics map[cluster.TopicID]string) *planev1.PlannedMove {
	return &planev1.PlannedMove{
		Partition: wire.PartitionWithTopic(m.Partition, topics[m.Partition.Topic]), From: string(m.From), To: string(m.To),
		OldTarget: string(m.OldTarget), Bytes: uint64(m.Bytes), Reason: m.Reason, Waits: waits,
	}
}

func drainMessage(d controller.Drain, dryRun bool) *planev1.DecommissionResponse {
	res := &planev1.DecommissionResponse{
		Revision: uint64(d.Revision), DryRun: dryRun, Bytes: uint64(d.Bytes), Blockers: d.Blockers,
		Nodes: nodeMessages(d.Nodes), Estimate: estimateMessage(d.Estimate), Blocked: blockedMessages(d.Blocked, d.Topics),
	}
	for _, m := range d.Moves {
		res.Moves = append(res.Moves, plannedMessage(m, d.Held[m.Partition], d.Topics))
	}
	return res
}

func estimateMessage(e controller.Estimate) *planev1.Estimate {
	out := &planev1.Estimate{
		Basis: e.Basis, RemainingBytes: uint64(e.Remaining), BytesPerSecond: uint64(e.Rate),
		MovesInFlight: uint32(e.InFlight), MovesWaiting: uint32(e.Waiting),
	}
	if e.Known {
		out.Eta = durationpb.New(e.ETA)
	}
	return out
}

func nodeMessages(list []planner.NodeForesight) []*planev1.NodeForesight {
	var out []*planev1.NodeForesight
	for _, n := range list {
		out = append(out, &planev1.NodeForesight{
			NodeId: string(n.Node), Added: n.Added, Alive: n.Alive, Draining: n.Draining,
			OwnedBefore: uint32(n.Before), OwnedAfter: uint32(n.After), BytesBefore: uint64(n.BytesBefore), BytesAfter: uint64(n.BytesAfter),
			MovesIn: uint32(n.In), MovesOut: uint32(n.Out), Inbound: uint32(n.Inbound), Outbound: uint32(n.Outbound),
			DiskTotalBytes: uint64(n.DiskTotal), DiskUsedBeforeBytes: uint64(n.DiskBefore), DiskUsedAfterBytes: uint64(n.DiskAfter),
		})
	}
	return out
}

func planMessage(f controller.Foresight) *planev1.PlanMovesResponse {
	res := &planev1.PlanMovesResponse{
		Revision: uint64(f.Revision), Bytes: uint64(f.Bytes), Blocked: blockedMessages(f.Blocked, f.Topics),
		Nodes: nodeMessages(f.Nodes), Estimate: estimateMessage(f.Estimate), Notes: f.Notes,
	}
	for _, m := range f.Moves {
		res.Moves = append(res.Moves, plannedMessage(m, "", f.Topics))
	}
	for _, h := range f.Held {
		res.Moves = append(res.Moves, plannedMessage(h.Move, h.Why, f.Topics))
	}
	return res
}

func placementMessage(p planner.Placement) planev1.PlacementState {
	switch p {
	case planner.Settled:
		return planev1.PlacementState_PLACEMENT_STATE_SETTLED
	case planner.Moving:
		return planev1.PlacementState_PLACEMENT_STATE_MOVING
	case planner.Planned:
		return planev1.PlacementState_PLACEMENT_STATE_PLANNED
	case planner.HeldBack:
		return planev1.PlacementState_PLACEMENT_STATE_HELD_BACK
	case planner.Stuck:
		return planev1.PlacementState_PLACEMENT_STATE_STUCK
	case planner.Pinned:
		return planev1.PlacementState_PLACEMENT_STATE_PINNED
	}
	return planev1.PlacementState_PLACEMENT_STATE_UNSPECIFIED
}

func explanationMessage(e controller.Explanation, topic string) *planev1.ExplainPartitionResponse {
	a := e.Assignment
	res := &planev1.ExplainPartitionResponse{
		Revision: uint64(e.Revision), Partition: wire.PartitionWithTopic(a.Partition, topic), Owner: string(a.Owner), Target: string(a.Target),
		Bytes: uint64(e.Bytes), State: placementMessage(e.Placement), Reasons: e.Reasons, NextCommand: e.Next,
	}
	if e.Move != nil {
		waits := ""
		if e.Placement == planner.HeldBack {
			waits = e.Why
		}
		res.Planned = plannedMessage(*e.Move, waits, map[cluster.TopicID]string{a.Partition.Topic: topic})
	}
	if e.Progress != nil {
		res.Progress = wire.MoveProgressToProto(*e.Progress)
		res.Progress.Partition.Topic = topic
	}
	return res
}
