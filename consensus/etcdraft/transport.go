package etcdraft

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

const (
	pathStream   = "/raft/v1/stream"
	pathSnapshot = "/raft/v1/snapshot"
	pathIdentity = "/raft/v1/identity"
	// headerAddress carries the sender's address, for a receiver that does not know the sender yet.
	headerAddress = "Naradplane-Raft-Address"
	contentType   = "application/x-protobuf"
)

// transport carries raft messages between members: one queue and one stream for each peer. It may lose
// messages, and says so to raft; it never delays the loop.
type transport struct {
	cfg    Config
	dir    *dataDir
	log    *zap.Logger
	client *http.Client
	own    *http.Transport
	spool  *spool

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		closed  bool
		backend *Backend
		members *membership
		// book holds members that are not in members: those to join by, and those that the log will bring.
		book      map[consensus.ID]consensus.Member
		peers     map[consensus.ID]*peer
		snapshots map[consensus.ID]bool
		inbound   map[*inbound]bool
	}
}

func newTransport(cfg Config, dir *dataDir, log *zap.Logger) *transport {
	t := &transport{cfg: cfg, dir: dir, log: log.Named("raft-transport"), spool: &spool{path: dir.path(spoolFile)}}
	rt := cfg.RoundTripper
	if rt == nil {
		t.own = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: cfg.electionTimeout(), KeepAlive: 15 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
		}
		rt = t.own
	}
	// Redirects are never part of this protocol.
	t.client = &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.mu.members = emptyMembership("")
	t.mu.book = map[consensus.ID]consensus.Member{}
	t.mu.peers = map[consensus.ID]*peer{}
	t.mu.snapshots = map[consensus.ID]bool{}
	t.mu.inbound = map[*inbound]bool{}
	return t
}

// attach opens the transport for a running member.
func (t *transport) attach(b *Backend) {
	boot := t.dir.bootstrap()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.backend = b
	t.mu.members = b.driver.members.Load()
	for _, p := range boot.GetMembers() {
		m := memberFromProto(p)
		if !t.mu.members.removed[m.ID] && m.ID != b.self {
			t.mu.book[m.ID] = m
		}
	}
}

func (t *transport) close() {
	t.mu.Lock()
	t.mu.closed = true
	for in := range t.mu.inbound {
		_ = in.conn.Close() // ends its handler
	}
	t.mu.Unlock()
	t.cancel()
	t.wg.Wait()
	if t.own != nil {
		t.own.CloseIdleConnections()
	}
	t.spool.discard()
}

// membersChanged takes over a new configuration. Queues to members that left are closed.
func (t *transport) membersChanged(ms *membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.members = ms
	for id := range ms.removed {
		delete(t.mu.book, id)
	}
	for id, p := range t.mu.peers {
		// A peer that was known by hearsay is dialled as the log says from now on.
		if m, ok := ms.members[id]; ms.removed[id] || (ok && !sameMember(m, p.member)) {
			p.cancel()
			delete(t.mu.peers, id)
		}
	}
}

// lookup finds a member's record. Callers hold t.mu.
func (t *transport) lookup(id consensus.ID) (consensus.Member, bool) {
	if m, ok := t.mu.members.members[id]; ok {
		return m, true
	}
	m, ok := t.mu.book[id]
	return m, ok
}

// send queues messages for their receivers. It never blocks; what does not fit is dropped and reported to
// raft at once: only the loop calls it.
func (t *transport) send(ms []*raftpb.Message) {
	for _, m := range ms {
		id := consensus.ID(m.GetTo())
		if m.GetType() == raftpb.MsgSnap {
			t.sendSnapshot(id, m)
			continue
		}
		if p := t.peer(id); p == nil || !p.offer(m) {
			t.backend().driver.rn.ReportUnreachable(uint64(id))
		}
	}
}

// ping asks all members whether they still know this one.
func (t *transport) ping(ms *membership) {
	for id := range ms.members {
		if p := t.peer(id); p != nil {
			p.offer(nil)
		}
	}
}

// peer returns the queue to a member, made when it is first needed; nil when its address is unknown.
func (t *transport) peer(id consensus.ID) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.mu.peers[id]; ok {
		return p
	}
	m, ok := t.lookup(id)
	if !ok || t.mu.closed || m.Address == "" || t.mu.members.removed[id] {
		return nil
	}
	p := newPeer(t, m)
	t.mu.peers[id] = p
	t.wg.Go(p.run)
	return p
}

func (t *transport) backend() *Backend {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.backend
}

// unreachable tells raft that messages to id were lost.
func (t *transport) unreachable(id consensus.ID) {
	b := t.backend()
	// Without waiting: a lost report only delays a probe.
	select {
	case b.inbox <- func() { b.driver.rn.ReportUnreachable(uint64(id)) }:
	default:
	}
}

func (t *transport) reportSnapshot(id consensus.ID, ok bool) {
	b := t.backend()
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	// Waiting is right here: without this report raft sends nothing to the member any more.
	_ = b.post(t.ctx, func() { b.driver.rn.ReportSnapshot(uint64(id), status) })
}

func (t *transport) url(address, path string) string { return t.cfg.Scheme + "://" + address + path }

// envelope addresses messages to m.
func (t *transport) envelope(b *Backend, m consensus.Member) *raftv1.Envelope {
	return &raftv1.Envelope{
		ClusterId: b.ClusterID(), From: uint64(b.self), To: uint64(m.ID), FromStoreId: t.dir.storeID, ToStoreId: m.StoreID,
	}
}

// errRefusedByPeer: the peer answered, but takes nothing from this member.
var errRefusedByPeer = errors.New("refused by peer")
