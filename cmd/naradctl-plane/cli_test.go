package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

var rewrite = flag.Bool("update", false, "rewrite testdata")

// golden compares got with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (go test ./cmd/naradctl-plane -update) (-want +got):\n%s", path, d)
	}
}

// TestHelpIsGolden keeps the first screen and the tree of commands as they are.
func TestHelpIsGolden(t *testing.T) {
	t.Setenv("NARADPLANE_ADDR", "")
	var tree strings.Builder
	var walk func(c *cobra.Command, depth int)
	walk = func(c *cobra.Command, depth int) {
		tree.WriteString(strings.Repeat("  ", depth) + c.Use + "  -  " + c.Short + "\n")
		for _, s := range c.Commands() {
			if s.Name() != "help" && s.Name() != "completion" {
				walk(s, depth+1)
			}
		}
	}
	root := (&app{stdout: os.Stdout, stderr: os.Stderr}).root()
	walk(root, 0)
	golden(t, "commands.txt", tree.String())
	golden(t, "help.txt", run(t, "", "--help").stdout)
	golden(t, "help-decommission.txt", run(t, "", "cluster", "decommission", "--help").stdout)
}

// TestEveryCommandExplainsItself: each one that does something has a short help, and those with arguments or
// flags of their own have an example or a long help.
func TestEveryCommandExplainsItself(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short help", c.CommandPath())
		}
		if c.HasLocalFlags() && !c.HasSubCommands() && c.Example == "" && c.Long == "" {
			t.Errorf("%s has flags, and neither an example nor a long help", c.CommandPath())
		}
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk((&app{stdout: os.Stdout, stderr: os.Stderr}).root())
}

func TestExitCodes(t *testing.T) {
	t.Setenv("NARADPLANE_ADDR", "")
	a := serveAnswers(t)
	for name, tc := range map[string]struct {
		err  error
		args []string
		code int
		want string // in stderr
	}{
		"unknown command":     {nil, []string{"clustr"}, codeUsage, "did you mean cluster"},
		"unknown sub-command": {nil, []string{"cluster", "statu"}, codeUsage, "did you mean status"},
		"unknown flag":        {nil, []string{"cluster", "status", "--nope"}, codeUsage, "--nope"},
		"missing argument":    {nil, []string{"topic", "create"}, codeUsage, "topic create NAME"},
		"bad output":          {nil, []string{"cluster", "status", "-o", "xml"}, codeUsage, "table, wide, json or yaml"},
		"bad partition":       {nil, []string{"cluster", "move", "start", "orders", "--to", "b"}, codeUsage, "orders/3"},
		"no target":           {nil, []string{"cluster", "move", "start", "orders/0"}, codeUsage, "--to"},
		"no group":            {nil, []string{"consume", "orders"}, codeUsage, "--group"},
		"unknown setting":     {nil, []string{"cluster", "settings", "set", "speed=1"}, codeUsage, "max_in_flight_moves"},
		"bad setting":         {nil, []string{"cluster", "settings", "set", "lag_bytes=much"}, codeUsage, "4MiB"},
		"bad configuration":   {nil, []string{"controller", "--dead-after", "1s"}, codeUsage, "controller.dead_after"},
		"public address":      {nil, []string{"agent", "--listen", "10.0.0.1:7500"}, codeUsage, "insecure: true"},
		"cancel and wait":     {nil, []string{"cluster", "decommission", "a", "--cancel", "--wait"}, codeUsage, "--cancel"},
		"invalid":             {cluster.Invalid("name", "bad"), []string{"topic", "describe", "x"}, codeUsage, "name: bad"},
		"not found":           {refusal(cluster.ReasonNotFound, "topic x does not exist"), []string{"topic", "describe", "x"}, codeNotFound, "topic x does not exist (see: naradctl-plane topic list)"},
		"unknown node":        {refusal(cluster.ReasonNotFound, "node x is no member"), []string{"cluster", "decommission", "x"}, codeNotFound, "naradctl-plane cluster members"},
		"bad flag value":      {nil, []string{"topic", "create", "x", "--partitions", "many"}, codeUsage, `--partitions: "many" is no uint32`},
		"refused":             {refusal(cluster.ReasonBlocked, "no receivers"), []string{"cluster", "decommission", "a"}, codeRefused, "refused: no receivers"},
		"no leader":           {refusal(cluster.ReasonNoLeader, "no leader"), []string{"topic", "describe", "x", "--timeout", "300ms"}, codeNoLeader, "no leader"},
		"stale":               {refusal(cluster.ReasonStaleEpoch, "stale"), []string{"topic", "describe", "x"}, codeError, "stale"},
	} {
		t.Run(name, func(t *testing.T) {
			a.mu.Lock()
			a.err = tc.err
			a.mu.Unlock()
			args := tc.args
			if tc.err != nil {
				args = append(args, "--addr", a.address)
			}
			got := run(t, "", args...)
			if got.code != tc.code || !strings.Contains(got.stderr, tc.want) {
				t.Errorf("%v: want exit code %d and %q, got %s", args, tc.code, tc.want, got)
			}
			if strings.Count(got.stderr, "error:")+strings.Count(got.stderr, "refused:") != 1 {
				t.Errorf("the error is not printed exactly once: %s", got)
			}
		})
	}
}

