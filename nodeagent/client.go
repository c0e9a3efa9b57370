package nodeagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// ErrOutcomeUnknown marks a mutation that may be applied now, later or never (I8). It is never a
// *cluster.Error.
var ErrOutcomeUnknown = errors.New("outcome unknown")

// ClientOptions are NewClient's arguments.
type ClientOptions struct {
	// Controllers are host:port addresses to begin with; at least one. They are kept whatever Learn says.
	Controllers []string
	// CallTimeout bounds one attempt at one address.
	CallTimeout time.Duration
	DialTimeout time.Duration
	// Rounds is how often all addresses are tried before a call fails; zero means 3.
	Rounds int
	// TLS is used when it is set; otherwise plain HTTP.
	TLS *tls.Config
	// Log may be nil.
	Log *zap.Logger
}

// leaderHeader is on an answer that a controller got from the leader: the leader's address.
const leaderHeader = "Naradplane-Leader"

// shunFor is how long a controller that did not answer is reached through others, when it leads.
const shunFor = 30 * time.Second

// Client calls the controllers. Every call tries the addresses in turn, beginning with the leader when it is
// known and with the one that answered last otherwise, on anything that another controller may answer better.
// Watches stay where they are, so that agents spread over the controllers. It speaks HTTP/1.1, so that
// each call in flight has a connection of its own and a stuck one holds up nothing else. Safe for
// concurrent use.
type Client struct {
	opts ClientOptions
	mu   struct {
		sync.Mutex
		endpoints []*endpoint
		current   int
		// leader is an endpoint's address, or empty. shunned is one that did not answer, until a time:
		// who reaches the leader through others alone must not try it in vain before each call.
		leader, shunned string
		until           time.Time
	}
}

// endpoint is one controller. Its transport is replaced when its connections are suspected.
type endpoint struct {
	address   string
	transport *http.Transport
	node      planev1connect.NodeServiceClient
}

// NewClient returns a client. Nothing is dialled before the first call.
func NewClient(o ClientOptions) *Client {
	if o.CallTimeout <= 0 {
		o.CallTimeout = DefaultConfig().CallTimeout
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultConfig().DialTimeout
	}
	if o.Rounds <= 0 {
		o.Rounds = 3
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	c := &Client{opts: o}
	for _, a := range o.Controllers {
		c.mu.endpoints = append(c.mu.endpoints, c.dial(a))
	}
	if n := len(o.Controllers); n > 1 {
		// Agents that start together spread over the controllers.
		c.mu.current = rand.IntN(n)
	}
	return c
}

func (c *Client) dial(address string) *endpoint {
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: c.opts.DialTimeout, KeepAlive: 5 * time.Second}).DialContext,
		TLSClientConfig:       c.opts.TLS,
		TLSHandshakeTimeout:   c.opts.DialTimeout,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       30 * time.Second,
		ExpectContinueTimeout: time.Second,
		// An empty map keeps HTTP/2 off over TLS too.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	scheme := "http://"
	if c.opts.TLS != nil {
		scheme = "https://"
	}
	// Most messages are small, and the leader's processor is the scarcest of all.
	tr := connecthttp.NewTransport(leaderNoter{c, &http.Client{Transport: t}}, scheme+address, connecthttp.WithCompressors(),
		connecthttp.WithReadMaxBytes(wire.MaxMessageBytes))
	return &endpoint{
		address:   address,
		transport: t,
		node:      planev1connect.NewNodeServiceClient(connect.NewClient(tr)),
	}
}

// Close drops idle connections. Calls in flight end with their contexts.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.mu.endpoints {
		e.transport.CloseIdleConnections()
	}
}

// Learn replaces what the cluster said of its controllers' addresses. They are tried besides the configured ones, so
// that an agent follows its controllers when all of them are replaced, one by one.
func (c *Client) Learn(addresses []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mu.endpoints[c.mu.current]
	known := map[string]*endpoint{}
	for _, e := range c.mu.endpoints {
		known[e.address] = e
	}
	c.mu.endpoints, c.mu.current = nil, 0
	for _, a := range slices.Concat(c.opts.Controllers, addresses) {
		e := known[a]
		switch {
		case slices.ContainsFunc(c.mu.endpoints, func(e *endpoint) bool { return e.address == a }):
			continue
		case e == nil:
			e = c.dial(a)
		case e == now:
			c.mu.current = len(c.mu.endpoints)
		}
		delete(known, a)
		c.mu.endpoints = append(c.mu.endpoints, e)
	}
	for _, e := range known {
		e.transport.CloseIdleConnections()
	}
}

