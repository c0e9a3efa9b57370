package cluster

import (
	"errors"
	"fmt"
	"time"
)

// Reason classifies a domain error. Callers branch on it, never on text.
type Reason uint8

// The reasons. Each maps to exactly one Connect code in internal/apierr.
const (
	ReasonInvalid           Reason = iota + 1 // malformed request; Field
	ReasonNotFound                            // unknown topic, node, move
	ReasonAlreadyExists                       // the name is taken
	ReasonNoLeader                            // no leader, or stopping; RetryAfter
	ReasonStaleEpoch                          // the expected assignment differs; Assignment
	ReasonMoveMismatch                        // the move is not current; Assignment, Outcome
	ReasonHandoffRevoked                      // the handoff is not the live grant, or the nonce differs
	ReasonNotOwner                            // Owner, Epoch
	ReasonFrozen                              // MoveID, Handoff
	ReasonRevisionCompacted                   // Oldest
	ReasonBlocked                             // a guard refuses; Blockers
	ReasonLimit                               // a bound is reached; Field, RetryAfter
	ReasonCorrupt                             // a checksum differs
	ReasonStaleReceipt                        // a receipt of an earlier epoch
	ReasonStaleIncarnation                    // the node's incarnation is not the registered, living one
	ReasonForeignStore                        // a known id with another store id
	ReasonGate                                // a gate of a forced promotion is shut; Field names it
	ReasonBug                                 // report it
)

var reasonNames = map[Reason]string{
	ReasonInvalid: "INVALID", ReasonNotFound: "NOT_FOUND", ReasonAlreadyExists: "ALREADY_EXISTS",
	ReasonNoLeader: "NO_LEADER", ReasonStaleEpoch: "STALE_EPOCH", ReasonMoveMismatch: "MOVE_MISMATCH",
	ReasonHandoffRevoked: "HANDOFF_REVOKED", ReasonNotOwner: "NOT_OWNER", ReasonFrozen: "FROZEN",
	ReasonRevisionCompacted: "REVISION_COMPACTED", ReasonBlocked: "BLOCKED", ReasonLimit: "LIMIT",
	ReasonCorrupt: "CORRUPT", ReasonStaleReceipt: "STALE_RECEIPT",
	ReasonStaleIncarnation: "STALE_INCARNATION", ReasonForeignStore: "FOREIGN_STORE",
	ReasonGate: "GATE", ReasonBug: "BUG",
}

// Reasons returns every reason, in order.
func Reasons() []Reason {
	out := make([]Reason, 0, len(reasonNames))
	for r := ReasonInvalid; r <= ReasonBug; r++ {
		out = append(out, r)
	}
	return out
}

// String returns the reason's wire name, such as "STALE_EPOCH".
func (r Reason) String() string {
	if s, ok := reasonNames[r]; ok {
		return s
	}
	return fmt.Sprintf("REASON_%d", uint8(r))
}

// Error is a domain error: a refusal that callers can act on. Only the fields that its Reason names
// are set.
type Error struct {
	Reason  Reason
	Message string
	// Field names the request field, limit or gate.
	Field      string
	RetryAfter time.Duration
	Owner      NodeID
	// OwnerAddress helps the caller to go there; may be empty.
	OwnerAddress string
	Epoch        Epoch
	MoveID       MoveID
	Handoff      Handoff
	Oldest       Revision
	Blockers     []string
	Assignment   *Assignment
	Outcome      *Outcome
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Is reports whether target is an *Error of the same reason, so that
// errors.Is(err, &cluster.Error{Reason: r}) works.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Reason == e.Reason
}

// Errorf returns an *Error with reason r.
func Errorf(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns a ReasonInvalid error about field. The message begins with the field's name.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Reason: ReasonInvalid, Field: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

// NotFound returns a ReasonNotFound error.
func NotFound(format string, args ...any) *Error { return Errorf(ReasonNotFound, format, args...) }

// ReasonOf returns the reason of the first *Error in err's chain, or zero.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}

// AsError returns the first *Error in err's chain, or nil.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
