// Package move is the destination's side of a move as a step function: from a state and an input to the
// next state and the effects to perform. It is pure: no I/O, no clock, no random numbers.
//
// The shell (package transfer) performs one effect at a time and feeds its result back as an event. Save
// comes first among effects and is synced before the others are performed.
//
// Rules:
//
//   - Invariant I5: CompleteMove is emitted in phase Flipping alone, which is entered from Installing (after
//     Verified and Installed) or, after a restart, when the disk holds the installed copy.
//   - Invariant I7: a state decoded from the journal with Resume goes on; it never forgets a token.
//   - Invariant I8: after CompleteMove or ForceCompleteMove was sent, only a definite answer leaves the
//     phase; an unknown outcome repeats the same request.
//   - Invariant I9: DropStaging follows MoveRead with the move over and an owner that is not dead.
//
// Faults: a lost answer, a crash after any effect, a source that restarts, dies or returns, a cancelled
// move, a full disk, and damaged bytes each have an event; the table in transitions.go lists what follows.
//
// Concurrency: values only; a State belongs to one goroutine.
//
// Files: state.go (State, phases, journal form), event.go, effect.go, step.go, attempt.go (copying and
// freezing), outcome.go (flip, rollback, promotion), transitions.go (the table).
package move