// attempts is how often a call tries before it fails.
func (c *Client) attempts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opts.Rounds * len(c.mu.endpoints)
}

func (c *Client) current() *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.endpoints[c.mu.current]
}

// leaderNoter remembers who the leader is when an answer says so.
type leaderNoter struct {
	c    *Client
	http *http.Client
}

// Do implements connecthttp.HTTPClient.
func (n leaderNoter) Do(r *http.Request) (*http.Response, error) {
	res, err := n.http.Do(r)
	if err == nil {
		if a := res.Header.Get(leaderHeader); a != "" {
			n.c.lead(a)
		}
	}
	return res, err
}

func (c *Client) lead(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if address != c.mu.shunned || time.Now().After(c.mu.until) {
		c.mu.leader = address
	}
}

// leading returns the leader's endpoint, or the present one when the leader is not known, or not by an address that
// this client was given.
func (c *Client) leading() *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.mu.endpoints {
		if e.address == c.mu.leader {
			return e
		}
	}
	return c.mu.endpoints[c.mu.current]
}

// suspect turns away from an endpoint: the next call goes to the next address, and whoever comes back
// to this one dials anew, since a kept connection may lead nowhere without ever reporting it.
func (c *Client) suspect(e *endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftLocked(e)
	c.mu.shunned, c.mu.until = e.address, time.Now().Add(shunFor)
	for i, have := range c.mu.endpoints {
		if have != e {
			continue
		}
		c.mu.endpoints[i] = c.dial(e.address)
		e.transport.CloseIdleConnections()
		if i == c.mu.current {
			c.mu.current = (i + 1) % len(c.mu.endpoints)
		}
		return
	}
}

// pass turns away from an endpoint whose connections are fine.
func (c *Client) pass(e *endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftLocked(e)
	if c.mu.endpoints[c.mu.current] == e {
		c.mu.current = (c.mu.current + 1) % len(c.mu.endpoints)
	}
}

// leftLocked forgets a leader that did not answer as one.
func (c *Client) leftLocked(e *endpoint) {
	if c.mu.leader == e.address {
		c.mu.leader = ""
	}
}

// Redial turns to the next controller, with fresh connections to all of them.
func (c *Client) Redial() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.mu.endpoints {
		c.mu.endpoints[i] = c.dial(e.address)
		e.transport.CloseIdleConnections()
	}
	c.mu.current = (c.mu.current + 1) % len(c.mu.endpoints)
	c.mu.leader = ""
}

// call runs fn against the controllers in turn until one gives a definite answer. All requests that go
// through it may be repeated: they are reads, or carry what makes a repetition harmless. The error is a
// *cluster.Error only when it is definite; after an attempt whose outcome is unknown, "no leader" is
// not.
func call[T any](ctx context.Context, c *Client, what string, fn func(context.Context, planev1connect.NodeServiceClient) (T, error)) (T, error) {
	var zero T
	b := newBackoff(20*time.Millisecond, time.Second)
	attempts := c.attempts()
	unknown := false
	var last error
	for i := range attempts {
		if i > 0 && !b.wait(ctx) {
			break
		}
		e := c.leading()
		actx, cancel := context.WithTimeout(ctx, c.opts.CallTimeout)
		res, err := fn(actx, e.node)
		cancel()
		if err == nil {
			return res, nil
		}
		err = apierr.FromConnect(err)
		last = fmt.Errorf("%s at controller %s: %w", what, e.address, err)
		switch r := cluster.ReasonOf(err); r {
		case cluster.ReasonNoLeader:
			c.pass(e)
			wait := cluster.AsError(err).RetryAfter
			if wait > 0 && !sleep(ctx, min(wait, time.Second)) {
				return zero, outcome(unknown, last)
			}
		case 0, cluster.ReasonBug:
			unknown = true
			c.suspect(e)
		case cluster.ReasonLimit:
			// It speaks for this attempt alone, like "no leader".
			return zero, outcome(unknown, last)
		default:
			return zero, last
		}
		if ctx.Err() != nil {
			break
		}
	}
	if last == nil {
		// Nothing was sent.
		return zero, fmt.Errorf("%s: %w", what, ctx.Err())
	}
	return zero, outcome(unknown, last)
}

