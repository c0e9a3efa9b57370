package fsm

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// TestScripts runs the stories in testdata/scripts. Each line of a block is a command; its output is what the
// command did.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		m := openTest(t, vfs.NewMem())
		s := &script{t: t, m: m}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "do":
			case "show":
				return s.show()
			case "events":
				return s.events()
			default:
				t.Fatalf("%s: unknown block %q", d.Pos, d.Cmd)
			}
			var out strings.Builder
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				fmt.Fprintln(&out, s.run(line))
			}
			return out.String()
		})
	})
}

func openTest(t testing.TB, fs vfs.FS) *Machine {
	t.Helper()
	m, err := Open("db", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

type script struct {
	t *testing.T
	m *Machine
}

// do applies one command at the next index.
func do(t testing.TB, m *Machine, cmd *storagev1.Command) Result {
	t.Helper()
	b, err := Encode(cmd)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := m.Apply([]Entry{{Index: m.AppliedIndex() + 1, Command: b}})
	if err != nil {
		t.Fatal(err)
	}
	return rs[0]
}

func nonceOf(s string) []byte {
	var n cluster.Nonce
	copy(n[:], s)
	return n[:]
}

func hashOf(s string) []byte {
	h := cluster.Nonce(nonceOf(s)).Hash()
	return h[:]
}

// run parses "verb key=value …" and applies it. Each takes at=seconds, the proposer's clock, and req=id.
//
//	register id store inc | dead id inc [hwm=index:offset] | drain id [off] | remove id inc
//	create name owners=a,b | delete topic
//	target p=topic/index to [epoch] | cancel p [move] | grant p node inc nonce [move]
//	revoke p handoff [move] | flip p handoff nonce [move] | force p inc leo hwm [loss] [move]
//	opened p node epoch [move] | reclaimed p move node | settings max_in_flight_moves handoff_ttl
//
// by=agent, by=leader or by=NAME says who asks; without it nobody does.
func (s *script) run(line string) string {
	fields := strings.Fields(line)
	arg := map[string]string{}
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, "=")
		arg[k] = v
	}
	num := func(k string) uint64 {
		if arg[k] == "" {
			return 0
		}
		n, err := strconv.ParseUint(arg[k], 10, 64)
		if err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	p, a := s.partition(arg["p"])
	move := uint64(a.MoveID)
	if arg["move"] != "" {
		move = num("move")
	}
	_, off := arg["off"]
	_, loss := arg["loss"]
	cmd := &storagev1.Command{NowUnixNano: 1e9, RequestId: arg["req"], Actor: ActorRecord(actorNamed(arg["by"]))}
	if arg["at"] != "" {
		cmd.NowUnixNano = int64(num("at")) * 1e9
	}
	switch fields[0] {
	case "register":
		cmd.Command = &storagev1.Command_RegisterNode{RegisterNode: &storagev1.RegisterNode{
			NodeId: arg["id"], StoreId: arg["store"], Incarnation: num("inc"), Address: arg["id"] + ":1"}}
	case "dead":
		c := &storagev1.MarkDead{NodeId: arg["id"], Incarnation: num("inc")}
		if index, off, ok := strings.Cut(arg["hwm"], ":"); ok {
			i, _ := strconv.Atoi(index)
			o, _ := strconv.Atoi(off)
			c.Hwms = []*storagev1.PartitionOffsetRecord{{TopicId: p.GetTopicId(), Index: uint32(i), Offset: uint64(o)}}
		}
		cmd.Command = &storagev1.Command_MarkDead{MarkDead: c}
	case "drain":
		cmd.Command = &storagev1.Command_SetDraining{SetDraining: &storagev1.SetDraining{
			NodeIds: strings.Split(arg["id"], ","), Draining: !off, Reason: "test"}}
	case "remove":
		cmd.Command = &storagev1.Command_RemoveNode{RemoveNode: &storagev1.RemoveNode{NodeId: arg["id"], Incarnation: num("inc")}}
	case "create":
		cmd.Command = &storagev1.Command_CreateTopic{CreateTopic: &storagev1.CreateTopic{
			Name: arg["name"], Parent: arg["parent"], Owners: strings.Split(arg["owners"], ",")}}
	case "delete":
		cmd.Command = &storagev1.Command_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: s.topic(arg["topic"])}}
	case "target":
		epoch := uint64(a.Epoch)
		if arg["epoch"] != "" {
			epoch = num("epoch")
		}
		cmd.Command = &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{Partition: p, ExpectOwner: string(a.Owner),
			ExpectTarget: string(a.Target), ExpectEpoch: epoch, Target: arg["to"], Reason: "test"}}
	case "cancel":
		cmd.Command = &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{Partition: p, MoveId: move}}
	case "grant":
		cmd.Command = &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{Partition: p, MoveId: move,
			NodeId: arg["node"], Incarnation: num("inc"), NonceHash: hashOf(arg["nonce"])}}
	case "revoke":
		cmd.Command = &storagev1.Command_RevokeHandoff{RevokeHandoff: &storagev1.RevokeHandoff{Partition: p, MoveId: move, Handoff: uint32(num("handoff"))}}
	case "flip":
		cmd.Command = &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{Partition: p, MoveId: move,
			Handoff: uint32(num("handoff")), Nonce: nonceOf(arg["nonce"])}}
	case "force":
		cmd.Command = &storagev1.Command_ForceCompleteMove{ForceCompleteMove: &storagev1.ForceCompleteMove{Partition: p, MoveId: move,
			SourceIncarnation: num("inc"), StagedLeo: num("leo"), ReadHwm: num("hwm"), AcceptLoss: loss}}
	case "opened":
		cmd.Command = &storagev1.Command_ReportOpened{ReportOpened: &storagev1.ReportOpened{Partition: p, NodeId: arg["node"],
			Epoch: num("epoch"), MoveId: num("move"), Stats: &storagev1.MoveStatsRecord{Bytes: 7}}}
	case "reclaimed":
		cmd.Command = &storagev1.Command_ReportReclaimed{ReportReclaimed: &storagev1.ReportReclaimed{Partition: p, MoveId: num("move"), NodeId: arg["node"]}}
	case "settings":
		set := cluster.DefaultSettings()
		set.MaxInFlightMoves = uint32(num("max_in_flight_moves"))
		set.HandoffTTL, _ = time.ParseDuration(arg["handoff_ttl"])
		cmd.Command = &storagev1.Command_SetSettings{SetSettings: &storagev1.SetSettings{Settings: SettingsRecord(set)}}
	default:
		s.t.Fatalf("unknown verb in %q", line)
	}
	return describe(do(s.t, s.m, cmd))
}

