// Command bench measures the product on real processes and prints one table. Every row is a ratio against something
// that was measured in the same run: absolute figures mean little on shared machines. Goals stand beside, and a row whose
// goal is missed says so. `make bench` runs it, `make bench-json` prints one JSON object for each row.
//
// The daemons are the release binary with its defaults; what a row changes, and it is never a default that speeds
// it up, is in its file. Each group of rows is a file: copy.go, rsync.go, freeze.go, client.go, propose.go, watch.go,
// heartbeat.go, restart.go, drain.go, leader.go. The comparisons with etcd need two binaries that come from the module in
// etcd/, which the product does not depend on; without them, or without rsync, the rows say that they were skipped.
//
// Files beside the groups: main.go (flags), row.go (a row and its goal), table.go (printing), env.go (clusters and
// processes), nodes.go (agents without data, played by this program), limits.go (what the machine can do).
package main
