package controller

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// blocker is one reason why a draining node is not gone yet.
type blocker struct {
	sentence string
	// hard says that waiting alone does not help: somebody must act.
	hard bool
}

func sentences(bs []blocker) []string {
	var out []string
	for _, b := range bs {
		out = append(out, b.sentence)
	}
	return out
}

// Drain is what a decommission does, or would do.
type Drain struct {
	Revision cluster.Revision
	Moves    []planner.Move
	Bytes    cluster.Bytes
	// Blockers would keep the nodes from leaving.
	Blockers []string
	// Topics names the topics of Moves.
	Topics map[cluster.TopicID]string
}

// Decommission marks nodes for draining; they are removed when they are empty. Errors: ReasonNotFound
// for an unknown node; ReasonBlocked, with nothing changed, when no receiver would be left or a
// co-located voter could not be removed; ReasonNoLeader. With dryRun it changes nothing and lists
// those refusals as blockers.
func (c *Controller) Decommission(ctx context.Context, ids []cluster.NodeID, reason string, dryRun bool, requestID string) (Drain, error) {
	if err := c.lock(ctx); err != nil {
		return Drain{}, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return Drain{}, err
	}
	w := c.readWorld()
	d, err := c.preflight(w, ids)
	if err != nil {
		return Drain{}, err
	}
	refusals := refusals(w, ids)
	if e := c.voterBlocker(w, ids); e != nil {
		refusals = append(refusals, e)
	}
	if dryRun {
		for _, e := range refusals {
			d.Blockers = append(d.Blockers, e.Blockers...)
		}
		return d, nil
	}
	if len(refusals) > 0 {
		return Drain{}, refusals[0]
	}
	r, err := c.setDraining(ctx, ids, true, reason, requestID)
	if err != nil {
		return Drain{}, err
	}
	d.Revision = r.Revision
	c.wake()
	return d, nil
}

// CancelDecommission clears the draining mark.
func (c *Controller) CancelDecommission(ctx context.Context, id cluster.NodeID, requestID string) (cluster.Revision, error) {
	if err := c.lock(ctx); err != nil {
		return 0, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, err
	}
	r, err := c.setDraining(ctx, []cluster.NodeID{id}, false, "", requestID)
	return r.Revision, err
}

func (c *Controller) setDraining(ctx context.Context, ids []cluster.NodeID, on bool, reason, requestID string) (fsm.Result, error) {
	cmd := &storagev1.SetDraining{Draining: on, Reason: reason}
	for _, id := range ids {
		cmd.NodeIds = append(cmd.NodeIds, string(id))
	}
	// What a node reported about its ingress queue holds for one drain only: a node that was taken
	// back accepts records again.
	c.soft.Lock()
	for _, id := range ids {
		if e := c.soft.sessions[id]; e != nil {
			e.report.IngressClosed = false
		}
	}
	c.soft.Unlock()
	r, err := c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_SetDraining{SetDraining: cmd}})
	if err == nil {
		c.log.Info("draining changed", zap.Any("nodes", ids), zap.Bool("draining", on), zap.String("reason", reason),
			zap.Uint64("revision", uint64(r.Revision)))
	}
	return r, err
}

// preflight is the dry run.
func (c *Controller) preflight(w world, ids []cluster.NodeID) (Drain, error) {
	now := c.now()
	p, err := planner.Drain(c.view(w, now, false), planner.LimitsOf(w.settings), ids)
	if err != nil {
		return Drain{}, err
	}
	d := Drain{Revision: w.revision, Moves: p.Moves, Bytes: p.Bytes, Topics: map[cluster.TopicID]string{}}
	for _, m := range p.Moves {
		d.Topics[m.Partition.Topic] = w.topics[m.Partition.Topic].Name
	}
	d.Blockers = sentences(blockedSentences(w, p.Blocked))
	for _, id := range ids {
		if n, ok := w.node(id); ok && n.Status == cluster.NodeDead {
			d.Blockers = append(d.Blockers, deadSentence(n))
		}
	}
	return d, nil
}

// refusals are the guards that the nodes themselves can run into.
func refusals(w world, ids []cluster.NodeID) []*cluster.Error {
	alive, dead := 0, 0
	for _, n := range w.nodes {
		switch {
		case slices.Contains(ids, n.ID) || n.Draining:
		case n.Status == cluster.NodeDead:
			dead++
		default:
			alive++
		}
	}
	if alive > 0 {
		return nil
	}
	err := cluster.Errorf(cluster.ReasonBlocked,
		"no receivers: of %d nodes none would be alive and not draining (%d dead); add a node first, or cancel another drain",
		len(w.nodes), dead)
	err.Blockers = []string{"no receivers"}
	return []*cluster.Error{err}
}

// voterBlocker asks the voter guard about the co-located voters of ids and of all nodes that drain already.
func (c *Controller) voterBlocker(w world, ids []cluster.NodeID) *cluster.Error {
	st := c.backend.Status()
	remove := map[consensus.ID]bool{}
	asked := false
	for _, n := range w.nodes {
		m, ok := memberByName(st, n.Voter)
		if n.Voter == "" || !ok || m.Role != consensus.Voter {
			continue
		}
		if slices.Contains(ids, n.ID) {
			remove[m.ID], asked = true, true
		} else if n.Draining {
			remove[m.ID] = true
		}
	}
	if !asked {
		return nil
	}
	return voterGuard(st.Members, st.Self, remove, w.settings.MinVoters, false)
}

