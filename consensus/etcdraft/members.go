package etcdraft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/naradctl/naradctl-plane/consensus"
)

// AddLearner implements consensus.Backend.
func (b *Backend) AddLearner(ctx context.Context, m consensus.Member) error {
	return b.change(ctx, func() (*raftpb.ConfChange, error) { return b.driver.LearnerChange(m) })
}

// Promote implements consensus.Backend.
func (b *Backend) Promote(ctx context.Context, id consensus.ID) error {
	return b.change(ctx, func() (*raftpb.ConfChange, error) { return b.driver.VoterChange(id, b.isActive(uint64(id))) })
}

// Remove implements consensus.Backend.
func (b *Backend) Remove(ctx context.Context, id consensus.ID) error {
	return b.change(ctx, func() (*raftpb.ConfChange, error) { return b.driver.RemoveChange(id), nil })
}

// change proposes what decide returns, once no other change is pending. decide runs in the loop of a
// confirmed leader with everything applied; nil means that there is nothing to do.
func (b *Backend) change(ctx context.Context, decide func() (*raftpb.ConfChange, error)) error {
	select {
	case b.changeMu <- struct{}{}:
		defer func() { <-b.changeMu }()
	case <-ctx.Done():
		return ctx.Err()
	case <-b.stopping.Done():
		return b.stopError()
	}
	if _, err := b.LeaderBarrier(ctx); err != nil {
		return err
	}
	for {
		err := b.changeOnce(ctx, decide)
		if !errors.Is(err, errPending) {
			return err
		}
		retry := time.NewTimer(b.cfg.TickInterval)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return ctx.Err()
		case <-b.stopping.Done():
			retry.Stop()
			return b.stopError()
		}
	}
}

func (b *Backend) changeOnce(ctx context.Context, decide func() (*raftpb.ConfChange, error)) error {
	w, err := b.waiters.add(true)
	if err != nil {
		return err
	}
	defer b.waiters.drop(w)
	errDone := errors.New("nothing to change")
	_, _, err = b.propose(ctx, w, func() error {
		if !b.driver.leads() {
			return consensus.ErrNotLeader
		}
		cc, err := decide()
		if err != nil {
			return err
		}
		if cc == nil {
			return errDone
		}
		// Asked here as well as at apply, to answer at once what can be.
		if err := b.driver.CheckChange(cc); err != nil {
			return err
		}
		return b.driver.ProposeChange(w.id, cc)
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// progress is the leader's view of the members; nil elsewhere. Loop only.
func (b *Backend) progress() map[uint64]tracker.Progress { return b.driver.progress() }

func (b *Backend) lag(pr tracker.Progress) uint64 { return b.driver.lag(pr) }

func (b *Backend) isActive(id uint64) bool {
	if id == uint64(b.self) {
		return true
	}
	heard, ok := b.loop.lastHeard[id]
	return ok && b.loop.ticks-heard < uint64(b.cfg.ElectionTicks)
}

type transferWait struct {
	to       uint64
	deadline uint64
	ch       chan error
}

// TransferLeadership implements consensus.Backend.
func (b *Backend) TransferLeadership(ctx context.Context, to consensus.ID) error {
	w := &transferWait{ch: make(chan error, 1)}
	err := b.post(ctx, func() {
		target, err := b.transferTarget(uint64(to))
		if err != nil || target == uint64(b.self) {
			w.ch <- err
			return
		}
		w.to, w.deadline = target, b.loop.ticks+2*uint64(b.cfg.ElectionTicks)
		b.loop.transfers = append(b.loop.transfers, w)
		b.driver.TransferLeadership(consensus.ID(target))
	})
	if err != nil {
		return err
	}
	select {
	case err := <-w.ch:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-b.done:
		return b.stopError()
	}
}

// transferTarget picks or checks the voter to hand over to.
func (b *Backend) transferTarget(to uint64) (uint64, error) {
	if !b.driver.leads() {
		return 0, consensus.ErrNotLeader
	}
	ms, progress := b.driver.members.Load(), b.progress()
	if to != 0 {
		if !ms.isVoter(consensus.ID(to)) {
			return 0, fmt.Errorf("member %d is no voter", to)
		}
		if !b.isActive(to) {
			return 0, fmt.Errorf("member %d was not heard of: %w", to, consensus.ErrNotReady)
		}
		return to, nil
	}
	best := uint64(0)
	for _, id := range ms.conf.GetVoters() {
		if id == uint64(b.self) || !b.isActive(id) {
			continue
		}
		if best == 0 || progress[id].Match > progress[best].Match {
			best = id
		}
	}
	if best == 0 {
		return 0, fmt.Errorf("no other voter was heard of: %w", consensus.ErrNotReady)
	}
	return best, nil
}

// checkTransfers answers hand-overs once another member leads.
func (b *Backend) checkTransfers() {
	if lead := b.loop.leaderID; lead == 0 || lead == uint64(b.self) {
		return
	}
	for _, w := range b.loop.transfers {
		w.ch <- nil
	}
	b.loop.transfers = nil
}

func (b *Backend) tickTransfers() {
	out := b.loop.transfers[:0]
	for _, w := range b.loop.transfers {
		if b.loop.ticks < w.deadline {
			out = append(out, w)
			continue
		}
		w.ch <- fmt.Errorf("member %d did not take over in time: %w", w.to, consensus.ErrNotReady)
	}
	b.loop.transfers = out
}