// TestC15EachAddressIsTried: a dead address and one without a leader do not hide the one that answers.
func TestC15EachAddressIsTried(t *testing.T) {
	lost, good := serveAnswers(t), serveAnswers(t)
	lost.err = refusal(cluster.ReasonNoLeader, "no leader")
	got := run(t, "", "topic", "describe", "x", "--addr", nobody(t)+","+lost.address+","+good.address)
	if got.code != codeDone || len(good.requests()) != 1 {
		t.Errorf("got %s", got)
	}
}

func TestUnreachableNamesAddressAndRemedy(t *testing.T) {
	address := nobody(t)
	got := run(t, "", "cluster", "members", "--addr", address)
	if got.code != codeError || !strings.Contains(got.stderr, address) || !strings.Contains(got.stderr, "--addr") {
		t.Errorf("got %s", got)
	}
}

// TestI8RepeatedMutationsHaveOneRequestID: whichever address is asked first, what is repeated elsewhere is the same
// request.
func TestI8RepeatedMutationsHaveOneRequestID(t *testing.T) {
	a, b := serveAnswers(t), serveAnswers(t)
	a.err, b.err = refusal(cluster.ReasonNoLeader, "no leader"), refusal(cluster.ReasonNoLeader, "no leader")
	got := run(t, "", "cluster", "decommission", "n", "--addr", a.address+","+b.address, "--timeout", "300ms")
	if got.code != codeNoLeader {
		t.Fatalf("got %s", got)
	}
	ids := map[string]bool{}
	for _, r := range append(a.requests(), b.requests()...) {
		d, ok := r.(*planev1.DecommissionRequest)
		if !ok || d.GetRequestId() == "" {
			t.Fatalf("request %v has no id", r)
		}
		ids[d.GetRequestId()] = true
	}
	if len(a.requests()) == 0 || len(b.requests()) == 0 || len(ids) != 1 {
		t.Errorf("%d and %d requests with ids %v, want one id at both", len(a.requests()), len(b.requests()), ids)
	}
}

