package nodeagent

import (
	"fmt"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// A move that was cancelled before its destination reached the source leaves no record behind: nobody has a marker
// of it, so the source reports it from its view.
func TestRecordOfAMoveThatNeverBeganGoes(t *testing.T) {
	c := startController(t)
	a := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}})
	a.waitReady(t)
	topic := c.createTopic(t, "orders", 1)
	p := cluster.PartitionID{Topic: topic.ID}
	a.append(t, p, "one")
	b := startAgent(t, agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}})
	b.waitReady(t)
	b.stop()
	c.move(t, "orders", 0, "n2")
	if _, err := c.CancelMove(t.Context(), "orders", 0, 0, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no outcome left", func() error {
		if o := c.outcomes(); len(o) > 0 {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	if m := a.source.Marked(); len(m) != 0 {
		t.Fatalf("markers %v", m)
	}
	a.append(t, p, "two")
}
