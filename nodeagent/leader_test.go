package nodeagent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// controllers are n servers that answer flips and say that leads() leads; asked counts the calls of each.
func controllers(t *testing.T, n int, leads func() string) (addresses []string, asked []*atomic.Int64) {
	t.Helper()
	for range n {
		calls := new(atomic.Int64)
		rpc := connect.NewServer()
		planev1connect.RegisterNodeServiceHandler(rpc, &answers{flip: func(int64) error { return nil }})
		mux := http.NewServeMux()
		connecthttp.Mount(mux, rpc)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			if to := leads(); to != r.Host {
				w.Header().Set(leaderHeader, to)
			}
			mux.ServeHTTP(w, r)
		}))
		t.Cleanup(s.Close)
		addresses, asked = append(addresses, strings.TrimPrefix(s.URL, "http://")), append(asked, calls)
	}
	return addresses, asked
}

// TestLeaderIsCalledDirectly: after one answer that came from the leader through another controller, calls go to the leader.
func TestLeaderIsCalledDirectly(t *testing.T) {
	var leader atomic.Value
	addresses, asked := controllers(t, 3, func() string { return leader.Load().(string) })
	c := NewClient(ClientOptions{Controllers: addresses, CallTimeout: time.Second, DialTimeout: time.Second})
	t.Cleanup(c.Close)
	for i, a := range addresses {
		leader.Store(a)
		before := asked[i].Load()
		for range 10 {
			if _, err := (control{client: c, node: "n1"}).CompleteMove(t.Context(), pid(1, 0), 9, 1, cluster.Nonce{}); err != nil {
				t.Fatal(err)
			}
		}
		if n := asked[i].Load() - before; n < 9 {
			t.Errorf("%d of 10 calls went to the leader, want all but the first", n)
		}
	}
}

// TestUnreachableLeaderIsNotTriedEachTime: a node that reaches the leader through others alone calls those.
func TestUnreachableLeaderIsNotTriedEachTime(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	dead := strings.TrimPrefix(gone.URL, "http://")
	gone.Close()
	addresses, asked := controllers(t, 1, func() string { return dead })
	c := NewClient(ClientOptions{Controllers: append(addresses, dead), CallTimeout: time.Second, DialTimeout: time.Second})
	t.Cleanup(c.Close)
	c.mu.current = 0
	failed := 0
	for range 10 {
		_, err := once(t.Context(), c, time.Second, func(ctx context.Context, n nodeClient) (*planev1.CompleteMoveResponse, error) {
			return n.CompleteMove(ctx, &planev1.CompleteMoveRequest{})
		})
		if err != nil {
			failed++
		}
	}
	if failed > 1 || asked[0].Load() < 9 {
		t.Errorf("%d of 10 calls failed, %d went to the controller that answers", failed, asked[0].Load())
	}
}
