package etcdraft_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/consensustest"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

// Messages of another cluster, for another member or store, from a store that is not known under its id, or
// from a removed member are refused with a reason, and never stepped.
func TestEnvelopeOfStrangersIsRefused(t *testing.T) {
	c := newRawCluster(t, 3, 1<<30)
	c.startAll()
	l := consensustest.Leader(t, c)
	gone := (l + 1) % 3
	to := c.hosts[l]
	stores := map[int]string{}
	for _, m := range to.backend.Status().Members {
		stores[int(m.ID)-1] = m.StoreID
	}
	c.Isolate(gone, true)
	if err := to.backend.Remove(consensustest.Context(t), consensus.ID(gone+1)); err != nil {
		t.Fatal(err)
	}
	peer := 3 - l - gone
	good := &raftv1.Envelope{
		ClusterId: to.backend.ClusterID(), From: uint64(peer + 1), To: uint64(l + 1), FromStoreId: stores[peer], ToStoreId: stores[l],
	}
	cases := []struct {
		name   string
		edit   func(*raftv1.Envelope)
		status int
		text   string
	}{
		{"cluster", func(e *raftv1.Envelope) { e.ClusterId = "other" }, http.StatusConflict, "belongs to cluster"},
		{"receiver", func(e *raftv1.Envelope) { e.To = 9 }, http.StatusConflict, "addresses"},
		{"receiver's store", func(e *raftv1.Envelope) { e.ToStoreId = "other" }, http.StatusConflict, "store id"},
		{"sender's store", func(e *raftv1.Envelope) { e.FromStoreId = "other" }, http.StatusConflict, "wiped or foreign disk"},
		{"removed sender", func(e *raftv1.Envelope) { e.From, e.FromStoreId = uint64(gone+1), stores[gone] }, http.StatusGone, "removed"},
		{"unknown sender", func(e *raftv1.Envelope) { e.From, e.ToStoreId = 77, "" }, http.StatusForbidden, "unknown"},
	}
	for _, k := range cases {
		env := proto.Clone(good).(*raftv1.Envelope)
		k.edit(env)
		resp, err := c.hosts[peer].rt.rt.RoundTrip(streamRequest(t, to.address, env))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != k.status || !strings.Contains(string(text), k.text) {
			t.Errorf("%s: %s %q; want %d with %q", k.name, resp.Status, text, k.status, k.text)
		}
	}
	consensustest.Propose(t, c, "x", l, peer)
}

// streamRequest asks for a stream as a member does.
func streamRequest(t *testing.T, address string, env *raftv1.Envelope) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(consensustest.Context(t), http.MethodGet, "http://"+address+"/raft/v1/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "naradplane-raft/1")
	req.Header.Set("Naradplane-Raft-Envelope", base64.StdEncoding.EncodeToString(raw))
	return req
}

