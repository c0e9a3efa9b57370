package move

import (
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Input is one call's worth of the outside world.
type Input struct {
	// Now is monotonic time since some start of the process.
	Now time.Duration
	// Jitter is a random number of 0 to 1023; it spreads retries.
	Jitter uint32
	// Settings are the live ones.
	Settings cluster.Settings
	Event    Event
}

// Event is a closed set: what happened.
type Event interface{ event() string }

// Started is the first event of a state, new or decoded. Installed says that the active place holds this
// move's copy with a pending marker, and Handoff is the marker's; Confirmed says that it is there
// without one.
type Started struct {
	Installed bool
	Confirmed bool
	Handoff   cluster.Handoff
}

// Ticked says that time passed.
type Ticked struct{}

// SourceSeen repeats the source's record: when it changes, and after Started.
type SourceSeen struct {
	Dead        bool
	Incarnation cluster.Incarnation
	// HWM is the last high watermark that the verdict recorded for the partition; zero when none.
	HWM cluster.Offset
}

// Hinted says that the watch no longer has the move as current.
type Hinted struct{}

// Retried says that an operator, or a change of the source, asks not to wait for the back-off.
type Retried struct{}

// PromoteAsked says that an operator wants the copy promoted now, the source being dead; with AcceptLoss even when it is not
// complete.
type PromoteAsked struct{ AcceptLoss bool }

// Begun is the source's answer to Begin.
type Begun struct {
	Incarnation cluster.Incarnation
	Measured
}

// Measured compares the source's manifest with what is staged.
type Measured struct {
	Total   cluster.Bytes
	Missing cluster.Bytes
	// Unconfirmed counts sealed files that are not yet synced and compared.
	Unconfirmed int
	HWM         cluster.Offset
	Meta        []byte
}

// Copied ends a pass: Bytes were staged in Elapsed.
type Copied struct {
	Bytes   cluster.Bytes
	Elapsed time.Duration
}

// FreezeGranted is the final manifest.
type FreezeGranted struct {
	Incarnation cluster.Incarnation
	Handoff     cluster.Handoff
	Nonce       cluster.Nonce
	HWM         cluster.Offset
	FrozenFor   time.Duration
	Meta        []byte
}

// Drained says that every byte of the final manifest is staged; Read were read from the source for it.
type Drained struct{ Read cluster.Bytes }

// Verified says that the copy is synced and equals the manifest; Read were re-read for it.
type Verified struct{ Read cluster.Bytes }

// Installed says that the copy is in its place, pending.
type Installed struct{}

// FlipAnswered says that the move is flipped, forced or not, to this node.
type FlipAnswered struct {
	Epoch  cluster.Epoch
	Forced bool
}

// FlipRefused is a definite refusal of the token. Ended says that the move is over without this node.
type FlipRefused struct {
	Message string
	Ended   bool
}

// OutcomeUnknown says that a request's outcome is not known.
type OutcomeUnknown struct{ Message string }

// Revoked is the definite answer to RevokeHandoff that no flip of the handoff can happen. Ended like in
// FlipRefused.
type Revoked struct{ Ended bool }

// RolledBack says that the copy is staged again.
type RolledBack struct{}

// Promotable says that the staged copy is finalized without its source and ends at LEO.
type Promotable struct{ LEO cluster.Offset }

// Confirmed says that the pending marker is gone.
type Confirmed struct{}

// Opened says that the partition is served here.
type Opened struct{}

// Reported says that the control plane knows it, or that it does not want to know any more.
type Reported struct{}

// MoveRead is a linearizable read of the move.
type MoveRead struct {
	// Current: the move is the present one.
	Current bool
	// Mine: it ended with this node as the owner, with Epoch and Forced as in FlipAnswered.
	Mine   bool
	Epoch  cluster.Epoch
	Forced bool
	// OwnerDead: the owner is declared dead, so that the staged bytes may be the last copy.
	OwnerDead bool
}

// Dropped says that the staging is gone.
type Dropped struct{}

// Failed says that the effect in flight failed without doing harm; it may have been done in part.
type Failed struct {
	Message string
	// Blocked: trying again is of no use before something else changes, such as room on the disk.
	Blocked bool
	// Hint: the failure suggests that the move is over, so it is read again.
	Hint bool
}

func (Started) event() string        { return "Started" }
func (Ticked) event() string         { return "Ticked" }
func (SourceSeen) event() string     { return "SourceSeen" }
func (Hinted) event() string         { return "Hinted" }
func (Retried) event() string        { return "Retried" }
func (PromoteAsked) event() string   { return "PromoteAsked" }
func (Begun) event() string          { return "Begun" }
func (Measured) event() string       { return "Measured" }
func (Copied) event() string         { return "Copied" }
func (FreezeGranted) event() string  { return "FreezeGranted" }
func (Drained) event() string        { return "Drained" }
func (Verified) event() string       { return "Verified" }
func (Installed) event() string      { return "Installed" }
func (FlipAnswered) event() string   { return "FlipAnswered" }
func (FlipRefused) event() string    { return "FlipRefused" }
func (OutcomeUnknown) event() string { return "OutcomeUnknown" }
func (Revoked) event() string        { return "Revoked" }
func (RolledBack) event() string     { return "RolledBack" }
func (Promotable) event() string     { return "Promotable" }
func (Confirmed) event() string      { return "Confirmed" }
func (Opened) event() string         { return "Opened" }
func (Reported) event() string       { return "Reported" }
func (MoveRead) event() string       { return "MoveRead" }
func (Dropped) event() string        { return "Dropped" }
func (Failed) event() string         { return "Failed" }

// Name returns the event's name.
func Name(e Event) string { return e.event() }
