package clients_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// TestOpenAPI: what live daemons answer is what the document that they serve says.
func TestOpenAPI(t *testing.T) {
	ctx := within(t, time.Minute)
	ctl, agent := "http://"+live.cluster.Controllers[1].Address, "http://"+live.cluster.Agents[0].Address
	var document []byte
	for _, base := range []string{ctl, agent} {
		res, err := http.Get(base + "/openapi.yaml")
		must(t, err)
		document, err = io.ReadAll(res.Body)
		must(t, err)
		must(t, res.Body.Close())
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "application/yaml") {
			t.Fatalf("%s/openapi.yaml: %s", base, res.Status)
		}
	}
	doc, err := openapi3.NewLoader().LoadFromData(document)
	must(t, err)
	must(t, doc.Validate(ctx))
	for name, s := range doc.Components.Schemas {
		if s.Value.Type.Is("object") && name != "google.protobuf.Any" {
			no := false
			s.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &no} // a field that is not described is a fault
		}
	}
	router, err := legacy.NewRouter(doc)
	must(t, err)
	called := map[string]bool{}
	var receipt string
	call := func(method, base, path, body string, want int) map[string]any {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
		must(t, err)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		route, vars, err := router.FindRoute(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		called[method+" "+route.Path] = true
		input := &openapi3filter.RequestValidationInput{Request: req, PathParams: vars, Route: route}
		if err := openapi3filter.ValidateRequest(ctx, input); err != nil {
			t.Errorf("%s %s: the request: %v", method, path, err)
		}
		req.Body = io.NopCloser(strings.NewReader(body))
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		raw, err := io.ReadAll(res.Body)
		must(t, err)
		must(t, res.Body.Close())
		if res.StatusCode != want {
			t.Errorf("%s %s: %s, want %d\n%s", method, path, res.Status, want, raw)
		}
		err = openapi3filter.ValidateResponse(ctx, &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: res.StatusCode,
			Header: res.Header, Body: io.NopCloser(bytes.NewReader(raw))})
		if err != nil {
			t.Errorf("%s %s: the answer: %v", method, path, err)
		}
		var v map[string]any
		must(t, json.Unmarshal(raw, &v))
		return v
	}
	call("POST", ctl, "/v1/topics", `{"name":"described","partitions":2,"retention":"3600s"}`, 200)
	call("GET", ctl, "/v1/topics", "", 200)
	call("GET", ctl, "/v1/topics/described", "", 200)
	call("GET", ctl, "/v1/topics/nothing", "", 404)
	call("POST", agent, "/v1/topics/described/produce", `{"records":[{"key":"aw==","value":"aGVsbG8="}]}`, 200)
	for _, r := range call("POST", agent, "/v1/topics/described/consume", `{"group":"g","wait":"10s"}`, 200)["records"].([]any) {
		receipt = r.(map[string]any)["receipt"].(string)
	}
	call("POST", agent, "/v1/topics/described/extend", `{"receipts":["`+receipt+`"]}`, 200)
	call("POST", agent, "/v1/topics/described/ack", `{"receipts":["`+receipt+`","bad"]}`, 200)
	call("GET", ctl, "/v1/cluster/status", "", 200)
	call("GET", ctl, "/v1/cluster/members", "", 200)
	call("GET", ctl, "/v1/cluster/moves?history=true", "", 200)
	call("POST", ctl, "/v1/cluster/moves/described/0", `{"to":"nobody"}`, 404)
	call("DELETE", ctl, "/v1/cluster/moves/described/7", "", 404)
	call("POST", ctl, "/v1/cluster/members/agent-1/decommission", `{"dryRun":true}`, 200)
	call("DELETE", ctl, "/v1/cluster/members/nobody/decommission", "", 404)
	settings := call("GET", ctl, "/v1/cluster/settings", "", 200)["settings"].(map[string]any)
	if v := call("PATCH", ctl, "/v1/cluster/settings", `{"maxInFlightMoves":9}`, 200); v["settings"].(map[string]any)["maxInFlightMoves"] != 9.0 || settings["maxInFlightMoves"] != 8.0 {
		t.Errorf("settings before %v, after %v", settings, v)
	}
	call("GET", ctl, "/v1/cluster/controllers", "", 200)
	call("POST", ctl, "/v1/cluster/controllers", `{"name":"ctl-9"}`, 400)
	call("DELETE", ctl, "/v1/cluster/controllers/ctl-9", "", 404)
	call("POST", ctl, "/v1/cluster/leader", `{"to":"ctl-9"}`, 404)
	call("GET", ctl, "/v1/controller?stateHash=true", "", 200)
	call("DELETE", ctl, "/v1/topics/described", "", 200)
	// Whatever else can be read without naming anything.
	for path, item := range doc.Paths.Map() {
		if item.Get != nil && !strings.Contains(path, "{") && !called["GET "+path] {
			call("GET", ctl, path, "", 200)
		}
	}
	if len(called) < 22 {
		t.Errorf("only %d operations were called", len(called))
	}
}
