package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// backedUp returns a backup of a cluster of nodes a, b, c with topic t of 3 partitions at a; partition 0 is on its way to b.
func backedUp(t *testing.T) (file []byte, topic uint64) {
	t.Helper()
	m := openTest(t, vfs.NewMem())
	s := &script{t: t, m: m}
	for _, line := range []string{
		"register id=a store=sa inc=5", "register id=b store=sb inc=5", "register id=c store=sc inc=5",
		"create name=t owners=a,a,a", "opened p=t/0 node=a epoch=1", "opened p=t/1 node=a epoch=1", "opened p=t/2 node=a epoch=1",
		"target p=t/0 to=b",
	} {
		s.run(line)
	}
	snap, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := snap.WriteBackup(&b, BackupHeader{ClusterID: "old", CreatedAt: time.Unix(1, 0), Controller: "ctl-1"}); err != nil {
		t.Fatal(err)
	}
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), s.topic("t")
}

func imported(t *testing.T, file []byte) *script {
	t.Helper()
	m := openTest(t, vfs.NewMem())
	if _, _, err := m.Import(bytes.NewReader(file), Rebirth{
		Metadata: []byte("meta"), FirstIndex: 1, Now: time.Unix(2, 0),
		Controller: cluster.Controller{Name: "ctl-1", RaftID: 7, Address: "h:1", StoreID: "s"},
	}); err != nil {
		t.Fatal(err)
	}
	return &script{t: t, m: m}
}

// claim registers a node anew and has it claim copies "index identity[ marker:dest]…", where a leading "-" is one that lies aside.
func (s *script) claim(topic uint64, node string, copies ...string) {
	s.t.Helper()
	s.run(fmt.Sprintf("register id=%s store=s%s inc=9", node, node))
	cmd := &storagev1.ClaimPartitions{NodeId: node, Incarnation: 9, Last: true}
	for _, c := range copies {
		fields := strings.Fields(c)
		r := &storagev1.ClaimRecord{TopicId: topic, Active: !strings.HasPrefix(c, "-")}
		if _, err := fmt.Sscan(strings.TrimPrefix(fields[0], "-")+" "+fields[1], &r.Index, &r.Identity); err != nil {
			s.t.Fatal(err)
		}
		for _, f := range fields[2:] {
			m := &storagev1.ClaimMarker{}
			move, dest, _ := strings.Cut(f, ":")
			if _, err := fmt.Sscan(move, &m.MoveId); err != nil {
				s.t.Fatal(err)
			}
			m.Destination = dest
			r.Markers = append(r.Markers, m)
		}
		cmd.Claims = append(cmd.Claims, r)
	}
	if r := do(s.t, s.m, &storagev1.Command{Command: &storagev1.Command_ClaimPartitions{ClaimPartitions: cmd}}); r.Err != nil {
		s.t.Fatal(r.Err)
	}
}

// is demands who owns partitions: "?" for one that is not confirmed.
func (s *script) is(topic uint64, want ...string) {
	s.t.Helper()
	var got []string
	s.m.Read(func(r Reader) {
		for _, a := range r.TopicAssignments(cluster.TopicID(topic)) {
			o := string(a.Owner)
			if a.Unconfirmed {
				o = "?"
			}
			got = append(got, o)
		}
	})
	if !slices.Equal(got, want) {
		s.t.Errorf("owners are %v, want %v", got, want)
	}
}

func (s *script) outcome(topic uint64, index uint32, move uint64) (o cluster.Outcome) {
	s.m.Read(func(r Reader) {
		o, _ = r.Outcome(cluster.PartitionID{Topic: cluster.TopicID(topic), Index: index}, cluster.MoveID(move))
	})
	return o
}

// TestImport: the new state numbers far above the old one, takes nothing for granted, and survives being opened again.
func TestImport(t *testing.T) {
	file, topic := backedUp(t)
	s := imported(t, file)
	s.is(topic, "?", "?", "?")
	s.m.Read(func(r Reader) {
		if r.Revision() != rebaseStep || r.Restored().Base != rebaseStep || r.Restored().Predecessors[0] != "old" {
			t.Errorf("revision %d, restored %+v", r.Revision(), r.Restored())
		}
		for _, n := range r.Nodes() {
			if n.Status != cluster.NodeDead || !n.Unclaimed {
				t.Errorf("node %s is %s, unclaimed %t", n.ID, n.Status, n.Unclaimed)
			}
		}
		for _, a := range r.Assignments() {
			if a.Moving() || uint64(a.Epoch) < rebaseStep {
				t.Errorf("assignment %+v", a)
			}
		}
		if !r.Restored().Unknown(500) || r.Restored().Unknown(2) || r.Restored().Unknown(rebaseStep) {
			t.Error("unknown is what lies between the backup and the new beginning")
		}
	})
	if _, err := s.m.Changes(8, 10); cluster.ReasonOf(err) != cluster.ReasonRevisionCompacted {
		t.Errorf("a watcher of the old cluster is told %v, want to begin anew", err)
	}
	if r := s.run("target p=t/1 to=b"); !strings.Contains(r, "BLOCKED") {
		t.Errorf("a move of an unconfirmed partition: %s", r)
	}
	for _, at := range []int{0, 9, 40, len(file) / 2, len(file) - 1} {
		bad := slices.Clone(file)
		bad[at] ^= 4
		if _, err := VerifyBackup(bytes.NewReader(bad)); err == nil {
			t.Errorf("a flipped bit at %d of %d is not noticed", at, len(file))
		}
		if _, err := VerifyBackup(bytes.NewReader(file[:at])); err == nil {
			t.Errorf("a backup of %d of %d bytes is taken for whole", at, len(file))
		}
	}
}

