// Package nodeagent is a node's life: it registers, keeps a lease, watches what the cluster asks of the
// node, opens and closes partitions, and hands moves to package transfer.
//
// It does not copy, freeze or flip (transfer does), does not know the file format (transfer/store's
// implementation does), and serves no records (nodeagent/dataplane does). It decides nothing about
// placement.
//
// # Model
//
// A node session is an incarnation and a lease. The incarnation is a counter in the agent's database,
// raised before each registration that follows a start or a verdict. The view is what the node's watch
// stream folds to: complete as of a revision, never ahead of the replicated state, possibly behind it.
// Reconciliation is level-triggered: for each partition a pure function, decide, looks at the view, the
// copies on disk, the markers and the moves at work, and lists what to do.
//
// # Rules
//
//   - I7: until the present incarnation is registered the node answers neither Begin nor PrepareHandoff,
//     and partitions with an outbound marker accept nothing until they were read linearizably. Others are
//     served from the cached view at once, with or without a control plane.
//   - I8: a mutation whose outcome is unknown is never reported as refused.
//   - I9: what is set aside or removed was confirmed by a linearizable read; a partition whose copy is
//     missing is never replaced by an empty one.
//   - I10: a lease counts from when its heartbeat was sent, on the monotonic clock, and ends with the
//     incarnation.
//
// # Faults
//
// A crash: markers, journal and incarnation are synced before what they announce; the cached view is not,
// since nothing depends on it. Silent controllers: each heartbeat has a quarter of a lease, then another
// controller is dialled with a fresh connection, and silent watch streams are left. A verdict: the session
// ends, marked partitions are fenced, a new incarnation registers. A wiped or cloned directory, another
// cluster's, another process's: refused with the remedy. A failing disk or a stuck partition: its own
// back-off; heartbeats don't wait for disks.
//
// # Concurrency
//
// Agent.Run owns all goroutines and waits for them: session, one for each watch, reconciler with its
// tasks, housekeeping, and the moves' within transfer. The view is under Agent's lock; tasks of one
// partition never overlap.
//
// Files: config.go, db.go (database), client.go and control.go (controllers), session.go (lease),
// watch.go (streams), view.go (pure fold), decide.go (pure decision), reconcile.go and perform.go (its
// shell), report.go and status.go (heartbeats' content, readiness, problems), apply.go and agent.go (wiring).
package nodeagent