func TestStatusSaysWhyAndWhatNext(t *testing.T) {
	a := serveAnswers(t)
	a.status = &planev1.GetClusterStatusResponse{
		Verdict: planev1.ClusterVerdict_CLUSTER_VERDICT_DEGRADED, Reasons: []string{"node-2 is dead"}, NextCommand: "naradctl-plane cluster members",
		Findings: []*planev1.StatusFinding{
			{Verdict: planev1.ClusterVerdict_CLUSTER_VERDICT_DEGRADED, Text: "node-2 is dead", NextCommand: "naradctl-plane cluster members"},
			{Verdict: planev1.ClusterVerdict_CLUSTER_VERDICT_DEGRADED, Text: "node-3 is silent", NextCommand: "naradctl-plane cluster members"},
			{Verdict: planev1.ClusterVerdict_CLUSTER_VERDICT_STALLED, Text: "partition t/1: no receivers", NextCommand: "naradctl-plane cluster moves -o wide"},
			{Verdict: planev1.ClusterVerdict_CLUSTER_VERDICT_MOVING, Text: "moves in flight: 2"},
		},
		Estimate:  &planev1.Estimate{Eta: durationpb.New(90e9), Basis: "the past", RemainingBytes: 9 << 20, BytesPerSecond: 1 << 20, MovesInFlight: 2},
		ClusterId: "c1", Leader: "ctl-1", Term: 3, Voters: 3, NodesAlive: 2, NodesDead: 1, Topics: 1, Partitions: 6, Bytes: 3 << 20, Revision: 40,
	}
	got := run(t, "", "cluster", "status", "--addr", a.address)
	golden(t, "status.txt", got.stdout)
	if got.code != codeDone {
		t.Errorf("got %s", got)
	}
	a.status = &planev1.GetClusterStatusResponse{Verdict: planev1.ClusterVerdict_CLUSTER_VERDICT_NO_LEADER}
	if got := run(t, "", "cluster", "status", "--addr", a.address); got.code != codeNoLeader || !strings.HasPrefix(got.stdout, "NO LEADER") {
		t.Errorf("without a leader: got %s", got)
	}
}

// TestOutputFormats: JSON is the API's message, YAML the same, and both can be read back.
func TestOutputFormats(t *testing.T) {
	a := serveAnswers(t)
	m := member("node-1", true, 3, "no receivers")
	m.Bytes = 5 << 30
	a.members = []*planev1.ListMembersResponse{members(m)}
	for _, format := range []string{"table", "wide", "json", "yaml"} {
		got := run(t, "", "cluster", "members", "--addr", a.address, "-o", format)
		if got.code != codeDone {
			t.Errorf("%s: got %s", format, got)
		}
		golden(t, "members."+format, got.stdout)
	}
	var doc struct {
		Members []struct {
			Node  struct{ NodeId string }
			Bytes string
		}
	}
	if err := json.Unmarshal([]byte(run(t, "", "cluster", "members", "--addr", a.address, "-o", "json").stdout), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Members) != 1 || doc.Members[0].Node.NodeId != "node-1" || doc.Members[0].Bytes != "5368709120" {
		t.Errorf("JSON was read as %+v", doc)
	}
}

