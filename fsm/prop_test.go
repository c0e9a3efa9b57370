package fsm

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// drawCommand draws a command over few names, so that many are accepted; m's state makes its compare-and-swaps
// match.
func drawCommand(t *rapid.T, m *Machine) *storagev1.Command {
	nodes := []string{"n1", "n2", "n3"}
	node := rapid.SampledFrom(nodes).Draw(t, "node")
	topic := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "topic")
	ref := &storagev1.PartitionRef{Index: uint32(rapid.IntRange(0, 2).Draw(t, "index"))}
	var a cluster.Assignment
	var n cluster.Node
	m.Read(func(r Reader) {
		tp, _ := r.TopicByName(topic)
		ref.TopicId = uint64(tp.ID)
		a, _ = r.Assignment(partitionOf(ref))
		n, _ = r.Node(cluster.NodeID(node))
	})
	nonce := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "nonce")
	inc := uint64(n.Incarnation) + uint64(rapid.IntRange(0, 1).Draw(t, "inc"))
	cmd := &storagev1.Command{NowUnixNano: rapid.Int64Range(1, 1e12).Draw(t, "now"),
		RequestId: rapid.SampledFrom([]string{"", "", "", "r1", "r2"}).Draw(t, "request"),
		Actor:     ActorRecord(actorNamed(rapid.SampledFrom([]string{"", "agent", "leader", "alice"}).Draw(t, "by")))}
	move, handoff := uint64(a.MoveID), uint32(a.Handoff)
	switch rapid.IntRange(0, 16).Draw(t, "kind") {
	case 0, 1:
		cmd.Command = &storagev1.Command_RegisterNode{RegisterNode: &storagev1.RegisterNode{NodeId: node, StoreId: "s" + node, Incarnation: inc, Address: node + ":1"}}
	case 2:
		cmd.Command = &storagev1.Command_MarkDead{MarkDead: &storagev1.MarkDead{NodeId: node, Incarnation: inc}}
	case 3:
		cmd.Command = &storagev1.Command_SetDraining{SetDraining: &storagev1.SetDraining{NodeIds: []string{node}, Draining: rapid.Bool().Draw(t, "drain")}}
	case 4:
		cmd.Command = &storagev1.Command_RemoveNode{RemoveNode: &storagev1.RemoveNode{NodeId: node, Incarnation: inc}}
	case 5, 6:
		cmd.Command = &storagev1.Command_CreateTopic{CreateTopic: &storagev1.CreateTopic{Name: topic, Owners: []string{"n1", "n2", "n1"}}}
	case 7:
		if rapid.IntRange(0, 5).Draw(t, "delete") == 0 {
			cmd.Command = &storagev1.Command_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: ref.GetTopicId()}}
		} else {
			cmd.Command = noop().GetCommand()
		}
	case 8, 9:
		cmd.Command = &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{Partition: ref, ExpectOwner: string(a.Owner),
			ExpectTarget: string(a.Target), ExpectEpoch: uint64(a.Epoch), Target: node}}
	case 10:
		cmd.Command = &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{Partition: ref, MoveId: move}}
	case 11, 12:
		cmd.Command = &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{Partition: ref, MoveId: move, NodeId: string(a.Owner), Incarnation: inc, NonceHash: hashOf(nonce)}}
	case 13:
		cmd.Command = &storagev1.Command_RevokeHandoff{RevokeHandoff: &storagev1.RevokeHandoff{Partition: ref, MoveId: move, Handoff: handoff}}
	case 14:
		cmd.Command = &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{Partition: ref, MoveId: move, Handoff: handoff, Nonce: nonceOf(nonce)}}
	case 15:
		cmd.Command = &storagev1.Command_ForceCompleteMove{ForceCompleteMove: &storagev1.ForceCompleteMove{Partition: ref, MoveId: move, SourceIncarnation: inc, StagedLeo: 3, ReadHwm: uint64(rapid.IntRange(2, 4).Draw(t, "hwm"))}}
	case 16:
		if rapid.Bool().Draw(t, "reclaim") {
			cmd.Command = &storagev1.Command_ReportReclaimed{ReportReclaimed: &storagev1.ReportReclaimed{Partition: ref, MoveId: move, NodeId: node}}
		} else {
			cmd.Command = &storagev1.Command_ReportOpened{ReportOpened: &storagev1.ReportOpened{Partition: ref, NodeId: string(a.Owner), Epoch: uint64(a.OwnerEpoch)}}
		}
	}
	return cmd
}

type dump struct {
	Revision    cluster.Revision
	Nodes       []cluster.Node
	Topics      []cluster.Topic
	Assignments []cluster.Assignment
	Outcomes    []cluster.Outcome
	History     []cluster.MoveRecord
	Settings    cluster.Settings
	Events      []cluster.Event
}

