package wire

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// AssignmentToProto leaves out the nonce's hash and the grant's incarnation.
func AssignmentToProto(a cluster.Assignment) *planev1.Assignment {
	return &planev1.Assignment{
		Partition:     PartitionToProto(a.Partition),
		Owner:         string(a.Owner),
		Target:        string(a.Target),
		Epoch:         uint64(a.Epoch),
		OwnerEpoch:    uint64(a.OwnerEpoch),
		MoveId:        uint64(a.MoveID),
		Handoff:       uint32(a.Handoff),
		Granted:       a.Granted,
		Opened:        a.Opened,
		Reason:        a.Reason,
		MoveStartedAt: TimeToProto(a.MoveStartedAt),
		MovedAt:       TimeToProto(a.MovedAt),
		Unconfirmed:   a.Unconfirmed,
		Fresh:         a.Fresh,
	}
}

// AssignmentFromProto leaves the nonce's hash and the grant's incarnation zero.
func AssignmentFromProto(a *planev1.Assignment) cluster.Assignment {
	return cluster.Assignment{
		Partition:     PartitionFromProto(a.GetPartition()),
		Owner:         cluster.NodeID(a.GetOwner()),
		Target:        cluster.NodeID(a.GetTarget()),
		Epoch:         cluster.Epoch(a.GetEpoch()),
		OwnerEpoch:    cluster.Epoch(a.GetOwnerEpoch()),
		MoveID:        cluster.MoveID(a.GetMoveId()),
		Handoff:       cluster.Handoff(a.GetHandoff()),
		Granted:       a.GetGranted(),
		Opened:        a.GetOpened(),
		Reason:        a.GetReason(),
		MoveStartedAt: TimeFromProto(a.GetMoveStartedAt()),
		MovedAt:       TimeFromProto(a.GetMovedAt()),
		Unconfirmed:   a.GetUnconfirmed(),
		Fresh:         a.GetFresh(),
	}
}

// OutcomeKindToProto converts how a move ended.
func OutcomeKindToProto(k cluster.OutcomeKind) planev1.OutcomeKind {
	switch k {
	case cluster.OutcomeFlipped:
		return planev1.OutcomeKind_OUTCOME_KIND_FLIPPED
	case cluster.OutcomeForced:
		return planev1.OutcomeKind_OUTCOME_KIND_FORCED
	case cluster.OutcomeCancelled:
		return planev1.OutcomeKind_OUTCOME_KIND_CANCELLED
	}
	return planev1.OutcomeKind_OUTCOME_KIND_UNSPECIFIED
}

// OutcomeKindFromProto returns zero for an unknown value.
func OutcomeKindFromProto(k planev1.OutcomeKind) cluster.OutcomeKind {
	switch k {
	case planev1.OutcomeKind_OUTCOME_KIND_FLIPPED:
		return cluster.OutcomeFlipped
	case planev1.OutcomeKind_OUTCOME_KIND_FORCED:
		return cluster.OutcomeForced
	case planev1.OutcomeKind_OUTCOME_KIND_CANCELLED:
		return cluster.OutcomeCancelled
	}
	return 0
}

// OutcomeToProto converts the record of an ended move.
func OutcomeToProto(o cluster.Outcome) *planev1.Outcome {
	return &planev1.Outcome{
		Partition:     PartitionToProto(o.Partition),
		MoveId:        uint64(o.MoveID),
		Kind:          OutcomeKindToProto(o.Kind),
		Source:        string(o.Source),
		Destination:   string(o.Destination),
		Handoff:       uint32(o.Handoff),
		Epoch:         uint64(o.Epoch),
		PromotedLeo:   uint64(o.PromotedLEO),
		MissingAtMost: o.MissingAtMost,
		Opened:        o.Opened,
	}
}

// OutcomeFromProto converts the record of an ended move.
func OutcomeFromProto(o *planev1.Outcome) cluster.Outcome {
	return cluster.Outcome{
		Partition:     PartitionFromProto(o.GetPartition()),
		MoveID:        cluster.MoveID(o.GetMoveId()),
		Kind:          OutcomeKindFromProto(o.GetKind()),
		Source:        cluster.NodeID(o.GetSource()),
		Destination:   cluster.NodeID(o.GetDestination()),
		Handoff:       cluster.Handoff(o.GetHandoff()),
		Epoch:         cluster.Epoch(o.GetEpoch()),
		PromotedLEO:   cluster.Offset(o.GetPromotedLeo()),
		MissingAtMost: o.GetMissingAtMost(),
		Opened:        o.GetOpened(),
	}
}

// MoveStatsToProto returns nil for the zero value: nothing was reported.
func MoveStatsToProto(s cluster.MoveStats) *planev1.MoveStats {
	if s == (cluster.MoveStats{}) {
		return nil
	}
	return &planev1.MoveStats{
		Bytes:           uint64(s.Bytes),
		Duration:        durationpb.New(s.Duration),
		Freeze:          durationpb.New(s.Freeze),
		Passes:          s.Passes,
		Attempts:        s.Attempts,
		Converged:       s.Converged,
		FrozenReadBytes: uint64(s.FrozenReadBytes),
	}
}

// MoveStatsFromProto returns the zero value for nil.
func MoveStatsFromProto(s *planev1.MoveStats) cluster.MoveStats {
	return cluster.MoveStats{
		Bytes:           cluster.Bytes(s.GetBytes()),
		Duration:        s.GetDuration().AsDuration(),
		Freeze:          s.GetFreeze().AsDuration(),
		Passes:          s.GetPasses(),
		Attempts:        s.GetAttempts(),
		Converged:       s.GetConverged(),
		FrozenReadBytes: cluster.Bytes(s.GetFrozenReadBytes()),
	}
}