// TestUnderstandingInFourFormats: each of the commands that explain prints the API's message and two tables.
func TestUnderstandingInFourFormats(t *testing.T) {
	a := serveAnswers(t)
	p := func(i uint32) *planev1.Partition { return &planev1.Partition{TopicId: 7, Topic: "orders", Index: i} }
	estimate := &planev1.Estimate{Eta: durationpb.New(90e9), Basis: "copy_rate_per_node=1.0 MiB", RemainingBytes: 9 << 20, MovesInFlight: 1, MovesWaiting: 2}
	nodes := []*planev1.NodeForesight{
		{NodeId: "node-1", Alive: true, Draining: true, OwnedBefore: 2, BytesBefore: 9 << 20, MovesOut: 2, DiskTotalBytes: 100 << 20, DiskUsedBeforeBytes: 50 << 20, DiskUsedAfterBytes: 41 << 20},
		{NodeId: "new-1", Added: true, Alive: true, OwnedAfter: 2, BytesAfter: 9 << 20, MovesIn: 2},
	}
	planned := []*planev1.PlannedMove{
		{Partition: p(0), From: "node-1", To: "new-1", Bytes: 4 << 20, Reason: "drain node-1"},
		{Partition: p(1), From: "node-1", To: "new-1", Bytes: 5 << 20, Reason: "drain node-1", Waits: "1 moves are in flight (max_in_flight_moves=1)"},
		{Partition: p(2), From: "node-1", OldTarget: "node-9", Reason: "cancel: target node-9 is dead"},
	}
	blocked := []*planev1.BlockedMove{{Partition: p(3), Owner: "node-4", Bytes: 1 << 30, Reason: "owner dead"}}
	a.plan = &planev1.PlanMovesResponse{Revision: 9, Moves: planned, Bytes: 9 << 20, Blocked: blocked, Nodes: nodes, Estimate: estimate, Notes: []string{"rebalancing is paused"}}
	a.why = &planev1.ExplainPartitionResponse{Revision: 9, Partition: p(1), Owner: "node-1", Bytes: 5 << 20, State: planev1.PlacementState_PLACEMENT_STATE_HELD_BACK,
		Reasons: []string{"drain node-1; waits: 1 moves are in flight (max_in_flight_moves=1)"}, Planned: planned[1], NextCommand: "naradctl-plane cluster moves"}
	a.drain = &planev1.DecommissionResponse{DryRun: true, Moves: planned[:2], Bytes: 9 << 20, Nodes: nodes, Estimate: estimate}
	at := timestamppb.New(time.Unix(1_800_000_000, 0))
	a.moves = &planev1.ListMovesResponse{Revision: 9, HistoryKept: 1, HistoryKeptLimit: 10000, Estimate: estimate, Blocked: blocked,
		Moves: []*planev1.Move{{Assignment: &planev1.Assignment{Partition: p(0), Owner: "node-1", Target: "node-2", MoveId: 5, Reason: "drain node-1", MoveStartedAt: at},
			Progress: &planev1.MoveProgress{Phase: planev1.MovePhase_MOVE_PHASE_FROZEN, DoneBytes: 3 << 20, TotalBytes: 4 << 20, LagBytes: 1 << 20,
				BytesPerSecond: 1 << 20, Passes: 2, Attempt: 1, FrozenFor: durationpb.New(12e6)}, Eta: durationpb.New(1e9)}},
		History: []*planev1.MoveRecord{{Partition: p(8), MoveId: 4, Kind: planev1.OutcomeKind_OUTCOME_KIND_FLIPPED, Source: "node-1", Destination: "node-2",
			Reason: "drain node-1", StartedAt: at, EndedAt: at, Stats: &planev1.MoveStats{Bytes: 4 << 20, Duration: durationpb.New(4e9), Freeze: durationpb.New(8e6), Passes: 1, Attempts: 1}}}}
	a.events = &planev1.ListEventsResponse{Revision: 9, OldestId: 1, NewestId: 2, KeptLimit: 10000, Events: []*planev1.Event{
		{Id: 1, Revision: 4, At: at, Kind: planev1.EventKind_EVENT_KIND_DRAIN_BEGUN, Subject: "node-1", Nodes: []string{"node-1"}, Reason: "disk", Result: "it owns 2 partitions",
			Actor: &planev1.Actor{Kind: planev1.ActorKind_ACTOR_KIND_OPERATOR, Name: "alice@host", Address: "10.0.0.7"}},
		{Id: 2, Revision: 8, At: at, Kind: planev1.EventKind_EVENT_KIND_SETTINGS_CHANGED, Result: "max_passes: 20 → 9",
			Actor: &planev1.Actor{Kind: planev1.ActorKind_ACTOR_KIND_OPERATOR, Name: "bob", Verified: true, Address: "10.0.0.8"}},
	}}
	for name, args := range map[string][]string{
		"plan":    {"cluster", "plan", "--drain", "node-1", "--add", "1"},
		"whynot":  {"cluster", "plan", "why-not", "orders/1"},
		"dryrun":  {"cluster", "decommission", "node-1", "--dry-run"},
		"moves":   {"cluster", "moves", "--history"},
		"events":  {"cluster", "events", "--node", "node-1", "--since", "1h"},
		"explain": {"cluster", "plan", "--explain"},
	} {
		for _, format := range []string{"table", "wide", "json", "yaml"} {
			got := run(t, "", append(args, "--addr", a.address, "-o", format)...)
			if got.code != codeDone {
				t.Errorf("%s %s: got %s", name, format, got)
			}
			if name != "explain" || format == "table" {
				golden(t, name+"."+format, got.stdout)
			}
		}
	}
	for _, r := range a.requests() {
		if e, ok := r.(*planev1.ListEventsRequest); ok && (e.GetNode() != "node-1" || e.GetLimit() != 100 || time.Since(e.GetSince().AsTime()) < time.Hour) {
			t.Errorf("asked for %v", e)
		}
		if e, ok := r.(*planev1.ListMovesRequest); ok && (!e.GetHistory() || e.GetHistoryLimit() != 100) {
			t.Errorf("asked for %v", e)
		}
	}
}

