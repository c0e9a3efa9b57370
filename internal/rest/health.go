package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// NewHealth returns gRPC's health service and its path. The services, and the process as a whole, which has the empty name,
// serve while ready returns no reason against it, like /readyz.
func NewHealth(ready func() []string, services ...string) (string, http.Handler) {
	return grpchealth.NewHandler(health{ready, services})
}

type health struct {
	ready    func() []string
	services []string
}

// Check implements grpchealth.Checker.
func (h health) Check(_ context.Context, r *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if r.Service != "" && !slices.Contains(h.services, r.Service) {
		return nil, connectv1.NewError(connectv1.CodeNotFound, fmt.Errorf("no service %q is served here", r.Service))
	}
	if len(h.ready()) > 0 {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