// outcome hides a refusal behind ErrOutcomeUnknown when an earlier attempt may still be applied.
// Invariant I8: what is not known is never reported as a definite failure.
func outcome(unknown bool, err error) error {
	if !unknown {
		return err
	}
	// %v on purpose: a domain error in the chain would read as a definite answer.
	return fmt.Errorf("%w: %v", ErrOutcomeUnknown, err)
}

// once is call with a single attempt at the present controller. A heartbeat must not be repeated late: the
// lease counts from when it was sent.
func once[T any](ctx context.Context, c *Client, timeout time.Duration, fn func(context.Context, planev1connect.NodeServiceClient) (T, error)) (T, error) {
	e := c.leading()
	actx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := fn(actx, e.node)
	if err == nil {
		return res, nil
	}
	err = apierr.FromConnect(err)
	switch cluster.ReasonOf(err) {
	case 0, cluster.ReasonBug:
		c.suspect(e)
	case cluster.ReasonNoLeader:
		c.pass(e)
	}
	var zero T
	return zero, fmt.Errorf("controller %s: %w", e.address, err)
}

// openNodeWatch opens WatchNode at the present controller.
func (c *Client) openNodeWatch(node cluster.NodeID) func(context.Context, cluster.Revision) (watchStream, error) {
	return func(ctx context.Context, after cluster.Revision) (watchStream, error) {
		e := c.current()
		s, err := e.node.WatchNode(ctx, &planev1.WatchNodeRequest{NodeId: string(node), AfterRevision: uint64(after)})
		if err != nil {
			return nil, c.streamError(e, err)
		}
		return stream[*planev1.WatchNodeResponse]{c: c, e: e, receive: s.Receive, close: s.Close}, nil
	}
}

// openRoutesWatch opens WatchRoutes, for all topics, at the present controller.
func (c *Client) openRoutesWatch(ctx context.Context, after cluster.Revision) (watchStream, error) {
	e := c.current()
	s, err := e.node.WatchRoutes(ctx, &planev1.WatchRoutesRequest{AfterRevision: uint64(after)})
	if err != nil {
		return nil, c.streamError(e, err)
	}
	return stream[*planev1.WatchRoutesResponse]{c: c, e: e, receive: s.Receive, close: s.Close}, nil
}

func (c *Client) streamError(e *endpoint, err error) error {
	err = apierr.FromConnect(err)
	switch cluster.ReasonOf(err) {
	case 0, cluster.ReasonBug:
		c.suspect(e)
	case cluster.ReasonNoLeader, cluster.ReasonLimit:
		c.pass(e)
	}
	return fmt.Errorf("watch at controller %s: %w", e.address, err)
}

// watchMessage is what both streams' messages have.
type watchMessage interface {
	GetRevision() uint64
	GetSnapshot() *planev1.Snapshot
	GetDelta() *planev1.Delta
	GetProgress() *planev1.Progress
}

type stream[M watchMessage] struct {
	c       *Client
	e       *endpoint
	receive func() (M, error)
	close   func() error
}

func (s stream[M]) Receive() (watchEvent, error) {
	m, err := s.receive()
	if err != nil {
		return watchEvent{}, s.c.streamError(s.e, err)
	}
	ev := watchEvent{revision: cluster.Revision(m.GetRevision())}
	var in []*planev1.Change
	switch {
	case m.GetSnapshot() != nil:
		ev.snapshot, ev.first, ev.last = true, m.GetSnapshot().GetFirst(), m.GetSnapshot().GetLast()
		in = m.GetSnapshot().GetChanges()
	case m.GetDelta() != nil:
		ev.delta = true
		in = m.GetDelta().GetChanges()
	}
	ev.changes, err = wire.ChangesFromProto(in)
	if err != nil {
		return watchEvent{}, fmt.Errorf("watch at controller %s: %w", s.e.address, err)
	}
	return ev, nil
}

func (s stream[M]) Close() error { return s.close() }

// jitter returns d less up to a quarter.
func jitter(d time.Duration) time.Duration {
	if d < 4 {
		return d
	}
	return d - time.Duration(rand.Int64N(int64(d/4)))
}