func actorNamed(by string) cluster.Actor {
	switch by {
	case "":
		return cluster.Actor{}
	case "agent":
		return cluster.Actor{Kind: cluster.ActorAgent}
	case "leader":
		return cluster.Actor{Kind: cluster.ActorLeader, Name: "ctl-1"}
	}
	return cluster.Actor{Kind: cluster.ActorOperator, Name: by, Verified: true, Address: "10.0.0.7"}
}

func (s *script) events() string {
	var b strings.Builder
	s.m.Read(func(r Reader) {
		list, oldest, newest := r.Events(0, 0, nil)
		fmt.Fprintf(&b, "kept: %d to %d\n", oldest, newest)
		for _, e := range list {
			fmt.Fprintf(&b, "%d r%d %s: %s %s %v reason=%q: %s\n", e.ID, e.Revision, e.Actor, e.Kind, e.Subject, e.Nodes, e.Reason, e.Result)
		}
	})
	return b.String()
}

func describe(r Result) string {
	var b strings.Builder
	switch {
	case r.Err != nil:
		fmt.Fprintf(&b, "refused %s: %s", r.Err.Reason, r.Err.Message)
	case r.Changed:
		fmt.Fprintf(&b, "r%d value=%d", r.Revision, r.Value)
	default:
		fmt.Fprintf(&b, "unchanged value=%d", r.Value)
	}
	if r.Outcome != nil {
		fmt.Fprintf(&b, " outcome=%s", r.Outcome.Kind)
	}
	return b.String()
}

func (s *script) topic(name string) (id uint64) {
	s.m.Read(func(r Reader) {
		t, _ := r.TopicByName(name)
		id = uint64(t.ID)
	})
	return id
}

