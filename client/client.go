package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// Options say whom to ask and how.
type Options struct {
	// Controllers are addresses, host:port, of one or more controllers of the cluster. They may be left out when Agents are
	// given and nothing but Data is used.
	Controllers []string
	// Agents are whom Data asks. Without them it finds the agents by the controllers' routes, which is better: they change.
	Agents []string
	// TLS makes the connections, with the client's certificate. Nil is plain HTTP.
	TLS *tls.Config
	// User says who uses the client, for the cluster's audit. It proves nothing; a client certificate does.
	User string
	// AttemptTimeout bounds one attempt at one address, so that a silent host does not use up a call's time. Zero is 5 s.
	// The time for which a Consume waits is added.
	AttemptTimeout time.Duration
	// Patience is how long a call goes on trying while no address answers at all. Zero tries each address once.
	Patience time.Duration
	// Interceptors wrap every call, the first one outermost; a call is one, however many attempts it takes.
	Interceptors []connect.ClientInterceptor
}

const (
	dialTimeout = 2 * time.Second
	// maxMessageBytes bounds one answer; the largest are parts of snapshots and descriptions of topics.
	maxMessageBytes = 64 << 20
	idlePerHost     = 16
)

// Client talks to one cluster. Make it with New.
type Client struct {
	opts   Options
	http   *http.Client
	scheme string

	controllers *pool
	routes      *routes

	cluster planev1connect.ClusterServiceClient
	topics  planev1connect.TopicServiceClient
	nodes   planev1connect.NodeServiceClient
	data    nodev1connect.DataServiceClient

	mu struct {
		sync.Mutex
		connects map[string]*connect.Client
	}
}

// New returns a client. It dials nothing: the first call does.
func New(o Options) (*Client, error) {
	if len(o.Controllers)+len(o.Agents) == 0 {
		return nil, fmt.Errorf("client: Controllers must name an address of the cluster, such as 127.0.0.1:7400")
	}
	for _, list := range [][]string{o.Controllers, o.Agents} {
		for _, a := range list {
			if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
				return nil, fmt.Errorf("client: %q is no address; host:port is one", a)
			}
		}
	}
	if o.AttemptTimeout <= 0 {
		o.AttemptTimeout = 5 * time.Second
	}
	c := &Client{opts: o, scheme: "http", controllers: newPool(o.Controllers)}
	if o.TLS != nil {
		c.scheme = "https"
	}
	c.mu.connects = map[string]*connect.Client{}
	// HTTP/1.1: each call in flight has a connection of its own, and a stuck one holds up nothing else.
	c.http = &http.Client{Transport: named{o.User, &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: dialTimeout,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: idlePerHost,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}}}
	c.routes = newRoutes(c)
	plane := connect.NewClient(&party{Client: c, what: "controller", pick: c.pickControllers}, o.Interceptors...)
	c.cluster = planev1connect.NewClusterServiceClient(plane)
	c.topics = planev1connect.NewTopicServiceClient(plane)
	c.nodes = planev1connect.NewNodeServiceClient(plane)
	c.data = nodev1connect.NewDataServiceClient(connect.NewClient(&party{Client: c, what: "agent", pick: c.pickAgents}, o.Interceptors...))
	return c, nil
}

// named says who uses the client.
type named struct {
	user string
	*http.Transport
}

// userHeader is what the controllers read it from.
const userHeader = "Naradplane-User"

// RoundTrip implements http.RoundTripper. The embedded transport's idle connections stay closable.
func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	if n.user != "" {
		r = r.Clone(r.Context())
		r.Header.Set(userHeader, n.user)
	}
	return n.Transport.RoundTrip(r)
}

// Close ends what the client does by itself and drops idle connections. It is called once.
func (c *Client) Close() {
	c.routes.close()
	c.http.CloseIdleConnections()
}

// Cluster is about members, moves, settings and controllers.
func (c *Client) Cluster() planev1connect.ClusterServiceClient { return c.cluster }

// Topics is about topics.
func (c *Client) Topics() planev1connect.TopicServiceClient { return c.topics }

// Nodes is what agents ask. Its GetAssignment reads one partition and how one move of it ended.
func (c *Client) Nodes() planev1connect.NodeServiceClient { return c.nodes }

// Data is about records.
func (c *Client) Data() nodev1connect.DataServiceClient { return c.data }

// at returns the client of one address.
func (c *Client) at(address string) *connect.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.mu.connects[address]
	if k == nil {
		k = connect.NewClient(connecthttp.NewTransport(c.http, c.scheme+"://"+address, connecthttp.WithReadMaxBytes(maxMessageBytes)))
		c.mu.connects[address] = k
	}
	return k
}

func (c *Client) pickControllers(context.Context, any) (picked, error) {
	return picked{addresses: c.controllers.order(), pool: c.controllers}, nil
}

func (c *Client) pickAgents(ctx context.Context, req any) (picked, error) {
	if len(c.opts.Agents) > 0 {
		return picked{addresses: c.opts.Agents}, nil
	}
	topic := ""
	if r, ok := req.(interface{ GetTopic() string }); ok {
		topic = r.GetTopic()
	}
	addresses, err := c.routes.agents(ctx, topic)
	return picked{addresses: addresses}, err
}
