package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// FuzzCommand: what is taken for a command is written as the same command, so that a replica can send it on.
func FuzzCommand(f *testing.F) {
	f.Add(mustEncode(f, noop()))
	f.Add(mustEncode(f, registerCmd("agent-1", "s1", 1)))
	f.Add([]byte{0xda, 0x01, 0x03, 0xf8, 0x3f, 0x01})
	f.Fuzz(func(t *testing.T, entry []byte) {
		cmd, err := decode(entry)
		if err != nil {
			return
		}
		again, err := decode(mustEncode(t, cmd))
		if err != nil || !proto.Equal(cmd, again) {
			t.Fatalf("%v became %v, %v", cmd, again, err)
		}
	})
}

// FuzzRecord: a revision that is kept for watches reads as what is written for it.
func FuzzRecord(f *testing.F) {
	s := cluster.DefaultSettings()
	b, err := proto.Marshal(revisionRecord(cluster.RevisionChanges{Revision: 4, Changes: []cluster.Change{
		{Node: &cluster.Node{ID: "a", Incarnation: 3}}, {NodeRemoved: "b"}, {Topic: &cluster.Topic{ID: 2, Name: "t"}}, {TopicRemoved: 2},
		{Assignment: &cluster.Assignment{Partition: cluster.PartitionID{Topic: 2, Index: 1}, Owner: "a"}}, {Settings: &s},
		{Outcome: &cluster.Outcome{MoveID: 3}}, {Controller: &cluster.Controller{Name: "c"}}, {ControllerRemoved: "d"},
	}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{0x12, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &storagev1.RevisionRecord{}
		if proto.Unmarshal(b, r) != nil {
			return
		}
		once := revisionRecord(revisionChanges(r))
		if twice := revisionRecord(revisionChanges(once)); !proto.Equal(once, twice) {
			t.Fatalf("%v became %v", once, twice)
		}
	})
}
