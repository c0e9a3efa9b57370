package controller

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// Member is a node with its soft state.
type Member struct {
	Node                     cluster.Node
	Owned, Inbound, Outbound int
	Unopened                 int
	Bytes                    cluster.Bytes
	Report                   Report
	// Silence is since the leader last heard of the node; negative when it never did.
	Silence time.Duration
	// Blockers keep a draining node from leaving, all of them; Short is for people.
	Blockers []Blocker
	Short    []string
	// Drain is of what a draining node still has to give away; nil when it is not draining.
	Drain *Estimate
}

// Members are the nodes by id.
type Members struct {
	Revision cluster.Revision
	Members  []Member
	// Topics names the topics that exist.
	Topics map[cluster.TopicID]string
}

// Members lists the nodes by id. ReasonNoLeader when this member does not lead.
func (c *Controller) Members(ctx context.Context) (Members, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return Members{}, err
	}
	w, now, past := c.readWorld(), time.Now(), c.past()
	var outcomes []cluster.Outcome
	c.machine.Read(func(r fsm.Reader) { outcomes = r.Outcomes() })
	c.soft.Lock()
	defer c.soft.Unlock()
	out := make([]Member, len(w.nodes))
	at := map[cluster.NodeID]*Member{}
	for i, n := range w.nodes {
		m := &out[i]
		at[n.ID] = m
		m.Node, m.Owned, m.Silence = n, w.owned[n.ID], -1
		e := c.soft.sessions[n.ID]
		if e == nil {
			continue
		}
		m.Report = e.report
		if e.heard {
			m.Silence = now.Sub(e.last)
		}
		if n.Draining {
			m.Blockers = c.blockersOf(w, n)
			m.Short = w.shorten(m.Blockers)
			e := c.soft.estimate(c.soft.workload(w, func(id cluster.NodeID) bool { return id == n.ID }), w.settings, past, now)
			m.Drain = &e
		}
	}
	for _, a := range w.assignments {
		owner, target := at[a.Owner], at[a.Target]
		if owner != nil {
			owner.Bytes += c.soft.sizes[a.Partition]
		}
		if a.Moving() && owner != nil && target != nil {
			owner.Outbound++
			target.Inbound++
		}
	}
	for _, o := range outcomes {
		if m := at[o.Source]; m != nil && o.Kind != cluster.OutcomeCancelled && !o.Opened {
			m.Unopened++
		}
	}
	return Members{w.revision, out, w.topicNames()}, nil
}

// Move is a move in flight.
type Move struct {
	Assignment cluster.Assignment
	// Progress is nil until the destination reports.
	Progress *cluster.MoveProgress
	// ETA is zero when it can't be predicted.
	ETA time.Duration
}

// Moves is what moves, what should and can't, and what has moved.
type Moves struct {
	Revision cluster.Revision
	Moves    []Move
	Blocked  []planner.Blocked
	// History are ended moves, oldest first; Kept is how many are remembered.
	History []cluster.MoveRecord
	Kept    int
	// Estimate is of all moves in flight and waiting.
	Estimate Estimate
	// Topics names the topics of the above that exist.
	Topics map[cluster.TopicID]string
}

// Moves lists moves, and with history the newest limit ended ones (zero: all). ReasonNoLeader when this member does
// not lead.
func (c *Controller) Moves(ctx context.Context, history bool, limit int) (Moves, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return Moves{}, err
	}
	w := c.readWorld()
	out := Moves{Revision: w.revision, Topics: w.topicNames()}
	c.machine.Read(func(r fsm.Reader) {
		if history {
			out.History, out.Kept = r.NewestMoves(limit)
		} else {
			_, out.Kept = r.NewestMoves(1)
		}
	})
	past, now := c.past(), time.Now()
	c.soft.Lock()
	defer c.soft.Unlock()
	out.Estimate = c.soft.estimate(c.soft.workload(w, nil), w.settings, past, now)
	out.Blocked = c.soft.blocked
	for _, a := range w.assignments {
		if !a.Moving() {
			continue
		}
		m := Move{Assignment: a}
		if p, ok := c.soft.progress(a); ok {
			m.Progress = &p
			if p.BytesPerSecond > 0 && p.Total >= p.Done {
				m.ETA = time.Duration(float64(p.Total-p.Done) / float64(p.BytesPerSecond) * float64(time.Second))
			}
		}
		out.Moves = append(out.Moves, m)
	}
	return out, nil
}

// ControllerStatus is a consensus member with its soft state.
type ControllerStatus struct {
	Controller cluster.Controller
	Leader     bool
	Lag        uint64
	Active     bool
}

// Controllers lists the consensus members and how many voters may fail. ReasonNoLeader when this member
// does not lead.
func (c *Controller) Controllers(ctx context.Context) (rev cluster.Revision, term uint64, tolerance int, out []ControllerStatus, err error) {
	if _, err := c.Confirm(ctx); err != nil {
		return 0, 0, 0, nil, err
	}
	st := c.backend.Status()
	c.machine.Read(func(r fsm.Reader) { rev = r.Revision() })
	for _, m := range st.Members {
		out = append(out, ControllerStatus{
			Controller: cluster.Controller{
				Name: cluster.ControllerName(m.Name), RaftID: cluster.RaftID(m.ID), Address: m.Address,
				StoreID: cluster.StoreID(m.StoreID), Learner: m.Role == consensus.Learner,
			},
			Leader: m.ID == st.Leader, Lag: m.Lag, Active: m.Active || m.ID == st.Self,
		})
	}
	return rev, st.Term, failureTolerance(st.Members), out, nil
}
