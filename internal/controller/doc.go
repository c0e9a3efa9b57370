// Package controller is the leader's loop: barrier, view, plan, propose; the liveness of nodes;
// decommission; the membership of the controllers.
//
// It writes desired state only (targets, draining, verdicts, members) and copies nothing. It serves no
// requests itself: internal/api calls it. Every controller runs one; its loop acts only while
// its member leads, and what it knows beyond the state machine (heartbeats, progress, sizes) is soft state
// that a new leader starts without.
//
// # Rules
//
//   - Everything that decides (a lease, a verdict, a plan, a placement, a removal) comes after
//     LeaderBarrier: the member leads, with its own term's first entry applied, and the state is current.
//   - Invariant I10: a lease is renewed only when leadership was confirmed after the heartbeat
//     arrived, the state machine holds that incarnation alive, and no verdict on it is outstanding. A verdict
//     is marked outstanding before it is proposed. A new leader gives every node a full dead_after.
//   - Planning is level-triggered: a plan that was lost, refused or overtaken is made again from the state.
//     Each target is a compare-and-swap on owner, target and epoch. A round does not wait for its proposals: what is
//     not answered yet counts as done.
//   - What serves balance alone holds while more than max_away_percent of the nodes are dead or silent.
//   - A draining node leaves only when it owns nothing, is target of nothing, refuses produce with an empty
//     ingress queue (as its present incarnation reported since), has nothing in quarantine, and every
//     copy that it gave away was opened. Its co-located voter leaves first, behind the guards.
//
// # Faults
//
//   - The leader dies between two proposals of a plan: the next one plans from the state.
//   - A proposal's outcome is unknown: it is never guessed. Targets are planned again from the state; a
//     verdict stays outstanding until the state machine shows it or the leadership ends.
//   - A deposed leader goes on for a moment: LeaderBarrier and the log refuse it; its leases count from when
//     the heartbeats were sent, which is before its successor's grace began.
//   - The wall clock jumps: nothing here compares it. Silence is measured by the monotonic clock.
//   - A member is added or removed and the leader dies half-way: each step is repeated until the consensus
//     configuration and the recorded controllers agree.
//
// # Concurrency
//
// All methods are safe for concurrent use. Rounds, placements, drains, settings and membership changes
// are serialized (work); soft state has its own lock, never held across a call. Proposals of a plan run beside the
// rounds, at most maxProposals; Run waits for them at its end.
//
// Files: config.go, controller.go (the loop), propose.go, soft.go (soft state and leases), heartbeat.go,
// view.go (what the planner sees), board.go (the same, kept), plan.go, hold.go (when nothing moves for balance), drain.go (decommission), members.go (controllers), guard.go
// (pure guards), topics.go (placement, settings), status.go (what operators see), metrics.go.
package controller