// maxNamed bounds how many partitions are named one by one among the blockers.
const maxNamed = 10

func blockedSentences(w world, blocked []planner.Blocked) []blocker {
	var out []blocker
	for i, b := range blocked {
		if i == maxNamed {
			return append(out, blocker{fmt.Sprintf("and %d more partitions", len(blocked)-i), true})
		}
		out = append(out, blocker{fmt.Sprintf("partition %s: %s", w.name(b.Partition), b.Reason), true})
	}
	return out
}

func deadSentence(n cluster.Node) string {
	return fmt.Sprintf("node %s is dead: its ingress queue and quarantine are unknown; start it once more", n.ID)
}

// departures removes the draining nodes that have nothing left, and records what keeps the others.
func (c *Controller) departures(ctx context.Context) error {
	w := c.readSummary() // the plan has just changed it
	all := map[cluster.NodeID][]blocker{}
	var leaving []cluster.Node
	c.soft.Lock()
	for _, n := range w.nodes {
		if !n.Draining {
			continue
		}
		all[n.ID] = c.blockersOf(w, n)
		if len(all[n.ID]) == 0 {
			leaving = append(leaving, n)
		}
	}
	c.soft.draining = all
	c.soft.Unlock()
	for _, n := range leaving {
		if err := c.depart(ctx, w, n); err != nil {
			return err
		}
	}
	return nil
}

// blockersOf says what keeps a draining node. The caller holds the soft state's lock.
func (c *Controller) blockersOf(w world, n cluster.Node) []blocker {
	var out []blocker
	var mine []planner.Blocked
	for _, b := range c.soft.blocked {
		if b.Owner == n.ID || b.Target == n.ID {
			mine = append(mine, b)
		}
	}
	out = append(out, blockedSentences(w, mine)...)
	for _, s := range w.removal[n.ID] {
		out = append(out, blocker{s, false})
	}
	if w.owned[n.ID] > 0 && w.settings.RebalancePaused {
		out = append(out, blocker{"rebalancing is paused", true})
	}
	if n.Status == cluster.NodeDead {
		return append(out, blocker{deadSentence(n), true})
	}
	e := c.soft.sessions[n.ID]
	if e == nil || e.incarnation != n.Incarnation || e.reported.IsZero() {
		return append(out, blocker{fmt.Sprintf("node %s has not reported to the present leader yet", n.ID), false})
	}
	if k := e.report.IngressRecords; k > 0 {
		out = append(out, blocker{fmt.Sprintf("ingress queue holds %d records", k), false})
	} else if !e.report.IngressClosed && w.owned[n.ID] == 0 {
		// An empty queue of a node that still accepts records is not empty for good.
		out = append(out, blocker{fmt.Sprintf("node %s still accepts records", n.ID), false})
	}
	if k := e.report.Quarantined; k > 0 {
		out = append(out, blocker{fmt.Sprintf("quarantine holds %d copies: old ones go after reclaim_after, those of a forced promotion once salvaged", k), false})
	}
	if len(out) > 0 || n.Voter == "" {
		return out
	}
	st := c.backend.Status()
	if m, ok := memberByName(st, n.Voter); ok && m.Role == consensus.Voter {
		if err := voterGuard(st.Members, st.Self, map[consensus.ID]bool{m.ID: true}, w.settings.MinVoters, false); err != nil {
			out = append(out, blocker{err.Blockers[0], true})
		}
	}
	return out
}

// depart removes one empty node: its co-located controller first, so that the record of the node names
// it until it is gone.
func (c *Controller) depart(ctx context.Context, w world, n cluster.Node) error {
	if n.Voter != "" {
		if err := c.removeMember(ctx, w, n.Voter, false); err != nil {
			if cluster.ReasonOf(err) == cluster.ReasonBlocked {
				c.log.Warn("drained node stays for its controller", zap.String("node", string(n.ID)), zap.Error(err))
				return nil
			}
			return err
		}
	}
	// The state machine checks what it can see once more, when it applies this.
	r, err := c.Propose(ctx, &storagev1.Command{Command: &storagev1.Command_RemoveNode{RemoveNode: &storagev1.RemoveNode{
		NodeId: string(n.ID), Incarnation: uint64(n.Incarnation),
	}}})
	if err != nil {
		return err
	}
	if r.Err != nil {
		c.log.Info("removal refused; looked at again", zap.String("node", string(n.ID)), zap.Error(r.Err))
		return nil
	}
	c.soft.Lock()
	delete(c.soft.sessions, n.ID)
	delete(c.soft.draining, n.ID)
	c.soft.Unlock()
	c.log.Info("node removed: decommissioned", zap.String("node", string(n.ID)), zap.Uint64("revision", uint64(r.Revision)))
	return nil
}
