package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/naradctl/naradctl-plane/consensus"
)

// promoteLag is how many entries a learner may be behind to be made a voter.
const promoteLag = 100

// Status implements consensus.Backend. A member that is cut off sees no leader.
func (b *Backend) Status() consensus.Status {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	s := consensus.Status{Self: b.id, Term: b.c.mu.term, AppliedIndex: b.sm.AppliedIndex()}
	if b.c.reachable(b.id) {
		s.Leader = b.c.mu.leader
		s.CommitIndex = b.c.last()
	}
	s.CommitIndex = max(s.CommitIndex, s.AppliedIndex)
	var cf conf
	if raw := b.sm.Metadata(); raw != nil {
		if err := json.Unmarshal(raw, &cf); err != nil {
			return s // Only a foreign state machine has another record; its members are unknown here.
		}
	}
	for _, m := range cf.sorted() {
		ms := consensus.MemberStatus{Member: m}
		if s.IsLeader() {
			ms.Active = b.c.reachable(m.ID)
			ms.Lag = b.c.lag(m.ID)
		}
		s.Members = append(s.Members, ms)
	}
	return s
}

// lag is how far a member is behind. Callers hold the lock.
func (c *Cluster) lag(id consensus.ID) uint64 {
	n := c.mu.nodes[id]
	if n == nil {
		return c.last()
	}
	return c.last() - min(n.sm.AppliedIndex(), c.last())
}

// Changed implements consensus.Backend.
func (b *Backend) Changed() <-chan struct{} {
	b.seen.Lock()
	defer b.seen.Unlock()
	return b.seen.changed
}

// change commits the configuration that edit makes of a copy.
func (b *Backend) change(ctx context.Context, edit func(*conf) error) error {
	_, _, err := b.commit(ctx, func() ([]byte, []byte, error) {
		cf := b.c.mu.conf.clone()
		if err := edit(&cf); err != nil {
			return nil, nil, err
		}
		b.c.mu.conf = cf
		return nil, cf.encode(), nil
	})
	if errors.Is(err, errNoChange) {
		err = nil
	}
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.c.settle()
	return err
}

// AddLearner implements consensus.Backend.
func (b *Backend) AddLearner(ctx context.Context, m consensus.Member) error {
	return b.change(ctx, func(cf *conf) error {
		if cf.Removed[m.ID] || m.ID == 0 {
			return fmt.Errorf("member id %d was removed and never comes back", m.ID)
		}
		if old, ok := cf.Members[m.ID]; ok {
			if old.Name == m.Name && old.Address == m.Address && old.StoreID == m.StoreID {
				return errNoChange
			}
			return fmt.Errorf("member id %d is taken by %s", m.ID, old.Name)
		}
		m.Role = consensus.Learner
		cf.Members[m.ID] = m
		return nil
	})
}

// Promote implements consensus.Backend.
func (b *Backend) Promote(ctx context.Context, id consensus.ID) error {
	return b.change(ctx, func(cf *conf) error {
		m, ok := cf.Members[id]
		switch {
		case !ok:
			return fmt.Errorf("member %d is unknown", id)
		case m.Role == consensus.Voter:
			return errNoChange
		case !b.c.reachable(id) || b.c.lag(id) > promoteLag:
			return consensus.ErrNotReady
		}
		m.Role = consensus.Voter
		cf.Members[id] = m
		return nil
	})
}

// Remove implements consensus.Backend.
func (b *Backend) Remove(ctx context.Context, id consensus.ID) error {
	return b.change(ctx, func(cf *conf) error {
		m, ok := cf.Members[id]
		if !ok {
			return errNoChange
		}
		voters := 0
		for _, o := range cf.Members {
			if o.Role == consensus.Voter {
				voters++
			}
		}
		if m.Role == consensus.Voter && voters == 1 {
			return fmt.Errorf("member %d is the last voter", id)
		}
		delete(cf.Members, id)
		cf.Removed[id] = true
		return nil
	})
}

// TransferLeadership implements consensus.Backend.
func (b *Backend) TransferLeadership(_ context.Context, to consensus.ID) error {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	select {
	case <-b.done:
		return b.stopError()
	default:
	}
	if !b.leading() {
		return consensus.ErrNotLeader
	}
	if to == b.id {
		return nil
	}
	for _, m := range b.c.mu.conf.sorted() {
		if (to == 0 && m.ID != b.id || to == m.ID) && b.c.electable(m.ID) {
			b.c.elect(m.ID)
			return nil
		}
	}
	return consensus.ErrNotReady
}
