package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// Loss is a partition whose data was on a forgotten node alone.
type Loss struct {
	Partition cluster.PartitionID
	// Name is "topic/index".
	Name string
	// Bytes is what the node reported last to this leader; zero when it never did.
	Bytes cluster.Bytes
	// NewOwner is where it begins anew; empty in a dry run.
	NewOwner cluster.NodeID
	// SalvagedFrom are living nodes that still hold an earlier copy.
	SalvagedFrom []cluster.NodeID
}

// Forget removes a dead node whose disk is gone and begins its partitions anew, empty, elsewhere. Errors: ReasonNotFound;
// ReasonBlocked, with nothing changed, for a node that is alive, without acceptLoss, while a destination holds part of a partition that
// could be promoted, or when no node can receive; ReasonNoLeader.
func (c *Controller) Forget(ctx context.Context, id cluster.NodeID, acceptLoss, dryRun bool, requestID string) (cluster.Revision, []Loss, error) {
	if err := c.lock(ctx); err != nil {
		return 0, nil, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, nil, err
	}
	w := c.readWorld()
	n, ok := w.node(id)
	if !ok {
		return 0, nil, cluster.NotFound("node %s is no member", id)
	}
	losses, blockers := c.losses(w, n)
	var bytes cluster.Bytes
	for _, l := range losses {
		bytes += l.Bytes
	}
	blocked := func(format string, args ...any) (cluster.Revision, []Loss, error) {
		err := cluster.Errorf(cluster.ReasonBlocked, format, args...)
		err.Blockers = blockers
		return 0, nil, err
	}
	switch {
	case n.Status != cluster.NodeDead:
		c.soft.Lock()
		silence := time.Since(c.soft.of(id).last)
		c.soft.Unlock()
		blockers = []string{fmt.Sprintf("node %s is alive", id)}
		return blocked("node %s is alive (last heartbeat %.1fs ago) and owns %d partitions, %d bytes: decommission it; a node that is gone is declared dead after %s",
			id, silence.Seconds(), len(losses), bytes, c.cfg.DeadAfter)
	case dryRun:
		return w.revision, losses, nil
	case len(blockers) > 0:
		return blocked("%s", blockers[0])
	case !acceptLoss:
		for i, l := range losses {
			if i == maxNamed {
				blockers = append(blockers, fmt.Sprintf("and %d more partitions", len(losses)-i))
				break
			}
			blockers = append(blockers, fmt.Sprintf("%s (%d bytes) is lost", l.Name, l.Bytes))
		}
		return blocked("forgetting %s loses %d partitions, %d bytes, and what waits in its ingress queue; if its disk is there, start it instead (override: --accept-loss)",
			id, len(losses), bytes)
	}
	cmd := &storagev1.ForgetNode{NodeId: string(id), Incarnation: uint64(n.Incarnation)}
	if len(losses) > 0 {
		owners, err := planner.Place(c.view(w, time.Now(), true), planner.LimitsOf(w.settings), planner.Request{Count: len(losses)})
		if err != nil {
			return 0, nil, err
		}
		for i := range losses {
			losses[i].NewOwner = owners[i]
			a, _ := w.assignment(losses[i].Partition)
			cmd.Replacements = append(cmd.Replacements, &storagev1.Replacement{
				Partition: partitionRef(a.Partition), ExpectEpoch: uint64(a.Epoch), Owner: string(owners[i]),
			})
		}
	}
	r, err := c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_ForgetNode{ForgetNode: cmd}})
	if err != nil {
		return 0, nil, err
	}
	c.soft.Lock()
	delete(c.soft.sessions, id)
	c.soft.Unlock()
	c.log.Warn("node forgotten with what its disk held", zap.String("node", string(id)), zap.Int("partitions", len(losses)),
		zap.Uint64("bytes", uint64(bytes)), zap.Uint64("revision", uint64(r.Revision)))
	c.wake()
	return r.Revision, losses, nil
}

// losses lists what a node's disk alone holds, and what should be saved first.
func (c *Controller) losses(w world, n cluster.Node) (losses []Loss, blockers []string) {
	earlier := map[cluster.PartitionID][]cluster.NodeID{}
	c.machine.Read(func(r fsm.Reader) {
		for _, o := range r.Outcomes() {
			holder, ok := r.Node(o.Source)
			if ok && holder.Status == cluster.NodeAlive && o.Kind != cluster.OutcomeCancelled && !slices.Contains(earlier[o.Partition], o.Source) {
				earlier[o.Partition] = append(earlier[o.Partition], o.Source)
			}
		}
	})
	c.soft.Lock()
	defer c.soft.Unlock()
	for _, a := range w.assignments {
		if a.Owner != n.ID {
			continue
		}
		l := Loss{Partition: a.Partition, Name: w.name(a.Partition), Bytes: c.soft.sizes[a.Partition], SalvagedFrom: earlier[a.Partition]}
		losses = append(losses, l)
		to, _ := w.node(a.Target)
		// How much of an interrupted pass is staged, only its destination knows; that it had begun says that there may be some.
		if p, ok := c.soft.progress(a); ok && p.Total > 0 && to.Status == cluster.NodeAlive {
			blockers = append(blockers, fmt.Sprintf("%s holds part of %s, which would be lost with the rest: run \"naradctl-plane cluster move force-promote %s --accept-loss\" first, or cancel the move",
				a.Target, l.Name, l.Name))
		}
	}
	return losses, blockers
}

// Adopt brings a copy that a node holds back into its partition. owner says that the node is the owner now, since the partition was
// waiting for its confirmation after a restore; otherwise the copy's records are put into the topic as new ones, and move is over when
// they are.
func (c *Controller) Adopt(ctx context.Context, topic string, index uint32, from cluster.NodeID, requestID string) (r fsm.Result, p cluster.PartitionID, owner bool, err error) {
	if err := c.lock(ctx); err != nil {
		return r, p, false, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return r, p, false, err
	}
	a, err := c.partition(topic, index)
	if err != nil {
		return r, p, false, err
	}
	cmd := &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_AdoptCopy{AdoptCopy: &storagev1.AdoptCopy{
		Partition: partitionRef(a.Partition), NodeId: string(from),
	}}}
	if a.Unconfirmed {
		cmd.Command = &storagev1.Command_SettlePartition{SettlePartition: &storagev1.SettlePartition{
			Partition: partitionRef(a.Partition), NodeId: string(from),
		}}
	}
	r, err = c.do(ctx, cmd)
	return r, a.Partition, a.Unconfirmed, err
}

// SetMaintenance marks or unmarks a node: no moves to or from it are begun, and what it owns is not promoted elsewhere.
func (c *Controller) SetMaintenance(ctx context.Context, id cluster.NodeID, on bool, reason, requestID string) (cluster.Revision, error) {
	if err := c.lock(ctx); err != nil {
		return 0, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, err
	}
	r, err := c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_SetMaintenance{SetMaintenance: &storagev1.SetMaintenance{
		NodeId: string(id), Maintenance: on, Reason: reason,
	}}})
	if err == nil {
		c.log.Info("maintenance changed", zap.String("node", string(id)), zap.Bool("maintenance", on), zap.String("reason", reason))
		c.wake()
	}
	return r.Revision, err
}
