package move

// Transition says where an event leads from a phase. The shell's own events (Started, Ticked, SourceSeen,
// Hinted, Retried) are not listed: they start or repeat a phase, or interrupt it.
type Transition struct {
	From  Phase
	Event string
	// To lists every phase that may follow.
	To []Phase
	// Why says what decides.
	Why string
}

// Transitions is the table of results. Step ignores an event without a row for its phase, the tests
// check that no step leaves the table, and testdata/transitions.md is printed from it.
var Transitions = []Transition{
	{Beginning, "Begun", []Phase{Copying, Preparing, Querying, Waiting, Promoting, Measuring}, "what is missing; a hint or a verdict in between"},
	{Beginning, "Failed", []Phase{Waiting, Querying, Promoting, Measuring}, "back-off"},
	{Measuring, "Measured", []Phase{Copying, Preparing, Querying, Waiting, Promoting, Measuring, Beginning}, "converged, or given up, or another pass"},
	{Measuring, "Failed", []Phase{Waiting, Querying, Promoting, Measuring}, "back-off"},
	{Copying, "Copied", []Phase{Measuring, Querying, Waiting, Promoting, Beginning}, "another look at the source"},
	{Copying, "Failed", []Phase{Waiting, Querying, Promoting, Measuring}, "back-off; what is staged stays"},
	{Preparing, "FreezeGranted", []Phase{Draining, Querying, Waiting, Promoting, Measuring}, "the token is journaled first"},
	{Preparing, "Failed", []Phase{Waiting, Querying, Promoting, Measuring}, "the source lets go by itself"},
	{Draining, "Drained", []Phase{Verifying, Querying}, "every byte is staged"},
	{Draining, "Failed", []Phase{Waiting, Querying, Promoting, Measuring}, "the source lets go by itself"},
	{Verifying, "Verified", []Phase{Installing, Querying}, "synced and equal (I5)"},
	{Verifying, "Failed", []Phase{Waiting, Querying, Promoting, Measuring}, "what differs is fetched again by the next attempt"},
	{Installing, "Installed", []Phase{Flipping}, "the copy is in its place, pending"},
	{Installing, "Failed", []Phase{RollingBack}, "CompleteMove was not sent"},
	{Flipping, "FlipAnswered", []Phase{Confirming}, "journaled first"},
	{Flipping, "FlipRefused", []Phase{RollingBack}, "final for this token (I8)"},
	{Flipping, "OutcomeUnknown", []Phase{Flipping}, "the same request again (I8)"},
	{Revoking, "Revoked", []Phase{RollingBack}, "no flip can come any more (I8)"},
	{Revoking, "FlipAnswered", []Phase{Confirming}, "it had flipped"},
	{Revoking, "OutcomeUnknown", []Phase{Revoking}, "the same request again (I8)"},
	{RollingBack, "RolledBack", []Phase{Waiting, Querying, Promoting, Measuring}, "measured anew by the next attempt"},
	{RollingBack, "Failed", []Phase{RollingBack}, "again after a back-off"},
	{Promoting, "Promotable", []Phase{PromoteInstalling, Waiting, Querying, Beginning, Measuring}, "the completeness gate"},
	{Promoting, "Failed", []Phase{Waiting}, "the copy does not verify"},
	{PromoteInstalling, "Installed", []Phase{ForceFlipping}, "the copy is in its place, pending"},
	{PromoteInstalling, "Failed", []Phase{RollingBack}, "ForceCompleteMove was not sent"},
	{ForceFlipping, "FlipAnswered", []Phase{Confirming}, "journaled first"},
	{ForceFlipping, "FlipRefused", []Phase{RollingBack}, "a gate is shut for good, or the move is over"},
	{ForceFlipping, "OutcomeUnknown", []Phase{ForceFlipping}, "the same request again (I8)"},
	{Confirming, "Confirmed", []Phase{Opening}, "the marker is gone"},
	{Confirming, "Failed", []Phase{Confirming}, "again after a back-off"},
	{Opening, "Opened", []Phase{Reporting}, "served here"},
	{Opening, "Failed", []Phase{Opening}, "again after a back-off"},
	{Reporting, "Reported", []Phase{Done}, "the source may reclaim"},
	{Reporting, "Failed", []Phase{Reporting}, "again after a back-off"},
	{Querying, "MoveRead", []Phase{Querying, Waiting, Beginning, Measuring, Promoting, Confirming, RollingBack, Dropping, Done}, "current, ours, over, over with a dead owner, or long over"},
	{Querying, "Failed", []Phase{Querying}, "again after a back-off"},
	{Dropping, "Dropped", []Phase{Done}, "nothing is left (I9)"},
	{Dropping, "Failed", []Phase{Dropping}, "again after a back-off"},
}
