package cluster

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
}

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
