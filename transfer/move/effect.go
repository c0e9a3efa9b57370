package move

import (
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Effect is a closed set: what the shell has to do. Save, Wait, Interrupt and Forget have no result; each
// other effect ends in exactly one event, and no two of those are in flight together.
type Effect interface{ effect() string }

// Save journals the state that Step returned, synced, before the effects after it.
type Save struct{}

// Wait asks for Ticked at a time; it replaces an earlier Wait.
type Wait struct{ Until time.Duration }

// Interrupt ends the effect in flight, if it can be ended; its result comes all the same.
type Interrupt struct{}

// Forget removes the state from the journal; the move is done.
type Forget struct{}

// Begin opens the move at the source, opens the staging, and measures: Begun or Failed.
type Begin struct{}

// Measure asks for the manifest: Measured or Failed.
type Measure struct{}

// CopyPass copies what the latest manifest lists and compares sealed files: Copied or Failed.
type CopyPass struct{}

// PrepareHandoff asks for the freeze: FreezeGranted or Failed.
type PrepareHandoff struct{ TTL time.Duration }

// Drain copies what the final manifest lists: Drained or Failed.
type Drain struct{ Handoff cluster.Handoff }

// Verify finalizes the staged copy: Verified or Failed.
type Verify struct{ Handoff cluster.Handoff }

// Install puts the copy in its place, pending: Installed or Failed.
type Install struct{ Handoff cluster.Handoff }

// CompleteMove asks for the flip: FlipAnswered, FlipRefused or OutcomeUnknown.
type CompleteMove struct {
	Handoff cluster.Handoff
	Nonce   cluster.Nonce
}

// RevokeHandoff makes the flip impossible: Revoked, FlipAnswered or OutcomeUnknown.
type RevokeHandoff struct{ Handoff cluster.Handoff }

// Rollback takes the installed copy back to staging: RolledBack or Failed.
type Rollback struct{}

// Promote finalizes the staged copy without its source: Promotable or Failed.
type Promote struct{ Meta []byte }

// ForceComplete asks for the forced flip: FlipAnswered, FlipRefused or OutcomeUnknown.
type ForceComplete struct {
	Incarnation cluster.Incarnation
	LEO         cluster.Offset
	ReadHWM     cluster.Offset
	AcceptLoss  bool
}

// ConfirmFlip removes the pending marker: Confirmed or Failed.
type ConfirmFlip struct{}

// Open serves the partition: Opened or Failed.
type Open struct{ Epoch cluster.Epoch }

// Report tells the control plane and the source: Reported or Failed.
type Report struct {
	Epoch cluster.Epoch
	Stats cluster.MoveStats
}

// ReadMove reads the move, linearizable: MoveRead or Failed.
type ReadMove struct{}

// DropStaging removes the staging directory: Dropped or Failed.
type DropStaging struct{}

func (Save) effect() string           { return "Save" }
func (Wait) effect() string           { return "Wait" }
func (Interrupt) effect() string      { return "Interrupt" }
func (Forget) effect() string         { return "Forget" }
func (Begin) effect() string          { return "Begin" }
func (Measure) effect() string        { return "Measure" }
func (CopyPass) effect() string       { return "CopyPass" }
func (PrepareHandoff) effect() string { return "PrepareHandoff" }
func (Drain) effect() string          { return "Drain" }
func (Verify) effect() string         { return "Verify" }
func (Install) effect() string        { return "Install" }
func (CompleteMove) effect() string   { return "CompleteMove" }
func (RevokeHandoff) effect() string  { return "RevokeHandoff" }
func (Rollback) effect() string       { return "Rollback" }
func (Promote) effect() string        { return "Promote" }
func (ForceComplete) effect() string  { return "ForceComplete" }
func (ConfirmFlip) effect() string    { return "ConfirmFlip" }
func (Open) effect() string           { return "Open" }
func (Report) effect() string         { return "Report" }
func (ReadMove) effect() string       { return "ReadMove" }
func (DropStaging) effect() string    { return "DropStaging" }

// EffectName returns the effect's name.
func EffectName(e Effect) string { return e.effect() }
