package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// The reasons for which a draining node is not gone yet; they are the label of naradplane_drain_blocked. To them
// come those of fsm.RemovalBlocker.
const (
	blockOwnerDead   = "owner_dead"
	blockNoReceivers = "no_receivers"
	blockNoSpace     = "no_space"
	blockOther       = "other"
	blockPaused      = "paused"
	blockMove        = "move_blocked"
	blockRetrying    = "move_retrying"
	blockNodeDead    = "node_dead"
	blockNotReported = "not_reported"
	blockIngress     = "ingress"
	blockAccepts     = "accepts_records"
	blockQuarantine  = "quarantine"
	blockVoter       = "voter_guard"
	blockMaintenance = "maintenance"
)

// blockReasons are all of them, for the metric's series.
var blockReasons = []string{
	blockOwnerDead, blockNoReceivers, blockNoSpace, blockOther, blockPaused, blockMove, blockRetrying, blockNodeDead, blockNotReported,
	blockIngress, blockAccepts, blockQuarantine, blockVoter, blockMaintenance, "owned", "inbound", "not_salvaged", "unopened",
}

// Blocker is one thing that a draining node waits for.
type Blocker struct {
	Reason string
	// Partition is what it is about; nil when it is not about one. Count is of partitions, records or copies.
	Partition *cluster.PartitionID
	Count     int
	Text      string
	// Act says that waiting alone does not help: somebody must act.
	Act bool
}

// maxNamed bounds how many partitions are named one by one in a list for people.
const maxNamed = 10

// shorten lists the sentences, with at most maxNamed about one partition each.
func (w world) shorten(bs []Blocker) []string {
	var out []string
	named, more, at := 0, 0, 0
	for _, b := range bs {
		if b.Partition == nil {
			out = append(out, b.Text)
			continue
		}
		if named++; named > maxNamed {
			more++
			continue
		}
		out = append(out, b.Text)
		at = len(out)
	}
	if more > 0 {
		out = slices.Insert(out, at, fmt.Sprintf("and %d more partitions", more))
	}
	return out
}

// plannerBlockers are about partitions that the planner can't place.
func (w world) plannerBlockers(blocked []planner.Blocked) []Blocker {
	var out []Blocker
	for _, b := range blocked {
		reason := blockOther
		switch {
		case b.Reason == planner.BlockedOwnerDead:
			reason = blockOwnerDead
		case b.Reason == planner.BlockedNoReceivers:
			reason = blockNoReceivers
		case strings.HasPrefix(b.Reason, planner.BlockedNoSpace):
			reason = blockNoSpace
		}
		out = append(out, Blocker{reason, &b.Partition, 1, fmt.Sprintf("partition %s: %s", w.name(b.Partition), b.Reason), true})
	}
	return out
}

// stuckMoves are the moves that can't go on, or failed several times in a row, as their destinations say. The caller
// holds the soft state's lock.
func (c *Controller) stuckMoves(w world, match func(cluster.Assignment) bool) []Blocker {
	var stuck []cluster.Assignment
	c.machine.Read(func(r fsm.Reader) {
		for id, e := range c.soft.sessions {
			for p, move := range e.stuck {
				if a, ok := r.Assignment(p); ok && a.Target == id && a.MoveID == move && match(a) {
					stuck = append(stuck, a)
				}
			}
		}
	})
	slices.SortFunc(stuck, func(a, b cluster.Assignment) int { return a.Partition.Compare(b.Partition) })
	var out []Blocker
	for _, a := range stuck {
		p, ok := c.soft.progress(a)
		if !ok {
			continue
		}
		b := Blocker{blockRetrying, &a.Partition, 1, "", true}
		how := fmt.Sprintf("failed %d times and comes again by itself", p.Attempt)
		if p.Phase == cluster.PhaseBlocked {
			b.Reason, how = blockMove, "is blocked"
		}
		b.Text = fmt.Sprintf("partition %s: its move to %s %s: %s", w.name(a.Partition), a.Target, how, p.LastError)
		out = append(out, b)
	}
	return out
}

// blockersOf says what keeps a draining node. The caller holds the soft state's lock.
func (c *Controller) blockersOf(w world, n cluster.Node) []Blocker {
	var mine []planner.Blocked
	for _, b := range c.soft.blocked {
		if b.Owner == n.ID || b.Target == n.ID {
			mine = append(mine, b)
		}
	}
	out := w.plannerBlockers(mine)
	out = append(out, c.stuckMoves(w, func(a cluster.Assignment) bool { return a.Owner == n.ID || a.Target == n.ID })...)
	for _, b := range w.removal[n.ID] {
		out = append(out, Blocker{b.Reason, b.Partition, b.Count, b.Text, false})
	}
	add := func(reason string, count int, act bool, format string, args ...any) {
		out = append(out, Blocker{reason, nil, count, fmt.Sprintf(format, args...), act})
	}
	if n.Maintenance {
		add(blockMaintenance, 1, true, "node %s is in maintenance: nothing moves off it before \"cluster maintenance stop %s\"", n.ID, n.ID)
	}
	if k := w.owned[n.ID]; k > 0 && w.settings.RebalancePaused {
		add(blockPaused, k, true, "rebalancing is paused")
	}
	if n.Status == cluster.NodeDead {
		add(blockNodeDead, 1, true, "%s", deadSentence(n))
		return out
	}
	e := c.soft.sessions[n.ID]
	if e == nil || e.incarnation != n.Incarnation || e.reported.IsZero() {
		add(blockNotReported, 1, false, "node %s has not reported to the present leader yet", n.ID)
		return out
	}
	if k := e.report.IngressRecords; k > 0 {
		add(blockIngress, int(k), false, "ingress queue holds %d records", k)
	} else if !e.report.IngressClosed && w.owned[n.ID] == 0 {
		// An empty queue of a node that still accepts records is not empty for good.
		add(blockAccepts, 1, false, "node %s still accepts records", n.ID)
	}
	if k := e.report.Quarantined; k > 0 {
		add(blockQuarantine, int(k), false, "quarantine holds %d copies: old ones go after reclaim_after, those of a forced promotion once salvaged", k)
	}
	if len(out) > 0 || n.Voter == "" {
		return out
	}
	st := c.backend.Status()
	if m, ok := memberByName(st, n.Voter); ok && m.Role == consensus.Voter {
		if err := voterGuard(st.Members, st.Self, map[consensus.ID]bool{m.ID: true}, w.settings.MinVoters, false); err != nil {
			add(blockVoter, 1, true, "%s", err.Blockers[0])
		}
	}
	return out
}
