// Package sim runs a whole cluster in one goroutine, from a seed: three controllers, three or four data nodes,
// producers and consumers with a ledger, operators, and faults. The same seed gives the same run.
//
// # Model
//
// World is a heap of events on virtual time. Straight-line code that waits (a call, a timer) is a proc: a
// coroutine that runs only while an event resumes it, so that two never run at once. A crash ends the life of
// a host, and with it every proc of it, wherever it waits. Hosts have clocks of their own, with an offset and a
// drift. The network loses, delays, repeats and reorders, and is split one way or both.
//
// # What is real
//
//   - consensus/etcdraft: the Driver over a MemLog that crashes; elections draw from crypto/rand, which the
//     caller has made deterministic (testing/cryptotest).
//   - fsm: the Machine on Pebble on a file system that loses what was not synced; snapshots included.
//   - planner.Plan; the leader proposes what it returns, with the view's preconditions.
//   - transfer/move and transfer/handoff: the step functions and the journal form of their states.
//   - nodeagent.View, folded from Machine.Changes; nodeagent/partitionlog on a file system that crashes.
//
// # What is re-implemented, thin
//
// The shells that spread the same steps over goroutines, with the same rules and orders: the shell around the
// driver (consensus.go; internal/controller and etcdraft.Backend are the real ones), the leader's loop and its
// soft state (leader.go), the agent's session, watch and decisions (node.go, reclaim.go), both sides' effects
// (source.go, mover.go), copying (copy.go), reclaim and salvage (reclaim.go). The journal is a map that can
// crash. Ingress queues, routers and reservations are not here: a producer speaks to the owner's log.
//
// # What is checked
//
// truth.go folds every revision when the first controller applies it, and checks owners, epochs, incarnations,
// draining marks and removals there; at a flip it opens what a power cut would leave at the destination at that
// very instant. ledger.go has every acknowledged record with its offset, and compares whenever a log is opened.
// Acknowledgements, thaws, rollbacks, confirmations and deletions are checked at the instant at which they
// happen. At the end faults stop, and within a bound every partition serves, no move is left, everything that
// was acknowledged was delivered, but for what a disk took along that was lost for ever, and the states are alike.
//
// That these checks can fail is shown by planted/: patches of known bugs, built with go test -overlay, each of
// which some seed has to catch (make planted).
//
// # Files
//
// sim.go (Run), world.go (events, clocks, trace), proc.go, net.go, disk.go (power cuts); the hosts as above;
// operators.go (commands and faults); truth.go and ledger.go (checks).
package sim
