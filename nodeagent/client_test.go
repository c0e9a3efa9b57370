package nodeagent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// answers is a NodeService whose flips are answered by a function of the call's number, from 1. A nil answer
// breaks the connection.
type answers struct {
	planev1connect.UnimplementedNodeServiceHandler
	flip  func(n int64) error
	calls atomic.Int64
}

var errBreak = errors.New("break the connection")

func (a *answers) CompleteMove(context.Context, *planev1.CompleteMoveRequest) (*planev1.CompleteMoveResponse, error) {
	err := a.flip(a.calls.Add(1))
	if errors.Is(err, errBreak) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		return nil, apierr.ToConnect(err)
	}
	return &planev1.CompleteMoveResponse{Outcome: &planev1.Outcome{MoveId: 9, Kind: planev1.OutcomeKind_OUTCOME_KIND_FLIPPED}}, nil
}

func (a *answers) serve(t *testing.T) string {
	t.Helper()
	rpc := connect.NewServer()
	planev1connect.RegisterNodeServiceHandler(rpc, a)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, rpc)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func flip(t *testing.T, services ...*answers) (cluster.Outcome, error) {
	t.Helper()
	var addresses []string
	for _, s := range services {
		addresses = append(addresses, s.serve(t))
	}
	c := NewClient(ClientOptions{Controllers: addresses, CallTimeout: time.Second, DialTimeout: time.Second, Rounds: 2})
	t.Cleanup(c.Close)
	return control{client: c, node: "n1"}.CompleteMove(t.Context(), pid(1, 0), 9, 1, cluster.Nonce{})
}

func noLeader() error { return cluster.Errorf(cluster.ReasonNoLeader, "no leader") }

// After an attempt that may be applied later, "no leader" and "too many requests" say nothing about it.
func TestI8NoLeaderAfterALostReplyIsUnknown(t *testing.T) {
	for _, reason := range []cluster.Reason{cluster.ReasonNoLeader, cluster.ReasonLimit} {
		_, err := flip(t, &answers{flip: func(n int64) error {
			if n == 1 {
				return errBreak
			}
			return cluster.Errorf(reason, "not now")
		}})
		if !errors.Is(err, ErrOutcomeUnknown) || cluster.ReasonOf(err) != 0 {
			t.Fatalf("got %v (%s)", err, cluster.ReasonOf(err))
		}
	}
}

func TestI8LostRepliesAreUnknown(t *testing.T) {
	s := &answers{flip: func(int64) error { return errBreak }}
	_, err := flip(t, s)
	if !errors.Is(err, ErrOutcomeUnknown) || cluster.ReasonOf(err) != 0 {
		t.Fatalf("got %v (%s)", err, cluster.ReasonOf(err))
	}
	if n := s.calls.Load(); n != 2 {
		t.Fatalf("%d attempts, want 2 rounds of one controller", n)
	}
}

func TestI8OnlyNoLeaderIsDefinite(t *testing.T) {
	_, err := flip(t, &answers{flip: func(int64) error { return noLeader() }})
	if cluster.ReasonOf(err) != cluster.ReasonNoLeader {
		t.Fatalf("got %v", err)
	}
}

// The state machine's refusal is an answer: it is passed on at once, with its reason.
func TestI8RefusalIsPassedOn(t *testing.T) {
	s := &answers{flip: func(n int64) error {
		if n == 1 {
			return errBreak
		}
		return cluster.Errorf(cluster.ReasonHandoffRevoked, "handoff 1 is revoked")
	}}
	_, err := flip(t, s)
	wantRefusal(t, err, cluster.ReasonHandoffRevoked, "handoff 1 is revoked")
	if n := s.calls.Load(); n != 2 {
		t.Fatalf("%d attempts after a refusal", n)
	}
}

func TestC15AnotherControllerAnswers(t *testing.T) {
	for _, bad := range []error{noLeader(), errBreak} {
		for range 4 { // the first address is drawn
			o, err := flip(t,
				&answers{flip: func(int64) error { return bad }},
				&answers{flip: func(int64) error { return nil }})
			if err != nil || o.MoveID != 9 || o.Kind != cluster.OutcomeFlipped {
				t.Fatalf("after %v: got %+v, %v", bad, o, err)
			}
		}
	}
}

func TestClientEndsWithItsContext(t *testing.T) {
	s := &answers{flip: func(int64) error { return noLeader() }}
	c := NewClient(ClientOptions{Controllers: []string{s.serve(t)}, CallTimeout: time.Second, Rounds: 1000})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := (control{client: c}).CompleteMove(ctx, pid(1, 0), 9, 1, cluster.Nonce{}); err == nil {
		t.Fatal("no error")
	}
	if ctx.Err() == nil {
		t.Fatal("gave up before its context ended")
	}
}
