// Package consensustest is the suite that every consensus.Backend passes, and the small persistent state
// machine that it runs on.
//
// It tests the contract of package consensus and nothing of a backend's inside. A backend's own tests give
// Run a Factory.
//
// Machine keeps every command that it applied, in order, and refuses a gap; Disk is what survives a crash of it.
//
// Files: machine.go the state machine; suite.go the harness; cases.go, members.go the cases.
package consensustest
