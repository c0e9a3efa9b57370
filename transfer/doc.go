// Package transfer performs moves: it is the shell around the step functions of transfer/move (the
// destination's side) and transfer/handoff (the source's side).
//
// It copies, stages, syncs, verifies, installs and asks for the flip; it serves copy reads, freezes and
// thaws; it reclaims and salvages what a move left behind. It does not decide where partitions go, does not
// know the file format (that is transfer/store's), and never acts on ownership by its local view alone.
//
// Entry points:
//
//	NewMover(MoverConfig) (*Mover, error)      destination side of all moves of this node
//	  Resume(ctx) error                        takes up journaled moves and installed copies; once, after registering
//	  Observe(cluster.Assignment)              an assignment that has, or had, this node as target
//	  ObserveRemoved(cluster.PartitionID)      the assignment is gone
//	  ObserveNode(cluster.Node)                a node's record: address, incarnation, verdict
//	  SetSettings(cluster.Settings)
//	  Progress() []cluster.MoveProgress        for heartbeats
//	  Busy(cluster.PartitionID) bool           a move owns the active place of the partition: do not open it
//	  Close()                                  stops and waits; everything goes on from the journal
//	NewSource(SourceConfig) (*Source, error)   source side; loads the outbound markers
//	  RegisterConnect(*connect.Server)         the TransferService
//	  Handler() http.Handler                   GET /transfer/v1/{topic}/{partition}/{file}
//	  Marked() []Marker; HasMarker(p) bool
//	  Fence(ctx, epoch func(p) (cluster.Epoch, bool)) error  freezes every marked partition: at start and
//	                                           when declared dead, before a new incarnation is taken
//	  Registered()                             the session is accepted: every fenced move is read and resolved
//	  Observe(cluster.Assignment)              an assignment of a marked partition
//	  Owned(p, epoch) error                    opens an owned partition, or tells an open one its epoch
//	  Ended() []Marker                         markers whose moves ended flipped or forced: what Reclaimer works on
//	  Close()
//	Reclaimer{…}.Step(ctx, Marker) (done bool, retryAfter time.Duration, err error)
//
// Invariant I5, I8: an installed copy is rolled back on a final answer only. Invariant I6: a freeze ends by
// a committed revocation, cancellation or flip. Invariant I7: journal and markers are synced before the
// effects they announce. Invariant I9: staging, stale copies and quarantine go after a linearizable read.
//
// Faults: a crash at any point repeats at most the last effect, and each effect is idempotent; bytes that
// arrive damaged are fetched again; a source that does not answer is retried with back-off for as long as
// the move is current; an unknown outcome is asked for again with the same token.
//
// Concurrency: each move and each marked partition has one goroutine that owns its state; others send to
// it. Close waits for all.
//
// Files: transfer.go (what others implement), common.go, convert.go; mover.go, run.go, effects.go, resolve.go,
// reconcile.go, pull.go (destination); source.go, outbound.go, serve.go, marker.go, promoted.go (source);
// reclaim.go (reclaim and salvage).
package transfer
