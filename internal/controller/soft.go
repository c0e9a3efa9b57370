package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// session is what the leader knows of one node beyond its record.
type session struct {
	incarnation cluster.Incarnation
	// last is when silence began: the last heartbeat's arrival, the registration, or the beginning of
	// this leadership. Monotonic.
	last time.Time
	// heard says that this leader accepted a heartbeat of this incarnation.
	heard bool
	// since is when the node joined or came back from the dead under this leader; zero when it was
	// alive before.
	since time.Time
	// dead is the replicated verdict, as last seen.
	dead bool
	// verdict says that a verdict on this incarnation is on its way. It is set before the verdict is
	// proposed and goes only when that can't be applied any more.
	verdict bool
	report  Report
	// reported is when report arrived; zero when there is none.
	reported time.Time
	// sizes says that the sizes of all its partitions were reported to this leader.
	sizes bool
	// stuck are the moves towards this node that hold no slot.
	stuck map[cluster.PartitionID]cluster.MoveID
	// landed is what moves brought that the disk of the report need not show yet: since the last report, and between
	// that and the one before.
	landed [2]cluster.Bytes
}

// Report is a heartbeat's soft state.
type Report struct {
	Moves               []cluster.MoveProgress
	OutboundHWMs        []cluster.PartitionOffset
	IngressRecords      uint64
	IngressBytes        cluster.Bytes
	IngressClosed       bool
	DiskTotal, DiskFree cluster.Bytes
	Quarantined         uint32
	Sizes               []PartitionSize
	SizesComplete       bool
}

// PartitionSize is what a partition occupies on its owner's disk.
type PartitionSize struct {
	Partition cluster.PartitionID
	Bytes     cluster.Bytes
}

// soft is the leader's soft state. It belongs to one term.
type soft struct {
	sync.Mutex
	term     uint64
	since    time.Time // when this leadership began
	sessions map[cluster.NodeID]*session
	sizes    map[cluster.PartitionID]cluster.Bytes
	blocked  []planner.Blocked
	waiting  int
	// onHold and cooling are what the last plan kept from moving for balance, away how many nodes are the reason.
	onHold, cooling, away int
	// dirty are the partitions that a report changed since the last round.
	dirty map[cluster.PartitionID]struct{}
	// proposed are the planned moves whose proposals are not answered yet.
	proposed map[cluster.PartitionID]*planner.Move
	// retry is when planning goes on after proposals failed.
	retry time.Time
	// draining holds what keeps each draining node from leaving, as of the last round.
	draining map[cluster.NodeID][]blocker
	held     bool // planning waits for reports
}

// adopt begins a new soft state when term is a new one. Every node gets a full grace (C35): a leader that
// has just begun has heard of nobody, which is no silence.
func (c *Controller) adopt(term uint64) {
	now := c.now()
	s := &c.soft
	s.Lock()
	defer s.Unlock()
	if term <= s.term {
		return // also a confirmation that was overtaken by a later leadership's
	}
	// A verdict of an earlier term needs no flag any more: this term's first entry is applied, so it is
	// either applied before it or will never be.
	s.term, s.since = term, now
	s.sessions = map[cluster.NodeID]*session{}
	s.sizes = map[cluster.PartitionID]cluster.Bytes{}
	s.dirty = map[cluster.PartitionID]struct{}{}
	// What an earlier term proposed is applied by now or will never be: invariant I8 is kept by the barrier.
	s.proposed = map[cluster.PartitionID]*planner.Move{}
	s.retry, s.onHold, s.cooling, s.away = time.Time{}, 0, 0, 0
	s.blocked, s.waiting, s.held = nil, 0, true
	s.draining = map[cluster.NodeID][]blocker{}
	c.machine.Read(func(r fsm.Reader) {
		for _, n := range r.Nodes() {
			e := &session{incarnation: n.Incarnation, last: now, dead: n.Status == cluster.NodeDead}
			if n.Flaps > 0 {
				e.since = now // a node that flaps has to stay under this leader, too
			}
			s.sessions[n.ID] = e
		}
	})
	c.wake()
}

// observe brings one session up to date with the node's record and returns it. The caller holds the lock.
func (s *soft) observe(n cluster.Node, now time.Time) *session {
	dead := n.Status == cluster.NodeDead
	e := s.sessions[n.ID]
	switch {
	case e == nil:
		e = &session{incarnation: n.Incarnation, last: now, since: now, dead: dead}
		s.sessions[n.ID] = e
	case n.Incarnation < e.incarnation:
		// Read before what the session knows already: nothing is undone by it.
	case e.incarnation != n.Incarnation:
		fresh := session{incarnation: n.Incarnation, last: now, since: e.since, dead: dead}
		if e.dead {
			fresh.since = now
		}
		s.touch(e)
		*e = fresh
	case dead:
		e.dead = true
	}
	return e
}

