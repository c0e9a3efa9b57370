package cluster

import "time"

// Settings are the limits that operators change while the cluster runs. They live in the state
// machine and reach agents on their watch streams.
type Settings struct {
	// MaxInFlightMoves bounds moves cluster-wide. More shortens a drain and takes bandwidth from clients.
	MaxInFlightMoves uint32
	// MaxMovesPerNode bounds the moves of one node as source and, separately, as destination.
	MaxMovesPerNode uint32
	// CopyRatePerNode bounds what one destination copies, in bytes per second; zero is unlimited. It does
	// not apply inside a freeze.
	CopyRatePerNode Bytes
	// LagBytes is the largest remaining tail with which a freeze is asked for.
	LagBytes Bytes
	// FreezeBudget is the longest predicted drain of the tail with which a freeze is asked for.
	FreezeBudget time.Duration
	// MaxPasses bounds the catch-up passes of an attempt; then the move goes on non-converged.
	MaxPasses uint32
	// StallPasses is how many passes without a smaller tail end the catch-up.
	StallPasses uint32
	// HandoffTTL is how long a freeze outlives the destination's last progress.
	HandoffTTL time.Duration
	// ReclaimAfter is how long a source keeps its stale copy after all other conditions hold.
	ReclaimAfter time.Duration
	// ForcePromoteAfter is how long after the verdict a destination promotes itself; zero never does.
	ForcePromoteAfter time.Duration
	// RebalanceDelay is how long a joined node must be alive before the planner gives it partitions.
	RebalanceDelay time.Duration
	// MoveCooldown is how long a partition that moved is not moved again for balance. Longer calms a cluster whose
	// nodes come and go; a drain, or a target that died, does not wait for it. Zero is no time.
	MoveCooldown time.Duration
	// MaxAwayPercent is how many of the nodes may be dead or silent, in percent, while partitions move for
	// balance. Above it rebalancing holds: what looks like many dead nodes is often a network. Drains go on.
	MaxAwayPercent uint32
	// RebalancePaused stops new targets; moves in flight go on, drains wait.
	RebalancePaused bool
	// MinVoters is the number of voters below which none is removed.
	MinVoters uint32
	// HighDiskPercent is how full a destination's disk may get, planned moves included, in percent.
	HighDiskPercent uint32
}

// DefaultSettings returns the settings of a new cluster.
func DefaultSettings() Settings {
	return Settings{
		MaxInFlightMoves:  8,
		MaxMovesPerNode:   4,
		LagBytes:          4 << 20,
		FreezeBudget:      50 * time.Millisecond,
		MaxPasses:         20,
		StallPasses:       3,
		HandoffTTL:        10 * time.Second,
		ReclaimAfter:      time.Minute,
		ForcePromoteAfter: 2 * time.Minute,
		RebalanceDelay:    5 * time.Second,
		MoveCooldown:      2 * time.Minute,
		MaxAwayPercent:    40,
		MinVoters:         3,
		HighDiskPercent:   90,
	}
}

// Validate returns a ReasonInvalid error naming the first setting out of its range.
func (s Settings) Validate() error {
	switch {
	case s.MaxInFlightMoves < 1 || s.MaxInFlightMoves > 10_000:
		return Invalid("max_in_flight_moves", "must be 1 to 10000, is %d", s.MaxInFlightMoves)
	case s.MaxMovesPerNode < 1 || s.MaxMovesPerNode > 10_000:
		return Invalid("max_moves_per_node", "must be 1 to 10000, is %d", s.MaxMovesPerNode)
	case s.LagBytes < 1:
		return Invalid("lag_bytes", "must be at least 1")
	case s.FreezeBudget <= 0:
		return Invalid("freeze_budget", "must be positive, is %s", s.FreezeBudget)
	case s.MaxPasses < 1:
		return Invalid("max_passes", "must be at least 1")
	case s.StallPasses < 1:
		return Invalid("stall_passes", "must be at least 1")
	case s.HandoffTTL < 100*time.Millisecond:
		return Invalid("handoff_ttl", "must be at least 100ms, is %s", s.HandoffTTL)
	case s.ReclaimAfter < 0:
		return Invalid("reclaim_after", "must not be negative, is %s", s.ReclaimAfter)
	case s.ForcePromoteAfter < 0:
		return Invalid("force_promote_after", "must not be negative, is %s", s.ForcePromoteAfter)
	case s.RebalanceDelay < 0:
		return Invalid("rebalance_delay", "must not be negative, is %s", s.RebalanceDelay)
	case s.MoveCooldown < 0:
		return Invalid("move_cooldown", "must not be negative, is %s", s.MoveCooldown)
	case s.MaxAwayPercent < 1 || s.MaxAwayPercent > 100:
		return Invalid("max_away_percent", "must be 1 to 100, is %d", s.MaxAwayPercent)
	case s.MinVoters < 1:
		return Invalid("min_voters", "must be at least 1")
	case s.HighDiskPercent < 1 || s.HighDiskPercent > 100:
		return Invalid("high_disk_percent", "must be 1 to 100, is %d", s.HighDiskPercent)
	}
	return nil
}
