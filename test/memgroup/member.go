package memgroup

import (
	"context"
	"sync"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
)

// Member is one member of a Group; it implements consensus.Backend. Its fields are under the group's lock.
type Member struct {
	g       *Group
	id      consensus.ID
	Machine *fsm.Machine

	applied int
	lagging bool
	changed chan struct{}
	caught  chan struct{} // closed when applied grows; nil when nobody waits
	done    chan struct{}
	stop    sync.Once
}

var _ consensus.Backend = (*Member)(nil)

func (m *Member) applyLocked() {
	g := m.g
	for m.applied < g.mu.committed && !m.lagging && !m.stopped() {
		e := g.mu.log[m.applied]
		m.applied++
		results, err := m.Machine.Apply([]fsm.Entry{{Index: uint64(m.applied), Command: e.command}})
		if err != nil {
			g.tb.Errorf("member %d: apply entry %d: %v", m.id, m.applied, err)
			return
		}
		if e.at == m.id {
			e.result = results[0]
			close(e.done)
		}
	}
	if m.caught != nil {
		close(m.caught)
		m.caught = nil
	}
}

func (m *Member) notifyLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Member) stopped() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Propose implements consensus.Backend.
func (m *Member) Propose(ctx context.Context, command []byte) (any, uint64, error) {
	g := m.g
	g.mu.Lock()
	if m.stopped() {
		g.mu.Unlock()
		return nil, 0, consensus.ErrStopped
	}
	if g.mu.leader != m.id {
		g.mu.Unlock()
		return nil, 0, consensus.ErrNotLeader
	}
	e := &entry{term: g.mu.term, command: command, done: make(chan struct{}), at: m.id}
	g.mu.log = append(g.mu.log, e)
	index := uint64(len(g.mu.log))
	g.commitLocked()
	g.mu.Unlock()
	select {
	case <-e.done:
		if e.lost {
			return nil, 0, consensus.ErrOutcomeUnknown
		}
		return e.result, index, nil
	case <-ctx.Done():
		return nil, 0, consensus.ErrOutcomeUnknown
	case <-m.done:
		return nil, 0, consensus.ErrStopped
	}
}

// Barrier implements consensus.Backend.
func (m *Member) Barrier(ctx context.Context) error {
	g := m.g
	g.mu.Lock()
	if g.mu.leader == 0 {
		g.mu.Unlock()
		return consensus.ErrNotLeader
	}
	need := g.mu.committed
	g.mu.Unlock()
	for {
		g.mu.Lock()
		if m.stopped() {
			g.mu.Unlock()
			return consensus.ErrStopped
		}
		if m.applied >= need {
			g.mu.Unlock()
			return nil
		}
		if m.caught == nil {
			m.caught = make(chan struct{})
		}
		caught := m.caught
		g.mu.Unlock()
		select {
		case <-caught:
		case <-m.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// LeaderBarrier implements consensus.Backend.
func (m *Member) LeaderBarrier(ctx context.Context) (uint64, error) {
	g := m.g
	g.mu.Lock()
	leads, term := g.mu.leader == m.id, g.mu.term
	g.mu.Unlock()
	if !leads {
		return 0, consensus.ErrNotLeader
	}
	if err := m.Barrier(ctx); err != nil {
		return 0, err
	}
	return term, nil
}

// Status implements consensus.Backend.
func (m *Member) Status() consensus.Status {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	return consensus.Status{
		Self: m.id, Leader: g.mu.leader, Term: g.mu.term, CommitIndex: uint64(g.mu.committed), AppliedIndex: uint64(m.applied),
		Members: append([]consensus.MemberStatus(nil), g.mu.config...),
	}
}

// Changed implements consensus.Backend.
func (m *Member) Changed() <-chan struct{} {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	return m.changed
}

// configure changes the membership at the leader.
func (m *Member) configure(change func(config []consensus.MemberStatus) ([]consensus.MemberStatus, error)) error {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.leader != m.id {
		return consensus.ErrNotLeader
	}
	next, err := change(append([]consensus.MemberStatus(nil), g.mu.config...))
	if err != nil {
		return err
	}
	g.mu.config = next
	g.notifyLocked()
	return nil
}

// AddLearner implements consensus.Backend.
func (m *Member) AddLearner(_ context.Context, add consensus.Member) error {
	return m.configure(func(config []consensus.MemberStatus) ([]consensus.MemberStatus, error) {
		for _, c := range config {
			if c.ID == add.ID {
				return config, nil
			}
		}
		add.Role = consensus.Learner
		return append(config, consensus.MemberStatus{Member: add, Active: true}), nil
	})
}

// Promote implements consensus.Backend.
func (m *Member) Promote(_ context.Context, id consensus.ID) error {
	return m.configure(func(config []consensus.MemberStatus) ([]consensus.MemberStatus, error) {
		if !m.g.mu.ready[id] {
			return nil, consensus.ErrNotReady
		}
		for i := range config {
			if config[i].ID == id {
				config[i].Role = consensus.Voter
			}
		}
		return config, nil
	})
}

// Remove implements consensus.Backend.
func (m *Member) Remove(_ context.Context, id consensus.ID) error {
	return m.configure(func(config []consensus.MemberStatus) ([]consensus.MemberStatus, error) {
		var next []consensus.MemberStatus
		for _, c := range config {
			if c.ID != id {
				next = append(next, c)
			}
		}
		return next, nil
	})
}

// TransferLeadership implements consensus.Backend.
func (m *Member) TransferLeadership(_ context.Context, to consensus.ID) error {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.leader != m.id {
		return consensus.ErrNotLeader
	}
	for _, c := range g.mu.config {
		if c.Role == consensus.Voter && c.ID != m.id && c.Active && (to == 0 || to == c.ID) {
			g.leadLocked(c.ID)
			return nil
		}
	}
	return consensus.ErrNotReady
}

// Done implements consensus.Backend.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err implements consensus.Backend.
func (m *Member) Err() error { return nil }

// Stop implements consensus.Backend.
func (m *Member) Stop() error {
	m.stop.Do(func() { close(m.done) })
	return nil
}
