package cluster_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestBadInput: a clear error with a code and a reason over plain HTTP, and nothing changes.
func TestBadInput(t *testing.T) {
	e := start(t, 1, 1)
	e.topic("orders", 2)
	before, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	ctl, agent := "http://"+e.cluster.Controllers[0].Address, "http://"+e.cluster.Agents[0].Address
	b64 := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	produce := agent + "/v1/topics/orders/produce"
	createTopic := ctl + "/naradplane.v1.TopicService/CreateTopic"
	for _, c := range []struct {
		name, method, url, body string
		status                  int
		says                    string
	}{
		{"unknown topic", "POST", agent + "/v1/topics/nope/produce", `{"records":[{"value":"eA=="}]}`, 404, "NOT_FOUND"},
		{"no records", "POST", produce, `{}`, 400, "INVALID"},
		{"bad JSON", "POST", produce, `{"records":`, 400, ""},
		{"not base64", "POST", produce, `{"records":[{"value":"%%%"}]}`, 400, ""},
		{"unknown field", "POST", produce, `{"recrods":[]}`, 400, "recrods"},
		{"key over the limit", "POST", produce, `{"records":[{"key":"` + b64(65<<10) + `","value":"eA=="}]}`, 400, "INVALID"},
		{"record over the limit", "POST", produce, `{"records":[{"value":"` + b64(1<<20+1) + `"}]}`, 400, "INVALID"},
		{"consume without a group", "POST", agent + "/v1/topics/orders/consume", `{}`, 400, "INVALID"},
		{"bad receipt", "POST", agent + "/v1/topics/orders/ack", `{"receipts":["zzz"]}`, 200, "INVALID"},
		{"no partitions", "POST", createTopic, `{"name":"a"}`, 400, "INVALID"},
		{"10 million partitions", "POST", createTopic, `{"name":"a","partitions":10000000}`, 400, "INVALID"},
		{"bad topic name", "POST", createTopic, `{"name":"../a","partitions":1}`, 400, "INVALID"},
		{"topic exists", "POST", createTopic, `{"name":"orders","partitions":1}`, 409, "ALREADY_EXISTS"},
		{"unknown parent", "POST", createTopic, `{"name":"a","partitions":1,"parent":"nope"}`, 404, "NOT_FOUND"},
		{"unknown node", "POST", ctl + "/v1/cluster/members/agent-9/decommission", `{}`, 404, "NOT_FOUND"},
		{"last receiver", "POST", ctl + "/v1/cluster/members/agent-1/decommission", `{}`, 400, "no receivers"},
		{"cancel for an unknown node", "DELETE", ctl + "/v1/cluster/members/agent-9/decommission", ``, 404, "NOT_FOUND"},
		{"data asked of a controller", "POST", ctl + "/v1/topics/orders/produce", `{"records":[{"value":"eA=="}]}`, 400, e.cluster.Agents[0].Address},
		{"unknown path", "GET", ctl + "/v1/nothing", ``, 404, ""},
	} {
		req, err := http.NewRequestWithContext(e.ctx, c.method, c.url, strings.NewReader(c.body))
		e.must(err)
		if c.body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := http.DefaultClient.Do(req)
		e.must(err)
		body, err := io.ReadAll(resp.Body)
		e.must(err)
		e.must(resp.Body.Close())
		if resp.StatusCode != c.status || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %s, want %d saying %q\n%s", c.name, resp.Status, c.status, c.says, body)
		}
	}
	after, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	if after.GetRevision() != before.GetRevision() {
		t.Errorf("the revision went from %d to %d: something changed", before.GetRevision(), after.GetRevision())
	}
}

// TestREST: exactly the paths that operators script against answer JSON.
func TestREST(t *testing.T) {
	e := start(t, 3, 2)
	e.topic("orders", 4)
	agent := "http://" + e.cluster.Agents[0].Address
	call := func(method, url, body string) map[string]any {
		t.Helper()
		req, err := http.NewRequestWithContext(e.ctx, method, url, strings.NewReader(body))
		e.must(err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		e.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		e.must(err)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s\n%s", method, url, resp.Status, b)
		}
		var v map[string]any
		e.must(json.Unmarshal(b, &v))
		return v
	}
	// C15: any controller answers, the leader or not.
	for _, p := range e.cluster.Controllers {
		ctl := "http://" + p.Address
		if v := call("GET", ctl+"/v1/cluster/status", ""); v["verdict"] == nil {
			t.Errorf("%s: status without a verdict: %v", p.Name, v)
		}
		if v := call("GET", ctl+"/v1/cluster/members", ""); len(v["members"].([]any)) != 2 {
			t.Errorf("%s: members: %v", p.Name, v)
		}
		call("GET", ctl+"/v1/cluster/moves", "")
		call("POST", ctl+"/v1/cluster/members/agent-2/decommission", `{"dryRun":true}`)
		call("POST", ctl+"/v1/cluster/members/agent-2/decommission", `{"reason":"test"}`)
		call("DELETE", ctl+"/v1/cluster/members/agent-2/decommission", "")
	}
	value := "aGVsbG8="
	call("POST", agent+"/v1/topics/orders/produce", `{"records":[{"key":"aw==","value":"`+value+`"}]}`)
	v := call("POST", agent+"/v1/topics/orders/consume", `{"group":"g","wait":"5s"}`)
	records, _ := v["records"].([]any)
	if len(records) != 1 {
		t.Fatalf("consume: %v, want one record", v)
	}
	r := records[0].(map[string]any)
	if r["value"] != value {
		t.Errorf("consumed %v, want %s", r["value"], value)
	}
	if v := call("POST", agent+"/v1/topics/orders/ack", `{"receipts":["`+r["receipt"].(string)+`"]}`); v["acked"] != float64(1) {
		t.Errorf("ack: %v", v)
	}
}