func dumpOf(m *Machine) (d dump) {
	m.Read(func(r Reader) {
		events, _, _ := r.Events(0, 0, nil)
		d = dump{r.Revision(), r.Nodes(), r.Topics(), r.Assignments(), r.Outcomes(), r.MoveHistory(), r.Settings(), events}
	})
	return d
}

// TestReplicasAgree: the same log gives the same state, hash and results, however it is batched; so does
// a snapshot at any point with the rest of the log; and so does a crash at any point with a replay.
func TestReplicasAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fsA, fsB, fsC := vfs.NewMem(), vfs.NewMem(), vfs.NewCrashableMem()
		a, b, c := openRapid(t, fsA), openRapid(t, fsB), openRapid(t, fsC)
		n := rapid.IntRange(1, 60).Draw(t, "commands")
		at := rapid.IntRange(0, n-1).Draw(t, "snapshot at")
		var log []Entry
		for i := range n {
			cmd := drawCommand(t, a)
			entry, err := Encode(cmd)
			if err != nil {
				t.Fatal(err)
			}
			before := dumpOf(a)
			log = append(log, Entry{Index: uint64(i + 1), Command: entry})
			rs := applyRapid(t, a, log[i:])
			checkStep(t, before, dumpOf(a), cmd, rs[0])
			if i == at {
				restoreInto(t, a, b)
				applyRapid(t, c, log)
				if rapid.Bool().Draw(t, "flush") {
					if err := c.Flush(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		applyRapid(t, b, log[at+1:])
		durable := c.DurableIndex()
		c = openRapid(t, fsC.CrashClone(vfs.CrashCloneCfg{}))
		if c.AppliedIndex() < durable {
			t.Fatalf("after a crash the applied index is %d, %d was durable", c.AppliedIndex(), durable)
		}
		applyRapid(t, c, log[c.AppliedIndex():])
		for name, m := range map[string]*Machine{"snapshot and rest": b, "crash and replay": c} {
			if diff := cmp.Diff(dumpOf(a), dumpOf(m)); diff != "" {
				t.Fatalf("%s: state differs (-whole log +other):\n%s", name, diff)
			}
			if ha, hm := hashRapid(t, a), hashRapid(t, m); ha != hm {
				t.Fatalf("%s: state hash is %s, want %s", name, hm, ha)
			}
		}
		checkHistory(t, a)
	})
}

// checkStep checks the invariants of one command.
func checkStep(t *rapid.T, before, after dump, cmd *storagev1.Command, r Result) {
	if (after.Revision != before.Revision) != r.Changed || after.Revision > before.Revision+1 {
		t.Fatalf("%v: revision went from %d to %d, changed=%t", cmd, before.Revision, after.Revision, r.Changed)
	}
	if r.Err != nil && r.Changed {
		t.Fatalf("%v: refused (%v) and changed something", cmd, r.Err)
	}
	old := map[cluster.PartitionID]cluster.Assignment{}
	for _, a := range before.Assignments {
		old[a.Partition] = a
	}
	for _, a := range after.Assignments {
		o, ok := old[a.Partition]
		if !ok || cmp.Equal(o, a) {
			continue
		}
		opened := o
		opened.Opened = true
		if a.Epoch <= o.Epoch && !cmp.Equal(opened, a) {
			t.Fatalf("%v: epoch of %s went from %d to %d", cmd, a.Partition, o.Epoch, a.Epoch)
		}
		if a.Owner == o.Owner {
			continue
		}
		// Invariant I1, I5, I6: an owner changes by a flip with the live grant, or by a promotion past a dead one.
		switch cmd.GetCommand().(type) {
		case *storagev1.Command_CompleteMove:
			if !o.Granted || a.Owner != o.Target {
				t.Fatalf("%v: I6: flipped %+v without a live grant", cmd, o)
			}
		case *storagev1.Command_ForceCompleteMove:
			for _, n := range before.Nodes {
				if n.ID == o.Owner && n.Status != cluster.NodeDead {
					t.Fatalf("%v: I10: promoted past a living owner", cmd)
				}
			}
		default:
			t.Fatalf("%v: I1: the owner of %s changed", cmd, a.Partition)
		}
	}
}

// checkHistory folds all revisions and compares with the state (the watches' promise).
func checkHistory(t *rapid.T, m *Machine) {
	as := map[cluster.PartitionID]cluster.Assignment{}
	nodes := map[cluster.NodeID]cluster.Node{}
	var after cluster.Revision
	for {
		rcs, err := m.Changes(after, 7)
		if err != nil {
			t.Fatal(err)
		}
		if len(rcs) == 0 {
			break
		}
		for _, rc := range rcs {
			if rc.Revision != after+1 {
				t.Fatalf("revision %d follows %d", rc.Revision, after)
			}
			after = rc.Revision
			for _, c := range rc.Changes {
				switch {
				case c.Assignment != nil:
					as[c.Assignment.Partition] = *c.Assignment
				case c.AssignmentRemoved != nil:
					delete(as, *c.AssignmentRemoved)
				case c.Node != nil:
					nodes[c.Node.ID] = *c.Node
				case c.NodeRemoved != "":
					delete(nodes, c.NodeRemoved)
				}
			}
		}
	}
	d := dumpOf(m)
	if len(as) != len(d.Assignments) || len(nodes) != len(d.Nodes) {
		t.Fatalf("folded %d assignments and %d nodes, the state has %d and %d", len(as), len(nodes), len(d.Assignments), len(d.Nodes))
	}
	for _, a := range d.Assignments {
		if diff := cmp.Diff(a, as[a.Partition]); diff != "" {
			t.Fatalf("folded assignment differs:\n%s", diff)
		}
	}
	for _, n := range d.Nodes {
		if diff := cmp.Diff(n, nodes[n.ID]); diff != "" {
			t.Fatalf("folded node differs:\n%s", diff)
		}
	}
}

func openRapid(t *rapid.T, fs vfs.FS) *Machine {
	m, err := Open("db", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func applyRapid(t *rapid.T, m *Machine, entries []Entry) []Result {
	rs, err := m.Apply(entries)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func restoreInto(t *rapid.T, from, to *Machine) {
	s, err := from.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if _, err := s.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole := buf.Bytes()
	// A damaged or cut stream is refused and changes nothing.
	cut := bytes.Clone(whole)
	cut[len(cut)/2] ^= 1
	if err := to.Restore(bytes.NewReader(cut)); err == nil {
		t.Fatal("a damaged stream was restored")
	}
	if err := to.Restore(bytes.NewReader(whole[:len(whole)-1])); err == nil {
		t.Fatal("a cut stream was restored")
	}
	if err := to.Restore(bytes.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
	if to.AppliedIndex() != s.Index() || to.DurableIndex() != s.Index() {
		t.Fatalf("restored to index %d, durable %d, want %d", to.AppliedIndex(), to.DurableIndex(), s.Index())
	}
}

func hashRapid(t *rapid.T, m *Machine) string {
	h, rev, err := m.StateHash()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s@%d", h, rev)
}

// TestC55CompactedHistory: a watcher that is too far behind, or ahead, is told so; one that is not gets all.
func TestC55CompactedHistory(t *testing.T) {
	m, err := Open("db", Options{FS: vfs.NewMem(), HistoryLimit: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 9 {
		do(t, m, registerCmd("n1", "s1", uint64(i+1)))
	}
	for after, want := range map[cluster.Revision]cluster.Reason{
		0: cluster.ReasonRevisionCompacted, 3: cluster.ReasonRevisionCompacted, 4: 0, 8: 0, 9: 0, 10: cluster.ReasonRevisionCompacted,
	} {
		rcs, err := m.Changes(after, 100)
		if got := cluster.ReasonOf(err); got != want {
			t.Errorf("after %d: got %v (%v), want %v", after, got, err, want)
		}
		if want == 0 && len(rcs) != int(9-after) {
			t.Errorf("after %d: got %d revisions, want %d", after, len(rcs), 9-after)
		}
	}
}

// TestRequestIsAppliedOnce: a retry after an unknown outcome is answered like the first time.
func TestRequestIsAppliedOnce(t *testing.T) {
	fs := vfs.NewMem()
	m := openTest(t, fs)
	do(t, m, registerCmd("n1", "s1", 1))
	create := &storagev1.Command{RequestId: "req-1", Command: &storagev1.Command_CreateTopic{
		CreateTopic: &storagev1.CreateTopic{Name: "a", Owners: []string{"n1"}}}}
	first := do(t, m, create)
	again := do(t, m, create)
	if again.Err != nil || again.Changed || again.Value != first.Value || again.Revision != first.Revision {
		t.Fatalf("retry: got %+v, want value %d at revision %d unchanged", again, first.Value, first.Revision)
	}
}

// BenchmarkApply: batches of 64 registrations on the real disk.
func BenchmarkApply(b *testing.B) {
	m, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	index, inc := uint64(0), uint64(0)
	for b.Loop() {
		entries := make([]Entry, 64)
		for i := range entries {
			index++
			inc++
			entries[i] = Entry{Index: index, Command: mustEncode(b, registerCmd("n1", "s1", inc))}
		}
		if _, err := m.Apply(entries); err != nil {
			b.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		b.Fatal(err)
	}
}
