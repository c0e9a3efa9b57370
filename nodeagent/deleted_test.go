package nodeagent

import (
	"fmt"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// A topic that is deleted while a move of it has begun takes the marker and the copy along, though no freeze and no flip ever
// tell the source.
func TestC38MarkerGoesWithItsTopic(t *testing.T) {
	c := startController(t)
	a := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}})
	a.waitReady(t)
	topic := c.createTopic(t, "orders", 1)
	a.append(t, cluster.PartitionID{Topic: topic.ID}, "one")
	b := startAgent(t, agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}})
	b.waitReady(t)
	b.stop()
	started, err := c.StartMove(t.Context(), "orders", 0, "n2", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.source.Begin(t.Context(), &nodev1.BeginRequest{
		Move: &nodev1.MoveRef{TopicId: uint64(topic.ID), MoveId: started.Value}, Destination: "n2",
	})
	if err != nil {
		t.Fatal(err)
	}
	if m := a.source.Marked(); len(m) != 1 {
		t.Fatalf("markers %v, want one", m)
	}
	c.deleteTopic(t, "orders")
	eventually(t, "nothing left", func() error {
		copies, err := a.store.Copies()
		if m := a.source.Marked(); err != nil || len(m) > 0 || len(copies) > 0 {
			return fmt.Errorf("markers %v, copies %v, %v", m, copies, err)
		}
		return nil
	})
}
