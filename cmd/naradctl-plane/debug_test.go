package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestProfilesAreServed: by a listener of their own, which ends with the daemon; an address in use is named.
func TestProfilesAreServed(t *testing.T) {
	stop, err := serveDebug("", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	stop()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	if _, err := serveDebug(address, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "debug.listen") {
		t.Errorf("an address in use: error %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if stop, err = serveDebug(address, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || !strings.Contains(string(text), "goroutine profile") {
		t.Errorf("%s: %.80s, error %v", resp.Status, text, err)
	}
	stop()
	if _, err := client.Get("http://" + address + "/debug/pprof/"); err == nil {
		t.Error("profiles are served after the end")
	}
}
