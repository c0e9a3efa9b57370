// Package handoff is the source's side of a move as a step function: from a state and an input to the next
// state and the effects to perform. It is pure: no I/O, no clock, no random numbers.
//
// The source is passive. It freezes when it is asked to and has a grant, and lets go by itself. One State
// belongs to one outbound marker, that is, to one move of one copy; it begins as Marked, and after a restart
// or a verdict as Fenced. The shell (package transfer) performs one effect at a time and feeds its result back.
//
// Rules:
//
//   - Invariant I6: a freeze ends with Thaw only after the revocation of the latest grant, or after a
//     linearizable read that the move was cancelled; with Redirect after a flip. A timer alone starts the
//     revocation and nothing else. Answers about older handoffs are ignored.
//   - Invariant I7: Fenced ends only after Registered and a linearizable read made after it.
//   - The grant is committed before the freeze, so the source never freezes without a control plane.
//   - Invariant I9: the marker goes with Unmark only after a linearizable read that its move was
//     cancelled while this node owns the partition. After a flip it stays until the copy is reclaimed.
//
// Faults: a destination that is silent, slow or dead, a control plane that can't be reached, lost and
// repeated answers, a restart of the source in any phase.
//
// Concurrency: values only; a State belongs to one goroutine.
//
// Files: state.go (State, phases, events, effects), step.go, transitions.go (the table).
package handoff
