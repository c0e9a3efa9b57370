package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// TestC15EveryControllerAnswers: whoever is asked, it works.
func TestC15EveryControllerAnswers(t *testing.T) {
	l := newLab(t, 3, fsm.Options{}, nil)
	l.join(3, "a", "b")
	l.topic(2, "t", 4)
	for i := 1; i <= 3; i++ {
		list, err := l.topics(i).ListTopics(l.ctx, &planev1.ListTopicsRequest{})
		if err != nil || len(list.GetTopics()) != 1 {
			t.Fatalf("list at %d: %v %v", i, list, err)
		}
		members, err := l.cluster(i).ListMembers(l.ctx, &planev1.ListMembersRequest{})
		if err != nil || len(members.GetMembers()) != 2 || members.GetMembers()[0].GetHeartbeatAge() == nil {
			t.Fatalf("members at %d: %v %v", i, members, err)
		}
		st, err := l.cluster(i).GetControllerState(l.ctx, &planev1.GetControllerStateRequest{StateHash: true})
		if err != nil || st.GetName() != []string{"ctl-1", "ctl-2", "ctl-3"}[i-1] || st.GetStateHash() == "" || st.GetLeader() != "ctl-1" {
			t.Fatalf("state of %d: %v %v", i, st, err)
		}
	}
	// A refusal crosses the forward with its reason.
	_, err := l.topics(2).CreateTopic(l.ctx, &planev1.CreateTopicRequest{Name: "t", Partitions: 1})
	l.refused(cluster.ReasonAlreadyExists, err)
	_, err = l.nodes(3).Heartbeat(l.ctx, &planev1.HeartbeatRequest{NodeId: "nobody", Incarnation: 1})
	l.refused(cluster.ReasonNotFound, err)
}

// TestC15Protocols: Connect in binary and JSON, gRPC and gRPC-Web, at a follower.
func TestC15Protocols(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	for name, opt := range map[string]connecthttp.Option{
		"connect": connecthttp.WithSendCodec("proto"), "json": connecthttp.WithProtoJSON(), "grpc": connecthttp.WithGRPC(), "grpc-web": connecthttp.WithGRPCWeb(),
	} {
		c := planev1connect.NewClusterServiceClient(l.client(2, opt))
		res, err := c.GetClusterStatus(l.ctx, &planev1.GetClusterStatusRequest{})
		if err != nil || res.GetLeader() != "ctl-1" {
			t.Errorf("%s: %v %v", name, res, err)
		}
		_, err = c.Decommission(l.ctx, &planev1.DecommissionRequest{Id: "nobody"})
		if cluster.ReasonOf(apierr.FromConnect(err)) != cluster.ReasonNotFound {
			t.Errorf("%s: refusal %v", name, err)
		}
		l.g.Lead(0)
		_, err = c.Decommission(l.ctx, &planev1.DecommissionRequest{Id: "nobody"})
		if e := cluster.AsError(apierr.FromConnect(err)); e == nil || e.Reason != cluster.ReasonNoLeader || e.RetryAfter <= 0 {
			t.Errorf("%s without a leader: %v", name, err)
		}
		l.g.Lead(1)
	}
}

