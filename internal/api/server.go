package api

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/internal/rest"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// Deps is what the API stands on. Controller, Backend and Machine are required.
type Deps struct {
	Controller *controller.Controller
	Backend    consensus.Backend
	Machine    *fsm.Machine
	// Logger may be nil.
	Logger *zap.Logger
	// Forward carries requests to the leader. It must speak HTTP/2 (gRPC needs trailers), with the
	// client credentials that controllers have. Nil is HTTP/2 without TLS.
	Forward http.RoundTripper
	// Scheme is what Forward dials; empty is "http".
	Scheme string
	// Version of the program goes into backups.
	Version string
	// Interceptors wrap every call, the first one outermost.
	Interceptors []connect.ServerInterceptor
	// KeepAlive is how often an idle watch says how far it is; zero is 2 s.
	KeepAlive time.Duration
	// WriteTimeout bounds the writing of one watch message; zero is 30 s.
	WriteTimeout time.Duration
	// MaxWatchers bounds concurrent watches; zero is 20,000.
	MaxWatchers int
	// SnapshotPart is how many changes one part of a snapshot holds; zero is 1000.
	SnapshotPart int
}

// maxMessageBytes bounds one request. The largest is a heartbeat with the sizes of all partitions.
const maxMessageBytes = 32 << 20

// Server is the handler.
type Server struct {
	deps    Deps
	log     *zap.Logger
	started time.Time
	handler http.Handler
	// leaderRoutes matches what is forwarded of REST.
	leaderRoutes *http.ServeMux

	watchers atomic.Int64
	stopping chan struct{}
	stopOnce sync.Once
}

// New returns the handler of one controller. The caller serves it, with HTTP/1 and unencrypted HTTP/2 or
// TLS, without a WriteTimeout, and calls Close before it shuts the server down.
func New(d Deps) (*Server, error) {
	if d.Logger == nil {
		d.Logger = zap.NewNop()
	}
	if d.Forward == nil {
		d.Forward = h2c()
	}
	if d.Scheme == "" {
		d.Scheme = "http"
	}
	if d.KeepAlive <= 0 {
		d.KeepAlive = 2 * time.Second
	}
	if d.WriteTimeout <= 0 {
		d.WriteTimeout = 30 * time.Second
	}
	if d.MaxWatchers <= 0 {
		d.MaxWatchers = 20_000
	}
	if d.SnapshotPart <= 0 {
		d.SnapshotPart = 1000
	}
	s := &Server{deps: d, log: d.Logger, started: time.Now(), stopping: make(chan struct{}), leaderRoutes: leaderRoutes()}

	rpc := connect.NewServer(d.Interceptors...)
	planev1connect.RegisterNodeServiceHandler(rpc, nodeService{s})
	planev1connect.RegisterTopicServiceHandler(rpc, topicService{s})
	planev1connect.RegisterClusterServiceHandler(rpc, clusterService{s})
	services, err := rest.NewHandler(rest.Options{
		Server: rpc, MaxBytes: maxMessageBytes, Ready: s.notReady,
		REST: []string{planev1connect.ClusterServiceName, planev1connect.TopicServiceName},
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", services)
	mux.HandleFunc("POST /v1/topics/{topic}/{verb}", s.data)
	mux.HandleFunc("/naradnode.v1.DataService/", s.data)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	s.handler = withWriter(withActor(s.forward(mux)))
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Close ends all watches, with an error that sends them to another controller, and makes health and
// readiness say so. Requests are still served; the HTTP server's Shutdown waits for them.
func (s *Server) Close() {
	s.stopOnce.Do(func() { close(s.stopping) })
}
