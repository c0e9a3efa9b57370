// Package harness runs a real cluster for tests and for the demo: separate processes on loopback, real
// disks, real signals, producers and consumers that keep a ledger, and watchers that look for two owners.
//
// It knows the product by its binaries and its API only; it calls nothing of the daemons' insides.
//
// Files: process.go (one daemon), cluster.go (controllers and agents), client.go (API calls over all
// addresses), fault.go (fault points), ledger.go (what was acknowledged and delivered), load.go (producers and
// consumers), owners.go (two-owner check).
package harness
