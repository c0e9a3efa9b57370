package controller

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// placeAttempts bounds how often a placement is made anew because the state changed under it.
const placeAttempts = 3

// CreateTopic places a topic's partitions by the planner's rules and creates it in one entry. Errors:
// ReasonInvalid, ReasonAlreadyExists, ReasonNotFound for the parent, ReasonBlocked when no node may receive.
func (c *Controller) CreateTopic(ctx context.Context, name string, partitions uint32, parent string, retention time.Duration, requestID string) (cluster.Revision, cluster.Topic, error) {
	if err := c.lock(ctx); err != nil {
		return 0, cluster.Topic{}, err
	}
	defer c.unlock()
	for attempt := 1; ; attempt++ {
		// C34: a fresh leader places only after its own term's first entry is applied.
		if _, err := c.Confirm(ctx); err != nil {
			return 0, cluster.Topic{}, err
		}
		owners, err := c.place(partitions, parent)
		if err != nil {
			return 0, cluster.Topic{}, err
		}
		r, err := c.Propose(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_CreateTopic{
			CreateTopic: &storagev1.CreateTopic{Name: name, Parent: parent, RetentionNanos: int64(retention), Owners: owners},
		}})
		if err != nil {
			return 0, cluster.Topic{}, err
		}
		if r.Err != nil {
			// A node that was placed on died or began to drain before the entry was applied.
			if r.Err.Reason == cluster.ReasonBlocked && attempt < placeAttempts {
				continue
			}
			return 0, cluster.Topic{}, r.Err
		}
		var t cluster.Topic
		var ok bool
		c.machine.Read(func(rd fsm.Reader) { t, ok = rd.Topic(cluster.TopicID(r.Value)) })
		if !ok {
			return 0, cluster.Topic{}, cluster.NotFound("topic %s was created and deleted again", name)
		}
		return r.Revision, t, nil
	}
}

// place returns the owner of each partition.
func (c *Controller) place(partitions uint32, parent string) ([]string, error) {
	w, now := c.readSummary(), c.now()
	var parentID cluster.TopicID
	for _, t := range w.topics {
		if t.Name == parent {
			parentID = t.ID
		}
	}
	if parent != "" && parentID == 0 {
		return nil, cluster.NotFound("parent topic %s does not exist", parent)
	}
	c.soft.Lock()
	c.observeAll(w.nodes, now)
	c.soft.Unlock()
	if err := c.follow(w, now); err != nil {
		return nil, err
	}
	ids, err := c.board.planner.Place(planner.LimitsOf(w.settings),
		planner.Request{Count: int(partitions), Parent: parentID, OnSettling: true})
	if err != nil {
		return nil, err
	}
	owners := make([]string, len(ids))
	for i, id := range ids {
		owners[i] = string(id)
	}
	return owners, nil
}

// StartMove sets the target of one partition by hand.
func (c *Controller) StartMove(ctx context.Context, topic string, index uint32, to cluster.NodeID, requestID string) (fsm.Result, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return fsm.Result{}, err
	}
	a, err := c.partition(topic, index)
	if err != nil {
		return fsm.Result{}, err
	}
	return c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{
		Partition: partitionRef(a.Partition), ExpectOwner: string(a.Owner), ExpectTarget: string(a.Target),
		ExpectEpoch: uint64(a.Epoch), Target: string(to), Reason: "operator",
	}}})
}

// CancelMove ends a move without a flip. Result.Outcome says how the move really ended.
func (c *Controller) CancelMove(ctx context.Context, topic string, index uint32, move cluster.MoveID, requestID string) (fsm.Result, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return fsm.Result{}, err
	}
	a, err := c.partition(topic, index)
	if err != nil {
		return fsm.Result{}, err
	}
	if move == 0 {
		if move = a.MoveID; move == 0 {
			return fsm.Result{}, cluster.NotFound("partition %s has no move", cluster.FormatPartition(topic, index))
		}
	}
	return c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{
		Partition: partitionRef(a.Partition), MoveId: uint64(move), Reason: "operator",
	}}})
}

func (c *Controller) partition(topic string, index uint32) (cluster.Assignment, error) {
	var t cluster.Topic
	var a cluster.Assignment
	var known, found bool
	c.machine.Read(func(r fsm.Reader) {
		if t, known = r.TopicByName(topic); known {
			a, found = r.Assignment(cluster.PartitionID{Topic: t.ID, Index: index})
		}
	})
	switch {
	case !known:
		return a, cluster.NotFound("topic %s does not exist", topic)
	case !found:
		return a, cluster.NotFound("topic %s has %d partitions, none is %d", topic, t.Partitions, index)
	}
	return a, nil
}

// UpdateSettings replaces the settings by what change makes of the present ones.
func (c *Controller) UpdateSettings(ctx context.Context, change func(cluster.Settings) cluster.Settings, requestID string) (cluster.Revision, cluster.Settings, error) {
	if err := c.lock(ctx); err != nil {
		return 0, cluster.Settings{}, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, cluster.Settings{}, err
	}
	var s cluster.Settings
	c.machine.Read(func(r fsm.Reader) { s = change(r.Settings()) })
	if err := s.Validate(); err != nil {
		return 0, cluster.Settings{}, err
	}
	r, err := c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_SetSettings{
		SetSettings: &storagev1.SetSettings{Settings: fsm.SettingsRecord(s)},
	}})
	return r.Revision, s, err
}
