package etcdraft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

func (t *transport) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathIdentity, t.serveIdentity)
	mux.HandleFunc("GET "+pathStream, t.serveStream)
	mux.HandleFunc("POST "+pathSnapshot, t.serveSnapshot)
	return mux
}

// serveIdentity says who this is, and of which cluster, if any.
func (t *transport) serveIdentity(w http.ResponseWriter, _ *http.Request) {
	boot := t.dir.bootstrap()
	raw, err := proto.Marshal(&raftv1.Identity{
		Name: t.cfg.Name, StoreId: t.dir.storeID, Address: t.cfg.AdvertiseAddress,
		ClusterId: boot.GetClusterId(), Members: boot.GetMembers(),
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(raw) // The peer asks again.
}

// refusal is why an envelope is not taken.
type refusal struct {
	status int
	text   string
}

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status: status, text: fmt.Sprintf(format, args...)}
}

// check decides whether messages of env may be stepped. A member that is not known yet is noted with its address.
func (t *transport) check(env *raftv1.Envelope, address string) (*Backend, *refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.mu.backend
	if b == nil || t.mu.closed {
		return nil, refuse(http.StatusServiceUnavailable, "controller %s does not run yet", t.cfg.Name)
	}
	ms := t.mu.members
	from := consensus.ID(env.GetFrom())
	switch {
	case env.GetClusterId() != ms.clusterID:
		return nil, refuse(http.StatusConflict, "controller %s belongs to cluster %s, you to %s; if both were just started, "+
			"initial_members differ: they must list the same names in the same order", t.cfg.Name, ms.clusterID, env.GetClusterId())
	case env.GetTo() != uint64(b.self):
		return nil, refuse(http.StatusConflict, "controller %s is member %d, not %d; check that addresses lead to the right hosts", t.cfg.Name, b.self, env.GetTo())
	case env.GetToStoreId() != "" && env.GetToStoreId() != t.dir.storeID:
		return nil, refuse(http.StatusConflict, "controller %s has store id %s, you know it with %s", t.cfg.Name, t.dir.storeID, env.GetToStoreId())
	case ms.removed[from]:
		return nil, refuse(http.StatusGone, "member %d was removed from the cluster", from)
	}
	known, ok := t.lookup(from)
	if !ok {
		// The log that says who this is may still be on its way, and may come from this very member. It knows
		// this store's id, which only members are told. The first store id seen for an id is held to.
		if env.GetToStoreId() == "" || env.GetFromStoreId() == "" || address == "" || from == 0 {
			return nil, refuse(http.StatusForbidden, "member %d is unknown to controller %s", from, t.cfg.Name)
		}
		t.mu.book[from] = consensus.Member{ID: from, Name: fmt.Sprintf("member-%d", from), Address: address, StoreID: env.GetFromStoreId()}
		return b, nil
	}
	if known.StoreID != env.GetFromStoreId() {
		return nil, refuse(http.StatusConflict, "member %d (%s) is known with store id %s, you have %s: a wiped or foreign disk; remove the "+
			"member and join again", from, known.Name, known.StoreID, env.GetFromStoreId())
	}
	return b, nil
}

func (t *transport) refuseRequest(w http.ResponseWriter, env *raftv1.Envelope, r *refusal) {
	t.log.Debug("messages refused", zap.Uint64("from", env.GetFrom()), zap.String("reason", r.text))
	http.Error(w, r.text, r.status)
}

// decodeMessages decodes an envelope's messages; all must be from its sender to its receiver.
func decodeMessages(env *raftv1.Envelope) ([]*raftpb.Message, error) {
	out := make([]*raftpb.Message, 0, len(env.GetMessages()))
	for _, raw := range env.GetMessages() {
		m := &raftpb.Message{}
		if err := proto.Unmarshal(raw, m); err != nil {
			return nil, fmt.Errorf("decode a raft message: %w", err)
		}
		if err := addressed(m, env); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// addressed wants a message to be from the envelope's sender to its receiver.
func addressed(m *raftpb.Message, env *raftv1.Envelope) error {
	if m.GetTo() != env.GetTo() || (m.GetFrom() != env.GetFrom() && m.GetType() != raftpb.MsgReadIndex) {
		return fmt.Errorf("raft message from %d to %d in an envelope from %d to %d", m.GetFrom(), m.GetTo(), env.GetFrom(), env.GetTo())
	}
	return nil
}

// serveSnapshot receives a streamed snapshot as a whole, checks it, and only then steps its message.
func (t *transport) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	stream := &deadlineReader{r: r.Body, rc: http.NewResponseController(w)}
	body := bufio.NewReaderSize(stream, snapshotChunk)
	header, err := readSnapshotHeader(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	env := header.GetEnvelope()
	b, no := t.check(env, r.Header.Get(headerAddress))
	if no != nil {
		t.refuseRequest(w, env, no)
		return
	}
	ms, err := decodeMessages(env)
	if err != nil || len(ms) != 1 || ms[0].GetType() != raftpb.MsgSnap {
		http.Error(w, "a snapshot comes with one snapshot message", http.StatusBadRequest)
		return
	}
	meta := ms[0].GetSnapshot().GetMetadata()
	if err := t.spool.receive(meta, body); err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, errSpoolBusy) {
			status = http.StatusTooManyRequests
		}
		t.log.Warn("snapshot not received; it will be sent again", zap.Uint64("from", env.GetFrom()), zap.Error(err))
		http.Error(w, err.Error(), status)
		return
	}
	stream.end()
	if err := t.stepSnapshot(r.Context(), b, ms[0]); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// deadlineReader gives up on a stream that stands still: its sender may be gone without a word.
type deadlineReader struct {
	r  io.Reader
	rc *http.ResponseController
}

func (d *deadlineReader) Read(p []byte) (int, error) {
	// A server without deadlines has none to set; then the connection's keep-alive is what ends it.
	_ = d.rc.SetReadDeadline(time.Now().Add(snapshotStall))
	return d.r.Read(p)
}

func (d *deadlineReader) end() { _ = d.rc.SetReadDeadline(time.Time{}) }

// stepSnapshot hands a received snapshot to raft, which may have no use for it.
func (t *transport) stepSnapshot(ctx context.Context, b *Backend, m *raftpb.Message) error {
	err := b.post(ctx, func() {
		b.loop.lastHeard[m.GetFrom()] = b.loop.ticks
		before := b.driver.lastIndex
		if err := b.driver.Step(m); err != nil {
			b.log.Warn("snapshot message ignored", zap.Error(err))
		}
		b.process()
		if i := m.GetSnapshot().GetMetadata().GetIndex(); b.driver.lastIndex != i || before == i {
			t.spool.discard()
		}
	})
	if err != nil {
		t.spool.discard()
	}
	return err
}
