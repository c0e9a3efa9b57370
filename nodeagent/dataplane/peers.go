package dataplane

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
)

// peers holds a client per address. Safe for concurrent use.
type peers struct {
	http    connecthttp.HTTPClient
	scheme  string
	slots   int
	timeout time.Duration

	mu struct {
		sync.Mutex
		byAddress map[string]*peer
	}
}

// maxPeerMessage bounds what a peer may answer; ConsumeOwned answers most, MaxConsumeBytes and a record.
const maxPeerMessage = 8 << 20

// maxPeers bounds the clients that are kept; at the limit all idle ones are forgotten.
const maxPeers = 4096

// peer is another agent. Its breaker opens when the agent does not answer, and then lets one call at a
// time through.
type peer struct {
	client nodev1connect.OwnerServiceClient
	// slots bounds appends in flight, so that a silent owner can hold only so much memory.
	slots chan struct{}

	mu struct {
		sync.Mutex
		failures int
		retryAt  time.Time
		probing  bool
		// patience is how long a consumer waits for an answer; zero is minPatience. It doubles when one that is alive
		// was too slow.
		patience time.Duration
	}
}

const (
	minPeerBackoff = 50 * time.Millisecond
	maxPeerBackoff = 2 * time.Second
	// minPatience is for how long an owner that hangs keeps the records of the others waiting, once.
	minPatience = time.Second
)

// newHTTPClient returns the client that is used when none is given.
func newHTTPClient(slots int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: slots, IdleConnTimeout: 90 * time.Second,
	}}
}

func newPeers(client connecthttp.HTTPClient, scheme string, slots int, timeout time.Duration) *peers {
	if client == nil {
		client = newHTTPClient(slots)
	}
	if scheme == "" {
		scheme = "http"
	}
	p := &peers{http: client, scheme: scheme, slots: slots, timeout: timeout}
	p.mu.byAddress = map[string]*peer{}
	return p
}

func (ps *peers) at(address string) *peer {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, ok := ps.mu.byAddress[address]; ok {
		return p
	}
	if len(ps.mu.byAddress) >= maxPeers {
		for a, p := range ps.mu.byAddress {
			if len(p.slots) == 0 {
				delete(ps.mu.byAddress, a)
			}
		}
	}
	transport := connecthttp.NewTransport(ps.http, ps.scheme+"://"+address,
		connecthttp.WithReadMaxBytes(maxPeerMessage),
		// Between agents the processor is scarcer than the network.
		connecthttp.WithCompressors())
	p := &peer{client: nodev1connect.NewOwnerServiceClient(connect.NewClient(transport)),
		slots: make(chan struct{}, ps.slots)}
	ps.mu.byAddress[address] = p
	return p
}

// unreachable returns when the peer may be asked again, or zero when it may be asked now.
func (p *peer) unreachable(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.failures == 0:
		return time.Time{}
	case p.mu.probing:
		return now.Add(minPeerBackoff)
	case p.mu.retryAt.After(now):
		return p.mu.retryAt
	}
	return time.Time{}
}

var (
	errPeerDown = errors.New("the agent did not answer the last call and is asked again soon")
	errNoSlot   = errors.New("no append to the owner could be started")
)

// call asks the peer unless its breaker is open, for at most timeout.
func (p *peer) call(ctx context.Context, timeout time.Duration, fn func(context.Context) error) error {
	p.mu.Lock()
	probe := p.mu.failures > 0
	if probe && (p.mu.probing || p.mu.retryAt.After(time.Now())) {
		p.mu.Unlock()
		return errPeerDown
	}
	p.mu.probing = probe
	p.mu.Unlock()

	callCtx, cancel := context.WithTimeout(ctx, timeout)
	err := fn(callCtx)
	cancel()

	p.mu.Lock()
	defer p.mu.Unlock()
	if probe {
		p.mu.probing = false
	}
	switch {
	case err == nil || !silent(err):
		p.mu.failures = 0
	case ctx.Err() != nil:
		// The caller gave up; that says nothing about the peer.
	default:
		p.mu.failures++
		p.mu.retryAt = time.Now().Add(min(minPeerBackoff<<min(p.mu.failures-1, 6), maxPeerBackoff))
	}
	return err
}

// silent reports whether an error means that the peer did not answer, as opposed to a refusal.
func silent(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true
	case connect.CodeUnknown:
		var e *connect.Error
		return !errors.As(err, &e) || !e.IsRemote()
	default:
		return false
	}
}

// failing reports whether the peer did not answer the last call.
func (p *peer) failing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.failures > 0
}

// ask is call for who has others to ask as well: it leaves a peer alone that did not answer the last call, until a probe
// was answered, and waits for an answer no longer than the peer's patience.
func (p *peer) ask(ctx context.Context, most time.Duration, fn func(context.Context) error) error {
	p.mu.Lock()
	if p.mu.failures > 0 {
		p.mu.Unlock()
		return errPeerDown
	}
	patience := min(max(p.mu.patience, minPatience), most)
	p.mu.Unlock()
	err := p.call(ctx, patience, fn)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.mu.patience = 0
	case connect.CodeOf(err) == connect.CodeDeadlineExceeded && ctx.Err() == nil:
		p.mu.patience = min(2*patience, most)
	}
	return err
}

// acquire takes a slot for an append, or returns false when stop or the context comes first.
func (p *peer) acquire(ctx context.Context, stop <-chan struct{}) bool {
	select {
	case p.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case p.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	}
}

func (p *peer) release() { <-p.slots }
