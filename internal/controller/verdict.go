package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Verdict is the cluster's status in one word.
type Verdict uint8

// The values of Verdict, worst last.
const (
	OK       Verdict = iota + 1
	Moving           // moves run, nothing is wrong
	Stalled          // something should move and can't
	Degraded         // something is dead, away or nearly full
	NoLeader         // the controllers have no leader
)

// Finding is one thing that is not as it should be, or that goes on.
type Finding struct {
	Verdict Verdict
	Text    string
	// Next is the command to run next; empty when there is nothing to do.
	Next string
}

// Status is one screen.
type Status struct {
	Revision cluster.Revision
	Verdict  Verdict
	// Findings say why the verdict is not OK, the worst first.
	Findings []Finding
	// Next is the command to run next; empty when there is none.
	Next               string
	Leader             cluster.ControllerName
	Term               uint64
	Voters, Learners   int
	Alive, Dead        int
	Draining           int
	Topics, Partitions int
	Moves, Blocked     int
	// Waiting are moves that should be made and don't fit the limits, or wait for the end of a pause.
	Waiting int
	Bytes   cluster.Bytes
	// Estimate is of all moves in flight and waiting; nil when there are none, or no leader.
	Estimate *Estimate
}

// The commands that findings point to.
const (
	nextControllers = "naradctl-plane cluster controllers list"
	nextMembers     = "naradctl-plane cluster members"
	nextMoves       = "naradctl-plane cluster moves -o wide"
	nextResume      = "naradctl-plane cluster rebalance resume"
	nextAdd         = "naradctl-plane cluster plan --add 1"
)