// MoveRecordToProto converts a line of the move history.
func MoveRecordToProto(r cluster.MoveRecord) *planev1.MoveRecord {
	return &planev1.MoveRecord{
		Partition:   PartitionToProto(r.Partition),
		MoveId:      uint64(r.MoveID),
		Kind:        OutcomeKindToProto(r.Kind),
		Source:      string(r.Source),
		Destination: string(r.Destination),
		Reason:      r.Reason,
		StartedAt:   TimeToProto(r.StartedAt),
		EndedAt:     TimeToProto(r.EndedAt),
		Stats:       MoveStatsToProto(r.Stats),
	}
}

// MoveRecordFromProto converts a line of the move history.
func MoveRecordFromProto(r *planev1.MoveRecord) cluster.MoveRecord {
	return cluster.MoveRecord{
		Partition:   PartitionFromProto(r.GetPartition()),
		MoveID:      cluster.MoveID(r.GetMoveId()),
		Kind:        OutcomeKindFromProto(r.GetKind()),
		Source:      cluster.NodeID(r.GetSource()),
		Destination: cluster.NodeID(r.GetDestination()),
		Reason:      r.GetReason(),
		StartedAt:   TimeFromProto(r.GetStartedAt()),
		EndedAt:     TimeFromProto(r.GetEndedAt()),
		Stats:       MoveStatsFromProto(r.GetStats()),
	}
}

// MovePhaseToProto converts a phase; an unknown one is unspecified.
func MovePhaseToProto(p cluster.MovePhase) planev1.MovePhase {
	switch p {
	case cluster.PhasePending:
		return planev1.MovePhase_MOVE_PHASE_PENDING
	case cluster.PhaseCatchingUp:
		return planev1.MovePhase_MOVE_PHASE_CATCHING_UP
	case cluster.PhaseFrozen:
		return planev1.MovePhase_MOVE_PHASE_FROZEN
	case cluster.PhaseFlipping:
		return planev1.MovePhase_MOVE_PHASE_FLIPPING
	case cluster.PhaseOpening:
		return planev1.MovePhase_MOVE_PHASE_OPENING
	case cluster.PhaseWaiting:
		return planev1.MovePhase_MOVE_PHASE_WAITING
	case cluster.PhaseBlocked:
		return planev1.MovePhase_MOVE_PHASE_BLOCKED
	}
	return planev1.MovePhase_MOVE_PHASE_UNSPECIFIED
}

// MovePhaseFromProto returns "" for an unknown value.
func MovePhaseFromProto(p planev1.MovePhase) cluster.MovePhase {
	switch p {
	case planev1.MovePhase_MOVE_PHASE_PENDING:
		return cluster.PhasePending
	case planev1.MovePhase_MOVE_PHASE_CATCHING_UP:
		return cluster.PhaseCatchingUp
	case planev1.MovePhase_MOVE_PHASE_FROZEN:
		return cluster.PhaseFrozen
	case planev1.MovePhase_MOVE_PHASE_FLIPPING:
		return cluster.PhaseFlipping
	case planev1.MovePhase_MOVE_PHASE_OPENING:
		return cluster.PhaseOpening
	case planev1.MovePhase_MOVE_PHASE_WAITING:
		return cluster.PhaseWaiting
	case planev1.MovePhase_MOVE_PHASE_BLOCKED:
		return cluster.PhaseBlocked
	}
	return ""
}

// MoveProgressToProto converts a running move's report.
func MoveProgressToProto(p cluster.MoveProgress) *planev1.MoveProgress {
	out := &planev1.MoveProgress{
		Partition:      PartitionToProto(p.Partition),
		MoveId:         uint64(p.MoveID),
		Phase:          MovePhaseToProto(p.Phase),
		DoneBytes:      uint64(p.Done),
		TotalBytes:     uint64(p.Total),
		BytesPerSecond: uint64(p.BytesPerSecond),
		LagBytes:       uint64(p.Lag),
		Passes:         p.Passes,
		Attempt:        p.Attempt,
		Converged:      p.Converged,
		NonConverged:   p.NonConverged,
		LastError:      p.LastError,
	}
	if p.FrozenFor > 0 {
		out.FrozenFor = durationpb.New(p.FrozenFor)
	}
	return out
}

// MoveProgressFromProto converts a running move's report.
func MoveProgressFromProto(p *planev1.MoveProgress) cluster.MoveProgress {
	return cluster.MoveProgress{
		Partition:      PartitionFromProto(p.GetPartition()),
		MoveID:         cluster.MoveID(p.GetMoveId()),
		Phase:          MovePhaseFromProto(p.GetPhase()),
		Done:           cluster.Bytes(p.GetDoneBytes()),
		Total:          cluster.Bytes(p.GetTotalBytes()),
		BytesPerSecond: cluster.Bytes(p.GetBytesPerSecond()),
		Lag:            cluster.Bytes(p.GetLagBytes()),
		Passes:         p.GetPasses(),
		Attempt:        p.GetAttempt(),
		Converged:      p.GetConverged(),
		NonConverged:   p.GetNonConverged(),
		LastError:      p.GetLastError(),
		FrozenFor:      p.GetFrozenFor().AsDuration(),
	}
}
