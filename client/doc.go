// Package client talks to a cluster: to the controllers about topics, members and moves, to the agents about records, and
// follows where partitions are.
//
// A Client is made with the addresses of some controllers. Its services are the generated ones, so that each method of
// the API is there: Cluster, Topics, Nodes and Data. What it adds to them:
//
//   - Each call tries the addresses in turn until one answers. The leader is asked first once an answer has named it. A
//     refusal is an answer and is returned; "no leader", an agent that is full and one that drains are not, and the next one
//     is asked, until the call's context ends.
//   - A mutation gets a request id, unless it has one. After an unknown outcome, such as a connection that broke, it is
//     repeated under the same id, and the cluster answers the repetition like the first time: it is applied once. A
//     mutation that has no request id in the API is not repeated; the error is ErrOutcomeUnknown.
//   - Data finds the agents by the routes that the controllers stream, and goes to those that own the topic's partitions.
//     A move, a drain or the death of an agent changes the routes, and the next call goes elsewhere. Produce is repeated after
//     an unknown outcome: delivery is at least once, and such a record may come twice.
//   - WatchRoutes is one endless sequence over all controllers. It resumes by revision, and starts from a snapshot when the
//     history does not reach back to it.
//
// Errors are those of Connect with the cluster's reason: see ReasonOf and DetailOf. Every call ends with its context; a
// context without a deadline waits for ever where there is no leader.
//
// It does not do transactions, batching or consumer groups' bookkeeping: a group's position is kept by the cluster.
//
// # Concurrency
//
// A Client is safe for concurrent use. Close ends the streams that it holds; calls in progress end with their contexts.
//
// Files: client.go, errors.go, call.go (trying, repeating), pool.go (addresses), routes.go, watch.go.
package client
