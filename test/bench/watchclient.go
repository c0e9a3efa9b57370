package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// streamsPerConnection is below what a server permits on one HTTP/2 connection.
const streamsPerConnection = 200

// watchClient is the client process of watchers: its arguments are the controllers' addresses and the number of streams.
func watchClient(args []string) error {
	if len(args) != 2 {
		return errors.New("wants addresses and a number")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t := tallyOf(n)
	failed := make(chan error, n)
	addresses := strings.Split(args[0], ",")
	var rpc planev1connect.NodeServiceClient
	for i := range n {
		if i%streamsPerConnection == 0 {
			rpc = h2cClient(addresses[i/streamsPerConnection%len(addresses)])
		}
		go func() { failed <- watchOne(ctx, rpc, fmt.Sprintf("watcher-%d-%d", os.Getpid(), i), t) }()
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		failed <- nil
	}()
	return <-failed
}

// h2cClient has a connection of its own.
func h2cClient(address string) planev1connect.NodeServiceClient {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := connecthttp.NewTransport(&http.Client{Transport: &http.Transport{Protocols: p}}, "http://"+address, connecthttp.WithGRPC(), connecthttp.WithCompressors())
	return planev1connect.NewNodeServiceClient(connect.NewClient(tr))
}

func watchOne(ctx context.Context, rpc planev1connect.NodeServiceClient, node string, t *tally) error {
	s, err := rpc.WatchNode(ctx, &planev1.WatchNodeRequest{NodeId: node})
	if err != nil {
		return err
	}
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		switch {
		case m.GetSnapshot().GetLast():
			t.opened()
		case m.GetDelta() != nil:
			t.arrived(m.GetRevision())
		}
	}
}

// tally counts the streams that are open, and those that have each revision.
type tally struct {
	n  int
	mu sync.Mutex
	// open and have count streams.
	open int
	have map[uint64]int
}

func tallyOf(n int) *tally { return &tally{n: n, have: map[uint64]int{}} }

func (t *tally) opened() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open++; t.open == t.n {
		fmt.Println("open")
	}
}

func (t *tally) arrived(revision uint64) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have[revision]++; t.have[revision] == t.n {
		fmt.Println(revision, now.UnixNano())
		delete(t.have, revision)
	}
}