// TestClaims: a copy without a marker settles its partition at once; one with a marker when all have spoken, and then the latest copy
// wins. What came off worse is salvaged, unless the winner's copy came by that very move.
func TestClaims(t *testing.T) {
	file, topic := backedUp(t)
	id := func(format string) string { return fmt.Sprintf(format, topic) }

	s := imported(t, file)
	// t/0 may have gone to b, t/2 went on to c by move 600, which a does not know.
	s.claim(topic, "a", id("0 %d 8:b"), id("1 %d"), id("2 %d 550:b"))
	s.is(topic, "?", "a", "?")
	s.claim(topic, "b")
	s.is(topic, "?", "a", "?")
	s.claim(topic, "c", "2 600")
	s.is(topic, "a", "a", "c")
	if o := s.outcome(topic, 2, 550); o.Kind != cluster.OutcomeForced || o.Source != "a" || o.Opened {
		t.Errorf("a's old copy of t/2 ended as %+v, want forced: c may not have all of it", o)
	}

	// The destination has it by that very move: nothing needs to be salvaged.
	s = imported(t, file)
	s.claim(topic, "b", "0 8")
	s.is(topic, "b", "?", "?")
	s = imported(t, file)
	s.claim(topic, "a", id("0 %d 8:b"), id("-1 %d 700:c"))
	s.claim(topic, "b", "0 8")
	s.is(topic, "b", "?", "?")
	if o := s.outcome(topic, 0, 8); o.Kind != cluster.OutcomeFlipped || o.Destination != "b" {
		t.Errorf("move 8 ended as %+v, want flipped to b", o)
	}
	// Nobody has t/1 in its place: it stays as it is until somebody comes or decides.
	s.claim(topic, "c")
	s.is(topic, "b", "?", "?")
	r := do(t, s.m, &storagev1.Command{Command: &storagev1.Command_SettlePartition{SettlePartition: &storagev1.SettlePartition{
		Partition: &storagev1.PartitionRef{TopicId: topic, Index: 1}, NodeId: "a"}}})
	if r.Err == nil {
		t.Error("a partition was settled on a node without a copy of it")
	}
	// A node that the backup does not know claims late; it is the first with a copy.
	s.claim(topic, "d", "1 700")
	s.is(topic, "b", "d", "?")
}

// TestAcceptedLossDoesNotVouch: with an accepted loss, earlier owners' copies are salvaged and not reclaimed (I9); a verdict that knows
// nothing of high watermarks, and maintenance, shut a gate.
func TestAcceptedLossDoesNotVouch(t *testing.T) {
	s := &script{t: t, m: openTest(t, vfs.NewMem())}
	for _, line := range []string{
		"register id=a store=sa inc=1", "register id=b store=sb inc=1", "register id=c store=sc inc=1", "create name=t owners=a",
		"opened p=t/0 node=a epoch=1", "target p=t/0 to=b", "grant p=t/0 node=a inc=1 nonce=n", "flip p=t/0 handoff=1 nonce=n",
	} {
		s.run(line)
	}
	_, a := s.partition("t/0")
	s.run(fmt.Sprintf("opened p=t/0 node=b epoch=%d", a.OwnerEpoch))
	first := uint64(0)
	s.m.Read(func(r Reader) { first = uint64(r.Outcomes()[0].MoveID) })
	topic := s.topic("t")
	if o := s.outcome(topic, 0, first); o.Kind != cluster.OutcomeFlipped || !o.Opened {
		t.Fatalf("the first move ended as %+v", o)
	}
	s.run("target p=t/0 to=c")
	do(t, s.m, &storagev1.Command{Command: &storagev1.Command_MarkDead{MarkDead: &storagev1.MarkDead{NodeId: "b", Incarnation: 1, HwmsUnknown: true}}})
	if r := s.run("force p=t/0 inc=1 leo=10 hwm=10"); !strings.Contains(r, "GATE") {
		t.Errorf("nobody knows what b had acknowledged, and its copy is promoted: %s", r)
	}
	maintain := func(on bool) {
		do(t, s.m, &storagev1.Command{Command: &storagev1.Command_SetMaintenance{SetMaintenance: &storagev1.SetMaintenance{NodeId: "b", Maintenance: on}}})
	}
	maintain(true)
	if r := s.run("force p=t/0 inc=1 leo=10 hwm=10 loss"); !strings.Contains(r, "maintenance") {
		t.Errorf("a node in maintenance is promoted away: %s", r)
	}
	maintain(false)
	s.run("force p=t/0 inc=1 leo=10 hwm=12 loss")
	if _, a := s.partition("t/0"); a.Owner != "c" {
		t.Fatalf("not promoted: %+v", a)
	}
	if o := s.outcome(topic, 0, first); o.Kind != cluster.OutcomeForced || o.Opened {
		t.Errorf("a's copy would be reclaimed, though c may lack some of it: %+v", o)
	}
}
