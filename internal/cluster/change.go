package cluster

import "time"

// Change is one effect of a command on one record. Exactly one of the pointer fields, or one of the
// removals, is set. A revision carries all changes of its command.
//
// Folding: a present record replaces the one with the same key; a removal deletes it.
type Change struct {
	Node        *Node
	NodeRemoved NodeID

	Topic        *Topic
	TopicRemoved TopicID

	Assignment *Assignment
	// Before is the assignment that Assignment replaced, or that AssignmentRemoved removed; nil when
	// it was created. Watches filter by it.
	Before            *Assignment
	AssignmentRemoved *PartitionID

	Outcome        *Outcome
	OutcomeRemoved *OutcomeKey

	Settings *Settings

	Controller        *Controller
	ControllerRemoved ControllerName

	// Restored is part of snapshots only: it never changes.
	Restored *Restored
}

// Restored says that the cluster's state was made from a backup. The zero value says that it was not.
type Restored struct {
	// From is the backup's revision; Base is the one that this cluster began with.
	From, Base Revision
	// Predecessors are the clusters that this one goes on for, oldest first.
	Predecessors []ClusterID
	At           time.Time
}

// Unknown reports whether an identifier was given between the backup and its restore: that it is not known
// says nothing.
func (r Restored) Unknown(id Revision) bool { return id > r.From && id < r.Base }

// OutcomeKey names an outcome record. Source and Destination repeat the record's, so that watches
// can filter its removal.
type OutcomeKey struct {
	Partition   PartitionID
	MoveID      MoveID
	Source      NodeID
	Destination NodeID
}

// RevisionChanges is everything that one revision did, in a stable order.
type RevisionChanges struct {
	Revision Revision
	Changes  []Change
}
