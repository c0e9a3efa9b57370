// Package api is a controller's HTTP surface: the Connect services NodeService, TopicService and
// ClusterService (Connect, gRPC, gRPC-Web and JSON on one port), REST for the routes that have one, watches,
// gRPC health and reflection, /healthz and /readyz.
//
// It checks the form of requests and translates; internal/controller and fsm decide. It serves no
// records: asked for data, it answers with the agents' addresses.
//
// # Rules
//
//   - Every controller answers everything. What needs the leader (mutations, heartbeats, soft state) is
//     forwarded to it at HTTP level; clients see NO_LEADER when there is none, never NOT_LEADER.
//   - Reads are linearizable: they come after a barrier.
//   - A definite refusal carries an ErrorDetail. An error without one means that the outcome is unknown
//     (invariant I8): a lost connection to the leader, a time-out.
//   - Watches: a snapshot in parts at one revision, then whole revisions in order, then progress, also as
//     the keep-alive. A watcher that the history does not reach back to is ended with REVISION_COMPACTED,
//     and so is one that claims to be ahead; nothing is buffered for anybody.
//
// # Faults
//
//   - The leader changes under a forwarded request: at most maxHops forwards, then NO_LEADER.
//   - A watcher stops reading: the write deadline of the next message ends it.
//   - This controller is cut off from the leader: it ends its watches after leaderlessLimit, so that
//     watchers go to another one.
//
// # Concurrency
//
// Server is safe for concurrent use. It starts no goroutines; Close ends the watches.
//
// Files: server.go (routes), forward.go, errors.go, nodes.go, topics.go, clusterops.go, convert.go, watch.go,
// filter.go, data.go, health.go.
package api
