package cluster

import (
	"fmt"
	"strings"
	"time"
)

// ActorKind says what kind of party asked for a command.
type ActorKind uint8

// The values of ActorKind. They are persisted.
const (
	// ActorOperator is a client of the cluster's or the topics' service.
	ActorOperator ActorKind = iota + 1
	// ActorLeader is the leading controller itself: planner, verdicts, departures.
	ActorLeader
	// ActorAgent is a node's agent.
	ActorAgent
)

// String returns "operator", "leader" or "agent".
func (k ActorKind) String() string {
	switch k {
	case ActorOperator:
		return "operator"
	case ActorLeader:
		return "leader"
	case ActorAgent:
		return "agent"
	}
	return "unknown"
}

// Actor is who asked for a command, as far as it is known. The zero value is nobody: commands of earlier
// versions have none.
type Actor struct {
	Kind ActorKind
	// Name is the controller's or the node's, or what an operator is called; it may be empty.
	Name string
	// Verified says that Name stands in the client certificate; otherwise a client only says so.
	Verified bool
	// Address is where the request came from, without the port; it may be empty.
	Address string
}

// String is for people: "leader ctl-1", "agent node-2", "operator alice@10.0.0.7", or "operator 10.0.0.7
// (says alice)" when nothing proves the name.
func (a Actor) String() string {
	if a.Kind == 0 {
		return "unknown"
	}
	out := a.Kind.String()
	switch {
	case a.Kind != ActorOperator:
		return strings.TrimSpace(out + " " + a.Name)
	case a.Name != "" && a.Verified && a.Address != "":
		return out + " " + a.Name + "@" + a.Address
	case a.Name != "" && a.Verified:
		return out + " " + a.Name
	}
	if a.Address != "" {
		out += " " + a.Address
	}
	if a.Name != "" {
		out += " (says " + a.Name + ")"
	}
	return out
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events. They are persisted, and are the numbers of the API: only ever add at the end.
const (
	EventNodeJoined EventKind = iota + 1
	EventNodeRestarted
	EventNodeReturned
	EventNodeDead
	EventDrainBegun
	EventDrainCancelled
	EventNodeRemoved
	EventTopicCreated
	EventTopicDeleted
	EventSettingsChanged
	EventMoveStarted
	EventMoveCancelled
	EventMoveForced
	EventControllerAdded
	EventControllerPromoted
	EventControllerChanged
	EventControllerRemoved
	EventMaintenanceBegun
	EventMaintenanceEnded
	EventNodeForgotten
	EventCopyAdopted
)

var eventNames = [...]string{
	"", "node_joined", "node_restarted", "node_returned", "node_dead", "drain_begun", "drain_cancelled", "node_removed",
	"topic_created", "topic_deleted", "settings_changed", "move_started", "move_cancelled", "move_forced",
	"controller_added", "controller_promoted", "controller_changed", "controller_removed",
	"maintenance_begun", "maintenance_ended", "node_forgotten", "copy_adopted",
}

// EventKinds returns every kind, in order.
func EventKinds() []EventKind {
	out := make([]EventKind, 0, len(eventNames)-1)
	for k := 1; k < len(eventNames); k++ {
		out = append(out, EventKind(k))
	}
	return out
}

// String returns the kind's name, such as "drain_begun".
func (k EventKind) String() string {
	if k > 0 && int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event_%d", uint8(k))
}

// Event is one line of the audit: who did what to what, why, and what came of it. Events are written in
// the batch of their effect, and exist only for commands that changed something.
type Event struct {
	// ID counts events from 1 without a gap; it is what a reader resumes from.
	ID       uint64
	Revision Revision
	// At is the proposer's clock, for people.
	At    time.Time
	Actor Actor
	Kind  EventKind
	// Subject names what it is about: a node, a topic, "topic/index", a controller; empty for settings.
	Subject string
	// Nodes are all nodes that it concerns, in order.
	Nodes []NodeID
	// Reason is why, as the actor gave it; it may be empty.
	Reason string
	// Result is what came of it, in a phrase.
	Result string
}

// Concerns says whether the event is about a node.
func (e Event) Concerns(id NodeID) bool {
	for _, n := range e.Nodes {
		if n == id {
			return true
		}
	}
	return false
}
