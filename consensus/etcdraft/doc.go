// Package etcdraft is the default consensus.Backend: raft.RawNode of etcd over a write-ahead log, driven
// by this package and spoken over plain HTTP.
//
// It does not know what commands mean, and it keeps no copy of the state: the state machine is durable
// by itself, so a snapshot is streamed from it to a member that needs one and never stored here.
//
// # Model
//
// A Driver is the step core: Tick, Step, Ready, Persist, Apply. It owns no goroutine, clock or socket;
// ProcessReady runs everything that is due in the calling goroutine. Backend is the shell around it with
// three goroutines: the loop owns the raft state, the log worker appends and syncs, the apply worker
// drives the state machine. Syncing a batch overlaps applying the one before. Many proposals share one
// sync.
//
// # Rules
//
//   - Nothing that depends on a log write leaves before the write is synced.
//   - The configuration and the members as of the applied index are stored by the state machine in the
//     same atomic write as that index (Entry.Metadata). The log's own copy of them is never used.
//   - The log is compacted only up to what the state machine holds durably.
//   - A proposal is answered "never applied" only when it can't be: raft refused it, or an entry of a
//     later term was applied while it was not. Everything else is ErrOutcomeUnknown.
//   - A read barrier is confirmed by a quorum after the call began, and by a leader that has applied an
//     entry of its own term.
//   - An id that was removed never returns, and no message from it is stepped.
//
// # Faults
//
//   - Torn tail of the log: what was never synced is cut off, a copy is kept beside it.
//   - Damage before the last synced batch, a missing file, a log shorter than the commit index or than
//     the state machine: DamageError with file and offset; the process doesn't start (never shorter in silence).
//   - Crash while a snapshot is installed: the log holds the intent; the next start sees from the state
//     machine's applied index whether it was completed.
//   - Wiped or foreign disk: store ids differ, ErrForeignStore with the remedy.
//   - Two processes in one directory: ErrInUse.
//   - Dropped packets: what a peer has not counted within an election time-out is taken for lost; then the connection is
//     discarded, the queue is dropped and raft is told. Raft repeats what matters.
//   - Removal: a removed member stays until a quorum of the rest confirms that it knows, since its vote may be
//     needed until then, then it stops with consensus.ErrRemoved. One that missed its removal is told so
//     by the first peer that it reaches.
//
// # Concurrency
//
// Backend and Node are safe for concurrent use. A Driver is not, but for Persist and Apply, which may run
// beside the other methods, each in one goroutine at a time.
//
// # Files
//
// config.go, node.go, datadir.go, bootstrap.go: from a directory to a running member. membership.go: the
// metadata record. logstore.go, wallog.go, walscan.go, memlog.go: the log. driver.go: the step core.
// backend.go, proposals.go, reads.go, members.go, status.go, removal.go: the shell. transport.go, peer.go, stream.go,
// handler.go, snapshot.go: the network.
package etcdraft
