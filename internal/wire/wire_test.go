package wire

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// gen draws arbitrary values of the vocabulary, without what the API keeps to itself.
type gen struct{ t *rapid.T }

func (g gen) str(label string) string { return rapid.StringN(0, 12, -1).Draw(g.t, label) }
func (g gen) name(label string) string {
	return rapid.StringMatching(`[a-z][a-z0-9-]{0,8}`).Draw(g.t, label)
}
func (g gen) u64(label string) uint64      { return rapid.Uint64().Draw(g.t, label) }
func (g gen) u32(label string) uint32      { return rapid.Uint32().Draw(g.t, label) }
func (g gen) bool(label string) bool       { return rapid.Bool().Draw(g.t, label) }
func (g gen) bytes() cluster.Bytes         { return cluster.Bytes(g.u64("bytes")) }
func (g gen) node(l string) cluster.NodeID { return cluster.NodeID(g.str(l)) }

func (g gen) duration(label string) time.Duration {
	return time.Duration(rapid.Int64Range(0, int64(365*24*time.Hour)).Draw(g.t, label))
}

func (g gen) time(label string) time.Time {
	if g.bool(label + " zero") {
		return time.Time{}
	}
	return time.Unix(0, rapid.Int64Range(1, 1<<61).Draw(g.t, label)).UTC()
}

func (g gen) partition() cluster.PartitionID {
	return cluster.PartitionID{Topic: cluster.TopicID(g.u64("topic")), Index: g.u32("index")}
}

func (g gen) clusterNode() cluster.Node {
	n := cluster.Node{
		ID: g.node("id"), StoreID: cluster.StoreID(g.str("store")), Incarnation: cluster.Incarnation(g.u64("inc")),
		Address: g.str("addr"), Zone: g.str("zone"), Draining: g.bool("drain"), DrainReason: g.str("why"),
		Status: rapid.SampledFrom([]cluster.NodeStatus{cluster.NodeAlive, cluster.NodeDead}).Draw(g.t, "status"),
		Voter:  cluster.ControllerName(g.str("voter")), DeadAt: g.time("dead"), JoinedAt: g.time("joined"),
		Weight: g.u32("weight"), Flaps: g.u32("flaps"), AliveSince: g.time("alive since"),
	}
	for range rapid.IntRange(0, 3).Draw(g.t, "hwms") {
		n.DeadHWMs = append(n.DeadHWMs, cluster.PartitionOffset{Partition: g.partition(), Offset: cluster.Offset(g.u64("off"))})
	}
	return n
}

func (g gen) topic() cluster.Topic {
	return cluster.Topic{
		ID: cluster.TopicID(g.u64("id")), Name: g.str("name"), Partitions: g.u32("n"),
		Parent: cluster.TopicID(g.u64("parent")), Retention: g.duration("ret"), CreatedAt: g.time("created"),
	}
}

func (g gen) assignment() cluster.Assignment {
	return cluster.Assignment{
		Partition: g.partition(), Owner: g.node("owner"), Target: g.node("target"), Epoch: cluster.Epoch(g.u64("epoch")),
		MoveID: cluster.MoveID(g.u64("move")), Handoff: cluster.Handoff(g.u32("handoff")), Granted: g.bool("granted"),
		Opened: g.bool("opened"), Reason: g.str("reason"), MoveStartedAt: g.time("started"),
		MovedAt:    g.time("moved"),
		OwnerEpoch: cluster.Epoch(g.u64("owner epoch")),
	}
}

func (g gen) kind() cluster.OutcomeKind {
	return rapid.SampledFrom([]cluster.OutcomeKind{
		cluster.OutcomeFlipped, cluster.OutcomeForced, cluster.OutcomeCancelled,
	}).Draw(g.t, "kind")
}

func (g gen) outcome() cluster.Outcome {
	return cluster.Outcome{
		Partition: g.partition(), MoveID: cluster.MoveID(g.u64("move")), Kind: g.kind(), Source: g.node("src"),
		Destination: g.node("dst"), Handoff: cluster.Handoff(g.u32("handoff")), Epoch: cluster.Epoch(g.u64("epoch")),
		PromotedLEO: cluster.Offset(g.u64("leo")), MissingAtMost: g.u64("missing"), Opened: g.bool("opened"),
	}
}

func (g gen) stats() cluster.MoveStats {
	return cluster.MoveStats{
		Bytes: g.bytes(), Duration: g.duration("d"), Freeze: g.duration("f"), Passes: g.u32("passes"),
		Attempts: g.u32("attempts"), Converged: g.bool("conv"), FrozenReadBytes: g.bytes(),
	}
}

func (g gen) record() cluster.MoveRecord {
	return cluster.MoveRecord{
		Partition: g.partition(), MoveID: cluster.MoveID(g.u64("move")), Kind: g.kind(), Source: g.node("src"),
		Destination: g.node("dst"), Reason: g.str("reason"), StartedAt: g.time("s"), EndedAt: g.time("e"), Stats: g.stats(),
	}
}

func (g gen) progress() cluster.MoveProgress {
	return cluster.MoveProgress{
		Partition: g.partition(), MoveID: cluster.MoveID(g.u64("move")),
		Phase: rapid.SampledFrom([]cluster.MovePhase{
			cluster.PhasePending, cluster.PhaseCatchingUp, cluster.PhaseFrozen, cluster.PhaseFlipping,
			cluster.PhaseOpening, cluster.PhaseWaiting, cluster.PhaseBlocked,
		}).Draw(g.t, "phase"),
		Done: g.bytes(), Total: g.bytes(), BytesPerSecond: g.bytes(), Lag: g.bytes(), Passes: g.u32("passes"),
		Attempt: g.u32("attempt"), Converged: g.bool("c"), NonConverged: g.bool("n"), LastError: g.str("err"),
	}
}

