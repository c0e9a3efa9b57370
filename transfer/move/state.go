package move

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Phase says which effect is in flight or due.
type Phase uint8

// The phases, in their usual order. The values are persisted: only ever add at the end.
const (
	// Waiting: nothing is in flight; RetryAt says when the next attempt begins.
	Waiting Phase = iota + 1
	// Beginning: Begin was sent to the source.
	Beginning
	// Measuring: the source's manifest was asked for.
	Measuring
	// Copying: a catch-up pass runs.
	Copying
	// Preparing: PrepareHandoff was sent.
	Preparing
	// Draining: the source is frozen, its tail is copied.
	Draining
	// Verifying: the staged copy is finalized and verified.
	Verifying
	// Installing: the staged copy is renamed to its place, pending its flip.
	Installing
	// Flipping: CompleteMove was sent, or may have been.
	Flipping
	// Revoking: an installed copy without a nonce; RevokeHandoff will say what became of it.
	Revoking
	// RollingBack: the flip is definitely refused, the copy goes back to staging.
	RollingBack
	// Promoting: the source is dead, the staged copy is finalized without it.
	Promoting
	// PromoteInstalling: the promoted copy is installed.
	PromoteInstalling
	// ForceFlipping: ForceCompleteMove was sent, or may have been.
	ForceFlipping
	// Confirming: flipped; the pending marker goes.
	Confirming
	// Opening: the partition is opened.
	Opening
	// Reporting: ReportOpened was sent.
	Reporting
	// Querying: a linearizable read of the move was sent.
	Querying
	// Dropping: the move is over without this node; its staging goes.
	Dropping
	// Done: nothing is left to do.
	Done
)

var phaseNames = [...]string{
	"", "waiting", "beginning", "measuring", "copying", "preparing", "draining", "verifying", "installing",
	"flipping", "revoking", "rolling_back", "promoting", "promote_installing", "force_flipping",
	"confirming", "opening", "reporting", "querying", "dropping", "done",
}

