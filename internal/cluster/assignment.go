package cluster

import "time"

// Assignment is the replicated record of one partition: who serves it and where it should end up.
type Assignment struct {
	Partition PartitionID
	Owner     NodeID
	// Target is empty when the partition is stable.
	Target NodeID
	Epoch  Epoch
	// OwnerEpoch is the epoch at which Owner became the owner. It identifies one ownership: receipts and
	// reports that name another one are stale.
	OwnerEpoch Epoch
	// MoveID is the move towards Target; zero when stable.
	MoveID MoveID
	// Handoff is the number of the latest grant of this move; Granted says whether it is live.
	Handoff   Handoff
	Granted   bool
	NonceHash NonceHash
	// GrantIncarnation is the source incarnation that the live grant belongs to.
	GrantIncarnation Incarnation
	// Opened says that Owner has reported the partition open since it became owner.
	Opened bool
	// Reason is why the planner or the operator set Target; empty when stable.
	Reason string
	// MoveStartedAt is the proposer's clock at SetTarget, for people.
	MoveStartedAt time.Time
	// MovedAt is the proposer's clock at the flip that made Owner the owner; zero when no move did.
	MovedAt time.Time
	// Unconfirmed says that the cluster was restored from a backup and it is not settled yet who owns the
	// partition: Owner is what the backup says. Nobody begins to serve it, and it does not move.
	Unconfirmed bool
	// Fresh is the identity with which Owner makes an empty copy in place of one that was given up for
	// lost; zero is the topic's id. It means nothing once the partition was opened or has moved.
	Fresh uint64
}

// Moving reports whether a move is current.
func (a Assignment) Moving() bool { return a.Target != "" }

// OutcomeKind says how a move ended.
type OutcomeKind uint8

// The values of OutcomeKind.
const (
	OutcomeFlipped OutcomeKind = iota + 1
	OutcomeForced
	OutcomeCancelled
)

// String returns "flipped", "forced" or "cancelled".
func (k OutcomeKind) String() string {
	switch k {
	case OutcomeFlipped:
		return "flipped"
	case OutcomeForced:
		return "forced"
	case OutcomeCancelled:
		return "cancelled"
	}
	return "unknown"
}

// Outcome is the replicated record of an ended move. It is kept until the source has reclaimed or
// salvaged its copy. A move that is neither current nor has an outcome was cancelled, or ended and
// was reclaimed.
type Outcome struct {
	Partition   PartitionID
	MoveID      MoveID
	Kind        OutcomeKind
	Source      NodeID
	Destination NodeID
	// Handoff is the handoff that flipped; zero for the other kinds.
	Handoff Handoff
	// Epoch is the assignment's epoch after the move ended.
	Epoch Epoch
	// PromotedLEO is the log end offset that a forced promotion made the high watermark; it is zero
	// for the other kinds.
	PromotedLEO Offset
	// MissingAtMost is how many offsets an accepted loss may have cost.
	MissingAtMost uint64
	// Opened says that the destination has opened the partition.
	Opened bool
}

// MoveStats is what the destination measured of a move.
type MoveStats struct {
	Bytes     Bytes
	Duration  time.Duration
	Freeze    time.Duration
	Passes    uint32
	Attempts  uint32
	Converged bool
	// FrozenReadBytes counts what was read from the source and re-read from the staged copy while
	// the source was frozen: the proof that a freeze costs the tail only.
	FrozenReadBytes Bytes
}

// MoveRecord is one line of the bounded history of ended moves.
type MoveRecord struct {
	Partition   PartitionID
	MoveID      MoveID
	Kind        OutcomeKind
	Source      NodeID
	Destination NodeID
	Reason      string
	StartedAt   time.Time
	EndedAt     time.Time
	// Stats is zero until the destination reports it.
	Stats MoveStats
}

// MovePhase is where a running move stands. It is soft state, reported by the destination.
type MovePhase string

// The phases of a move, in their usual order.
const (
	// PhasePending: the target is set, the destination has not begun.
	PhasePending MovePhase = "pending"
	// PhaseCatchingUp: bytes are copied while the source accepts writes.
	PhaseCatchingUp MovePhase = "catching_up"
	// PhaseFrozen: the source is frozen; the fixed tail is drained and verified.
	PhaseFrozen MovePhase = "frozen"
	// PhaseFlipping: the copy is installed, the flip is proposed.
	PhaseFlipping MovePhase = "flipping"
	// PhaseOpening: the flip is committed, the destination opens the partition.
	PhaseOpening MovePhase = "opening"
	// PhaseWaiting: an attempt failed; the next one waits for its back-off, or for the source.
	PhaseWaiting MovePhase = "waiting"
	// PhaseBlocked: the move can't go on without something named in its last error.
	PhaseBlocked MovePhase = "blocked"
)

// MoveProgress is a running move as its destination reports it in heartbeats. Soft state.
type MoveProgress struct {
	Partition      PartitionID
	MoveID         MoveID
	Phase          MovePhase
	Done           Bytes
	Total          Bytes
	BytesPerSecond Bytes
	Lag            Bytes
	Passes         uint32
	Attempt        uint32
	Converged      bool
	NonConverged   bool
	LastError      string
	// FrozenFor is how long the source has been frozen for this move; zero unless it is.
	FrozenFor time.Duration
}
