package wire

import (
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// ChangeToProto returns nil for a change that says nothing. What an assignment replaced (Before) and the
// nodes of a removed outcome serve the server's filters and are not sent.
func ChangeToProto(c cluster.Change) *planev1.Change {
	switch {
	case c.Node != nil:
		return &planev1.Change{Change: &planev1.Change_Node{Node: NodeToProto(*c.Node)}}
	case c.NodeRemoved != "":
		return &planev1.Change{Change: &planev1.Change_NodeRemoved{NodeRemoved: string(c.NodeRemoved)}}
	case c.Topic != nil:
		return &planev1.Change{Change: &planev1.Change_Topic{Topic: TopicToProto(*c.Topic)}}
	case c.TopicRemoved != 0:
		return &planev1.Change{Change: &planev1.Change_TopicRemoved{TopicRemoved: uint64(c.TopicRemoved)}}
	case c.Assignment != nil:
		return &planev1.Change{Change: &planev1.Change_Assignment{Assignment: AssignmentToProto(*c.Assignment)}}
	case c.AssignmentRemoved != nil:
		return &planev1.Change{Change: &planev1.Change_AssignmentRemoved{
			AssignmentRemoved: PartitionToProto(*c.AssignmentRemoved),
		}}
	case c.Outcome != nil:
		return &planev1.Change{Change: &planev1.Change_Outcome{Outcome: OutcomeToProto(*c.Outcome)}}
	case c.OutcomeRemoved != nil:
		return &planev1.Change{Change: &planev1.Change_OutcomeRemoved{OutcomeRemoved: &planev1.Outcome{
			Partition: PartitionToProto(c.OutcomeRemoved.Partition),
			MoveId:    uint64(c.OutcomeRemoved.MoveID),
		}}}
	case c.Settings != nil:
		return &planev1.Change{Change: &planev1.Change_Settings{Settings: SettingsToProto(*c.Settings)}}
	case c.Controller != nil:
		return &planev1.Change{Change: &planev1.Change_Controller{Controller: ControllerToProto(*c.Controller)}}
	case c.ControllerRemoved != "":
		return &planev1.Change{Change: &planev1.Change_ControllerRemoved{
			ControllerRemoved: string(c.ControllerRemoved),
		}}
	case c.Restored != nil:
		return &planev1.Change{Change: &planev1.Change_Restored{Restored: RestoredToProto(*c.Restored)}}
	}
	return nil
}

// ChangeFromProto returns an error for a change that this version does not know, and for one that removes nothing. A
// watcher must not skip it: its folded state would differ from the server's.
func ChangeFromProto(c *planev1.Change) (cluster.Change, error) {
	out, err := changeFromProto(c)
	if err == nil && out == (cluster.Change{}) {
		err = fmt.Errorf("convert change: %T does not say what was removed", c.GetChange())
	}
	return out, err
}

func changeFromProto(c *planev1.Change) (cluster.Change, error) {
	switch v := c.GetChange().(type) {
	case *planev1.Change_Node:
		n := NodeFromProto(v.Node)
		return cluster.Change{Node: &n}, nil
	case *planev1.Change_NodeRemoved:
		return cluster.Change{NodeRemoved: cluster.NodeID(v.NodeRemoved)}, nil
	case *planev1.Change_Topic:
		t := TopicFromProto(v.Topic)
		return cluster.Change{Topic: &t}, nil
	case *planev1.Change_TopicRemoved:
		return cluster.Change{TopicRemoved: cluster.TopicID(v.TopicRemoved)}, nil
	case *planev1.Change_Assignment:
		a := AssignmentFromProto(v.Assignment)
		return cluster.Change{Assignment: &a}, nil
	case *planev1.Change_AssignmentRemoved:
		p := PartitionFromProto(v.AssignmentRemoved)
		return cluster.Change{AssignmentRemoved: &p}, nil
	case *planev1.Change_Outcome:
		o := OutcomeFromProto(v.Outcome)
		return cluster.Change{Outcome: &o}, nil
	case *planev1.Change_OutcomeRemoved:
		return cluster.Change{OutcomeRemoved: &cluster.OutcomeKey{
			Partition: PartitionFromProto(v.OutcomeRemoved.GetPartition()),
			MoveID:    cluster.MoveID(v.OutcomeRemoved.GetMoveId()),
		}}, nil
	case *planev1.Change_Settings:
		s := SettingsFromProto(v.Settings)
		return cluster.Change{Settings: &s}, nil
	case *planev1.Change_Controller:
		ctl := ControllerFromProto(v.Controller)
		return cluster.Change{Controller: &ctl}, nil
	case *planev1.Change_ControllerRemoved:
		return cluster.Change{ControllerRemoved: cluster.ControllerName(v.ControllerRemoved)}, nil
	case *planev1.Change_Restored:
		r := RestoredFromProto(v.Restored)
		return cluster.Change{Restored: &r}, nil
	}
	return cluster.Change{}, fmt.Errorf("convert change: unknown kind %T", c.GetChange())
}

// ChangesFromProto converts a list, or none of it.
func ChangesFromProto(in []*planev1.Change) ([]cluster.Change, error) {
	out := make([]cluster.Change, 0, len(in))
	for _, c := range in {
		change, err := ChangeFromProto(c)
		if err != nil {
			return nil, err
		}
		out = append(out, change)
	}
	return out, nil
}