// TestMembersByName: with ids, every single thing that keeps a node; an unknown one is not found.
func TestMembersByName(t *testing.T) {
	a := serveAnswers(t)
	m := member("node-1", true, 3, "partition t/0: no receivers", "and 1 more partitions")
	for i := range 2 {
		m.DrainBlockers = append(m.DrainBlockers, &planev1.DrainBlocker{Reason: "no_receivers", Act: true, Count: 1, Text: fmt.Sprintf("partition t/%d: no receivers", i)})
	}
	a.members = []*planev1.ListMembersResponse{members(m, member("node-2", false, 1))}
	got := run(t, "", "cluster", "members", "node-1", "--addr", a.address)
	if got.code != codeDone || !strings.Contains(got.stdout, "node-1 is draining: partition t/1: no receivers") || strings.Contains(got.stdout, "node-2") {
		t.Errorf("got %s", got)
	}
	a.members = []*planev1.ListMembersResponse{members(member("node-2", false, 1))}
	if got := run(t, "", "cluster", "members", "node-7", "--addr", a.address); got.code != codeNotFound || !strings.Contains(got.stderr, "node node-7 is no member") {
		t.Errorf("got %s", got)
	}
}

func TestSinceIsADurationOrATime(t *testing.T) {
	now := time.Unix(1_800_000_000, 0).UTC()
	for in, want := range map[string]time.Time{"2h": now.Add(-2 * time.Hour), "2026-01-31T00:00:00Z": time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)} {
		if got, err := parseSince(in, now); err != nil || !got.Equal(want) {
			t.Errorf("%s is %s, want %s (%v)", in, got, want, err)
		}
	}
	for _, in := range []string{"-2h", "yesterday", "2026-01-31"} {
		if got, err := parseSince(in, now); err == nil {
			t.Errorf("%s was read as %s", in, got)
		}
	}
	if got := run(t, "", "cluster", "events", "--since", "yesterday"); got.code != codeUsage || !strings.Contains(got.stderr, "--since") {
		t.Errorf("got %s", got)
	}
}

// TestC40DecommissionWaitsUntilTheNodeIsGone: an owner of nothing is still a member, and not done.
func TestC40DecommissionWaitsUntilTheNodeIsGone(t *testing.T) {
	a := serveAnswers(t)
	a.drain = &planev1.DecommissionResponse{Moves: []*planev1.PlannedMove{{From: "node-1", To: "node-2", Bytes: 7}}, Bytes: 7}
	a.members = []*planev1.ListMembersResponse{
		members(member("node-1", true, 2), member("node-2", false, 1)),
		members(member("node-1", true, 0, "1 copy is not opened yet"), member("node-2", false, 3)),
		members(member("node-2", false, 3)),
	}
	got := run(t, "", "cluster", "decommission", "node-1", "--wait", "--addr", a.address)
	if got.code != codeDone || len(a.members) != 1 {
		t.Errorf("it did not wait for the node to be gone: got %s", got)
	}
	for _, want := range []string{"owns 2", "1 copy is not opened yet"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("no progress line with %q: got %s", want, got)
		}
	}
	if !strings.Contains(got.stdout, "node-1 is no member any more") {
		t.Errorf("got %s", got)
	}
}

func TestC40DecommissionTimesOutAndSaysThatTheDrainGoesOn(t *testing.T) {
	a := serveAnswers(t)
	a.drain = &planev1.DecommissionResponse{}
	a.members = []*planev1.ListMembersResponse{members(member("node-1", true, 2, "no receivers"))}
	got := run(t, "", "cluster", "decommission", "node-1", "--wait", "--timeout", "300ms", "--addr", a.address)
	if got.code != codeTimeout || !strings.Contains(got.stderr, "goes on") || !strings.Contains(got.stderr, "--cancel node-1") {
		t.Errorf("got %s", got)
	}
}

func TestDecommissionThatSomebodyCancelledEnds(t *testing.T) {
	a := serveAnswers(t)
	a.drain = &planev1.DecommissionResponse{}
	a.members = []*planev1.ListMembersResponse{members(member("node-1", true, 2)), members(member("node-1", false, 2))}
	got := run(t, "", "cluster", "decommission", "node-1", "--wait", "--addr", a.address)
	if got.code != codeError || !strings.Contains(got.stderr, "cancelled") {
		t.Errorf("got %s", got)
	}
}