func (g gen) settings() cluster.Settings {
	return cluster.Settings{
		MaxInFlightMoves: g.u32("a"), MaxMovesPerNode: g.u32("b"), CopyRatePerNode: g.bytes(), LagBytes: g.bytes(),
		FreezeBudget: g.duration("c"), MaxPasses: g.u32("d"), StallPasses: g.u32("e"), HandoffTTL: g.duration("f"),
		ReclaimAfter: g.duration("g"), ForcePromoteAfter: g.duration("h"), RebalanceDelay: g.duration("i"),
		RebalancePaused: g.bool("j"), MinVoters: g.u32("k"), HighDiskPercent: g.u32("l"),
		MoveCooldown: g.duration("m2"), MaxAwayPercent: g.u32("n2"),
	}
}

func (g gen) controller() cluster.Controller {
	return cluster.Controller{
		Name: cluster.ControllerName(g.str("name")), RaftID: cluster.RaftID(g.u64("id")), Address: g.str("addr"),
		StoreID: cluster.StoreID(g.str("store")), Learner: g.bool("learner"),
	}
}

func (g gen) change() cluster.Change {
	switch rapid.IntRange(0, 10).Draw(g.t, "change") {
	case 0:
		n := g.clusterNode()
		return cluster.Change{Node: &n}
	case 1:
		return cluster.Change{NodeRemoved: cluster.NodeID(g.name("id"))}
	case 2:
		t := g.topic()
		return cluster.Change{Topic: &t}
	case 3:
		return cluster.Change{TopicRemoved: cluster.TopicID(rapid.Uint64Range(1, 1<<60).Draw(g.t, "id"))}
	case 4:
		a := g.assignment()
		return cluster.Change{Assignment: &a}
	case 5:
		p := g.partition()
		return cluster.Change{AssignmentRemoved: &p}
	case 6:
		o := g.outcome()
		return cluster.Change{Outcome: &o}
	case 7:
		return cluster.Change{OutcomeRemoved: &cluster.OutcomeKey{Partition: g.partition(), MoveID: cluster.MoveID(g.u64("move"))}}
	case 8:
		s := g.settings()
		return cluster.Change{Settings: &s}
	case 9:
		c := g.controller()
		return cluster.Change{Controller: &c}
	default:
		return cluster.Change{ControllerRemoved: cluster.ControllerName(g.name("name"))}
	}
}

// overWire marshals m and reads it back into into, as a peer would.
func overWire[M proto.Message](t *rapid.T, m, into M) M {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	if err := proto.Unmarshal(b, into); err != nil {
		t.Fatalf("unmarshal: %v", err)
	}
	return into
}

func same[T any](t *rapid.T, what string, want, got T) {
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s changed on the wire (-sent +received):\n%s", what, d)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := gen{t}
		n := g.clusterNode()
		same(t, "node", n, NodeFromProto(overWire(t, NodeToProto(n), &planev1.Node{})))
		topic := g.topic()
		same(t, "topic", topic, TopicFromProto(overWire(t, TopicToProto(topic), &planev1.Topic{})))
		a := g.assignment()
		same(t, "assignment", a, AssignmentFromProto(overWire(t, AssignmentToProto(a), &planev1.Assignment{})))
		o := g.outcome()
		same(t, "outcome", o, OutcomeFromProto(overWire(t, OutcomeToProto(o), &planev1.Outcome{})))
		r := g.record()
		same(t, "record", r, MoveRecordFromProto(overWire(t, MoveRecordToProto(r), &planev1.MoveRecord{})))
		p := g.progress()
		same(t, "progress", p, MoveProgressFromProto(overWire(t, MoveProgressToProto(p), &planev1.MoveProgress{})))
		s := g.settings()
		same(t, "settings", s, SettingsFromProto(overWire(t, SettingsToProto(s), &planev1.Settings{})))
		ctl := g.controller()
		same(t, "controller", ctl, ControllerFromProto(overWire(t, ControllerToProto(ctl), &planev1.Controller{})))
		c := g.change()
		got, err := ChangeFromProto(overWire(t, ChangeToProto(c), &planev1.Change{}))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "change", c, got)
	})
}

func TestAssignmentKeepsNoncesToItself(t *testing.T) {
	a := cluster.Assignment{NonceHash: cluster.Nonce{1}.Hash(), GrantIncarnation: 7}
	if got := AssignmentFromProto(AssignmentToProto(a)); got != (cluster.Assignment{}) {
		t.Fatalf("the message carries %+v", got)
	}
}

func TestApplySettingsKeepsAbsentFields(t *testing.T) {
	base := cluster.DefaultSettings()
	if got := ApplySettings(base, &planev1.Settings{}); got != base {
		t.Fatalf("an empty patch changed %v", cmp.Diff(base, got))
	}
	want := base
	want.RebalancePaused, want.ForcePromoteAfter = true, 0
	got := ApplySettings(base, &planev1.Settings{
		RebalancePaused: proto.Bool(true), ForcePromoteAfter: durationpb.New(0),
	})
	if got != want {
		t.Fatal(cmp.Diff(want, got))
	}
}

func TestUnknownChangeIsAnError(t *testing.T) {
	if _, err := ChangeFromProto(&planev1.Change{}); err == nil {
		t.Fatal("an unknown change was accepted; a watcher would skip it")
	}
	if got := ChangeToProto(cluster.Change{}); got != nil {
		t.Fatalf("an empty change became %v", got)
	}
}
