// Package faults holds named fault points: places where a test makes the process die, wait or see an
// error. They exist only in binaries built with the tag "faults"; otherwise Hit is an empty function and
// Handler is nil.
//
// A point is named room.step, such as "handoff.granted". Names are the constants below; a test lists
// them, so a point that is removed from the code fails that test.
package faults

// Event says where a process is and about what.
type Event struct {
	Point   string `json:"point"`
	TopicID uint64 `json:"topic_id,omitempty"`
	Index   uint32 `json:"index"`
	MoveID  uint64 `json:"move_id,omitempty"`
	Handoff uint32 `json:"handoff,omitempty"`
}

// Points at the destination of a move, in their order, at the source, and at the leader. "After" means
// that the effect is complete (durable where it says so) and nothing later has begun.
const (
	MoveBegun         = "move.begun"          // destination: Begin was answered and journaled
	MoveFileStaged    = "move.file_staged"    // destination: during catch-up, after a file's bytes were staged
	MoveSealedSynced  = "move.sealed_synced"  // destination: sealed segments synced and compared
	MoveConverged     = "move.converged"      // destination: before PrepareHandoff is sent
	MoveFrozen        = "move.frozen"         // destination: the final manifest arrived and is journaled
	MoveDrained       = "move.drained"        // destination: the tail is staged
	MoveVerified      = "move.verified"       // destination: synced and verified
	MoveInstalled     = "move.installed"      // destination: renamed and synced, before CompleteMove
	MoveFlipReply     = "move.flip_reply"     // destination: CompleteMove was answered; an error here is a lost reply
	MoveFlipped       = "move.flipped"        // destination: the flip is journaled, before opening
	MoveOpened        = "move.opened"         // destination: opened, before ReportOpened
	MoveReported      = "move.reported"       // destination: ReportOpened was answered
	MoveForceReply    = "move.force_reply"    // destination: ForceCompleteMove was answered; an error is a lost reply
	HandoffMarked     = "handoff.marked"      // source: the outbound marker is durable, Begin not answered
	HandoffGranted    = "handoff.granted"     // source: GrantHandoff is committed, nothing frozen
	HandoffFrozen     = "handoff.frozen"      // source: frozen, the final manifest not yet sent
	HandoffExpired    = "handoff.expired"     // source: the TTL passed, RevokeHandoff not yet sent
	HandoffRevoked    = "handoff.revoked"     // source: RevokeHandoff was answered, not thawed
	HandoffThawed     = "handoff.thawed"      // source: thawed
	ReclaimConfirmed  = "reclaim.confirmed"   // source: the linearizable read permits deletion, nothing deleted
	ReclaimDeleted    = "reclaim.deleted"     // source: deleted, ReportReclaimed not sent
	SalvageQuarantine = "salvage.quarantined" // source: the copy is in quarantine, nothing re-produced
	SalvageProduced   = "salvage.produced"    // source: re-produced, not reported
	AppendWritten     = "append.written"      // owner: written, not synced
	AppendSynced      = "append.synced"       // owner: synced, lease not checked, not acknowledged
	IngressSynced     = "ingress.synced"      // any agent: accepted durably, not acknowledged
	LeaderFlipAsked   = "leader.flip_asked"   // leader: CompleteMove has arrived, nothing is proposed
	LeaderFlipApplied = "leader.flip_applied" // leader: a flip is applied, not answered
	LeaderPlanned     = "leader.planned"      // leader: a plan is made, nothing proposed
	LeaderProposed    = "leader.proposed"     // leader: a target is committed
)

// Points returns every name.
func Points() []string {
	return []string{
		MoveBegun, MoveFileStaged, MoveSealedSynced, MoveConverged, MoveFrozen, MoveDrained,
		MoveVerified, MoveInstalled, MoveFlipReply, MoveFlipped, MoveOpened, MoveReported,
		MoveForceReply, HandoffMarked, HandoffGranted, HandoffFrozen, HandoffExpired, HandoffRevoked,
		HandoffThawed, ReclaimConfirmed, ReclaimDeleted, SalvageQuarantine, SalvageProduced,
		AppendWritten, AppendSynced, IngressSynced, LeaderFlipAsked, LeaderFlipApplied, LeaderPlanned, LeaderProposed,
	}
}
