package etcdraft

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
)

const (
	// peerQueue bounds messages that wait for one peer. When full, new ones are dropped: raft repeats them.
	peerQueue = 1024
	// peerBatchBytes is where a post stops taking further messages.
	peerBatchBytes = 2 << 20
	// complainEvery is how often the same trouble with a peer is logged.
	complainEvery = 10 * time.Second
)

// peer sends to one member, one post at a time: that keeps messages in order, and those that come
// meanwhile share the next post.
type peer struct {
	t      *transport
	member consensus.Member
	queue  chan *raftpb.Message
	ctx    context.Context
	cancel context.CancelFunc

	failing    bool
	complained time.Time
}

func newPeer(t *transport, m consensus.Member) *peer {
	p := &peer{t: t, member: m, queue: make(chan *raftpb.Message, peerQueue)}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	return p
}

// offer queues m; nil asks only for the peer's answer.
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
	for {
		select {
		case <-p.ctx.Done():
			return
		case m := <-p.queue:
			err := p.post(p.collect(m))
			if p.ctx.Err() != nil {
				return
			}
			p.settle(err)
		}
	}
}

// collect takes what else waits.
func (p *peer) collect(first *raftpb.Message) []*raftpb.Message {
	var out []*raftpb.Message
	size := 0
	for m := first; ; {
		if m != nil {
			out = append(out, m)
			size += proto.Size(m)
		}
		if size >= peerBatchBytes {
			return out
		}
		select {
		case m = <-p.queue:
		default:
			return out
		}
	}
}

// post sends messages and waits for the answer, at most an election time-out: then the network drops packets
// without a word, and a fresh connection is the best bet.
func (p *peer) post(ms []*raftpb.Message) error {
	b := p.t.backend()
	env := p.t.envelope(b, p.member)
	for _, m := range ms {
		raw, err := proto.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode a raft message: %w", err)
		}
		env.Messages = append(env.Messages, raw)
	}
	body, err := proto.Marshal(env)
	if err != nil {
		return fmt.Errorf("encode raft messages: %w", err)
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.t.cfg.electionTimeout())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.t.url(p.member.Address, pathMessages), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("post raft messages: %w", err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set(headerAddress, p.t.cfg.AdvertiseAddress)
	resp, err := p.t.client.Do(req)
	if err != nil {
		return err
	}
	return p.t.judge(p.member, resp)
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
