package etcdraft

import (
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
)

// lingerElections bounds, in election time-outs, how long a removed member waits for the others.
const lingerElections = 5

// removal is the end of a member that has applied its own removal. The others may not know yet that the
// entry is committed, and until they do, they may need this member's vote to elect a leader. So it stays
// until a quorum of them answers that it was removed.
type removal struct {
	deadline  uint64
	voters    map[consensus.ID]bool
	confirmed map[consensus.ID]bool
}

// checkOwnRemoval begins the end when this member is no longer in the configuration.
func (b *Backend) checkOwnRemoval() {
	ms := b.driver.members.Load()
	if !ms.removed[b.self] || b.loop.removal != nil {
		return
	}
	r := &removal{
		deadline:  b.loop.ticks + lingerElections*uint64(b.cfg.ElectionTicks),
		voters:    map[consensus.ID]bool{},
		confirmed: map[consensus.ID]bool{},
	}
	for _, id := range ms.conf.GetVoters() {
		r.voters[consensus.ID(id)] = true
	}
	b.loop.removal = r
	b.log.Warn("this member was removed; it stops when the others know", zap.Uint64("id", uint64(b.self)))
	b.transport.ping(ms)
}

func (b *Backend) tickRemoval() {
	r := b.loop.removal
	if r == nil {
		return
	}
	if b.loop.ticks >= r.deadline {
		b.fail(removedError(b.cfg.Name, b.self))
		return
	}
	b.transport.ping(b.driver.members.Load())
}

// toldRemoved is called when a peer answered that this member was removed. Final: a peer says so only after
// it applied the removal.
func (b *Backend) toldRemoved(by consensus.ID) {
	r := b.loop.removal
	if r == nil {
		// The removal never reached this member, so it was committed without it.
		b.fail(removedError(b.cfg.Name, b.self))
		return
	}
	if r.voters[by] {
		r.confirmed[by] = true
	}
	if len(r.confirmed) > len(r.voters)/2 {
		b.fail(removedError(b.cfg.Name, b.self))
	}
}
