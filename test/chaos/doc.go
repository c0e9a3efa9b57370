// Package chaos runs a cluster of real processes while a schedule of faults, made from a seed, goes on: daemons are
// killed and stopped, links are cut one way or both, lose, delay and reorder packets, disks are full, slow or fail to
// sync, clocks jump, and operators change their minds. Keyed producers and consumers keep a ledger all the while. At the
// end the faults stop, everything has to settle, and the ledger's verdict and the states of all controllers are compared.
//
// What it does not do: it loses no disk, so that nothing acknowledged may be missing; and it never lets a fault go unseen
// as a daemon that ends by itself, which is a failure unless its disk was failing.
//
// The schedule is a function of the seed, the duration and what the machine can do; what the processes make of it is theirs,
// so a seed repeats the faults and not the interleaving.
//
// Files: plan.go (the schedule), cluster.go (what runs), run.go (performing the schedule), faults.go (of processes, links and
// disks), operators.go, tend.go (daemons that end), settle.go (the end), verdict.go, leaks.go.
package chaos
