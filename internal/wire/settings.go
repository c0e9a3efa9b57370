package wire

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// SettingsToProto sets every field.
func SettingsToProto(s cluster.Settings) *planev1.Settings {
	return &planev1.Settings{
		MaxInFlightMoves:  proto.Uint32(s.MaxInFlightMoves),
		MaxMovesPerNode:   proto.Uint32(s.MaxMovesPerNode),
		CopyRatePerNode:   proto.Uint64(uint64(s.CopyRatePerNode)),
		LagBytes:          proto.Uint64(uint64(s.LagBytes)),
		FreezeBudget:      durationpb.New(s.FreezeBudget),
		MaxPasses:         proto.Uint32(s.MaxPasses),
		StallPasses:       proto.Uint32(s.StallPasses),
		HandoffTtl:        durationpb.New(s.HandoffTTL),
		ReclaimAfter:      durationpb.New(s.ReclaimAfter),
		ForcePromoteAfter: durationpb.New(s.ForcePromoteAfter),
		RebalanceDelay:    durationpb.New(s.RebalanceDelay),
		RebalancePaused:   proto.Bool(s.RebalancePaused),
		MinVoters:         proto.Uint32(s.MinVoters),
		HighDiskPercent:   proto.Uint32(s.HighDiskPercent),
		MoveCooldown:      durationpb.New(s.MoveCooldown),
		MaxAwayPercent:    proto.Uint32(s.MaxAwayPercent),
	}
}

// SettingsFromProto reads a complete message; an absent field is zero.
func SettingsFromProto(s *planev1.Settings) cluster.Settings {
	return ApplySettings(cluster.Settings{}, s)
}

// ApplySettings returns base with the fields that are present in patch. It does not validate.
func ApplySettings(base cluster.Settings, patch *planev1.Settings) cluster.Settings {
	if patch == nil {
		return base
	}
	if patch.MaxInFlightMoves != nil {
		base.MaxInFlightMoves = patch.GetMaxInFlightMoves()
	}
	if patch.MaxMovesPerNode != nil {
		base.MaxMovesPerNode = patch.GetMaxMovesPerNode()
	}
	if patch.CopyRatePerNode != nil {
		base.CopyRatePerNode = cluster.Bytes(patch.GetCopyRatePerNode())
	}
	if patch.LagBytes != nil {
		base.LagBytes = cluster.Bytes(patch.GetLagBytes())
	}
	if patch.FreezeBudget != nil {
		base.FreezeBudget = patch.GetFreezeBudget().AsDuration()
	}
	if patch.MaxPasses != nil {
		base.MaxPasses = patch.GetMaxPasses()
	}
	if patch.StallPasses != nil {
		base.StallPasses = patch.GetStallPasses()
	}
	if patch.HandoffTtl != nil {
		base.HandoffTTL = patch.GetHandoffTtl().AsDuration()
	}
	if patch.ReclaimAfter != nil {
		base.ReclaimAfter = patch.GetReclaimAfter().AsDuration()
	}
	if patch.ForcePromoteAfter != nil {
		base.ForcePromoteAfter = patch.GetForcePromoteAfter().AsDuration()
	}
	if patch.RebalanceDelay != nil {
		base.RebalanceDelay = patch.GetRebalanceDelay().AsDuration()
	}
	if patch.RebalancePaused != nil {
		base.RebalancePaused = patch.GetRebalancePaused()
	}
	if patch.MinVoters != nil {
		base.MinVoters = patch.GetMinVoters()
	}
	if patch.HighDiskPercent != nil {
		base.HighDiskPercent = patch.GetHighDiskPercent()
	}
	if patch.MoveCooldown != nil {
		base.MoveCooldown = patch.GetMoveCooldown().AsDuration()
	}
	if patch.MaxAwayPercent != nil {
		base.MaxAwayPercent = patch.GetMaxAwayPercent()
	}
	return base
}
