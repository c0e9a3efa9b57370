// Package planner decides which partitions should move, and where new ones are placed.
//
// It is pure: from a [View] of the cluster and [Limits] to a [Result], the same input always giving the
// same output. It proposes nothing and logs nothing; its caller does. Planning is
// level-triggered: the plan follows from the state alone, so a plan that was lost, carried out in
// part or overtaken by events is simply made again. A [Board] is a view that is kept, for who plans again and
// again: it remembers its plan as long as nothing happens but what was planned.
//
// # Model
//
// A receiver is a node that is alive, not draining, not silent and not settling (a settling node has joined too
// recently; when nothing else is left, settling and silent nodes are receivers too). A movable partition is
// one that counts at a receiver, or whose owner is alive and draining. A partition in a move counts at its
// target and can't be picked. One that cools down since its last move counts at its owner and is picked only to
// leave a draining node. A partition whose owner is dead stays where it is and does not count.
//
// # Rules
//
// Balance: of T movable partitions a receiver of weight w among receivers of weight W in all has the quota T·w/W,
// and ends with floor or ceil of it. Weights that nobody sets are equal. A receiver whose disk has no room
// for more counts for what it can hold, and the rest is shared by the others.
//
// Minimal movement: what a draining node owns moves once; apart from that, nodes above their quota
// keep the ceil slots, and only what is above a node's share moves. A partition on a node within
// its share is never touched.
//
// Preferences choose among the plans of that minimal size, in this order: a partition is kept off the
// node where its parent's or child's partition of the same index is or will be (anti-affinity); each
// topic is spread evenly over the nodes; then over the zones; then bytes are evened out. They never
// cost a move and never break the balance. They are greedy with a bounded repair, not an optimum.
//
// Room: no destination is filled beyond [Limits.HighDiskPercent], counting what is on its way and what
// is planned. What the source will free is not counted, since it frees it only after the reclaim grace.
//
// Fixpoint: planning on the planned state yields nothing; every rebalance move goes from a node above
// its share to one below, so planning again while moves run never oscillates.
//
// Two layers: the whole desired placement is computed first; then moves are admitted in order as far as
// the limits allow. What is not admitted is counted in [Result.Waiting]; what can't be placed at all is in
// [Result.Blocked] with its reason.
//
// # Faults
//
//   - A target that died or drains before its move ended: the move is retargeted, or cancelled when the
//     partition is well off at its owner. Not when the owner is dead: the target may hold the only
//     living copy, and promotes it.
//   - A move that makes no progress holds no slot, so that it never holds up the others.
//   - A node that flaps is settling when it is back, so it draws no moves until it stays.
//   - A destination that fills up meanwhile: moves towards it are not planned any more.
//
// # Concurrency and cost
//
// Functions share no state and may run concurrently. Arguments are only read. A plan takes O((P + N)
// log N) for P partitions and N nodes, with a bounded number of destinations looked at for each move. A
// board that remembers its plan takes O(N) and what waits to be moved.
//
// Files: planner.go (types, functions), board.go (the kept view), memo.go (the remembered plan), facts.go (the
// view as arrays), index.go (what counts where), share.go (how many each node should hold), desire.go (which
// partition moves where), choose.go (the order of preference), repair.go (second thoughts about
// preferences), admit.go (limits, reasons), place.go (new topics), drain.go (the dry run).
package planner
