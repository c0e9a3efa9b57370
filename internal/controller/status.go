package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// Verdict is the cluster's status in one word.
type Verdict uint8

// The values of Verdict, worst last.
const (
	OK       Verdict = iota + 1
	Moving           // moves run, nothing is wrong
	Stalled          // something should move and can't
	Degraded         // something is dead or away
	NoLeader         // the controllers have no leader
)

// Status is one screen.
type Status struct {
	Revision cluster.Revision
	Verdict  Verdict
	// Reasons say why the verdict is not OK, one sentence each, the worst first.
	Reasons []string
	// Next is the command to run next; empty when there is none.
	Next               string
	Leader             cluster.ControllerName
	Term               uint64
	Voters, Learners   int
	Alive, Dead        int
	Draining           int
	Topics, Partitions int
	Moves, Blocked     int
	Bytes              cluster.Bytes
}

// Status judges the cluster. It never fails: without a leader it says so, from the local state.
func (c *Controller) Status(ctx context.Context) Status {
	_, err := c.Confirm(ctx)
	w, st, now := c.readWorld(), c.backend.Status(), c.now()
	s := Status{Revision: w.revision, Term: st.Term, Topics: len(w.topics), Partitions: len(w.assignments)}
	j := judge{}
	for _, m := range st.Members {
		if m.Role == consensus.Learner {
			s.Learners++
			continue
		}
		s.Voters++
		if err == nil && !m.Active && m.ID != st.Self {
			j.add(Degraded, "naradctl-plane cluster controllers list", "controller %s is away", m.Name)
		}
	}
	for _, n := range w.nodes {
		if n.Status == cluster.NodeDead {
			s.Dead++
			j.add(Degraded, "naradctl-plane cluster members", "node %s is dead and owns %d partitions", n.ID, w.owned[n.ID])
		} else {
			s.Alive++
		}
		if n.Draining {
			s.Draining++
		}
	}
	for _, a := range w.assignments {
		if a.Moving() {
			s.Moves++
		}
	}
	if err != nil {
		s.Verdict, s.Next = NoLeader, "naradctl-plane cluster controllers list"
		s.Reasons = append([]string{fmt.Sprintf("the controllers have no leader: %v", err)}, j.reasons()...)
		return s
	}
	s.Leader = c.cfg.Name
	c.judgeSoft(&s, &j, w, now)
	if s.Moves > 0 {
		j.add(Moving, "", "moves in flight: %d", s.Moves)
	}
	s.Verdict, s.Next, s.Reasons = j.verdict(), j.next(), j.reasons()
	return s
}

// judgeSoft adds what only the leader knows.
func (c *Controller) judgeSoft(s *Status, j *judge, w world, now time.Time) {
	c.soft.Lock()
	defer c.soft.Unlock()
	for _, b := range c.soft.sizes {
		s.Bytes += b
	}
	s.Blocked = len(c.soft.blocked)
	for _, n := range w.nodes {
		e := c.soft.sessions[n.ID]
		if n.Status != cluster.NodeAlive || e == nil {
			continue
		}
		if silence := now.Sub(e.last); silence > c.cfg.LeaseTTL {
			j.add(Degraded, "naradctl-plane cluster members", "node %s has been silent for %s", n.ID, silence.Round(time.Second))
		}
	}
	const why = "naradctl-plane cluster moves"
	for _, b := range blockedSentences(w, c.soft.blocked) {
		j.add(Stalled, why, "%s", b.sentence)
	}
	if w.settings.RebalancePaused && c.soft.waiting > 0 {
		j.add(Stalled, "naradctl-plane cluster rebalance resume", "rebalancing is paused: %d moves wait", c.soft.waiting)
	} else if c.soft.waiting > 0 {
		j.add(Moving, "", "%d moves wait for a slot", c.soft.waiting)
	}
	c.soft.judgeHold(j, w)
	for _, n := range w.nodes {
		if !n.Draining {
			continue
		}
		j.add(Moving, "", "node %s is draining", n.ID)
		for _, b := range c.soft.draining[n.ID] {
			if b.hard {
				j.add(Stalled, "naradctl-plane cluster members", "node %s can't leave: %s", n.ID, b.sentence)
			}
		}
	}
}

// judge collects findings; the worst one gives the verdict.
type judge struct {
	found [NoLeader + 1][]string
	cmd   [NoLeader + 1]string
}

func (j *judge) add(v Verdict, next, format string, args ...any) {
	j.found[v] = append(j.found[v], fmt.Sprintf(format, args...))
	if j.cmd[v] == "" {
		j.cmd[v] = next
	}
}

func (j *judge) verdict() Verdict {
	for v := NoLeader; v > OK; v-- {
		if len(j.found[v]) > 0 {
			return v
		}
	}
	return OK
}

func (j *judge) next() string { return j.cmd[j.verdict()] }

func (j *judge) reasons() []string {
	var out []string
	for v := NoLeader; v > OK; v-- {
		out = append(out, j.found[v]...)
	}
	return out
}

// Member is a node with its soft state.
type Member struct {
	Node                     cluster.Node
	Owned, Inbound, Outbound int
	Unopened                 int
	Bytes                    cluster.Bytes
	Report                   Report
	// Silence is since the leader last heard of the node; negative when it never did.
	Silence  time.Duration
	Blockers []string
}

// Members lists the nodes by id. ReasonNoLeader when this member does not lead.
func (c *Controller) Members(ctx context.Context) (cluster.Revision, []Member, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return 0, nil, err
	}
	w, now := c.readWorld(), c.now()
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
			m.Blockers = sentences(c.blockersOf(w, n))
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
	return w.revision, out, nil
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
	History  []cluster.MoveRecord
	// Topics names the topics of the above that exist.
	Topics map[cluster.TopicID]string
}

// Moves lists moves. ReasonNoLeader when this member does not lead.
func (c *Controller) Moves(ctx context.Context, history bool) (Moves, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return Moves{}, err
	}
	w := c.readWorld()
	out := Moves{Revision: w.revision, Topics: map[cluster.TopicID]string{}}
	for id, t := range w.topics {
		out.Topics[id] = t.Name
	}
	if history {
		c.machine.Read(func(r fsm.Reader) { out.History = r.MoveHistory() })
	}
	c.soft.Lock()
	defer c.soft.Unlock()
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