// TestC39DryRunWithBlockersIsARefusal: scripts see it in the exit code, people in the text.
func TestC39DryRunWithBlockersIsARefusal(t *testing.T) {
	a := serveAnswers(t)
	a.drain = &planev1.DecommissionResponse{DryRun: true, Blockers: []string{"no receivers"}}
	got := run(t, "", "cluster", "decommission", "a", "b", "--dry-run", "--reason", "rack", "--addr", a.address)
	if got.code != codeRefused || !strings.Contains(got.stderr, "no receivers") || !strings.Contains(got.stdout, "nothing was changed") {
		t.Errorf("got %s", got)
	}
	for i := range 1000 {
		a.drain.Blockers = append(a.drain.Blockers, fmt.Sprintf("partition t/%d: no receivers", i))
	}
	if long := run(t, "", "cluster", "decommission", "a", "--dry-run", "--addr", a.address); !strings.Contains(long.stderr, "; and 991 more (-o json has all)") {
		t.Errorf("many blockers: got %s", long)
	}
	want := &planev1.DecommissionRequest{Id: "a", OtherIds: []string{"b"}, DryRun: true, Reason: "rack"}
	req, ok := a.requests()[0].(*planev1.DecommissionRequest)
	if !ok {
		t.Fatalf("got request %T", a.requests()[0])
	}
	if req.GetId() != want.GetId() || !cmp.Equal(req.GetOtherIds(), want.GetOtherIds()) || !req.GetDryRun() || req.GetReason() != want.GetReason() {
		t.Errorf("got request %v, want %v", req, want)
	}
}

func TestCancelThatIsTooLateIsARefusal(t *testing.T) {
	a := serveAnswers(t)
	a.cancel = &planev1.CancelMoveResponse{Outcome: &planev1.Outcome{MoveId: 9, Kind: planev1.OutcomeKind_OUTCOME_KIND_FLIPPED, Source: "a", Destination: "b"}}
	got := run(t, "", "cluster", "move", "cancel", "orders/3", "--addr", a.address)
	if got.code != codeRefused || !strings.Contains(got.stderr, "too late: move 9 of orders/3 had ended (flipped, from a to b)") {
		t.Errorf("got %s", got)
	}
}

func TestSettingsAreParsedByTheirKind(t *testing.T) {
	a := serveAnswers(t)
	got := run(t, "", "cluster", "settings", "set", "copy_rate_per_node=50MiB", "freeze_budget=20ms", "rebalance_paused=true",
		"max_passes=7", "--addr", a.address)
	if got.code != codeDone {
		t.Fatalf("got %s", got)
	}
	s := a.requests()[0].(*planev1.UpdateSettingsRequest).GetSettings()
	if s.GetCopyRatePerNode() != 50<<20 || s.GetFreezeBudget().AsDuration().Milliseconds() != 20 || !s.GetRebalancePaused() || s.GetMaxPasses() != 7 {
		t.Errorf("got %v", s)
	}
	if s.LagBytes != nil || s.HandoffTtl != nil {
		t.Errorf("keys that were not given are set: %v", s)
	}
	if !strings.Contains(got.stdout, "50 MiB") || !strings.Contains(got.stdout, "20ms") {
		t.Errorf("got %s", got)
	}
}

// TestProduceFromStandardInput sends each line as a record, in bounded requests.
func TestProduceFromStandardInput(t *testing.T) {
	a := serveAnswers(t)
	n := batchRecords*2 + 3
	got := run(t, strings.Repeat("line\n", n), "produce", "orders", "--key", "k", "--agent", a.address)
	if got.code != codeDone || got.stdout != "accepted 1003 records\n" {
		t.Fatalf("got %s", got)
	}
	total := 0
	for _, m := range a.requests() {
		records := m.(*nodev1.ProduceRequest).GetRecords()
		total += len(records)
		if len(records) > batchRecords || string(records[0].GetKey()) != "k" || string(records[0].GetValue()) != "line" {
			t.Errorf("got a request of %d records, the first %v", len(records), records[0])
		}
	}
	if total != n {
		t.Errorf("sent %d records, want %d", total, n)
	}
}

