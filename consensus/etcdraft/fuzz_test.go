package etcdraft

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

func fuzzMarshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzEnvelope: whatever a peer posts, what is decoded of it is from its sender to its receiver.
func FuzzEnvelope(f *testing.F) {
	beat := fuzzMarshal(f, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(3))})
	read := fuzzMarshal(f, &raftpb.Message{Type: raftpb.MsgReadIndex.Enum(), From: new(uint64(7)), To: new(uint64(2))})
	f.Add(fuzzMarshal(f, &raftv1.Envelope{ClusterId: "c", From: 1, To: 2, FromStoreId: "a", ToStoreId: "b", Messages: [][]byte{beat, read}}))
	f.Add(fuzzMarshal(f, &raftv1.Envelope{From: 2, To: 1, Messages: [][]byte{beat}}))
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, body []byte) {
		env := &raftv1.Envelope{}
		if proto.Unmarshal(body, env) != nil {
			return
		}
		ms, err := decodeMessages(env)
		if err != nil {
			return
		}
		if len(ms) != len(env.GetMessages()) {
			t.Fatalf("%d of %d messages were decoded", len(ms), len(env.GetMessages()))
		}
		for _, m := range ms {
			if m.GetTo() != env.GetTo() || (m.GetFrom() != env.GetFrom() && m.GetType() != raftpb.MsgReadIndex) {
				t.Fatalf("a message from %d to %d in an envelope from %d to %d", m.GetFrom(), m.GetTo(), env.GetFrom(), env.GetTo())
			}
		}
	})
}

// FuzzSnapshotStream: a stream that is taken holds what was sent, and sending that again is taken too.
func FuzzSnapshotStream(f *testing.F) {
	var whole bytes.Buffer
	if err := writeSnapshot(&whole, &raftv1.Envelope{ClusterId: "c"}, textState("state"), func() {}); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:whole.Len()-3])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := receiveSnapshot(raw)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := writeSnapshot(&again, &raftv1.Envelope{}, textState(got), func() {}); err != nil {
			t.Fatal(err)
		}
		if back, err := receiveSnapshot(again.Bytes()); err != nil || back != got {
			t.Fatalf("%d bytes were taken, and sent again are %d bytes, %v", len(got), len(back), err)
		}
	})
}

// FuzzMembership: a record that is read is written the same by every replica.
func FuzzMembership(f *testing.F) {
	f.Add(membershipOf(&raftv1.Bootstrap{ClusterId: "c", Members: []*raftv1.Member{
		{Name: "a", RaftId: 1, Address: "a:1", StoreId: "s"}, {Name: "b", RaftId: 2, Address: "b:1", StoreId: "t", Learner: true},
	}}).encode())
	f.Add(fuzzMarshal(f, &raftv1.Membership{ClusterId: "c", Removed: []uint64{3, 3}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ms, err := decodeMembership(raw)
		if err != nil {
			return
		}
		once := ms.encode()
		back, err := decodeMembership(once)
		if err != nil {
			t.Fatalf("what was encoded can't be decoded: %v", err)
		}
		if !bytes.Equal(back.encode(), once) {
			t.Fatalf("two encodings differ: %x and %x", once, back.encode())
		}
	})
}

// FuzzConfChange: no change that a log may hold makes replicas panic, and a removed member never comes back.
func FuzzConfChange(f *testing.F) {
	member := fuzzMarshal(f, &raftv1.MemberContext{Member: &raftv1.Member{Name: "c", RaftId: 3, Address: "c:1", StoreId: "u"}})
	for _, cc := range []*raftpb.ConfChange{
		{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(3)), Context: member},
		{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(uint64(2))},
		{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: new(uint64(1))},
	} {
		f.Add(fuzzMarshal(f, cc))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		cc := &raftpb.ConfChange{}
		if proto.Unmarshal(raw, cc) != nil {
			return
		}
		ms := membershipOf(&raftv1.Bootstrap{ClusterId: "c", Members: []*raftv1.Member{
			{Name: "a", RaftId: 1, Address: "a:1", StoreId: "s"}, {Name: "b", RaftId: 2, Address: "b:1", StoreId: "t"},
		}})
		next, err := ms.apply(cc)
		if err != nil {
			return
		}
		if len(next.conf.GetVoters()) == 0 {
			t.Fatalf("%v leaves no voter", cc)
		}
		if cc.GetType() == raftpb.ConfChangeRemoveNode {
			if _, err := next.apply(&raftpb.ConfChange{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(cc.GetNodeId())}); err == nil {
				t.Fatalf("member %d is back after its removal", cc.GetNodeId())
			}
		}
	})
}

// fuzzLog is the file of a short log, without the zeros that it is filled up with.
func fuzzLog(f *testing.F) []byte {
	f.Helper()
	dir := filepath.Join(f.TempDir(), "wal")
	w, err := wal.Create(nil, dir, []byte("metadata"))
	if err != nil {
		f.Fatal(err)
	}
	for i := range uint64(3) {
		entry := &raftpb.Entry{Index: new(i + 1), Term: new(uint64(1)), Data: []byte("entry")}
		state := &raftpb.HardState{Term: new(uint64(1)), Commit: new(i)}
		if err := w.Save(state, []*raftpb.Entry{entry}); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(files) != 1 {
		f.Fatalf("log files: %v, %v", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		f.Fatal(err)
	}
	return bytes.TrimRight(raw, "\x00")
}

// FuzzLogScan: whatever a log file holds, scanning it ends with records, or an error that names the file.
func FuzzLogScan(f *testing.F) {
	dir := f.TempDir()
	w := fuzzLog(f)
	f.Add(w)
	f.Add(w[:len(w)-5])
	f.Add(make([]byte, 64))
	path := filepath.Join(dir, "0000000000000000-0000000000000000.wal")
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := scanWAL(dir)
		if err == nil && s == nil {
			t.Fatal("neither a result nor an error")
		}
	})
}
