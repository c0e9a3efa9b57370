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
//   - consensus/etcdraft: the Driver over a MemLog that crashes, configuration changes and snapshots included; elections
//     draw from crypto/rand, which the caller has made deterministic (testing/cryptotest).
//   - fsm: the Machine on Pebble on a file system that loses what was not synced; snapshots included.
//   - internal/controller: the Controller, driven round by round, with its planner, verdicts, leases, placement, drains and
//     membership. Its calls of the backend park the proc that runs it (backend.go).
//   - transfer/move and transfer/handoff: the step functions and the journal form of their states; transfer.Resolver and
//     transfer.Reclaimer, salvage included.
//   - nodeagent: the View, folded from Machine.Changes; the database (identity, incarnation, journal, markers, cached view,
//     ingress queue) on a file system that crashes; Decide.
//   - nodeagent/dataplane: the Service over that database: ingress queue, Router, the deliveries of the dispatcher one step
//     at a time, reservations, receipts. nodeagent/partitionlog on a file system that crashes and fills up.
//
// # What is re-implemented, thin
//
// The shells that spread the same steps over goroutines, with the same rules and orders: the shell around the driver
// (consensus.go, backend.go; etcdraft.Backend is the real one), the agent's session and watch (node.go), both sides'
// effects (source.go, mover.go), copying (copy.go), what performs the agent's decisions (reclaim.go). Connections, their
// circuit breakers and the clients' side of consuming are not here: a consumer asks the owners that some node's routes name.
//
// # What is checked
//
// truth.go folds every revision when the first controller applies it, and checks owners, epochs, incarnations, first
// placements, draining marks and removals there; at a flip it opens what a power cut would leave at the destination at that
// very instant. ledger.go has every record that an owner acknowledged with its offset, and compares whenever a log is opened;
// retention may take what is old enough by the records' own times. A committed offset that moves passes nothing that no
// consumer acknowledged. Acknowledgements, thaws, rollbacks, confirmations and deletions are checked at the instant at which
// they happen, and a node that leaves has nothing in its queue. Every watch is recorded, and has to be ordered, unique,
// atomic, reliable, resumable and bookmarkable (test/watchcheck). At the end faults stop, and within a bound every partition
// serves, no move is left, nothing of a deleted topic is, queues are empty, everything that was acknowledged was delivered,
// but for what a disk took along that was lost for ever, and the states are alike.
//
// That these checks can fail is shown by planted/: patches of known bugs, built with go test -overlay, each of
// which some seed has to catch (make planted).
//
// # Files
//
// sim.go (Run), world.go (events, clocks, trace), proc.go, net.go, disk.go (power cuts, full disks); the hosts as above;
// data.go (records); operators.go (commands and faults); truth.go and ledger.go (checks).
package sim
