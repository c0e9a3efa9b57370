// Package memgroup is a consensus group in one process for tests of what stands on consensus.Backend: the
// members share a log in memory, and the test decides who leads, what is committed, and who is cut off.
//
// It is no consensus: there is no vote and no disk. What it keeps are the contract's rules that callers
// rely on: one order for all, proposals at the leader only, unknown outcomes where a proposal was not
// committed in time, barriers that wait for what is committed, and a new term's first entry.
//
// All methods are safe for concurrent use. Files: memgroup.go (the group and its switches), member.go (the
// Backend).
package memgroup

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
)

// Group is the log and its members.
type Group struct {
	tb testing.TB
	mu struct {
		sync.Mutex
		term      uint64
		leader    consensus.ID
		log       []*entry
		committed int // entries of log
		held      bool
		config    []consensus.MemberStatus
		ready     map[consensus.ID]bool // learners that may be promoted
	}
	members []*Member
}

type entry struct {
	term    uint64
	command []byte
	result  any
	done    chan struct{} // closed when it is applied at the proposer, or lost
	lost    bool
	at      consensus.ID
}

// New returns a group of n voters named ctl-1 to ctl-n, each with a state machine in memory, without a
// leader. address gives a member's address by number, from 1; nil gives them made-up ones. Everything is
// closed when the test ends.
func New(tb testing.TB, n int, address func(i int) string, opts fsm.Options) *Group {
	tb.Helper()
	g := &Group{tb: tb}
	g.mu.ready = map[consensus.ID]bool{}
	if address == nil {
		address = func(i int) string { return fmt.Sprintf("127.0.0.1:%d", 7100+i) }
	}
	for i := 1; i <= n; i++ {
		o := opts
		o.FS = vfs.NewMem()
		machine, err := fsm.Open("state", o)
		if err != nil {
			tb.Fatalf("open state machine: %v", err)
		}
		m := &Member{g: g, id: consensus.ID(i), Machine: machine, done: make(chan struct{})}
		m.changed = make(chan struct{})
		g.members = append(g.members, m)
		g.mu.config = append(g.mu.config, consensus.MemberStatus{Active: true, Member: consensus.Member{
			ID: consensus.ID(i), Name: fmt.Sprintf("ctl-%d", i), Address: address(i), StoreID: fmt.Sprintf("store-ctl-%d", i), Role: consensus.Voter,
		}})
	}
	tb.Cleanup(func() {
		for _, m := range g.members {
			if err := m.Stop(); err != nil {
				tb.Errorf("stop member: %v", err)
			}
			if err := m.Machine.Close(); err != nil {
				tb.Errorf("close state machine: %v", err)
			}
		}
	})
	return g
}

// Member returns member number i, from 1.
func (g *Group) Member(i int) *Member { return g.members[i-1] }

// Lead makes member i the leader of a new term; zero leaves the group without one. Proposals that were
// not committed are lost.
func (g *Group) Lead(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leadLocked(consensus.ID(i))
}

func (g *Group) leadLocked(id consensus.ID) {
	for _, e := range g.mu.log[g.mu.committed:] {
		e.lost = true
		close(e.done)
	}
	g.mu.log = g.mu.log[:g.mu.committed]
	g.mu.leader = id
	if id != 0 {
		g.mu.term++
		g.mu.log = append(g.mu.log, &entry{term: g.mu.term, done: make(chan struct{}), at: id})
		g.commitLocked()
	}
	g.notifyLocked()
}

// Hold keeps proposals in the log without committing them, until Release.
func (g *Group) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.held = true
}

// Release commits what was held.
func (g *Group) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.held = false
	g.commitLocked()
}

// Held is how many proposals are in the log and not committed.
func (g *Group) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.log) - g.mu.committed
}

// SetActive says whether the leader hears of a member.
func (g *Group) SetActive(i int, active bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for j := range g.mu.config {
		if g.mu.config[j].ID == consensus.ID(i) {
			g.mu.config[j].Active = active
		}
	}
	g.notifyLocked()
}

// CatchUp lets a learner be promoted.
func (g *Group) CatchUp(id consensus.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.ready[id] = true
}

// Lag keeps member i from applying, as a slow follower; Catch lets it go on.
func (g *Group) Lag(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members[i-1].lagging = true
}

// Catch ends Lag.
func (g *Group) Catch(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members[i-1].lagging = false
	g.applyLocked()
}

func (g *Group) commitLocked() {
	if g.mu.held {
		return
	}
	g.mu.committed = len(g.mu.log)
	g.applyLocked()
}

func (g *Group) applyLocked() {
	for _, m := range g.members {
		m.applyLocked()
	}
}

func (g *Group) notifyLocked() {
	for _, m := range g.members {
		m.notifyLocked()
	}
}
