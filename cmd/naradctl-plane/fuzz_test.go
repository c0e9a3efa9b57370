package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// FuzzHTTP: no request makes a daemon panic, end, or blame itself for what the client sent.
func FuzzHTTP(f *testing.F) {
	d := start(f, "dev", "--data-dir", f.TempDir(), "--agents", "1", "--log-level", "error")
	targets := []string{d.address(f, "ctl-1"), d.address(f, "node-1")}
	f.Cleanup(func() { d.end(f) })
	const rpc = "/naradplane.v1."
	for _, s := range []struct {
		method, path, kind, body string
		to                       uint8
	}{
		{"GET", "/v1/cluster/status", "", "", 0},
		{"GET", "/v1/cluster/moves?history=true&page_size=-1", "", "", 0},
		{"POST", "/v1/cluster/members/node-9/decommission", "application/json", `{"reason":"disk","dry_run":true}`, 0},
		{"DELETE", "/v1/cluster/members/node-1/decommission", "", "", 0},
		{"POST", rpc + "TopicService/CreateTopic", "application/json", `{"name":"t","partitions":3,"retention":"1h"}`, 0},
		{"POST", rpc + "TopicService/DescribeTopic", "application/json", `{"name":"t"}`, 0},
		{"POST", rpc + "ClusterService/UpdateSettings", "application/json", `{"settings":{"handoff_ttl":"-1s"}}`, 0},
		{"POST", rpc + "ClusterService/StartMove", "application/json", `{"topic":"t","index":0,"to":"node-1"}`, 0},
		{"POST", rpc + "NodeService/RegisterNode", "application/json", `{"node_id":"x","store_id":"y","incarnation":"1"}`, 0},
		{"POST", rpc + "NodeService/Heartbeat", "application/proto", "\x0a\x01x", 0},
		{"POST", rpc + "NodeService/GrantHandoff", "application/json", `{}`, 0},
		{"POST", rpc + "NodeService/CompleteMove", "application/grpc", "\x00\x00\x00\x00\x00", 0},
		{"POST", "/raft/v1/messages", "application/octet-stream", "\x0a\x01c", 0},
		{"POST", "/raft/v1/snapshot", "application/octet-stream", "\x00\x00\x00\x02\x0a\x00\x00\x00\x00\x00", 0},
		{"POST", "/v1/topics/t/produce", "application/json", `{"records":[{"key":"aw==","value":"aGVsbG8="}]}`, 1},
		{"POST", "/v1/topics/t/consume", "", `{"group":"g","max_records":3,"max_bytes":"100"}`, 1},
		{"POST", "/v1/topics/t/ack", "application/json", `{"receipts":["x"]}`, 1},
		{"POST", "/naradnode.v1.OwnerService/Append", "application/json", `{"topic_id":"1","index":0,"records":[{}]}`, 1},
		{"POST", "/naradnode.v1.TransferService/Begin", "application/json", `{"move":{"topic_id":"1","move_id":"2"}}`, 1},
		{"POST", "/naradnode.v1.TransferService/PrepareHandoff", "application/json", `{"move":{"topic_id":"1","move_id":"2"},"ttl":"1s"}`, 1},
		{"GET", "/transfer/v1/1/0/00000000000000000000.log", "", "", 1},
	} {
		f.Add(s.method, s.path, s.kind, []byte(s.body), s.to)
	}
	client := &http.Client{
		Timeout:       5 * time.Second,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 8},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	f.Fuzz(func(t *testing.T, method, path, kind string, body []byte, to uint8) {
		if strings.Contains(path, "Watch") {
			return // a stream has no end to wait for
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+targets[to%2], bytes.NewReader(body))
		if err != nil {
			return
		}
		at, err := req.URL.Parse(path)
		if err != nil || at.Host != req.URL.Host || !strings.HasPrefix(path, "/") {
			return
		}
		req.URL = at
		if kind != "" {
			req.Header["Content-Type"] = []string{kind}
		}
		req.Header["Range"], req.Header["Move-Id"] = []string{"bytes=0-9"}, []string{"2"}
		resp, err := client.Do(req)
		var opErr *net.OpError
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
			return // slow, or refused before the body was read
		case errors.As(err, &opErr) && opErr.Op == "dial":
			t.Fatalf("%s %q: the daemon does not answer any more: %v", method, path, err)
		case strings.Contains(err.Error(), "EOF"):
			t.Fatalf("%s %q %q: the connection ended without an answer: %v", method, path, body, err)
		default:
			return // the client itself refuses such a request
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusInternalServerError {
			t.Fatalf("%s %q %q %q: %s", method, path, kind, body, resp.Status)
		}
	})
}