// TestProduceNamesTheLineThatIsTooLong, and how much was accepted before it.
func TestProduceNamesTheLineThatIsTooLong(t *testing.T) {
	a := serveAnswers(t)
	longest := strings.Repeat("x", cluster.MaxRecordBytes)
	if got := run(t, longest+"\r\n", "produce", "orders", "--agent", a.address); got.code != codeDone {
		t.Errorf("the longest record: got %s", got)
	}
	got := run(t, strings.Repeat("line\n", batchRecords+1)+longest+"x\n", "produce", "orders", "--agent", a.address)
	if got.code != codeUsage || !strings.Contains(got.stderr, "500 records accepted, then: ") || !strings.Contains(got.stderr, "502") {
		t.Errorf("got %s", got)
	}
	if got := run(t, longest+longest, "produce", "orders", "--agent", a.address); !strings.Contains(got.stderr, "line 1 of standard input is longer than 1048576 bytes") {
		t.Errorf("got %s", got)
	}
}

// TestMovesWatchGoesOn: an answer that does not come is told once, and a move too short to be seen is seen at its end.
func TestMovesWatchGoesOn(t *testing.T) {
	a := serveAnswers(t)
	set := func(err error, m *planev1.ListMovesResponse) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.err, a.moves = err, m
	}
	record := func(id uint64, index uint32) *planev1.MoveRecord {
		return &planev1.MoveRecord{MoveId: id, Partition: &planev1.Partition{Topic: "orders", Index: index}, Source: "node-1",
			Destination: "node-2", Kind: planev1.OutcomeKind_OUTCOME_KIND_FLIPPED, Reason: "drain node-1"}
	}
	old := record(1, 1)
	set(nil, &planev1.ListMovesResponse{History: []*planev1.MoveRecord{old}})
	w := start(t, "cluster", "moves", "--watch", "--addr", a.address)
	eventually(t, "the head", func() bool { return strings.Contains(w.stdout.String(), "PARTITION") })
	set(refusal(cluster.ReasonLimit, "busy"), nil)
	eventually(t, "the complaint", func() bool { return strings.Contains(w.stderr.String(), "waiting: busy") })
	set(nil, &planev1.ListMovesResponse{History: []*planev1.MoveRecord{old, record(2, 2)}})
	eventually(t, "the end of a move", func() bool { return strings.Contains(w.stdout.String(), "orders/2") })
	if code := w.end(t); code != codeDone {
		t.Errorf("ended with %d", code)
	}
	if out := w.stdout.String(); strings.Contains(out, "orders/1") || !strings.Contains(out, "flipped") {
		t.Errorf("printed:\n%s", out)
	}
	if n := strings.Count(w.stderr.String(), "busy"); n != 1 {
		t.Errorf("complained %d times", n)
	}
}

// TestC62ConfigShow: the same value by file, variable and flag, through the program.
func TestC62ConfigShow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("agent:\n  zone: by-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "", "config", "show", "--effective", "--config", file); got.code != codeDone || !strings.Contains(got.stdout, "zone: by-file") {
		t.Errorf("file: got %s", got)
	}
	t.Setenv("NARADPLANE_AGENT_ZONE", "by-variable")
	if got := run(t, "", "config", "show", "--effective", "--config", file, "-o", "json"); got.code != codeDone || !strings.Contains(got.stdout, `"zone": "by-variable"`) {
		t.Errorf("variable: got %s", got)
	}
	if got := run(t, "", "config", "show", "agent", "--effective", "--config", file, "--zone", "by-flag"); got.code != codeDone || !strings.Contains(got.stdout, "zone: by-flag") {
		t.Errorf("flag: got %s", got)
	}
	t.Setenv("NARADPLANE_AGENT_ZONNE", "x")
	if got := run(t, "", "config", "show", "--effective"); got.code != codeUsage || !strings.Contains(got.stderr, "NARADPLANE_AGENT_ZONNE") {
		t.Errorf("unknown variable: got %s", got)
	}
	if got := run(t, "", "config", "show"); got.code != codeDone || !strings.Contains(got.stdout, "# Failure zone") {
		t.Errorf("defaults: got %s", got)
	}
}
