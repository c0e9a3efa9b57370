package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// Foresight is a plan with what it leads to.
type Foresight struct {
	Revision cluster.Revision
	planner.Foresight
	Estimate Estimate
	// Notes say what keeps the plan from being carried out or from being complete; one sentence each.
	Notes []string
	// Topics names the topics of the plan.
	Topics map[cluster.TopicID]string
}

// PlanMoves says what the planner would do now, or what if. It changes nothing. Errors: ReasonNotFound for an
// unknown node, ReasonInvalid, ReasonNoLeader.
func (c *Controller) PlanMoves(ctx context.Context, what planner.WhatIf) (Foresight, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return Foresight{}, err
	}
	return c.foresee(c.readWorld(), what)
}

func (c *Controller) foresee(w world, what planner.WhatIf) (Foresight, error) {
	now := time.Now()
	f, err := planner.Foresee(c.view(w, now, false), c.limits(w, now), what)
	if err != nil {
		return Foresight{}, err
	}
	out := Foresight{Revision: w.revision, Foresight: f, Topics: w.topicNames()}
	past := c.past()
	c.soft.Lock()
	defer c.soft.Unlock()
	out.Estimate = c.soft.estimate(c.soft.foreseen(w, f), w.settings, past, now)
	if c.soft.held {
		out.Notes = append(out.Notes, fmt.Sprintf("controller %s has just begun to lead and waits for the nodes' reports: sizes and disks may be missing", c.cfg.Name))
	}
	if f.Paused {
		out.Notes = append(out.Notes, "rebalancing is paused: nothing of this begins (resume: naradctl-plane cluster rebalance resume)")
	}
	for _, id := range f.Settling {
		out.Notes = append(out.Notes, fmt.Sprintf("node %s receives nothing yet: it is silent, or joined or came back less than rebalance_delay=%s ago", id, w.settings.RebalanceDelay))
	}
	return out, nil
}

// limits are those of the planner's next round.
func (c *Controller) limits(w world, now time.Time) planner.Limits {
	lim := planner.LimitsOf(w.settings)
	c.soft.Lock()
	defer c.soft.Unlock()
	lim.HoldRebalancing = c.tooManyAway(w, now)
	return lim
}

func (w world) topicNames() map[cluster.TopicID]string {
	out := make(map[cluster.TopicID]string, len(w.topics))
	for id, t := range w.topics {
		out[id] = t.Name
	}
	return out
}

// past judges the newest ended moves.
func (c *Controller) past() past {
	var ended []cluster.MoveRecord
	c.machine.Read(func(r fsm.Reader) { ended, _ = r.NewestMoves(recentMoves) })
	return judgePast(ended)
}

// Explanation says why a partition moves or stays.
type Explanation struct {
	Revision   cluster.Revision
	Assignment cluster.Assignment
	Bytes      cluster.Bytes
	planner.Explanation
	// Reasons are sentences, the most important one first.
	Reasons []string
	// Progress is nil unless the destination of a move reported it.
	Progress *cluster.MoveProgress
	// Next is the command to run next; empty when there is nothing to do.
	Next string
}

// Explain says why a partition does not move, or that it does. Errors: ReasonNotFound, ReasonNoLeader.
func (c *Controller) Explain(ctx context.Context, topic string, index uint32) (Explanation, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return Explanation{}, err
	}
	a, err := c.partition(topic, index)
	if err != nil {
		return Explanation{}, err
	}
	w := c.readWorld()
	now := time.Now()
	why, ok := planner.Explain(c.view(w, now, false), c.limits(w, now), a.Partition)
	if present, found := w.assignment(a.Partition); ok && found {
		a = present
	} else {
		return Explanation{}, cluster.NotFound("topic %s was deleted meanwhile", topic)
	}
	out := Explanation{Revision: w.revision, Assignment: a, Explanation: why, Reasons: []string{why.Why}}
	c.soft.Lock()
	defer c.soft.Unlock()
	out.Bytes = c.soft.sizes[a.Partition]
	if p, ok := c.soft.progress(a); ok && a.Moving() {
		out.Progress = &p
	}
	c.explainMore(w, &out)
	return out, nil
}

// explainMore adds what the planner does not know. The caller holds the soft state's lock.
func (c *Controller) explainMore(w world, e *Explanation) {
	a := e.Assignment
	add := func(format string, args ...any) { e.Reasons = append(e.Reasons, fmt.Sprintf(format, args...)) }
	switch e.Placement {
	case planner.Moving:
		e.Next = "naradctl-plane cluster moves -o wide"
		switch p := e.Progress; {
		case p == nil:
			add("its destination %s has not reported the move yet", a.Target)
		case p.LastError != "" && p.Phase == cluster.PhaseBlocked:
			add("the move is blocked: %s", p.LastError)
		case p.LastError != "":
			add("attempt %d of it failed and comes again by itself: %s", p.Attempt, p.LastError)
		default:
			add("phase %s, %d of %d bytes are staged", p.Phase, p.Done, p.Total)
		}
		if n, ok := w.node(a.Owner); ok && n.Status == cluster.NodeDead {
			add("its source %s is dead: the copy is promoted after force_promote_after=%s if it is complete", a.Owner, w.settings.ForcePromoteAfter)
		}
	case planner.HeldBack:
		e.Next = "naradctl-plane cluster moves"
		if w.settings.RebalancePaused {
			e.Next = "naradctl-plane cluster rebalance resume"
		}
	case planner.Stuck:
		e.Next = "naradctl-plane cluster members"
	case planner.Pinned:
		if n, ok := w.node(a.Owner); ok && n.Status == cluster.NodeDead {
			add("start the agent of %s again with its data directory", a.Owner)
			e.Next = "naradctl-plane cluster members"
		}
	}
	if w.settings.RebalancePaused && e.Placement == planner.Settled {
		add("rebalancing is paused, too")
	}
	if c.soft.held {
		add("controller %s has just begun to lead and plans when all nodes have reported", c.cfg.Name)
	}
}
