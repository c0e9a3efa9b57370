package cluster

import "time"

// Topic is the replicated record of a topic.
type Topic struct {
	ID         TopicID
	Name       string
	Partitions uint32
	// Parent is a placement hint: each partition is kept off the node that holds the parent's
	// partition of the same index, where that costs nothing. Zero when there is none.
	Parent TopicID
	// Retention is how long records are kept, by record time. Zero keeps them for ever.
	Retention time.Duration
	// CreatedAt is the proposer's clock, for people.
	CreatedAt time.Time
}