// A stream ends, and nothing more of it is stepped, once its sender was removed; nor when a message names another sender or
// receiver, or is none. Until then frames are counted.
func TestStreamOfAMemberThatLeftEnds(t *testing.T) {
	frame := func(from, to, term uint64) []byte {
		raw, err := proto.Marshal(&raftpb.Message{Type: raftpb.MsgHeartbeatResp.Enum(), From: new(from), To: new(to), Term: new(term)})
		if err != nil {
			t.Fatal(err)
		}
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
	}
	c := newRawCluster(t, 3, 1<<30)
	c.startAll()
	l := consensustest.Leader(t, c)
	to, gone, peer := c.hosts[l], (l+1)%3, (l+2)%3
	stores := map[int]string{}
	for _, m := range to.backend.Status().Members {
		stores[int(m.ID)-1] = m.StoreID
	}
	open := func(from int) io.ReadWriteCloser {
		t.Helper()
		resp, err := c.hosts[peer].rt.rt.RoundTrip(streamRequest(t, to.address, &raftv1.Envelope{
			ClusterId: to.backend.ClusterID(), From: uint64(from + 1), To: uint64(l + 1), FromStoreId: stores[from], ToStoreId: stores[l],
		}))
		if err != nil {
			t.Fatal(err)
		}
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
			t.Fatalf("a member's stream is answered with %s", resp.Status)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	send := func(conn io.Writer, frames ...[]byte) {
		t.Helper()
		if _, err := conn.Write(bytes.Join(frames, nil)); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(what string, conn io.Reader) {
		t.Helper()
		if n, err := io.ReadFull(conn, make([]byte, 8)); err == nil || n > 0 {
			t.Errorf("%s: the stream counts, or goes on", what)
		}
	}
	term := to.backend.Status().Term
	good := frame(uint64(gone+1), uint64(l+1), term)
	member := open(gone)
	send(member, good, good, []byte{0, 0, 0, 0})
	var counted [8]byte
	if _, err := io.ReadFull(member, counted[:]); err != nil || binary.BigEndian.Uint64(counted[:]) != 3 {
		t.Fatalf("counted %v, error %v; want 3", counted, err)
	}
	for what, bad := range map[string][]byte{
		"another sender":   frame(uint64(peer+1), uint64(l+1), term+100),
		"another receiver": frame(uint64(gone+1), uint64(gone+1), term+100),
		"no message":       {0, 0, 0, 2, 0xff, 0xff},
		"too long":         {0xff, 0xff, 0xff, 0xff},
	} {
		conn := open(gone)
		send(conn, bad)
		ends(what, conn)
	}
	if err := to.backend.Remove(consensustest.Context(t), consensus.ID(gone+1)); err != nil {
		t.Fatal(err)
	}
	send(member, frame(uint64(gone+1), uint64(l+1), term+100))
	ends("removed sender", member)
	consensustest.Propose(t, c, "x", l, peer)
	if got := to.backend.Status().Term; got >= term+100 {
		t.Fatalf("a message was stepped that must not be: the term is %d", got)
	}
}

// A network that loses packets without a word: the sender finds out within an election time-out, and dials anew.
func TestSilentStreamIsReplaced(t *testing.T) {
	c := newRawCluster(t, 3, 1<<30)
	c.startAll()
	l := consensustest.Leader(t, c)
	f, other := (l+1)%3, (l+2)%3
	consensustest.Propose(t, c, "before", 0, 1, 2)
	c.w.setDeaf(c.hosts[f].address, true)
	dials := c.w.dialled(c.hosts[f].address)
	consensustest.Propose(t, c, "during", l, other)
	consensustest.Eventually(t, "the silent streams are replaced", func() bool { return c.w.dialled(c.hosts[f].address) > dials })
	c.w.setDeaf(c.hosts[f].address, false)
	consensustest.Propose(t, c, "after", 0, 1, 2)
	consensustest.Alike(t, c, 0, 1, 2)
}

// TestC43RemoveLeaderUnderLoad replaces the leader again and again while a client writes. Writes are never out
// for longer than a few elections, and each removed leader says why it stops.
func TestC43RemoveLeaderUnderLoad(t *testing.T) {
	const rounds, bound = 8, 5 * time.Second
	c := newRawCluster(t, 3, 200)
	c.startAll()
	var mu sync.Mutex
	alive := []int{0, 1, 2}
	current := func() []int {
		mu.Lock()
		defer mu.Unlock()
		return append([]int{}, alive...)
	}
	backends := func() []consensus.Backend {
		mu.Lock()
		defer mu.Unlock()
		var out []consensus.Backend
		for _, i := range alive {
			out = append(out, c.Backend(i))
		}
		return out
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var worst time.Duration
	writes := 0
	wg.Go(func() {
		last := time.Now()
		for n := 0; ; n++ {
			for _, b := range backends() {
				select {
				case <-stop:
					return
				default:
				}
				if _, _, err := b.Propose(consensustest.Context(t), []byte("w")); err == nil {
					worst, last = max(worst, time.Since(last)), time.Now()
					writes++
				}
			}
		}
	})
	for range rounds {
		mu.Lock()
		n := c.Join()
		alive = append(alive, n)
		mu.Unlock()
		id := c.Backend(n).Status().Self
		var l int
		consensustest.Eventually(t, "the new member is promoted", func() bool {
			l = consensustest.Leader(t, c, current()...)
			return c.Backend(l).Promote(consensustest.Context(t), id) == nil
		})
		consensustest.Eventually(t, "the leader is removed", func() bool {
			l = consensustest.Leader(t, c, current()...)
			return c.Backend(l).Remove(consensustest.Context(t), c.Backend(l).Status().Self) == nil
		})
		<-c.Backend(l).Done()
		if err := c.Backend(l).Err(); !errors.Is(err, consensus.ErrRemoved) {
			t.Fatalf("a removed leader stopped with %v, want ErrRemoved", err)
		}
		mu.Lock()
		for k, i := range alive {
			if i == l {
				alive = append(alive[:k], alive[k+1:]...)
				break
			}
		}
		mu.Unlock()
	}
	consensustest.Leader(t, c, current()...)
	close(stop)
	wg.Wait()
	records := consensustest.Alike(t, c, current()...)
	if len(records) < writes || writes < rounds {
		t.Fatalf("%d records of %d acknowledged writes", len(records), writes)
	}
	if worst > bound {
		t.Fatalf("writes were out for %v, want at most %v", worst, bound)
	}
	t.Logf("%d writes, longest pause %v", writes, worst)
}
