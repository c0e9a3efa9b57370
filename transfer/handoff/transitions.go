package handoff

// Transition says where a result leads from a phase. Requests and time (Prepared, Progressed, BytesRead,
// Ticked, Hinted, MovedAway, Fence, Registered) are not listed: they start a phase's effect, and MovedAway and
// Fence lead to Redirecting and Fenced from everywhere.
type Transition struct {
	From  Phase
	Event string
	// To lists every phase that may follow.
	To []Phase
	// Why says what decides.
	Why string
}

// Transitions is the table of results. Step ignores a result without a row for its phase, the tests check
// that no step leaves the table, and testdata/transitions.md is printed from it.
var Transitions = []Transition{
	{Marked, "MoveRead", []Phase{Marked, Granting, Revoking, Redirecting, Unmarking}, "a hint; a waiting request goes on"},
	{Marked, "Failed", []Phase{Marked, Redirecting}, "the read again after a back-off"},
	{Granting, "Granted", []Phase{Freezing}, "the grant is committed before the lock"},
	{Granting, "GrantRefused", []Phase{Marked, Redirecting}, "the move may be over: a read follows"},
	{Granting, "Failed", []Phase{Marked, Redirecting}, "unknown; the nonce is kept"},
	{Freezing, "Froze", []Phase{Frozen, Revoking, Redirecting}, "the manifest is sent"},
	{Freezing, "Failed", []Phase{Revoking}, "the grant must not stay live"},
	{Frozen, "MoveRead", []Phase{Frozen, Revoking, Thawing, Redirecting}, "a hint"},
	{Frozen, "Failed", []Phase{Frozen, Revoking, Redirecting}, "the read again after a back-off"},
	{Revoking, "Revoked", []Phase{Thawing, Redirecting}, "no flip can come any more (I6)"},
	{Revoking, "Ended", []Phase{Thawing, Redirecting}, "it was cancelled, or had flipped (I6)"},
	{Revoking, "Failed", []Phase{Revoking, Redirecting}, "until the answer is definite (I6)"},
	{Thawing, "Thawed", []Phase{Marked, Granting, Unmarking, Redirecting}, "served again"},
	{Thawing, "Failed", []Phase{Thawing, Redirecting}, "again after a back-off"},
	{Fenced, "MoveRead", []Phase{Thawing, Revoking, Redirecting}, "after the registration (I7)"},
	{Fenced, "Failed", []Phase{Fenced, Redirecting}, "again after a back-off"},
	{Redirecting, "Closed", []Phase{Flipped}, "waits for reclaim or salvage"},
	{Redirecting, "Failed", []Phase{Redirecting}, "again after a back-off"},
	{Unmarking, "Unmarked", []Phase{Gone, Thawing, Redirecting}, "the move left nothing, or a fence that came meanwhile"},
	{Unmarking, "Failed", []Phase{Unmarking}, "again after a back-off"},
}
