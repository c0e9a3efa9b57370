// Package partitionlog is the embedded data plane store: one segmented log per partition, which can be
// moved. Store implements store.PartitionStore; Log is what produce and consume use.
//
// It does not decide who owns a partition, talks to nobody, and deletes nothing but what it is told to,
// except for segments whose records are all older than the retention.
//
// # Rules
//
//   - I2, I3: an append is acknowledged after its sync. A restart recovers the HWM to the end of the last
//     complete frame, so it never hides what was acknowledged. What was written but must stay hidden (a
//     failed sync, a lease that ran out, a copied hidden tail) is the hidden tail: the state file holds
//     the HWM below it, through restarts and moves, until the owner cuts it before its next append.
//   - Manifests and reads for copying show only what is synced. A prefix that was shown never changes under
//     the same file identity: a cut raises the cut number, which is a part of it.
//   - Freezing takes the write lock. What was being written is in the manifest; what waits gets FROZEN.
//   - I5: Finalize proves coverage of [log start, LEO), names, sizes and digests from what was written and
//     re-read, and leaves everything synced.
//   - I9: every removal names the copy's identity and goes through a rename, so it is whole or not at all.
//   - I10: with an outbound marker an append is acknowledged only if the lease is valid after the sync.
//
// # Faults
//
// A torn tail of the active segment is cut on opening; the state file's floor (a length known to be
// synced) tells it from damage. Damage below the floor or in a sealed segment is CORRUPT, names file and
// offset, and ends service of that partition; its bytes stay. A full disk or a failing sync refuses
// appends with an unknown outcome, and reads go on. A rename that a power cut left half durable is
// completed on opening.
//
// # Concurrency
//
// All methods of Store and Log are safe for concurrent use; those of one Staging are not. Locks in their
// order: a copy's slot, the log's write lock, its state saver, its queue or its view.
//
// # Files
//
//	<dir>/partitions/<topic id>/<index>/                active copy
//	<dir>/staging/<topic id>/<index>/<move id>/         staged copies
//	<dir>/quarantine/<topic id>/<index>/<identity>/     quarantined copies
//	<dir>/trash/                                        being removed
//
// In each: NNNNNNNNNNNNNNNNNNNN.log, a segment named by its base offset, see frame.go; "state", see
// state.go; and "pending-flip-<move id>-<handoff>", empty, while a flip is not known to be committed.
package partitionlog
