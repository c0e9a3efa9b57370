package etcdraft

import (
	"sync"

	"github.com/naradctl/naradctl-plane/consensus"
)

// statusCell holds the last published status.
type statusCell struct {
	mu struct {
		sync.Mutex
		status  consensus.Status
		members *membership
		changed chan struct{}
	}
}

func (c *statusCell) init(s consensus.Status) {
	c.mu.status = s
	c.mu.changed = make(chan struct{})
}

// Status implements consensus.Backend. Lag and Active are as of the last tick.
func (b *Backend) Status() consensus.Status {
	b.status.mu.Lock()
	s := b.status.mu.status
	b.status.mu.Unlock()
	s.AppliedIndex = b.sm.AppliedIndex()
	s.CommitIndex = max(s.CommitIndex, s.AppliedIndex)
	return s
}

// Changed implements consensus.Backend.
func (b *Backend) Changed() <-chan struct{} {
	b.status.mu.Lock()
	defer b.status.mu.Unlock()
	return b.status.mu.changed
}

// publish renews the status. Between ticks it does the full work only when something changed that
// others wait for.
func (b *Backend) publish(full bool) {
	st := b.driver.Status()
	members := b.driver.members.Load()
	c := &b.status
	c.mu.Lock()
	old := c.mu.status
	changed := uint64(old.Leader) != st.Lead || old.Term != st.GetTerm() || c.mu.members != members
	c.mu.Unlock()
	if !full && !changed {
		c.mu.Lock()
		c.mu.status.CommitIndex = st.GetCommit()
		c.mu.Unlock()
		return
	}
	s := b.snapshotStatus()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.status, c.mu.members = s, members
	if changed {
		close(c.mu.changed)
		c.mu.changed = make(chan struct{})
	}
}

// snapshotStatus computes the status. Loop only. A new slice each time: readers keep theirs.
func (b *Backend) snapshotStatus() consensus.Status {
	st := b.driver.Status()
	s := consensus.Status{
		Self: b.self, Leader: consensus.ID(st.Lead), Term: st.GetTerm(), CommitIndex: st.GetCommit(), AppliedIndex: b.loop.applied,
	}
	progress := b.progress()
	leads := b.driver.leads()
	for _, m := range b.driver.members.Load().sorted() {
		ms := consensus.MemberStatus{Member: m}
		if pr, ok := progress[uint64(m.ID)]; ok {
			ms.Lag, ms.Active = b.lag(pr), b.isActive(uint64(m.ID))
			if m.ID == b.self {
				ms.Lag = 0
			}
		} else if leads {
			ms.Lag = b.driver.lastIndex
		}
		s.Members = append(s.Members, ms)
	}
	return s
}