func (s *script) partition(name string) (*storagev1.PartitionRef, cluster.Assignment) {
	topic, index, _ := strings.Cut(name, "/")
	i, _ := strconv.Atoi(index)
	ref := &storagev1.PartitionRef{TopicId: s.topic(topic), Index: uint32(i)}
	var a cluster.Assignment
	s.m.Read(func(r Reader) { a, _ = r.Assignment(partitionOf(ref)) })
	return ref, a
}

func (s *script) show() string {
	var b strings.Builder
	s.m.Read(func(r Reader) {
		fmt.Fprintf(&b, "revision %d\n", r.Revision())
		for _, n := range r.Nodes() {
			fmt.Fprintf(&b, "node %s inc=%d %s draining=%t owned=%d inbound=%d\n", n.ID, n.Incarnation, n.Status, n.Draining, r.Owned(n.ID), r.Inbound(n.ID))
		}
		for _, a := range r.Assignments() {
			fmt.Fprintf(&b, "%s owner=%s target=%s epoch=%d/%d move=%d handoff=%d granted=%t opened=%t\n", r.PartitionName(a.Partition),
				a.Owner, a.Target, a.Epoch, a.OwnerEpoch, a.MoveID, a.Handoff, a.Granted, a.Opened)
		}
		for _, o := range r.Outcomes() {
			fmt.Fprintf(&b, "outcome %s move=%d %s %s->%s leo=%d missing=%d opened=%t\n", r.PartitionName(o.Partition), o.MoveID, o.Kind,
				o.Source, o.Destination, o.PromotedLEO, o.MissingAtMost, o.Opened)
		}
		for _, h := range r.MoveHistory() {
			fmt.Fprintf(&b, "ended move=%d %s %s->%s bytes=%d\n", h.MoveID, h.Kind, h.Source, h.Destination, h.Stats.Bytes)
		}
	})
	return b.String()
}

// TestC56UnknownCommandStops: an entry that this version can't decode is an error, never skipped.
func TestC56UnknownCommandStops(t *testing.T) {
	for name, entry := range map[string][]byte{
		"no command":        {},
		"unknown command":   {0xfa, 0x3f, 0x00},
		"unknown field":     append(mustEncode(t, noop()), 0xf8, 0x3f, 0x01),
		"not a protobuf":    {0xff, 0xff, 0xff},
		"unknown sub-field": {0xda, 0x01, 0x03, 0xf8, 0x3f, 0x01},
	} {
		t.Run(name, func(t *testing.T) {
			m := openTest(t, vfs.NewMem())
			if _, err := m.Apply([]Entry{{Index: 1, Command: entry}}); err == nil {
				t.Fatalf("apply %x: got no error", entry)
			}
			if m.AppliedIndex() != 0 {
				t.Fatalf("applied index is %d after an error, want 0", m.AppliedIndex())
			}
		})
	}
}

func noop() *storagev1.Command {
	return &storagev1.Command{Command: &storagev1.Command_Noop{Noop: &storagev1.Noop{}}}
}

func mustEncode(t testing.TB, c *storagev1.Command) []byte {
	t.Helper()
	b, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzApply: no entry makes the machine panic.
func FuzzApply(f *testing.F) {
	f.Add(mustEncode(f, noop()))
	f.Add(mustEncode(f, registerCmd("agent-1", "s1", 1)))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, entry []byte) {
		m := openTest(t, vfs.NewMem())
		_, _ = m.Apply([]Entry{{Index: 1, Command: entry}})
	})
}

// FuzzRestore: no stream makes Restore panic, and a refused one leaves the old state whole.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(snapshotMagic))
	f.Add([]byte(snapshotMagic + "\x01\x01ab\x00"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		m := openTest(t, vfs.NewMem())
		do(t, m, registerCmd("agent-1", "s1", 1))
		if err := m.Restore(strings.NewReader(string(stream))); err == nil {
			return
		}
		if m.AppliedIndex() != 1 {
			t.Fatalf("a refused restore changed the state")
		}
	})
}

func registerCmd(id, store string, inc uint64) *storagev1.Command {
	return &storagev1.Command{Command: &storagev1.Command_RegisterNode{RegisterNode: &storagev1.RegisterNode{
		NodeId: id, StoreId: store, Incarnation: inc, Address: id + ":1"}}}
}
