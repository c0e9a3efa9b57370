package etcdraft

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
)

const (
	// peerQueue bounds messages that wait for one peer. When full, new ones are dropped: raft repeats them.
	peerQueue = 1024
	// peerBatchBytes is where a batch stops taking further messages.
	peerBatchBytes = 2 << 20
	// complainEvery is how often the same trouble with a peer is logged.
	complainEvery = 10 * time.Second
)

// peer sends to one member, on one stream at a time: that keeps messages in order, and none waits for the answer to another.
// Those that come while a batch is written share the next.
type peer struct {
	t      *transport
	member consensus.Member
	queue  chan *raftpb.Message
	ctx    context.Context
	cancel context.CancelFunc

	// Of run's goroutine.
	stream     *outStream // nil while there is none
	frames     []byte
	failing    bool
	complained time.Time
}

func newPeer(t *transport, m consensus.Member) *peer {
	p := &peer{t: t, member: m, queue: make(chan *raftpb.Message, peerQueue)}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	return p
}

// offer queues m; nil asks only for the peer's opinion of this member.
func (p *peer) offer(m *raftpb.Message) bool {
	select {
	case p.queue <- m:
		return true
	default:
		return m == nil
	}
}

func (p *peer) run() {
	defer p.cancel()
	defer p.drop()
	for {
		// Without a stream there is nothing that could end.
		var ended chan struct{}
		if p.stream != nil {
			ended = p.stream.ended
		}
		select {
		case <-p.ctx.Done():
			return
		case <-ended:
			err := p.stream.err()
			p.drop()
			p.settle(err)
		case m := <-p.queue:
			err := p.send(m)
			if p.ctx.Err() != nil {
				return
			}
			p.settle(err)
		}
	}
}

// send writes first and what else waits, on a fresh stream if need be.
func (p *peer) send(first *raftpb.Message) error {
	if p.stream == nil {
		s, err := p.t.openStream(p.ctx, p.member)
		if err != nil {
			return err
		}
		p.stream = s
	}
	n, err := p.collect(first)
	if err == nil {
		err = p.stream.write(p.frames, n)
	}
	if err != nil {
		p.drop()
	}
	return err
}

// drop ends the stream: a fresh connection is the best bet.
func (p *peer) drop() {
	if p.stream != nil {
		p.stream.close()
		p.stream = nil
	}
}

// collect makes frames of first and of what else waits.
func (p *peer) collect(first *raftpb.Message) (n int, err error) {
	if cap(p.frames) > peerBatchBytes {
		p.frames = nil // a rare large batch does not pin its memory
	}
	p.frames = p.frames[:0]
	for m := first; ; {
		if p.frames, err = appendFrame(p.frames, m); err != nil {
			return n, err
		}
		if n++; len(p.frames) >= peerBatchBytes {
			return n, nil
		}
		select {
		case m = <-p.queue:
		default:
			return n, nil
		}
	}
}

// judge reads a peer's answer. One that says that this member was removed is acted upon.
func (t *transport) judge(m consensus.Member, resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	switch {
	case resp.StatusCode == http.StatusGone:
		b := t.backend()
		_ = b.post(t.ctx, func() { b.toldRemoved(m.ID) })
		return fmt.Errorf("%w: %s", errRefusedByPeer, strings.TrimSpace(string(text)))
	case resp.StatusCode >= 300:
		return fmt.Errorf("%w: %s: %s", errRefusedByPeer, resp.Status, strings.TrimSpace(string(text)))
	}
	return err
}

// settle logs changes of the peer's state, and after a failure drops what is stale and waits a tick.
func (p *peer) settle(err error) {
	if err == nil {
		if p.failing {
			p.failing = false
			p.complained = time.Time{}
			p.t.log.Info("peer answers again", zap.String("peer", p.member.Name))
		}
		return
	}
	p.failing = true
	if time.Since(p.complained) > complainEvery {
		p.complained = time.Now()
		p.t.log.Warn("peer does not take messages; trying on", zap.String("peer", p.member.Name),
			zap.String("address", p.member.Address), zap.Error(err))
	}
	p.t.unreachable(p.member.ID)
	pause := time.NewTimer(p.t.cfg.TickInterval)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-p.ctx.Done():
	}
	for {
		select {
		case <-p.queue:
		default:
			return
		}
	}
}
