package etcdraft

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

type textState string

func (s textState) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(w, strings.NewReader(string(s)))
	return n, err
}

func snapshotStream(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := writeSnapshot(&b, &raftv1.Envelope{ClusterId: "c"}, textState(text), func() {}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func receiveSnapshot(raw []byte) (string, error) {
	r := bytes.NewReader(raw)
	if _, err := readSnapshotHeader(r); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err := copyChunks(&out, r)
	return out.String(), err
}

// A stream that breaks off anywhere, or in which any bit of the state is flipped, is never taken for whole.
func TestSnapshotStreamWholeOrRefused(t *testing.T) {
	text := strings.Repeat("state ", 20)
	raw := snapshotStream(t, text)
	if got, err := receiveSnapshot(raw); err != nil || got != text {
		t.Fatalf("a whole stream: %q, %v", got, err)
	}
	for n := range raw {
		if _, err := receiveSnapshot(raw[:n]); err == nil {
			t.Fatalf("a stream of %d bytes that breaks off after %d was taken", len(raw), n)
		}
	}
	head := bytes.Index(raw, []byte(text))
	for i := head; i < len(raw); i++ {
		bad := bytes.Clone(raw)
		bad[i] ^= 1
		if _, err := receiveSnapshot(bad); err == nil {
			t.Fatalf("a stream with a flipped bit at %d was taken", i)
		}
	}
}

func TestSnapshotOfSeveralChunks(t *testing.T) {
	text := strings.Repeat("0123456789", 100_000)
	if got, err := receiveSnapshot(snapshotStream(t, text)); err != nil || got != text {
		t.Fatalf("a stream of several chunks: %d bytes, %v", len(got), err)
	}
}

// The pure change of membership agrees with raft's own, which the loop applies beside it.
func TestMembershipChanges(t *testing.T) {
	ms := membershipOf(&raftv1.Bootstrap{ClusterId: "c", Members: []*raftv1.Member{
		{Name: "a", RaftId: 1, Address: "a", StoreId: "a"}, {Name: "b", RaftId: 2, Address: "b", StoreId: "b"},
	}})
	back, err := decodeMembership(ms.encode())
	if err != nil || !bytes.Equal(back.encode(), ms.encode()) {
		t.Fatalf("decode of encode differs: %v", err)
	}
	remove := func(id uint64) *raftpb.ConfChange {
		return &raftpb.ConfChange{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: new(id)}
	}
	one, err := ms.apply(remove(2))
	if err != nil || len(one.conf.GetVoters()) != 1 || !one.removed[2] {
		t.Fatalf("remove: %+v, %v", one, err)
	}
	if len(ms.conf.GetVoters()) != 2 || ms.removed[2] {
		t.Fatal("a change changed its origin")
	}
	for name, cc := range map[string]*raftpb.ConfChange{
		"last voter":      remove(1),
		"removed before":  remove(2),
		"unknown":         remove(9),
		"promote unknown": {Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(uint64(9))},
		"update":          {Type: raftpb.ConfChangeUpdateNode.Enum(), NodeId: new(uint64(1))},
		"no context":      {Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(3))},
	} {
		if _, err := one.apply(cc); err == nil {
			t.Errorf("%s: the change was taken", name)
		}
	}
}
