// Package fsm is the replicated state machine: it applies committed commands to a Pebble database and
// answers reads, watches and snapshots.
//
// It does not order commands (package consensus does), decides no placement (package planner) and reads no
// clock: a command brings its proposer's time, and no safety rule compares it.
//
// # Rules
//
//   - Deterministic: the same commands give the same state, results and hash on every replica.
//   - Atomic: the effects of a batch of entries, the consensus metadata and the applied index are one
//     Pebble batch. A crash keeps a prefix of batches; the log replays the rest.
//   - A refused command is a result, equal on all replicas, and changes nothing. A command that can't be
//     decoded, or of an unknown kind, is an error: the process stops, it never skips an entry.
//   - One revision for each command that changes something; all its changes belong to that revision.
//   - History, remembered requests and the list of ended moves are trimmed inside entries, by revision
//     or count, so that all replicas trim alike.
//
// # Invariants upheld here
//
// I1: an assignment has one owner; CompleteMove and ForceCompleteMove change it, ForgetNode when its disk is
// gone, and after a restore the nodes' claims.
// I5, I6: a flip needs the live grant and the nonce that only the frozen source's manifest holds.
// I8: CompleteMove and ForceCompleteMove answer a repetition of a success with success, so that an unknown
// outcome can be resolved. I10: a verdict names an incarnation; ForceCompleteMove checks
// incarnation and completeness when it is applied.
//
// # Concurrency
//
// Apply and Restore are called by one goroutine. Everything else is safe for concurrent use with them.
// Reads see whole batches only.
//
// Files: machine.go (open, apply, close), state.go (records in memory and their writes), keys.go (key
// space), codec.go (records), node.go, topic.go, move.go, member.go, forget.go (commands), read.go, watch.go, snapshot.go;
// backup.go (backup files), restore.go (a state made from one), claim.go (who owns what after that).
package fsm
