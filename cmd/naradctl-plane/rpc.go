package main

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect/v2"
	"connectrpc.com/vanguard"

	"github.com/naradctl/naradctl-plane/internal/rest"
)

// maxRequestBytes bounds a request's message. Produce and append are bounded to 4 MiB of records by their
// handlers, which answer with a reason; this leaves room for what is around them.
const maxRequestBytes = 8 << 20

// mountRPC mounts server: Connect, gRPC and gRPC-Web for all of its methods, REST under /v1/ for the methods
// of the named services with an HTTP rule, reflection, and gRPC's health check.
func mountRPC(mux *http.ServeMux, server *connect.Server, ready readiness, restServices ...string) error {
	grpcreflect.Register(server)
	rpc := http.NewServeMux()
	connecthttp.Mount(rpc, server, connecthttp.WithReadMaxBytes(maxRequestBytes))
	rpc.Handle(grpchealth.NewHandler(healthChecker{ready}))
	var services []*vanguard.Service
	for _, name := range restServices {
		services = append(services, vanguard.NewService("/"+name+"/", rpc, vanguard.WithMaxMessageBufferBytes(maxRequestBytes)))
	}
	routes, err := rest.NewTranscoder(services...)
	if err != nil {
		return err
	}
	mux.Handle("/v1/", routes)
	mux.Handle("/", rpc)
	return nil
}

// healthChecker answers gRPC's health check like /readyz.
type healthChecker struct{ ready readiness }

// Check implements grpchealth.Checker.
func (h healthChecker) Check(context.Context, *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if len(h.ready()) > 0 {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// jsonByDefault lets curl -d work: what a command line sends without naming a type is JSON. A browser
// names itself by one of two headers and gets no such help, since a foreign page may send forms, but not JSON.
func jsonByDefault(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := r.Header
		kind := h.Get("Content-Type")
		call := strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/narad")
		if call && r.Method == http.MethodPost && h.Get("Origin") == "" && h.Get("Sec-Fetch-Site") == "" &&
			(kind == "" || kind == "application/x-www-form-urlencoded") {
			r = r.Clone(r.Context())
			r.Header.Set("Content-Type", "application/json")
		}
		next.ServeHTTP(w, r)
	})
}
