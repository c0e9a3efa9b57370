package client

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func node(id string, alive, draining bool) *planev1.Change {
	n := &planev1.Node{NodeId: id, Address: id + ":7500", Status: planev1.NodeStatus_NODE_STATUS_DEAD, Draining: draining}
	if alive {
		n.Status = planev1.NodeStatus_NODE_STATUS_ALIVE
	}
	return &planev1.Change{Change: &planev1.Change_Node{Node: n}}
}

func owned(index uint32, owner string) *planev1.Change {
	return &planev1.Change{Change: &planev1.Change_Assignment{Assignment: &planev1.Assignment{
		Partition: &planev1.Partition{TopicId: 1, Index: index}, Owner: owner}}}
}

// TestC33DataAsksLivingNodes: owners of the topic first, draining nodes last, dead ones never; and it follows a move, a drain
// and a removal.
func TestC33DataAsksLivingNodes(t *testing.T) {
	tab := newTable()
	want := func(addresses ...string) {
		t.Helper()
		got, err := tab.agents(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(addresses, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
	tab.apply(Event{Revision: 1, Reset: true, Changes: []*planev1.Change{
		node("dead", false, false), node("draining", true, true), node("good", true, false), node("owner", true, false), owned(0, "owner"), owned(1, "dead")}})
	want("owner:7500", "good:7500", "draining:7500")
	tab.apply(Event{Revision: 2, Changes: []*planev1.Change{owned(0, "good")}})
	want("good:7500", "owner:7500", "draining:7500")
	tab.apply(Event{Revision: 3, Changes: []*planev1.Change{node("good", true, true), {Change: &planev1.Change_NodeRemoved{NodeRemoved: "draining"}}}})
	want("owner:7500", "good:7500")
	tab.apply(Event{Revision: 4, Reset: true, Changes: []*planev1.Change{node("dead", false, false)}})
	if got, err := tab.agents(t.Context(), 0); err == nil {
		t.Errorf("a cluster of dead nodes: %v, want an error", got)
	}
}

// TestAgentsAreWaitedFor: a call that comes before the routes waits for them, and not for ever.
func TestAgentsAreWaitedFor(t *testing.T) {
	tab := newTable()
	done := make(chan []string)
	go func() {
		list, _ := tab.agents(t.Context(), time.Minute)
		done <- list
	}()
	tab.fail(&UnreachableError{Party: "controller"})
	if _, err := tab.agents(t.Context(), 0); err == nil {
		t.Error("without patience an unreachable cluster is an error at once")
	}
	tab.apply(Event{Revision: 1, Reset: true, Changes: []*planev1.Change{node("a", true, false)}})
	if list := <-done; len(list) != 1 {
		t.Errorf("got %v", list)
	}
}
