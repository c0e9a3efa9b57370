// Package memory is a consensus backend within one process, for tests: one shared log, one
// lock, leaders that are elected at once.
//
// It keeps the contract of package consensus in what can be observed: order, durability over restarts of
// members, barriers, leadership, membership, members that are cut off. It has no network, no disk and
// no elections that take time; what depends on those is tested with consensus/etcdraft.
//
// A proposal is committed when the leader and a quorum of voters are reachable. A member that is cut off
// neither applies nor leads; its calls wait until it is reachable again.
//
// Safe for concurrent use. Each Backend has one goroutine, which applies; Stop waits for it.
//
// Files: cluster.go the shared log and elections; backend.go a member; members.go configuration.
package memory
