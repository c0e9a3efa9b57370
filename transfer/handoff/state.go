package handoff

import (
	"fmt"
	"math"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// FenceHandoff is the handoff number of the token with which a fenced copy is frozen. It is later than every
// granted one, so that a thaw that is still under way does not open a fenced copy.
const FenceHandoff cluster.Handoff = math.MaxUint32

// Phase says what the source does for a move.
type Phase uint8

// The phases, in their usual order.
const (
	// Marked: the outbound marker is durable; the partition is served.
	Marked Phase = iota + 1
	// Granting: GrantHandoff was sent; the partition is served.
	Granting
	// Freezing: granted; the freeze is being made.
	Freezing
	// Frozen: the final manifest may be out.
	Frozen
	// Revoking: RevokeHandoff was sent; still frozen.
	Revoking
	// Thawing: it is safe to accept appends again.
	Thawing
	// Fenced: frozen after a restart or a verdict.
	Fenced
	// Redirecting: the move has flipped, the partition is being closed.
	Redirecting
	// Flipped: the copy is stale and waits for reclaim or salvage.
	Flipped
	// Unmarking: the move was cancelled, its marker goes.
	Unmarking
	// Gone: nothing is left to do.
	Gone
)

var phaseNames = [...]string{
	"", "marked", "granting", "freezing", "frozen", "revoking", "thawing", "fenced", "redirecting", "flipped",
	"unmarking", "gone",
}

// String returns the phase's name.
func (p Phase) String() string {
	if int(p) < len(phaseNames) && p > 0 {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase_%d", uint8(p))
}

// State is everything that decides what the source does next. None of it needs to be durable but that the
// marker exists: after a restart a state begins as Fenced.
type State struct {
	Phase Phase
	// InFlight says that an effect is being performed; Stale that its result has become meaningless.
	InFlight bool
	Stale    bool
	// Wanted says that somebody waits for the answer to PrepareHandoff.
	Wanted bool
	// Nonce and Incarnation belong to the grant that was asked for, Handoff to the one that was given.
	Nonce       cluster.Nonce
	Incarnation cluster.Incarnation
	Handoff     cluster.Handoff
	// TTL is how long the freeze outlives LastProgress; Step is the destination's latest.
	TTL          time.Duration
	LastProgress time.Duration
	FrozenAt     time.Duration
	Step         uint64
	// Registered says that the session that Fenced waits for is accepted.
	Registered bool
	// Hinted says that a linearizable read is due; Over that one said that the move was cancelled; Away
	// that the partition has moved.
	Hinted bool
	Over   bool
	Away   bool
	// Refenced says that a fence came while the marker of a cancelled move was being removed.
	Refenced bool
	// RetryAt is when the phase's effect is repeated after a failure; Failures counts them in a row.
	RetryAt   time.Duration
	Failures  uint32
	LastError string
}

// New returns the state of a move whose marker has just become durable.
func New() State { return State{Phase: Marked} }

// Restored returns the state of a marker that was found after a restart. Invariant I7.
func Restored() State { return State{Phase: Fenced} }

// Holds says whether appends must be refused.
func (s State) Holds() bool {
	switch s.Phase {
	case Freezing, Frozen, Revoking, Thawing, Fenced, Redirecting, Flipped:
		return true
	case Marked, Granting, Unmarking, Gone:
	}
	return false
}

// Input is one call's worth of the outside world.
type Input struct {
	// Now is monotonic time since some start of the process.
	Now time.Duration
	// Jitter is a random number of 0 to 1023; it spreads retries.
	Jitter uint32
	Event  Event
}

// Event is a closed set: what happened.
type Event interface{ event() string }

// Prepared is a PrepareHandoff of the destination. Nonce is random and used if a grant is asked for.
type Prepared struct {
	Nonce       cluster.Nonce
	Incarnation cluster.Incarnation
	TTL         time.Duration
}

// Granted is the committed grant.
type Granted struct{ Handoff cluster.Handoff }

// GrantRefused is a definite refusal.
type GrantRefused struct{ Message string }

// Froze says that the copy is frozen and the final manifest is made. Appends have been refused since Since.
type Froze struct{ Since time.Duration }

// Progressed is a KeepFrozen: the destination has reached a step.
type Progressed struct {
	Handoff cluster.Handoff
	Step    uint64
}

// BytesRead says that the destination has read bytes.
type BytesRead struct{}

// Ticked says that time passed.
type Ticked struct{}

// Revoked says that no flip of the handoff can happen any more and that none has.
type Revoked struct{ Handoff cluster.Handoff }

// Ended is the answer to RevokeHandoff that the move had ended: flipped or cancelled.
type Ended struct{ Flipped bool }

// Thawed says that appends are accepted again.
type Thawed struct{}

// Hinted says that the move may be over: a notice of the destination, or the watch.
type Hinted struct{}

// MovedAway says that a committed assignment names another owner.
type MovedAway struct{}

// Fence freezes: the node was declared dead and takes a new incarnation. The shell has frozen the copy with
// FenceHandoff already.
type Fence struct{}

// Registered says that the session of the present incarnation is accepted.
type Registered struct{}

// View is what a linearizable read says.
type View uint8

// The values of View.
const (
	// ViewCurrent: the move is current, no grant is live, this node owns the partition.
	ViewCurrent View = iota + 1
	// ViewGranted: the same with a live grant.
	ViewGranted
	// ViewCancelled: the move is over and this node owns the partition.
	ViewCancelled
	// ViewAway: the move flipped, or another node owns the partition.
	ViewAway
)

// MoveRead is a linearizable read. Handoff is the latest number.
type MoveRead struct {
	View    View
	Handoff cluster.Handoff
}

// Closed says that the partition is not served here any more.
type Closed struct{}

// Unmarked says that the marker is gone.
type Unmarked struct{}

// Failed says that the effect in flight failed, or that its outcome is unknown.
type Failed struct{ Message string }

func (Prepared) event() string     { return "Prepared" }
func (Granted) event() string      { return "Granted" }
func (GrantRefused) event() string { return "GrantRefused" }
func (Froze) event() string        { return "Froze" }
func (Progressed) event() string   { return "Progressed" }
func (BytesRead) event() string    { return "BytesRead" }
func (Ticked) event() string       { return "Ticked" }
func (Revoked) event() string      { return "Revoked" }
func (Ended) event() string        { return "Ended" }
func (Thawed) event() string       { return "Thawed" }
func (Hinted) event() string       { return "Hinted" }
func (MovedAway) event() string    { return "MovedAway" }
func (Fence) event() string        { return "Fence" }
func (Registered) event() string   { return "Registered" }
func (MoveRead) event() string     { return "MoveRead" }
func (Closed) event() string       { return "Closed" }
func (Unmarked) event() string     { return "Unmarked" }
func (Failed) event() string       { return "Failed" }

// Name returns the event's name.
func Name(e Event) string { return e.event() }

// Effect is a closed set: what the shell has to do. Answer, Refuse and Wait have no result; each other effect
// ends in exactly one event, and no two of those are in flight together.
type Effect interface{ effect() string }

// Grant asks for the right to freeze: Granted, GrantRefused or Failed.
type Grant struct {
	Incarnation cluster.Incarnation
	Nonce       cluster.Nonce
}

// Freeze freezes and makes the final manifest: Froze or Failed.
type Freeze struct{ Handoff cluster.Handoff }

// Answer sends the final manifest to whoever waits for it.
type Answer struct {
	Handoff   cluster.Handoff
	Nonce     cluster.Nonce
	FrozenFor time.Duration
}

// Refuse tells whoever waits that there is no handoff now.
type Refuse struct{ Message string }

// Revoke makes flips of the handoff impossible: Revoked, Ended or Failed.
type Revoke struct{ Handoff cluster.Handoff }

// Thaw accepts appends again: Thawed or Failed.
type Thaw struct{ Handoff cluster.Handoff }

// Redirect closes the partition: Closed or Failed.
type Redirect struct{}

// ReadMove reads the move, linearizable: MoveRead or Failed.
type ReadMove struct{}

// Unmark removes the marker: Unmarked or Failed.
type Unmark struct{}

// Wait asks for Ticked at a time; it replaces an earlier Wait.
type Wait struct{ Until time.Duration }

func (Grant) effect() string    { return "Grant" }
func (Freeze) effect() string   { return "Freeze" }
func (Answer) effect() string   { return "Answer" }
func (Refuse) effect() string   { return "Refuse" }
func (Revoke) effect() string   { return "Revoke" }
func (Thaw) effect() string     { return "Thaw" }
func (Redirect) effect() string { return "Redirect" }
func (ReadMove) effect() string { return "ReadMove" }
func (Unmark) effect() string   { return "Unmark" }
func (Wait) effect() string     { return "Wait" }

// EffectName returns the effect's name.
func EffectName(e Effect) string { return e.effect() }
