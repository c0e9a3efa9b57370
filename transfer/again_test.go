package transfer_test

import (
	"errors"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// I1: a destination that hears of a finished move again, by a watch that is behind or from its journal after a
// restart, does not open the copy that it has handed on since.
func TestI1FinishedMoveDoesNotOpenWhatWasHandedOn(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "r", 20, 100)
	first := p.setTarget(id, "b")
	late := p.assignment(id)
	moved(t, p, id, "b")
	eventually(t, "the first move is done", func() bool { return len(b.mover.Progress()) == 0 })

	// The new owner's report does not get through, so that the stale copy is kept.
	p.setFault(func(node cluster.NodeID, method string, _ bool) error {
		if node == "a" && method == "ReportOpened" {
			return errors.New("unreachable")
		}
		return nil
	})
	p.setTarget(id, "a")
	eventually(t, "a serves again", func() bool { return a.append(id, "later") == nil })
	eventually(t, "b has closed its copy", func() bool { return len(b.openPartitions()) == 0 })

	if late.MoveID != first || late.Target != "b" {
		t.Fatalf("the late view is %+v, want move %d to b", late, first)
	}
	b.mover.Observe(late)
	eventually(t, "the repetition is done", func() bool { return len(b.mover.Progress()) == 0 })
	if err := b.append(id, "stale"); cluster.ReasonOf(err) != cluster.ReasonNotOwner {
		t.Fatalf("append at b, which has handed the partition on: %v, want NOT_OWNER", err)
	}
	checkHolds(t, a, id, append(want, "later"))
}
