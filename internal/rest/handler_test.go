package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	_ "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// topics refuses what is named "busy" and lists nothing.
type topics struct {
	planev1connect.UnimplementedTopicServiceHandler
}

func (topics) CreateTopic(_ context.Context, r *planev1.CreateTopicRequest) (*planev1.CreateTopicResponse, error) {
	if r.GetName() == "busy" {
		e := cluster.Errorf(cluster.ReasonNoLeader, "no leader")
		e.RetryAfter = 1500e6
		return nil, apierr.ToConnect(e)
	}
	return &planev1.CreateTopicResponse{Revision: 7, Topic: &planev1.Topic{Name: r.GetName(), Partitions: r.GetPartitions()}}, nil
}

const limit = 4 << 10

func serve(t *testing.T) string {
	t.Helper()
	server := connect.NewServer()
	planev1connect.RegisterTopicServiceHandler(server, topics{})
	h, err := NewHandler(Options{Server: server, REST: []string{planev1connect.TopicServiceName}, MaxBytes: limit, Ready: func() []string { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// TestRefusals: whoever refuses, the answer is a google.rpc.Status with one detail that has a reason and nothing empty.
func TestRefusals(t *testing.T) {
	url := serve(t)
	long := `{"name":"` + strings.Repeat("x", 2*limit) + `"}`
	for name, tc := range map[string]struct {
		method, path, kind, body string
		chunked                  bool
		status                   int
		reason, says             string
	}{
		"unknown path":       {"GET", "/v1/nothing", "", "", false, 404, "NOT_FOUND", "/openapi.yaml"},
		"wrong method":       {"PUT", "/v1/topics", "application/json", "{}", false, 405, "INVALID", "not served at /v1/topics, only"},
		"no JSON":            {"POST", "/v1/topics", "application/json", "{", false, 400, "INVALID", "request body"},
		"unknown field":      {"POST", "/v1/topics", "application/json", `{"nmae":"t"}`, false, 400, "INVALID", "nmae"},
		"a form":             {"POST", "/v1/topics", "text/plain", "name=t", false, 415, "INVALID", "application/json"},
		"unknown query":      {"GET", "/v1/topics?limit=3", "", "", false, 400, "INVALID", "limit"},
		"too large":          {"POST", "/v1/topics", "application/json", long, false, 413, "LIMIT", "larger than 4096 bytes"},
		"too large, chunked": {"POST", "/v1/topics", "application/json", long, true, 413, "LIMIT", "larger than 4096 bytes"},
		"the service":        {"POST", "/v1/topics", "application/json", `{"name":"busy"}`, false, 503, "NO_LEADER", "no leader"},
	} {
		t.Run(name, func(t *testing.T) {
			var body io.Reader = strings.NewReader(tc.body)
			if tc.chunked {
				body = io.MultiReader(body) // of unknown length
			}
			req, err := http.NewRequestWithContext(t.Context(), tc.method, url+tc.path, body)
			if err != nil {
				t.Fatal(err)
			}
			if tc.kind != "" {
				req.Header.Set("Content-Type", tc.kind)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			raw, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			var st struct {
				Code    int
				Message string
				Details []map[string]any
			}
			if err := json.Unmarshal(raw, &st); err != nil {
				t.Fatalf("%s: %v\n%s", res.Status, err, raw)
			}
			if res.StatusCode != tc.status || st.Code == 0 || len(st.Details) != 1 || st.Details[0]["reason"] != "ERROR_REASON_"+tc.reason ||
				!strings.Contains(st.Message, tc.says) || strings.Contains(string(raw), "null") || strings.Contains(string(raw), `:""`) {
				t.Errorf("%s, want %d with %s, saying %q\n%s", res.Status, tc.status, tc.reason, tc.says, raw)
			}
			if wait := res.Header.Get("Retry-After"); (wait == "2") != (tc.reason == "NO_LEADER") {
				t.Errorf("Retry-After: %q", wait)
			}
		})
	}
}

// TestTooLargeByConnect: the Connect protocol's own status, with the reason.
func TestTooLargeByConnect(t *testing.T) {
	res, err := http.Post(serve(t)+planev1connect.TopicServiceCreateTopicProcedure, "application/json", strings.NewReader(`{"name":"`+strings.Repeat("x", 2*limit)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(raw), "naradplane.v1.ErrorDetail") || !strings.Contains(string(raw), "larger than 4096") {
		t.Errorf("%s %v\n%s", res.Status, err, raw)
	}
}

// TestOperatorsMethodsHaveRoutes: what the command line can do, HTTP can.
func TestOperatorsMethodsHaveRoutes(t *testing.T) {
	for service, methods := range map[string]string{
		"naradplane.v1.ClusterService": `GetClusterStatus ListMembers ListMoves Decommission CancelDecommission StartMove CancelMove GetSettings UpdateSettings
			ListControllers AddController RemoveController TransferLeadership GetControllerState`,
		"naradplane.v1.TopicService": "CreateTopic ListTopics DescribeTopic DeleteTopic",
		"naradnode.v1.DataService":   "Produce Consume Ack Extend",
	} {
		for _, m := range strings.Fields(methods) {
			if p := Patterns("/" + service + "/" + m); len(p) == 0 || !strings.Contains(p[0], " /v1/") {
				t.Errorf("%s/%s: routes %q", service, m, p)
			}
		}
	}
	if p := Patterns("/naradplane.v1.NodeService/Heartbeat"); len(p) != 0 {
		t.Errorf("what agents ask is no route: %q", p)
	}
}
