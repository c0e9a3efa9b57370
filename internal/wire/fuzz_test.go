package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// FuzzChange: a change off a watch stream is refused, or is sent on as the same change.
func FuzzChange(f *testing.F) {
	s := cluster.DefaultSettings()
	for _, c := range []cluster.Change{
		{Node: &cluster.Node{ID: "a", Incarnation: 3, Address: "a:1"}},
		{Assignment: &cluster.Assignment{Partition: cluster.PartitionID{Topic: 2, Index: 1}, Owner: "a", Target: "b", Epoch: 4, MoveID: 9}},
		{Topic: &cluster.Topic{ID: 2, Name: "t", Partitions: 3}},
		{Settings: &s}, {NodeRemoved: "a"}, {TopicRemoved: 2},
	} {
		b, err := proto.Marshal(ChangeToProto(c))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &planev1.Change{}
		if proto.Unmarshal(b, p) != nil {
			return
		}
		c, err := ChangeFromProto(p)
		if err != nil {
			return
		}
		sent := ChangeToProto(c)
		again, err := ChangeFromProto(sent)
		if err != nil {
			t.Fatalf("%v was taken, and is refused when it is sent on: %v", p, err)
		}
		if third := ChangeToProto(again); !proto.Equal(sent, third) {
			t.Fatalf("the change differs when it is sent on:\n%v\n%v", sent, third)
		}
	})
}
