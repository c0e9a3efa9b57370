package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"net/http"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// answers is a server whose answers a test sets, for what is hard to bring about in a live cluster: refusals,
// no leader, a drain that ends at a certain moment.
type answers struct {
	planev1connect.UnimplementedClusterServiceHandler
	planev1connect.UnimplementedTopicServiceHandler
	nodev1connect.UnimplementedDataServiceHandler

	address string
	mu      sync.Mutex
	err     error
	status  *planev1.GetClusterStatusResponse
	members []*planev1.ListMembersResponse // one for each call; the last one stays
	moves   *planev1.ListMovesResponse
	drain   *planev1.DecommissionResponse
	cancel  *planev1.CancelMoveResponse
	plan    *planev1.PlanMovesResponse
	why     *planev1.ExplainPartitionResponse
	events  *planev1.ListEventsResponse
	got     []proto.Message
}

func serveAnswers(t *testing.T) *answers {
	t.Helper()
	a := &answers{}
	server := connect.NewServer()
	planev1connect.RegisterClusterServiceHandler(server, a)
	planev1connect.RegisterTopicServiceHandler(server, a)
	nodev1connect.RegisterDataServiceHandler(server, a)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	a.address = strings.TrimPrefix(s.URL, "http://")
	return a
}

// reply records the request and returns m, or the error that was set.
func reply[T any](a *answers, req proto.Message, m func() T) (T, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, req)
	if a.err != nil {
		var zero T
		return zero, apierr.ToConnect(a.err)
	}
	return m(), nil
}

func (a *answers) requests() []proto.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]proto.Message(nil), a.got...)
}

func (a *answers) GetClusterStatus(_ context.Context, r *planev1.GetClusterStatusRequest) (*planev1.GetClusterStatusResponse, error) {
	return reply(a, r, func() *planev1.GetClusterStatusResponse { return a.status })
}

func (a *answers) ListMembers(_ context.Context, r *planev1.ListMembersRequest) (*planev1.ListMembersResponse, error) {
	return reply(a, r, func() *planev1.ListMembersResponse {
		m := a.members[0]
		if len(a.members) > 1 {
			a.members = a.members[1:]
		}
		return m
	})
}

func (a *answers) ListMoves(_ context.Context, r *planev1.ListMovesRequest) (*planev1.ListMovesResponse, error) {
	return reply(a, r, func() *planev1.ListMovesResponse { return a.moves })
}

func (a *answers) PlanMoves(_ context.Context, r *planev1.PlanMovesRequest) (*planev1.PlanMovesResponse, error) {
	return reply(a, r, func() *planev1.PlanMovesResponse { return a.plan })
}

func (a *answers) ExplainPartition(_ context.Context, r *planev1.ExplainPartitionRequest) (*planev1.ExplainPartitionResponse, error) {
	return reply(a, r, func() *planev1.ExplainPartitionResponse { return a.why })
}

func (a *answers) ListEvents(_ context.Context, r *planev1.ListEventsRequest) (*planev1.ListEventsResponse, error) {
	return reply(a, r, func() *planev1.ListEventsResponse { return a.events })
}

func (a *answers) Decommission(_ context.Context, r *planev1.DecommissionRequest) (*planev1.DecommissionResponse, error) {
	return reply(a, r, func() *planev1.DecommissionResponse { return a.drain })
}

func (a *answers) CancelMove(_ context.Context, r *planev1.CancelMoveRequest) (*planev1.CancelMoveResponse, error) {
	return reply(a, r, func() *planev1.CancelMoveResponse { return a.cancel })
}

func (a *answers) UpdateSettings(_ context.Context, r *planev1.UpdateSettingsRequest) (*planev1.UpdateSettingsResponse, error) {
	return reply(a, r, func() *planev1.UpdateSettingsResponse {
		return &planev1.UpdateSettingsResponse{Settings: r.GetSettings()}
	})
}

func (a *answers) DescribeTopic(_ context.Context, r *planev1.DescribeTopicRequest) (*planev1.DescribeTopicResponse, error) {
	return reply(a, r, func() *planev1.DescribeTopicResponse {
		return &planev1.DescribeTopicResponse{Topic: &planev1.Topic{Name: r.GetName()}}
	})
}

func (a *answers) Produce(_ context.Context, r *nodev1.ProduceRequest) (*nodev1.ProduceResponse, error) {
	return reply(a, r, func() *nodev1.ProduceResponse {
		return &nodev1.ProduceResponse{Accepted: uint32(len(r.GetRecords()))}
	})
}

// result is what a run of the program left behind.
type result struct {
	code           int
	stdout, stderr string
}

func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\n--- stdout\n%s--- stderr\n%s", r.code, r.stdout, r.stderr)
}

// nobody is an address at which nothing listens.
func nobody(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func member(id string, draining bool, owned uint32, blockers ...string) *planev1.Member {
	return &planev1.Member{
		Node:     &planev1.Node{NodeId: id, Draining: draining, Status: planev1.NodeStatus_NODE_STATUS_ALIVE, Address: id + ":7500"},
		Owned:    owned,
		Blockers: blockers,
	}
}

func members(m ...*planev1.Member) *planev1.ListMembersResponse {
	return &planev1.ListMembersResponse{Members: m}
}

func refusal(r cluster.Reason, format string, args ...any) error {
	return cluster.Errorf(r, format, args...)
}
