package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// lines are events in short.
func lines(list []*planev1.Event) []string {
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%s: %s %s %s", wire.ActorFromProto(e.GetActor()), cluster.EventKind(e.GetKind()), e.GetSubject(), e.GetReason()))
	}
	return out
}

// TestEventsNameWhoAsked, whichever controller was asked: an operator by its address and what it calls itself, an agent by its
// node, the leader by its name. What was refused is no event, and a repeated request is one.
func TestEventsNameWhoAsked(t *testing.T) {
	l := newLab(t, 3, fsm.Options{}, nil)
	l.join(2, "a", "b", "c")
	l.until("the leader has recorded the controllers", func() bool {
		res, err := l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{})
		return err == nil && len(res.GetEvents()) >= 6
	})
	ops := planev1.DecommissionRequest{Id: "a", Reason: "disk", RequestId: "r1"}
	for range 2 {
		if _, err := l.cluster(3).Decommission(l.ctx, &ops); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.cluster(3).Decommission(l.ctx, &planev1.DecommissionRequest{Id: "b", OtherIds: []string{"c"}})
	l.refused(cluster.ReasonBlocked, err)
	list, err := l.cluster(2).ListEvents(l.ctx, &planev1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := lines(list.GetEvents())
	for _, want := range []string{
		"agent a: node_joined a ", "agent c: node_joined c ", "operator 127.0.0.1: drain_begun a disk", "leader ctl-1: controller_added ctl-2 ",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no event %q among %q", want, got)
		}
	}
	if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != "operator 127.0.0.1: drain_begun a disk" })); n != 1 {
		t.Errorf("a repeated request is %d events", n)
	}
	if list.GetOldestId() != 1 || list.GetNewestId() != uint64(len(got)) || list.GetKeptLimit() != fsm.EventLimit {
		t.Errorf("kept: %d to %d of at most %d", list.GetOldestId(), list.GetNewestId(), list.GetKeptLimit())
	}
	// By node, by time, by number.
	some, err := l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{Node: "a"})
	if err != nil || len(some.GetEvents()) != 2 {
		t.Errorf("of node a: %q, %v", lines(some.GetEvents()), err)
	}
	some, err = l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))})
	if err != nil || len(some.GetEvents()) != 0 {
		t.Errorf("of the future: %q, %v", lines(some.GetEvents()), err)
	}
	some, err = l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{Limit: 1})
	if err != nil || len(some.GetEvents()) != 1 || some.GetEvents()[0].GetId() != list.GetNewestId() {
		t.Errorf("the newest: %q, %v", lines(some.GetEvents()), err)
	}
	some, err = l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{AfterId: 2, Limit: 2})
	if err != nil || len(some.GetEvents()) != 2 || some.GetEvents()[0].GetId() != 3 {
		t.Errorf("after 2: %q, %v", lines(some.GetEvents()), err)
	}
	_, err = l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{Limit: fsm.EventLimit + 1})
	l.refused(cluster.ReasonInvalid, err)
	_, err = l.cluster(1).ListEvents(l.ctx, &planev1.ListEventsRequest{Node: "-"})
	l.refused(cluster.ReasonInvalid, err)
}

// TestWatchEventsMissesNothing: it begins where it is told to, goes on with what comes, and says so when that is not kept.
func TestWatchEventsMissesNothing(t *testing.T) {
	l := newLab(t, 1, fsm.Options{}, nil)
	l.join(1, "a", "b")
	ctx, cancel := context.WithTimeout(l.ctx, 20*time.Second)
	defer cancel()
	s, err := l.cluster(1).WatchEvents(ctx, &planev1.WatchEventsRequest{Node: "b"})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *planev1.WatchEventsResponse {
		t.Helper()
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	event := func() *planev1.WatchEventsResponse {
		t.Helper()
		for {
			if m := next(); m.GetEvent() != nil {
				return m
			}
		}
	}
	joined := event()
	if joined.GetEvent().GetKind() != planev1.EventKind_EVENT_KIND_NODE_JOINED || joined.GetEvent().GetSubject() != "b" {
		t.Fatalf("first: %v", joined)
	}
	for next().GetEvent() != nil { // a keep-alive
	}
	for _, id := range []string{"a", "b"} {
		if _, err := l.cluster(1).Decommission(l.ctx, &planev1.DecommissionRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.cluster(1).CancelDecommission(l.ctx, &planev1.CancelDecommissionRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	begun, cancelled := event(), event()
	if begun.GetEvent().GetKind() != planev1.EventKind_EVENT_KIND_DRAIN_BEGUN || cancelled.GetId() != begun.GetId()+1 {
		t.Errorf("then: %v, %v", begun, cancelled)
	}
	ahead, err := l.cluster(1).WatchEvents(ctx, &planev1.WatchEventsRequest{AfterId: cancelled.GetId() + 100})
	if err == nil {
		_, err = ahead.Receive()
	}
	l.refused(cluster.ReasonRevisionCompacted, err)
}

// TestActorOfARequest: a client's claim is a claim; what it forges of a forwarded one is not believed of a direct one; what can't
// be printed is left out.
func TestActorOfARequest(t *testing.T) {
	req := func(path string, header ...string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.RemoteAddr = "10.0.0.7:1234"
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return r
	}
	forwarded := encodeActor(cluster.Actor{Kind: cluster.ActorOperator, Name: "bob", Verified: true, Address: "10.0.0.9"})
	for want, r := range map[string]*http.Request{
		"operator 10.0.0.7":                    req("/v1/cluster/members/a/decommission"),
		"operator 10.0.0.7 (says alice)":       req("/naradplane.v1.ClusterService/Decommission", UserHeader, "ali\x1b\nce"),
		"agent":                                req("/naradplane.v1.NodeService/RegisterNode", UserHeader, "alice"),
		"operator 10.0.0.7 (says carol)":       req("/", UserHeader, "carol", actorHeader, forwarded),
		"operator bob@10.0.0.9":                req("/", UserHeader, "dave", actorHeader, forwarded, hopHeader, "1"),
		"operator 10.0.0.7 (says erin)":        req("/", UserHeader, "erin", actorHeader, "kind=9", hopHeader, "1"),
		"operator 10.0.0.7 (says frank\u00e9)": req("/", UserHeader, "frank\u00e9"),
	} {
		if got := actorOf(r).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