// Status judges the cluster. It never fails: without a leader it says so, from the local state.
func (c *Controller) Status(ctx context.Context) Status {
	_, err := c.Confirm(ctx)
	w, st, now := c.readWorld(), c.backend.Status(), time.Now()
	s := Status{Revision: w.revision, Term: st.Term, Topics: len(w.topics), Partitions: len(w.assignments)}
	j := judge{}
	active := 0
	for _, m := range st.Members {
		if m.Role == consensus.Learner {
			s.Learners++
			continue
		}
		s.Voters++
		if m.Active || m.ID == st.Self {
			active++
		} else if err == nil {
			j.add(Degraded, nextControllers, "controller %s is away: start it again with its data directory", m.Name)
		}
	}
	if err == nil {
		judgeQuorum(&j, s.Voters, active)
	}
	for _, n := range w.nodes {
		if n.Status == cluster.NodeDead {
			s.Dead++
			j.add(Degraded, nextMembers, "node %s is dead and owns %d partitions: start its agent again with its data directory", n.ID, w.owned[n.ID])
		} else {
			s.Alive++
		}
		if n.Draining {
			s.Draining++
		}
		if n.Maintenance {
			j.add(Moving, "", "node %s is in maintenance%s", n.ID, because(n.MaintenanceReason))
		}
	}
	judgeRestore(&j, w)
	for _, a := range w.assignments {
		if a.Moving() {
			s.Moves++
		}
	}
	if err != nil {
		s.Verdict, s.Next = NoLeader, nextControllers
		j.add(NoLeader, nextControllers, "the controllers have no leader: %v", err)
		s.Findings = j.findings()
		return s
	}
	s.Leader = c.cfg.Name
	c.judgeSalvage(&j, w)
	past := c.past()
	c.judgeSoft(&s, &j, w, past, now)
	if s.Moves > 0 {
		j.add(Moving, "", "moves in flight: %d", s.Moves)
	}
	s.Verdict, s.Next, s.Findings = j.verdict(), j.next(), j.findings()
	return s
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// judgeRestore says which partitions nobody serves since a restore, and who has not said what it holds.
func judgeRestore(j *judge, w world) {
	waiting, first := 0, ""
	for _, a := range w.assignments {
		if a.Unconfirmed {
			if waiting++; first == "" {
				first = w.name(a.Partition)
			}
		}
	}
	if waiting == 0 {
		return
	}
	var silent []string
	for _, n := range w.nodes {
		if n.Unclaimed {
			silent = append(silent, string(n.ID))
		}
	}
	next, unheard := nextMembers, strings.Join(silent, ", ")
	if len(silent) == 0 {
		next, unheard = "naradctl-plane cluster partition adopt "+first+" --from NODE", "none"
	}
	j.add(Degraded, next, "%d partitions, such as %s, wait for their confirmation since the restore from a backup; not heard of what they hold: %s",
		waiting, first, unheard)
}

// judgeQuorum looks at how many voters may still fail. A single one is a choice; two of which none may fail
// is a mistake.
func judgeQuorum(j *judge, voters, active int) {
	majority := voters/2 + 1
	if voters > 1 && active <= majority {
		j.add(Degraded, nextControllers, "quorum at risk: of %d voters %d are active and %d are needed; losing one more stops all changes", voters, active, majority)
	}
}

// judgeSalvage looks at records that only an old copy has.
func (c *Controller) judgeSalvage(j *judge, w world) {
	lost := map[cluster.NodeID]int{}
	c.machine.Read(func(r fsm.Reader) {
		for _, o := range r.Outcomes() {
			if o.Kind == cluster.OutcomeForced {
				lost[o.Source]++
			}
		}
	})
	for _, n := range w.nodes {
		k := lost[n.ID]
		switch {
		case k == 0:
		case n.Status == cluster.NodeDead:
			j.add(Degraded, nextMembers, "%d copies on dead node %s are not salvaged: what they have beyond the promoted ones comes back when it is started once more", k, n.ID)
		default:
			j.add(Moving, nextMembers, "node %s salvages %d copies in quarantine", n.ID, k)
		}
	}
}

// judgeSoft adds what only the leader knows.
func (c *Controller) judgeSoft(s *Status, j *judge, w world, past past, now time.Time) {
	c.soft.Lock()
	defer c.soft.Unlock()
	for _, b := range c.soft.sizes {
		s.Bytes += b
	}
	s.Blocked, s.Waiting = len(c.soft.blocked), c.soft.waiting
	for _, n := range w.nodes {
		e := c.soft.sessions[n.ID]
		if n.Status != cluster.NodeAlive || e == nil {
			continue
		}
		if silence := now.Sub(e.last); silence > c.cfg.LeaseTTL {
			j.add(Degraded, nextMembers, "node %s has been silent for %s", n.ID, silence.Round(time.Second))
		}
		c.judgeDisk(j, n, e, w.settings)
	}
	stuck := c.stuckMoves(w, func(cluster.Assignment) bool { return true })
	for _, text := range w.shorten(append(w.plannerBlockers(c.soft.blocked), stuck...)) {
		j.add(Stalled, nextMoves, "%s", text)
	}
	if w.settings.RebalancePaused && c.soft.waiting > 0 {
		j.add(Stalled, nextResume, "rebalancing is paused: %d moves wait", c.soft.waiting)
	} else if c.soft.waiting > 0 {
		j.add(Moving, "", "%d moves wait for a slot", c.soft.waiting)
	}
	c.soft.judgeHold(j, w)
	for _, n := range w.nodes {
		if !n.Draining {
			continue
		}
		j.add(Moving, "", "node %s is draining", n.ID)
		for _, text := range w.shorten(acting(c.soft.draining[n.ID])) {
			j.add(Stalled, nextMembers+" "+string(n.ID), "node %s can't leave: %s", n.ID, text)
		}
	}
	if l := c.soft.workload(w, nil); l.inFlight+l.waiting > 0 {
		e := c.soft.estimate(l, w.settings, past, now)
		s.Estimate = &e
	}
}

func (c *Controller) judgeDisk(j *judge, n cluster.Node, e *session, set cluster.Settings) {
	total, free := e.report.DiskTotal, min(e.report.DiskFree, e.report.DiskTotal)
	if total == 0 {
		return
	}
	if used := float64(total-free) / float64(total) * 100; used >= float64(set.HighDiskPercent) {
		j.add(Degraded, nextAdd, "node %s's disk is %.0f %% full (high_disk_percent=%d): it receives nothing; add disks or nodes, or shorten a retention",
			n.ID, used, set.HighDiskPercent)
	}
}

func acting(bs []Blocker) []Blocker {
	var out []Blocker
	for _, b := range bs {
		if b.Act {
			out = append(out, b)
		}
	}
	return out
}

// judge collects findings; the worst one gives the verdict.
type judge struct {
	found [NoLeader + 1][]Finding
}

func (j *judge) add(v Verdict, next, format string, args ...any) {
	j.found[v] = append(j.found[v], Finding{v, fmt.Sprintf(format, args...), next})
}

func (j *judge) verdict() Verdict {
	for v := NoLeader; v > OK; v-- {
		if len(j.found[v]) > 0 {
			return v
		}
	}
	return OK
}

// next is the first command among the worst findings.
func (j *judge) next() string {
	for _, f := range j.found[j.verdict()] {
		if f.Next != "" {
			return f.Next
		}
	}
	return ""
}

func (j *judge) findings() []Finding {
	var out []Finding
	for v := NoLeader; v > OK; v-- {
		out = append(out, j.found[v]...)
	}
	return out
}

// Reasons are the findings' sentences.
func (s Status) Reasons() []string {
	var out []string
	for _, f := range s.Findings {
		out = append(out, f.Text)
	}
	return out
}