// String returns the phase's name.
func (p Phase) String() string {
	if int(p) < len(phaseNames) && p > 0 {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase_%d", uint8(p))
}

// Shown returns the phase as operators see it.
func (s State) Shown() cluster.MovePhase {
	switch s.Phase {
	case Beginning, Measuring, Copying:
		return cluster.PhaseCatchingUp
	case Preparing, Draining, Verifying:
		return cluster.PhaseFrozen
	case Installing, Flipping, Revoking, RollingBack, Promoting, PromoteInstalling, ForceFlipping:
		return cluster.PhaseFlipping
	case Confirming, Opening, Reporting, Done:
		return cluster.PhaseOpening
	case Waiting, Querying, Dropping:
	}
	switch {
	case s.Blocked:
		return cluster.PhaseBlocked
	case s.LastError == "" && !s.Reached:
		return cluster.PhasePending
	}
	return cluster.PhaseWaiting
}

// State is everything that decides what a move does next. Fields with a json name are journaled.
type State struct {
	Partition cluster.PartitionID `json:"partition"`
	MoveID    cluster.MoveID      `json:"move_id"`
	Source    cluster.NodeID      `json:"source"`
	Phase     Phase               `json:"phase"`

	// Reached says that the source answered Begin in this move; SourceIncarnation is the latest that did.
	Reached           bool                `json:"reached,omitempty"`
	SourceIncarnation cluster.Incarnation `json:"source_incarnation,omitempty"`
	// ReadHWM is the highest high watermark that was read from the source.
	ReadHWM cluster.Offset `json:"read_hwm,omitempty"`
	// Meta is what the shell needs of the latest manifest for a promotion without the source. Opaque.
	Meta []byte `json:"meta,omitempty"`
	// Handoff and Nonce are the token of the latest final manifest.
	Handoff cluster.Handoff `json:"handoff,omitempty"`
	Nonce   cluster.Nonce   `json:"nonce,omitempty"`
	// ForcedLEO is what ForceCompleteMove names; the request is repeated unchanged.
	ForcedLEO cluster.Offset `json:"forced_leo,omitempty"`
	// ForceRefused is the incarnation for which a promotion was refused for good.
	ForceRefused cluster.Incarnation `json:"force_refused,omitempty"`
	// PromoteAsked says that an operator asked for the promotion; AcceptLoss that it may lose records.
	PromoteAsked bool `json:"promote_asked,omitempty"`
	AcceptLoss   bool `json:"accept_loss,omitempty"`
	// Forced says that the outcome was a forced one; Epoch is the assignment's after it.
	Forced bool          `json:"forced,omitempty"`
	Epoch  cluster.Epoch `json:"epoch,omitempty"`
	// Stats are summed up over attempts and restarts.
	Stats cluster.MoveStats `json:"stats"`

	// InFlight says that an effect is being performed. RetryAt is when the next is due if none is.
	InFlight bool          `json:"-"`
	RetryAt  time.Duration `json:"-"`
	// Failures counts failures in a row, for the back-off.
	Failures uint32 `json:"-"`
	// Hinted says that the watch no longer has the move as current: a linearizable read is due.
	Hinted bool `json:"-"`
	// Placed says that the active place holds this move's copy, pending or not.
	Placed bool `json:"-"`
	// Confirmed says that the copy in the place was found without its pending marker: the move had flipped
	// to this node before.
	Confirmed bool `json:"-"`
	// Ended says that an answer said definitely that the move is over without this node.
	Ended bool `json:"-"`
	// StartedAt and FrozenAt are monotonic; FrozenFor is what the source had been frozen at FrozenAt.
	StartedAt time.Duration `json:"-"`
	FrozenAt  time.Duration `json:"-"`
	FrozenFor time.Duration `json:"-"`
	// Passes, Stalls, Missing and Bandwidth (bytes per second) belong to the present catch-up.
	Passes    uint32        `json:"-"`
	Stalls    uint32        `json:"-"`
	Missing   cluster.Bytes `json:"-"`
	Total     cluster.Bytes `json:"-"`
	Bandwidth cluster.Bytes `json:"-"`
	// NonConverged says that the freeze was asked for without a small tail.
	NonConverged bool `json:"-"`
	// SourceDead, DeadIncarnation, DeadHWM and DeadSince repeat the verdict on the source.
	SourceDead      bool                `json:"-"`
	DeadIncarnation cluster.Incarnation `json:"-"`
	DeadHWM         cluster.Offset      `json:"-"`
	DeadSince       time.Duration       `json:"-"`
	// Reaching says that the present passes ask a source that was declared dead for what it still
	// serves; ReachTried that this was done since the verdict.
	Reaching   bool `json:"-"`
	ReachTried bool `json:"-"`
	// Blocked and LastError are shown to operators.
	Blocked   bool   `json:"-"`
	LastError string `json:"-"`
}

// New returns the state of a move that has just been seen. Its first input is Started.
func New(p cluster.PartitionID, id cluster.MoveID, source cluster.NodeID) State {
	return State{Partition: p, MoveID: id, Source: source, Phase: Waiting}
}

// FormatVersion is the first byte of an encoded state. Version 1: JSON follows.
const FormatVersion = 1

// Encode returns the journal form of the durable fields.
func (s State) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode state of move %d of %s: %w", s.MoveID, s.Partition, err)
	}
	return append([]byte{FormatVersion}, b...), nil
}

// Decode reads what Encode wrote. Its first input is Started.
func Decode(b []byte) (State, error) {
	if len(b) == 0 || b[0] != FormatVersion {
		return State{}, cluster.Errorf(cluster.ReasonCorrupt, "move journal: unknown format")
	}
	var s State
	if err := json.Unmarshal(b[1:], &s); err != nil {
		return State{}, cluster.Errorf(cluster.ReasonCorrupt, "move journal: %v", err)
	}
	if s.Phase < Waiting || s.Phase > Done || s.MoveID == 0 {
		return State{}, cluster.Errorf(cluster.ReasonCorrupt, "move journal: phase %d, move %d", s.Phase, s.MoveID)
	}
	return s, nil
}
