package rest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/grpcreflect/v2"
	"connectrpc.com/vanguard"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/proto/openapi"
)

// Options say what is served.
type Options struct {
	// Server has the services' handlers registered.
	Server *connect.Server
	// REST are the names of those services whose annotated methods are served under /v1/.
	REST []string
	// MaxBytes bounds one message, and a REST body.
	MaxBytes int
	// Ready returns why the process does not serve as it should; nothing when it does. It must not block.
	Ready func() []string
}

// NewHandler returns a handler of all that the package is about. Reflection is registered with the server.
func NewHandler(o Options) (http.Handler, error) {
	grpcreflect.Register(o.Server)
	services := map[string]bool{}
	for spec := range o.Server.Specs() {
		if m := method(spec.Procedure); m != nil {
			services[string(m.Parent().FullName())] = true
		}
	}
	names := make([]string, 0, len(services))
	for name := range services {
		names = append(names, name)
	}
	rpc := http.NewServeMux()
	connecthttp.Mount(rpc, o.Server, connecthttp.WithReadMaxBytes(o.MaxBytes))
	rpc.Handle(NewHealth(o.Ready, names...))
	routes, err := newRoutes(rpc, o)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", boundRPC(rpc, int64(o.MaxBytes)))
	mux.Handle("/v1/", routes)
	mux.HandleFunc("GET /openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openapi.Document) // the client has gone when this fails
	})
	return mux, nil
}

// envelope is what a protocol adds to a message at most.
const envelope = 1 << 10

// boundRPC refuses a request that says itself that it is too large, with the reason that the protocols' own bound lacks.
func boundRPC(next http.Handler, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > limit+envelope {
			WriteError(w, r, apierr.ToConnect(tooLarge(limit)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// routes translates REST calls.
type routes struct {
	transcoder http.Handler
	limit      int64
}

func newRoutes(rpc http.Handler, o Options) (http.Handler, error) {
	var services []*vanguard.Service
	for _, name := range o.REST {
		services = append(services, vanguard.NewService("/"+name+"/", rpc,
			// JSON is decoded here, strictly, and never passed on as it is.
			vanguard.WithTargetCodecs(vanguard.CodecProto), vanguard.WithMaxMessageBufferBytes(uint32(o.MaxBytes))))
	}
	t, err := vanguard.NewTranscoder(services, vanguard.WithCodec(newCodec),
		vanguard.WithUnknownHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			writeRefusal(w, http.StatusNotFound, notServed(r))
		})))
	if err != nil {
		return nil, fmt.Errorf("make REST routes: %w", err)
	}
	return routes{transcoder: t, limit: int64(o.MaxBytes)}, nil
}

// ServeHTTP implements http.Handler.
func (h routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > h.limit {
		writeRefusal(w, http.StatusRequestEntityTooLarge, tooLarge(h.limit))
		return
	}
	body := &boundedBody{ReadCloser: http.MaxBytesReader(w, r.Body, h.limit)}
	r = r.Clone(r.Context())
	r.Body = body
	ew := &errorRewriter{ResponseWriter: w, contentType: r.Header.Get("Content-Type")}
	h.transcoder.ServeHTTP(ew, r)
	if ew.code >= http.StatusBadRequest && body.exceeded.Load() {
		writeRefusal(w, http.StatusRequestEntityTooLarge, tooLarge(h.limit))
		return
	}
	ew.finish(r)
}

// boundedBody notes that a body without a known length was too long.
type boundedBody struct {
	io.ReadCloser
	exceeded atomic.Bool
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		b.exceeded.Store(true)
	}
	return n, err
}
