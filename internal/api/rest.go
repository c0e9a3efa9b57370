package api

import (
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"connectrpc.com/vanguard"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/rest"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// rest returns the handler of the REST routes, which are those with an HTTP annotation in the contract.
// rpc serves the calls that it makes of them.
func (s *Server) rest(rpc http.Handler) (http.Handler, error) {
	return rest.NewTranscoder(vanguard.NewService(planev1connect.ClusterServiceName, rpc))
}

// httpStatus is the HTTP status of a Connect code, as google.rpc.Code maps them.
func httpStatus(c connect.Code) int {
	switch c {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists, connect.CodeAborted:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeCanceled:
		return 499
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// writeREST writes err as REST routes answer errors: a google.rpc.Status in JSON.
func writeREST(w http.ResponseWriter, err error) {
	st := &spb.Status{Code: int32(connect.CodeOf(err)), Message: err.Error()}
	var ce *connect.Error
	if errors.As(err, &ce) {
		st.Message = ce.Message()
		for _, d := range ce.Details() {
			st.Details = append(st.Details, connectproto.ErrorDetailToAny(d))
		}
	}
	b, merr := protojson.Marshal(st)
	if merr != nil {
		http.Error(w, err.Error(), httpStatus(connect.CodeOf(err)))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus(connect.CodeOf(err)))
	_, _ = w.Write(b) // the client has gone when this fails
}

// maxNamedAgents bounds how many agents an answer names.
const maxNamedAgents = 20

// data answers requests for records: the agents serve them.
func (s *Server) data(w http.ResponseWriter, r *http.Request) {
	var addrs []string
	s.deps.Machine.Read(func(rd fsm.Reader) {
		for _, n := range rd.Nodes() {
			if n.Status == cluster.NodeAlive && !n.Draining && len(addrs) < maxNamedAgents {
				addrs = append(addrs, n.Address)
			}
		}
	})
	e := cluster.Errorf(cluster.ReasonNotOwner, "controllers serve no records, and no agent can be named: none is alive and stays")
	if len(addrs) > 0 {
		e = cluster.Errorf(cluster.ReasonNotOwner, "controllers serve no records; ask an agent: %s", strings.Join(addrs, ", "))
		e.OwnerAddress = addrs[0]
	}
	s.writeError(w, r, apierr.ToConnect(e))
}