func TestBadInputIsRefusedByField(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	l.join(1, "a")
	l.topic(1, "t", 1)
	ctx := l.ctx
	n, tp, c := l.nodes(2), l.topics(2), l.cluster(2)
	reg := func(change func(r *planev1.RegisterNodeRequest)) error {
		r := &planev1.RegisterNodeRequest{NodeId: "x", StoreId: "s", Incarnation: 1, Address: "x.example:7000"}
		change(r)
		_, err := n.RegisterNode(ctx, r)
		return err
	}
	create := func(r *planev1.CreateTopicRequest) error { _, err := tp.CreateTopic(ctx, r); return err }
	settings := func(s *planev1.Settings) error {
		_, err := c.UpdateSettings(ctx, &planev1.UpdateSettingsRequest{Settings: s})
		return err
	}
	second := func(_ any, err error) error { return err }
	for name, k := range map[string]struct {
		err   error
		field string
	}{
		"no node id":          {reg(func(r *planev1.RegisterNodeRequest) { r.NodeId = "" }), "node_id"},
		"node id with slash":  {reg(func(r *planev1.RegisterNodeRequest) { r.NodeId = "a/b" }), "node_id"},
		"no store":            {reg(func(r *planev1.RegisterNodeRequest) { r.StoreId = "" }), "store_id"},
		"no incarnation":      {reg(func(r *planev1.RegisterNodeRequest) { r.Incarnation = 0 }), "incarnation"},
		"no port":             {reg(func(r *planev1.RegisterNodeRequest) { r.Address = "host" }), "address"},
		"port 0":              {reg(func(r *planev1.RegisterNodeRequest) { r.Address = "host:0" }), "address"},
		"unspecified address": {reg(func(r *planev1.RegisterNodeRequest) { r.Address = "0.0.0.0:7000" }), "address"},
		"unspecified ipv6":    {reg(func(r *planev1.RegisterNodeRequest) { r.Address = "[::]:7000" }), "address"},
		"long zone":           {reg(func(r *planev1.RegisterNodeRequest) { r.Zone = strings.Repeat("z", 201) }), "zone"},
		"bad voter":           {reg(func(r *planev1.RegisterNodeRequest) { r.Voter = "NO" }), "voter"},
		"heartbeat of nobody": {second(n.Heartbeat(ctx, &planev1.HeartbeatRequest{})), "node_id"},
		"no topic name":       {create(&planev1.CreateTopicRequest{Partitions: 1}), "topic"},
		"topic ..":            {create(&planev1.CreateTopicRequest{Name: "..", Partitions: 1}), "topic"},
		"topic with slash":    {create(&planev1.CreateTopicRequest{Name: "a/b", Partitions: 1}), "topic"},
		"no partitions":       {create(&planev1.CreateTopicRequest{Name: "u"}), "partitions"},
		"ten million":         {create(&planev1.CreateTopicRequest{Name: "u", Partitions: 10_000_000}), "partitions"},
		"bad parent":          {create(&planev1.CreateTopicRequest{Name: "u", Partitions: 1, Parent: "a/b"}), "parent"},
		"negative retention":  {create(&planev1.CreateTopicRequest{Name: "u", Partitions: 1, Retention: durationpb.New(-1)}), "retention"},
		"long request id":     {create(&planev1.CreateTopicRequest{Name: "u", Partitions: 1, RequestId: strings.Repeat("r", 129)}), "request_id"},
		"decommission nobody": {second(c.Decommission(ctx, &planev1.DecommissionRequest{})), "id"},
		"second id":           {second(c.Decommission(ctx, &planev1.DecommissionRequest{Id: "a", OtherIds: []string{"B"}})), "other_ids"},
		"move nowhere":        {second(c.StartMove(ctx, &planev1.StartMoveRequest{Topic: "t"})), "to"},
		"no settings":         {settings(nil), "settings"},
		"zero moves":          {settings(&planev1.Settings{MaxInFlightMoves: proto.Uint32(0)}), "max_in_flight_moves"},
		"broken duration":     {settings(&planev1.Settings{HandoffTtl: &durationpb.Duration{Seconds: 1, Nanos: -1}}), "handoff_ttl"},
		"disk 101":            {settings(&planev1.Settings{HighDiskPercent: proto.Uint32(101)}), "high_disk_percent"},
		"no topic id":         {second(n.GetAssignment(ctx, &planev1.GetAssignmentRequest{})), "topic_id"},
		"no move id":          {second(n.CompleteMove(ctx, &planev1.CompleteMoveRequest{TopicId: 1})), "move_id"},
		"controller name":     {second(c.AddController(ctx, &planev1.AddControllerRequest{Name: "A"})), "name"},
		"controller address":  {second(c.AddController(ctx, &planev1.AddControllerRequest{Name: "ctl-9", StoreId: "s", Address: "0.0.0.0:1"})), "address"},
	} {
		e := cluster.AsError(apierr.FromConnect(k.err))
		if e == nil || e.Reason != cluster.ReasonInvalid || e.Field != k.field {
			t.Errorf("%s: got %v, want INVALID about %s", name, k.err, k.field)
		}
	}
	res, err := c.GetSettings(ctx, &planev1.GetSettingsRequest{})
	if err != nil || res.GetSettings().GetMaxInFlightMoves() != 8 {
		t.Fatalf("settings after refused changes: %v %v", res, err)
	}
}

