package main

import (
	"context"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/dataplane"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// stateMachine lets consensus drive the fsm; the two do not know each other.
type stateMachine struct{ *fsm.Machine }

var _ consensus.StateMachine = stateMachine{}

// Apply implements consensus.StateMachine. The result of a command is an fsm.Result.
func (s stateMachine) Apply(entries []consensus.Entry) ([]any, error) {
	in := make([]fsm.Entry, len(entries))
	for i, e := range entries {
		in[i] = fsm.Entry{Index: e.Index, Command: e.Command, Metadata: e.Metadata}
	}
	results, err := s.Machine.Apply(in)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(entries))
	for i := range results {
		if len(entries[i].Command) > 0 {
			out[i] = results[i]
		}
	}
	return out, nil
}

// Snapshot implements consensus.StateMachine.
func (s stateMachine) Snapshot() (consensus.Snapshot, error) {
	snap, err := s.Machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return snap, nil
}

// Restore implements consensus.StateMachine.
func (s stateMachine) Restore(r io.Reader) error { return s.Machine.Restore(r) }

// ingressDepth lets the agent report the data plane's queue.
type ingressDepth struct{ *dataplane.Service }

// Depth implements nodeagent.Ingress.
func (d ingressDepth) Depth() (uint64, cluster.Bytes) {
	records, bytes := d.Service.Depth()
	return records, cluster.Bytes(bytes)
}

// salvager produces salvaged records, which are known by their topic's id.
type salvager struct {
	plane  *dataplane.Service
	router *dataplane.Router
}

// Produce implements transfer.Producer.
func (s salvager) Produce(ctx context.Context, topic cluster.TopicID, records []store.Record) error {
	name := s.router.TopicName(topic)
	if name == "" {
		return cluster.NotFound("topic %d is not known here, or not yet", topic)
	}
	return s.plane.Produce(ctx, name, records)
}

// diskFree measures the free space of the file system that holds dir.
func diskFree(dir string) func() (cluster.Bytes, error) {
	return func() (cluster.Bytes, error) {
		du, err := vfs.Default.GetDiskUsage(dir)
		return cluster.Bytes(du.AvailBytes), err
	}
}
