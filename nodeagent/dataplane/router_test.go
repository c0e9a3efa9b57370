package dataplane

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

func nodeChange(id, address string, status cluster.NodeStatus) cluster.Change {
	return cluster.Change{Node: &cluster.Node{ID: cluster.NodeID(id), Address: address, Status: status}}
}

func topicChange(id cluster.TopicID, name string, partitions uint32) cluster.Change {
	return cluster.Change{Topic: &cluster.Topic{ID: id, Name: name, Partitions: partitions}}
}

func assign(topic cluster.TopicID, index uint32, owner string, epoch cluster.Epoch) cluster.Change {
	return cluster.Change{Assignment: &cluster.Assignment{Partition: cluster.PartitionID{Topic: topic, Index: index},
		Owner: cluster.NodeID(owner), Epoch: epoch}}
}

func TestRouterFolds(t *testing.T) {
	r := NewRouter()
	if _, _, err := r.place("orders", 1, func(int) []byte { return nil }, never); cluster.ReasonOf(err) != cluster.ReasonNoLeader {
		t.Errorf("before the first snapshot: %v, want NO_LEADER", err)
	}
	changed := r.Changed()
	// Assignments may come before their topic.
	r.Apply(true, 10, []cluster.Change{nodeChange("a", "a:1", cluster.NodeAlive), assign(3, 1, "a", 7), topicChange(3, "orders", 2)})
	select {
	case <-changed:
	default:
		t.Error("Changed is not closed by a snapshot")
	}
	p := cluster.PartitionID{Topic: 3, Index: 1}
	got, ok := r.Route(p)
	if want := (Route{Partition: p, Owner: "a", Epoch: 7, Address: "a:1", Alive: true}); !ok || got != want {
		t.Errorf("route: %+v, want %+v", got, want)
	}
	if _, ok := r.Route(cluster.PartitionID{Topic: 3}); ok {
		t.Error("a partition without assignment has a route")
	}
	r.Apply(false, 11, []cluster.Change{nodeChange("a", "a:2", cluster.NodeDead)})
	if got, _ := r.Route(p); got.Alive || got.Address != "a:2" {
		t.Errorf("after the verdict: %+v, want a dead owner at a:2", got)
	}
	changed = r.Changed()
	r.Apply(false, 12, nil)
	select {
	case <-changed:
		t.Error("progress without changes wakes everybody")
	default:
	}
	if r.Revision() != 12 {
		t.Errorf("revision %d, want 12", r.Revision())
	}
}

// TestRouterIgnoresThePast: a controller that lags must neither take routes back nor make a topic look
// deleted, since a deleted topic's records are dropped (I2).
func TestI2RouterIgnoresThePast(t *testing.T) {
	r := NewRouter()
	if r.Gone(20) {
		t.Error("a topic is gone before anything is known")
	}
	r.Apply(true, 15, nil)
	if r.Gone(20) {
		t.Error("a topic is gone at a revision before its creation")
	}
	r.Apply(false, 20, []cluster.Change{topicChange(20, "orders", 1), assign(20, 0, "a", 2)})
	r.Apply(true, 16, []cluster.Change{nodeChange("z", "z:1", cluster.NodeAlive)})
	if _, ok := r.Topic("orders"); !ok || r.Revision() != 20 {
		t.Errorf("an older snapshot was folded: revision %d", r.Revision())
	}
	r.Apply(false, 19, []cluster.Change{{TopicRemoved: 20}})
	if r.Gone(20) {
		t.Error("an older revision was folded")
	}
	r.Apply(false, 21, []cluster.Change{{TopicRemoved: 20}, {AssignmentRemoved: &cluster.PartitionID{Topic: 20}}})
	if !r.Gone(20) {
		t.Error("a deleted topic is not gone")
	}
}

func never(cluster.PartitionID) bool { return false }

func TestPlaceSpreadsAndAvoids(t *testing.T) {
	r := NewRouter()
	frozen := assign(3, 2, "a", 7)
	frozen.Assignment.Granted = true
	r.Apply(true, 10, []cluster.Change{nodeChange("a", "a:1", cluster.NodeAlive), nodeChange("d", "d:1", cluster.NodeDead),
		topicChange(3, "orders", 5), assign(3, 0, "a", 7), assign(3, 1, "a", 7), frozen, assign(3, 3, "d", 7), assign(3, 4, "a", 7)})
	stuck := func(p cluster.PartitionID) bool { return p.Index == 4 }
	_, at, err := r.place("orders", 100, func(int) []byte { return nil }, stuck)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[uint32]int{}
	for _, i := range at {
		counts[i]++
	}
	if diff := cmp.Diff(map[uint32]int{0: counts[0], 1: counts[1]}, counts); diff != "" || counts[0] < 20 || counts[1] < 20 {
		t.Errorf("100 records without keys went to %v; want only 0 and 1, both often", counts)
	}
	key := []byte("customer 17")
	_, at, err = r.place("orders", 1, func(int) []byte { return key }, func(cluster.PartitionID) bool { return true })
	if err != nil || at[0] != PartitionOf(key, 5) {
		t.Errorf("a key went to %v, %v; want its own partition %d whatever its state", at, err, PartitionOf(key, 5))
	}
	if _, _, err := r.place("nope", 1, func(int) []byte { return nil }, never); cluster.ReasonOf(err) != cluster.ReasonNotFound {
		t.Errorf("an unknown topic: %v, want NOT_FOUND", err)
	}
	if r, ok := r.pickOther(3, func(p cluster.PartitionID) bool { return p.Index != 1 }); !ok || r.Partition.Index != 1 {
		t.Errorf("the only fit partition: got %+v, %t", r, ok)
	}
}