// TestC08FlipByHandIsRefused over the API: nothing was copied, so there is nothing to flip with.
func TestC08FlipByHandIsRefused(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	l.join(1, "a", "b")
	topic := l.topic(1, "t", 1)
	get := func(move uint64) *planev1.GetAssignmentResponse {
		res, err := l.nodes(2).GetAssignment(l.ctx, &planev1.GetAssignmentRequest{TopicId: topic.GetTopicId(), MoveId: move})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	owner := get(0).GetAssignment().GetOwner()
	to := map[string]string{"a": "b", "b": "a"}[owner]
	start, err := l.cluster(2).StartMove(l.ctx, &planev1.StartMoveRequest{Topic: "t", To: to})
	if err != nil {
		t.Fatal(err)
	}
	move := start.GetAssignment().GetMoveId()
	_, err = l.nodes(2).CompleteMove(l.ctx, &planev1.CompleteMoveRequest{TopicId: topic.GetTopicId(), MoveId: move, Handoff: 1, Nonce: make([]byte, 16)})
	if r := cluster.ReasonOf(apierr.FromConnect(err)); r != cluster.ReasonHandoffRevoked && r != cluster.ReasonInvalid {
		t.Fatalf("flip by hand: %v", err)
	}
	if got := get(move); got.GetMoveState() != planev1.MoveState_MOVE_STATE_CURRENT || got.GetAssignment().GetOwner() != owner {
		t.Fatalf("after it: %v", got)
	}
	if got := get(move + 1000); got.GetMoveState() != planev1.MoveState_MOVE_STATE_FORGOTTEN {
		t.Fatalf("a move that never was: %v", got)
	}
	// The whole way: grant, revoke, grant, flip, open.
	nonce := cluster.Nonce{7}
	hash := nonce.Hash()
	grant := func() uint32 {
		g, err := l.nodes(2).GrantHandoff(l.ctx, &planev1.GrantHandoffRequest{
			TopicId: topic.GetTopicId(), MoveId: move, NodeId: owner, Incarnation: 1, NonceHash: hash[:]})
		if err != nil {
			t.Fatal(err)
		}
		return g.GetHandoff()
	}
	h := grant()
	rev, err := l.nodes(2).RevokeHandoff(l.ctx, &planev1.RevokeHandoffRequest{TopicId: topic.GetTopicId(), MoveId: move, Handoff: h})
	if err != nil || !rev.GetRevoked() || rev.GetOutcome() != nil || rev.GetAssignment().GetHandoff() != h {
		t.Fatalf("revoke: %v %v", rev, err)
	}
	flip := func(h uint32) (*planev1.CompleteMoveResponse, error) {
		return l.nodes(2).CompleteMove(l.ctx, &planev1.CompleteMoveRequest{TopicId: topic.GetTopicId(), MoveId: move, Handoff: h, Nonce: nonce[:]})
	}
	_, err = flip(h)
	l.refused(cluster.ReasonHandoffRevoked, err)
	h = grant()
	for range 2 { // repeating it is answered alike
		res, err := flip(h)
		if err != nil || res.GetOutcome().GetKind() != planev1.OutcomeKind_OUTCOME_KIND_FLIPPED {
			t.Fatalf("flip: %v %v", res, err)
		}
	}
	rev, err = l.nodes(2).RevokeHandoff(l.ctx, &planev1.RevokeHandoffRequest{TopicId: topic.GetTopicId(), MoveId: move, Handoff: h})
	if err != nil || rev.GetRevoked() || rev.GetOutcome().GetDestination() != to {
		t.Fatalf("revoke after the flip: %v %v", rev, err)
	}
	a := get(move).GetAssignment()
	if _, err := l.nodes(2).ReportOpened(l.ctx, &planev1.ReportOpenedRequest{TopicId: topic.GetTopicId(), NodeId: to, Epoch: a.GetOwnerEpoch(), MoveId: move,
		Stats: &planev1.MoveStats{Bytes: 5, Freeze: durationpb.New(time.Millisecond)}}); err != nil {
		t.Fatal(err)
	}
	late, err := l.cluster(2).CancelMove(l.ctx, &planev1.CancelMoveRequest{Topic: "t", MoveId: move})
	if err != nil || late.GetCancelled() || late.GetOutcome() == nil {
		t.Fatalf("cancel too late: %v %v", late, err)
	}
	if _, err := l.nodes(2).ReportReclaimed(l.ctx, &planev1.ReportReclaimedRequest{TopicId: topic.GetTopicId(), MoveId: move, NodeId: owner}); err != nil {
		t.Fatal(err)
	}
	moves, err := l.cluster(2).ListMoves(l.ctx, &planev1.ListMovesRequest{History: true})
	if err != nil || len(moves.GetHistory()) == 0 || moves.GetHistory()[0].GetStats().GetBytes() != 5 || moves.GetHistory()[0].GetPartition().GetTopic() != "t" {
		t.Fatalf("history: %v %v", moves, err)
	}
}

// TestC38TopicRecreatedUnderItsNameSharesNothing: its id differs, and so does everything under it.
func TestC38TopicRecreatedUnderItsNameSharesNothing(t *testing.T) {
	l := newLab(t, 1, fsm.Options{}, nil)
	l.join(1, "a")
	first := l.topic(1, "t", 2)
	for range 2 { // a repeated request is answered alike
		if _, err := l.topics(1).DeleteTopic(l.ctx, &planev1.DeleteTopicRequest{Name: "t", RequestId: "r1"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.topics(1).DeleteTopic(l.ctx, &planev1.DeleteTopicRequest{Name: "t"})
	l.refused(cluster.ReasonNotFound, err)
	second := l.topic(1, "t", 2)
	if second.GetTopicId() == first.GetTopicId() {
		t.Fatal("the id was used again")
	}
	res, err := l.nodes(1).GetAssignment(l.ctx, &planev1.GetAssignmentRequest{TopicId: first.GetTopicId()})
	if err != nil || res.GetAssignment() != nil {
		t.Fatalf("assignment of the deleted topic: %v %v", res, err)
	}
}

func (l *lab) rest(method, path, body string) (int, string) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.ctx, method, path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req) // HTTP/1.1, as curl does
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// TestC15REST: the routes that operators call with curl, at a follower and at the leader.
func TestC15REST(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	l.join(1, "a", "b")
	l.topic(1, "t", 4)
	for i := 1; i <= 2; i++ {
		base := "http://" + l.addr[i-1]
		for path, want := range map[string]string{
			"/v1/cluster/status": `"verdict"`, "/v1/cluster/members": `"nodeId":"a"`, "/v1/cluster/moves": `"revision"`, "/v1/cluster/moves?history=true": `"revision"`,
		} {
			if code, body := l.rest(http.MethodGet, base+path, ""); code != 200 || !strings.Contains(strings.ReplaceAll(body, " ", ""), want) {
				t.Errorf("GET %s at %d: %d %s", path, i, code, body)
			}
		}
		if code, body := l.rest(http.MethodPost, base+"/v1/cluster/members/nobody/decommission", `{}`); code != 404 || !strings.Contains(body, "NOT_FOUND") {
			t.Errorf("decommission nobody: %d %s", code, body)
		}
		if code, body := l.rest(http.MethodPost, base+"/v1/cluster/members/a/decommission", `{"dryRun":true}`); code != 200 || !strings.Contains(body, `"moves"`) {
			t.Errorf("dry run: %d %s", code, body)
		}
		if code, body := l.rest(http.MethodPost, base+"/v1/cluster/members/a/decommission", `{"other_ids":["b"]}`); code != 400 || !strings.Contains(body, "no receivers") {
			t.Errorf("the last receivers: %d %s", code, body)
		}
		if code, body := l.rest(http.MethodPost, base+"/v1/cluster/members/a/decommission", `{"reason":"disk"}`); code != 200 {
			t.Errorf("decommission: %d %s", code, body)
		}
		if code, body := l.rest(http.MethodDelete, base+"/v1/cluster/members/a/decommission", ""); code != 200 {
			t.Errorf("cancel: %d %s", code, body)
		}
		if code, body := l.rest(http.MethodPost, base+"/v1/topics/t/produce", `{}`); code != 400 || !strings.Contains(body, "a.example:7000") || !strings.Contains(body, "NOT_OWNER") {
			t.Errorf("asked for data: %d %s", code, body)
		}
		if code, body := l.rest(http.MethodPost, base+"/naradnode.v1.DataService/Produce", `{}`); code != 400 || !strings.Contains(body, "failed_precondition") {
			t.Errorf("asked for data by Connect: %d %s", code, body)
		}
		if code, _ := l.rest(http.MethodGet, base+"/v1/cluster/nothing", ""); code != 404 {
			t.Errorf("unknown route: %d", code)
		}
		if code, _ := l.rest(http.MethodGet, base+"/healthz", ""); code != 200 {
			t.Errorf("healthz: %d", code)
		}
		if code, _ := l.rest(http.MethodGet, base+"/readyz", ""); code != 200 {
			t.Errorf("readyz: %d", code)
		}
	}
	l.g.Lead(0)
	base := "http://" + l.addr[1]
	code, body := l.rest(http.MethodGet, base+"/v1/cluster/status", "")
	var st struct {
		Verdict string
		Reasons []string
	}
	if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 || st.Verdict != "CLUSTER_VERDICT_NO_LEADER" || len(st.Reasons) == 0 {
		t.Errorf("status without a leader: %d %s", code, body)
	}
	if code, body := l.rest(http.MethodGet, base+"/v1/cluster/members", ""); code != 503 || !strings.Contains(body, "NO_LEADER") {
		t.Errorf("members without a leader: %d %s", code, body)
	}
	if code, body := l.rest(http.MethodGet, base+"/readyz", ""); code != 503 || !strings.Contains(body, "no leader") {
		t.Errorf("readyz without a leader: %d %s", code, body)
	}
}

// TestI8BrokenForwardIsNoAnswer: a leader that was never reached is NO_LEADER, a connection that broke is
// not.
func TestI8BrokenForwardIsNoAnswer(t *testing.T) {
	cut := make(chan struct{}, 1)
	l := newLab(t, 2, fsm.Options{}, func(d *Deps) {
		next := h2c()
		d.Forward = roundTrip(func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			select {
			case <-cut:
				if err == nil {
					_ = res.Body.Close()
				}
				return nil, io.ErrUnexpectedEOF
			default:
				return res, err
			}
		})
	})
	l.join(1, "a")
	cut <- struct{}{}
	_, err := l.topics(2).CreateTopic(l.ctx, &planev1.CreateTopicRequest{Name: "t", Partitions: 1})
	if cluster.AsError(apierr.FromConnect(err)) != nil || connect.CodeOf(err) != connect.CodeUnavailable {
		t.Fatalf("a broken connection was answered: %v", err)
	}
	if _, err := l.topics(2).DescribeTopic(l.ctx, &planev1.DescribeTopicRequest{Name: "t"}); err != nil {
		t.Fatalf("it had been applied: %v", err)
	}
	// The address of the leader answers no more.
	if err := l.g.Member(1).AddLearner(l.ctx, consensus.Member{ID: 9, Name: "ctl-9", Address: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	l.g.Lead(9)
	_, err = l.topics(2).CreateTopic(l.ctx, &planev1.CreateTopicRequest{Name: "u", Partitions: 1})
	if e := l.refused(cluster.ReasonNoLeader, err); e.RetryAfter <= 0 {
		t.Fatal("no retry_after")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestForwardsEnd: two controllers that take each other for the leader send nothing round in circles.
func TestForwardsEnd(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	req, err := http.NewRequestWithContext(l.ctx, http.MethodPost, "http://"+l.addr[1]+"/naradplane.v1.ClusterService/ListMembers", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(hopHeader, "2")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(b), "unavailable") {
		t.Fatalf("%d %s", res.StatusCode, b)
	}
}

func TestControllersOverTheAPI(t *testing.T) {
	l := newLab(t, 3, fsm.Options{}, nil)
	res, err := l.cluster(2).ListControllers(l.ctx, &planev1.ListControllersRequest{})
	if err != nil || len(res.GetControllers()) != 3 || !res.GetControllers()[0].GetLeader() || res.GetFailureTolerance() != 1 {
		t.Fatalf("controllers: %v %v", res, err)
	}
	_, err = l.cluster(2).RemoveController(l.ctx, &planev1.RemoveControllerRequest{Name: "ctl-3"})
	if e := l.refused(cluster.ReasonBlocked, err); !strings.Contains(e.Message, "min_voters=3, voters=3, removing ctl-3 leaves 2") {
		t.Fatalf("refusal %q", e.Message)
	}
	add, err := l.cluster(2).AddController(l.ctx, &planev1.AddControllerRequest{Name: "ctl-4", Address: "127.0.0.1:9", StoreId: "s4"})
	if err != nil || add.GetController().GetRaftId() != 4 || len(add.GetControllers()) != 4 || add.GetClusterId() != "cluster-1" {
		t.Fatalf("add: %v %v", add, err)
	}
	tr, err := l.cluster(2).TransferLeadership(l.ctx, &planev1.TransferLeadershipRequest{To: "ctl-3"})
	if err != nil || tr.GetLeader() != "ctl-3" {
		t.Fatalf("transfer: %v %v", tr, err)
	}
}

// TestI8DeadlineIsNoAnswer: the caller gave up first.
func TestI8DeadlineIsNoAnswer(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	l.join(1, "a")
	l.g.Hold()
	ctx, cancel := context.WithTimeout(l.ctx, 100*time.Millisecond)
	defer cancel()
	_, err := l.topics(2).CreateTopic(ctx, &planev1.CreateTopicRequest{Name: "t", Partitions: 1})
	if err == nil || cluster.AsError(apierr.FromConnect(err)) != nil {
		t.Fatalf("got %v, want no answer", err)
	}
	l.g.Release()
	l.until("the topic exists after all", func() bool {
		_, err := l.topics(2).DescribeTopic(l.ctx, &planev1.DescribeTopicRequest{Name: "t"})
		return err == nil
	})
}