// of returns a node's session, or an empty one of a node that is gone meanwhile. The caller holds the lock.
func (s *soft) of(id cluster.NodeID) *session {
	if e := s.sessions[id]; e != nil {
		return e
	}
	return &session{}
}

// observeAll does so for nodes and forgets the nodes that are gone. The caller holds the soft state's lock.
//
// nodes may have been read before a node registered, so absence from it proves nothing: gone is who is not in
// the state now, and a session is made only after its node is.
func (c *Controller) observeAll(nodes []cluster.Node, now time.Time) {
	s := &c.soft
	for _, n := range nodes {
		s.observe(n, now)
	}
	if len(s.sessions) == len(nodes) {
		return
	}
	c.machine.Read(func(r fsm.Reader) {
		maps.DeleteFunc(s.sessions, func(id cluster.NodeID, _ *session) bool {
			_, known := r.Node(id)
			return !known
		})
	})
}

// silent says whether a node that is alive has not been heard of for a lease. The caller holds the lock.
func (s *soft) silent(e *session, now time.Time, lease time.Duration) bool {
	if !e.heard && s.held {
		return false // planning waits for it; placements count it in
	}
	return !e.heard || now.Sub(e.last) > lease
}

// maxFlaps bounds how often the delay of a node that flaps is doubled.
const maxFlaps = 7

// settleAfter is how long a node must have been alive before it receives: each time that it died soon after it had come
// back, twice as long.
func settleAfter(n cluster.Node, delay time.Duration) time.Duration {
	return delay << min(n.Flaps, maxFlaps)
}

// settling says whether a node joined, or came back, too recently to receive.
func (e *session) settling(n cluster.Node, now time.Time, delay time.Duration) bool {
	return !e.since.IsZero() && now.Sub(e.since) < settleAfter(n, delay)
}

// free is what is left of the node's disk: what it reported, less what has arrived since.
func (e *session) free() cluster.Bytes {
	free := e.report.DiskFree
	return free - min(free, e.landed[0]+e.landed[1])
}

// touch marks the partitions that a node reports as a destination, before and after its report changes. The caller
// holds the lock.
func (s *soft) touch(e *session) {
	for _, m := range e.report.Moves {
		s.dirty[m.Partition] = struct{}{}
	}
	for p := range e.stuck {
		s.dirty[p] = struct{}{}
	}
}

// progress is what the node reported of a move towards it; zero when it did not.
func (e *session) progress(a cluster.Assignment) cluster.MoveProgress {
	for _, m := range e.report.Moves {
		if m.Partition == a.Partition && m.MoveID == a.MoveID {
			return m
		}
	}
	return cluster.MoveProgress{}
}

// progress finds what a move's destination reported of it. The caller holds the lock.
func (s *soft) progress(a cluster.Assignment) (cluster.MoveProgress, bool) {
	e := s.sessions[a.Target]
	if e == nil {
		return cluster.MoveProgress{}, false
	}
	for _, m := range e.report.Moves {
		if m.Partition == a.Partition && m.MoveID == a.MoveID {
			return m, true
		}
	}
	return cluster.MoveProgress{}, false
}

// withRates returns moves with the rate of those that copy, as two heartbeats in a row show it. The destination's
// own figure comes at the end of a pass, which in a large partition is the end of nearly all of the copy.
func withRates(moves, before []cluster.MoveProgress, elapsed time.Duration) []cluster.MoveProgress {
	out := slices.Clone(moves)
	for i := range out {
		m := &out[i]
		k := slices.IndexFunc(before, func(b cluster.MoveProgress) bool {
			return b.Partition == m.Partition && b.MoveID == m.MoveID && b.Attempt == m.Attempt
		})
		if k < 0 || m.Phase != cluster.PhaseCatchingUp {
			continue
		}
		switch b := before[k]; {
		case m.Done > b.Done && elapsed > 0:
			m.BytesPerSecond = cluster.Bytes(float64(m.Done-b.Done) / elapsed.Seconds())
		case m.BytesPerSecond == 0:
			m.BytesPerSecond = b.BytesPerSecond
		}
	}
	return out
}

// stuckAttempts is how many attempts a waiting move may have made before it stops holding a slot.
const stuckAttempts = 3

// mark recomputes which moves towards the node are stuck, and says whether that changed. A move that
// was stuck stays so until it copies or goes on, so that a short look at its source between two
// back-offs does not take its slot back.
func (e *session) mark() bool {
	next := map[cluster.PartitionID]cluster.MoveID{}
	for _, m := range e.report.Moves {
		was := e.stuck[m.Partition] == m.MoveID
		switch m.Phase {
		case cluster.PhaseBlocked:
			next[m.Partition] = m.MoveID
		case cluster.PhaseWaiting, cluster.PhasePending:
			if was || (m.Phase == cluster.PhaseWaiting && m.Attempt >= stuckAttempts) {
				next[m.Partition] = m.MoveID
			}
		}
	}
	changed := !maps.Equal(e.stuck, next)
	e.stuck = next
	return changed
}
