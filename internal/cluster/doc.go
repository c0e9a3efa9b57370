// Package cluster is the vocabulary that every room shares: typed identifiers, the replicated
// records (node, topic, assignment, outcome), the settings that operators change while running,
// and the domain errors.
//
// It holds values and their rules only: no I/O, no clock, no random numbers, no protobuf. All types
// are plain values; copies are independent unless a doc comment says otherwise, and none is safe
// for concurrent mutation.
//
// Files: ids.go (identifiers and their syntax), node.go, topic.go, assignment.go (assignment,
// outcome, move record), change.go (what watches carry), settings.go, errors.go.
package cluster
