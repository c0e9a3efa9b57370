package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
)

// backend is consensus.Backend over a controller's driver. A call parks the proc that its context carries, so that the real
// controller's straight-line code runs in a proc.
type backend struct{ c *controller }

var _ consensus.Backend = backend{}

type procKey struct{}

// ctx is a context for code that is driven by p.
func (p *proc) ctx() context.Context { return context.WithValue(context.Background(), procKey{}, p) }

func procOf(ctx context.Context) *proc { return ctx.Value(procKey{}).(*proc) }

// Propose implements consensus.Backend.
func (b backend) Propose(ctx context.Context, command []byte) (any, uint64, error) {
	c := b.c
	c.seq++
	id := etcdraft.ProposalID{Nonce: c.id<<32 | c.runs, Seq: c.seq}
	if err := c.driver.Propose(id, command); err != nil {
		return nil, 0, err
	}
	e, ok := c.applied(procOf(ctx), id)
	if !ok {
		return nil, 0, consensus.ErrOutcomeUnknown
	}
	return e.Result, e.Index, nil
}

// applied waits for an entry.
func (c *controller) applied(p *proc, id etcdraft.ProposalID) (etcdraft.AppliedEntry, bool) {
	e, ok := await(p, proposeTimeout, func(done func(etcdraft.AppliedEntry)) {
		c.waiting[id] = done
		c.schedule()
	})
	delete(c.waiting, id)
	return e, ok
}

// Barrier implements consensus.Backend. A question that got no answer is asked again: messages get lost.
func (b backend) Barrier(ctx context.Context) error {
	p, c := procOf(ctx), b.c
	for range 3 {
		if index, ok := c.readIndex(p, barrierTimeout/2); ok {
			return c.reach(p, index)
		}
	}
	return context.DeadlineExceeded
}

// LeaderBarrier implements consensus.Backend.
func (b backend) LeaderBarrier(ctx context.Context) (uint64, error) {
	p, c := procOf(ctx), b.c
	if !c.leads() || !c.driver.OwnTermApplied() {
		return 0, consensus.ErrNotLeader
	}
	term := c.driver.Status().GetTerm()
	index, ok := c.readIndex(p, barrierTimeout)
	if !ok {
		return 0, context.DeadlineExceeded
	}
	if err := c.reach(p, index); err != nil {
		return 0, err
	}
	if !c.leads() || c.driver.Status().GetTerm() != term {
		return 0, consensus.ErrNotLeader
	}
	return term, nil
}

func (c *controller) readIndex(p *proc, timeout time.Duration) (uint64, bool) {
	c.seq++
	key := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.id<<32|c.runs), c.seq)
	index, ok := await(p, timeout, func(done func(uint64)) {
		c.reads[string(key)] = done
		m := &raftpb.Message{Type: raftpb.MsgReadIndex.Enum(), From: new(c.id), To: new(c.id), Entries: []*raftpb.Entry{{Data: key}}}
		if err := c.driver.Step(m); err != nil {
			c.w.violated("I1", "%s: read: %v", c.host, err)
		}
		c.schedule()
	})
	delete(c.reads, string(key))
	return index, ok
}

func (c *controller) reach(p *proc, index uint64) error {
	for n := 0; c.machine.AppliedIndex() < index; n++ {
		if n == 400 {
			return context.DeadlineExceeded
		}
		p.sleep(5 * time.Millisecond)
	}
	return nil
}

// Status implements consensus.Backend.
func (b backend) Status() consensus.Status {
	c := b.c
	st := c.driver.Status()
	s := consensus.Status{
		Self: consensus.ID(c.id), Leader: consensus.ID(st.Lead), Term: st.GetTerm(), CommitIndex: st.GetCommit(), AppliedIndex: c.machine.AppliedIndex(),
	}
	for _, m := range c.driver.Members() {
		s.Members = append(s.Members, consensus.MemberStatus{Member: m, Active: c.active(uint64(m.ID))})
	}
	return s
}

// active says that a member was heard of within an election time-out, or that this one has not led for so long.
func (c *controller) active(id uint64) bool {
	return id == c.id || c.w.now-max(c.heard[id], c.leadsSince) < electionTicks*tickEvery
}

// Changed implements consensus.Backend; nobody waits for it here.
func (backend) Changed() <-chan struct{} { return nil }

// AddLearner implements consensus.Backend.
func (b backend) AddLearner(ctx context.Context, m consensus.Member) error {
	return b.change(ctx, func() (*raftpb.ConfChange, error) { return b.c.driver.LearnerChange(m) })
}

// Promote implements consensus.Backend.
func (b backend) Promote(ctx context.Context, id consensus.ID) error {
	return b.change(ctx, func() (*raftpb.ConfChange, error) { return b.c.driver.VoterChange(id, b.c.active(uint64(id))) })
}

// Remove implements consensus.Backend.
func (b backend) Remove(ctx context.Context, id consensus.ID) error {
	return b.change(ctx, func() (*raftpb.ConfChange, error) { return b.c.driver.RemoveChange(id), nil })
}

// change proposes what decide returns, once no other change is pending.
func (b backend) change(ctx context.Context, decide func() (*raftpb.ConfChange, error)) error {
	c, p := b.c, procOf(ctx)
	if _, err := b.LeaderBarrier(ctx); err != nil {
		return err
	}
	for range 20 {
		if !c.leads() {
			return consensus.ErrNotLeader
		}
		cc, err := decide()
		if cc == nil || err != nil {
			return err
		}
		if err := c.driver.CheckChange(cc); err != nil {
			return err
		}
		c.seq++
		id := etcdraft.ProposalID{Seq: c.id<<48 | c.runs<<32 | c.seq}
		switch err := c.driver.ProposeChange(id, cc); {
		case err == nil:
			e, ok := c.applied(p, id)
			if !ok {
				return consensus.ErrOutcomeUnknown
			}
			return e.Err
		case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrBusy):
			return err
		}
		p.sleep(tickEvery) // another change is pending
	}
	return context.DeadlineExceeded
}

// TransferLeadership implements consensus.Backend.
func (b backend) TransferLeadership(ctx context.Context, to consensus.ID) error {
	c, p := b.c, procOf(ctx)
	if !c.leads() {
		return consensus.ErrNotLeader
	}
	for _, m := range c.driver.Members() {
		if to == 0 && uint64(m.ID) != c.id && m.Role == consensus.Voter && c.active(uint64(m.ID)) {
			to = m.ID
		}
	}
	if to == 0 || !c.active(uint64(to)) {
		return fmt.Errorf("no other voter was heard of: %w", consensus.ErrNotReady)
	}
	c.driver.TransferLeadership(to)
	c.schedule()
	for range 2 * electionTicks {
		p.sleep(tickEvery)
		if lead := c.driver.Status().Lead; lead != raft.None && lead != c.id {
			return nil
		}
	}
	return fmt.Errorf("member %d did not take over: %w", to, consensus.ErrNotReady)
}

// Done implements consensus.Backend.
func (backend) Done() <-chan struct{} { return nil }

// Err implements consensus.Backend.
func (backend) Err() error { return nil }

// Stop implements consensus.Backend; a controller's life ends by crash.
func (backend) Stop() error { return nil }
