package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"time"

	"connectrpc.com/connect/v2"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/internal/rest"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// hopHeader counts how often a request was forwarded.
const hopHeader = "Naradplane-Forwarded"

// leaderHeader is on what came back from a forward: the leader's address, so that who calls often can go there.
const leaderHeader = "Naradplane-Leader"

// maxHops bounds the forwards of one request. Two controllers that take each other for the leader answer
// NO_LEADER instead of sending a request round in circles.
const maxHops = 2

// forwardDialTimeout bounds the connection to the leader.
const forwardDialTimeout = 2 * time.Second

// leaderOnly are the procedures that only the leader can answer.
var leaderOnly = map[string]bool{
	planev1connect.NodeServiceRegisterNodeProcedure:      true,
	planev1connect.NodeServiceHeartbeatProcedure:         true,
	planev1connect.NodeServiceGrantHandoffProcedure:      true,
	planev1connect.NodeServiceRevokeHandoffProcedure:     true,
	planev1connect.NodeServiceCompleteMoveProcedure:      true,
	planev1connect.NodeServiceForceCompleteMoveProcedure: true,
	planev1connect.NodeServiceReportOpenedProcedure:      true,
	planev1connect.NodeServiceReportReclaimedProcedure:   true,
	planev1connect.NodeServiceClaimPartitionsProcedure:   true,

	planev1connect.TopicServiceCreateTopicProcedure: true,
	planev1connect.TopicServiceDeleteTopicProcedure: true,

	planev1connect.ClusterServiceGetClusterStatusProcedure:   true,
	planev1connect.ClusterServiceListMembersProcedure:        true,
	planev1connect.ClusterServiceListMovesProcedure:          true,
	planev1connect.ClusterServicePlanMovesProcedure:          true,
	planev1connect.ClusterServiceExplainPartitionProcedure:   true,
	planev1connect.ClusterServiceDecommissionProcedure:       true,
	planev1connect.ClusterServiceCancelDecommissionProcedure: true,
	planev1connect.ClusterServiceStartMoveProcedure:          true,
	planev1connect.ClusterServiceCancelMoveProcedure:         true,
	planev1connect.ClusterServiceUpdateSettingsProcedure:     true,
	planev1connect.ClusterServiceListControllersProcedure:    true,
	planev1connect.ClusterServiceAddControllerProcedure:      true,
	planev1connect.ClusterServiceRemoveControllerProcedure:   true,
	planev1connect.ClusterServiceTransferLeadershipProcedure: true,
	planev1connect.ClusterServicePromoteControllerProcedure:  true,
	planev1connect.ClusterServiceForgetMemberProcedure:       true,
	planev1connect.ClusterServiceAdoptPartitionProcedure:     true,
	planev1connect.ClusterServiceRetryMoveProcedure:          true,
	planev1connect.ClusterServiceForcePromoteMoveProcedure:   true,
	planev1connect.ClusterServiceSetMaintenanceProcedure:     true,
}

// leaderRoutes are the REST routes of the procedures that only the leader can answer.
func leaderRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	for procedure := range leaderOnly {
		for _, p := range rest.Patterns(procedure) {
			mux.HandleFunc(p, func(http.ResponseWriter, *http.Request) {})
		}
	}
	return mux
}

// needsLeader says whether only the leader can answer a request.
func (s *Server) needsLeader(r *http.Request) bool {
	if leaderOnly[r.URL.Path] {
		return true
	}
	_, pattern := s.leaderRoutes.Handler(r)
	return pattern != ""
}

// h2c returns a transport that speaks HTTP/2 without TLS.
func h2c() http.RoundTripper {
	t := &http.Transport{
		DialContext:        (&net.Dialer{Timeout: forwardDialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		Protocols:          new(http.Protocols),
		HTTP2:              &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
		DisableCompression: true,
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// forward sends what needs the leader to the leader, when that is another controller and known. Everything
// else goes to next, which answers NO_LEADER where it needs one.
func (s *Server) forward(next http.Handler) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			to, _ := r.In.Context().Value(leaderKey{}).(string)
			r.Out.URL.Scheme, r.Out.URL.Host = s.deps.Scheme, to
			r.Out.Host = r.In.Host
			r.Out.Header.Set(hopHeader, strconv.Itoa(hops(r.In)+1))
			if a, ok := controller.ActorOf(r.In.Context()); ok {
				r.Out.Header.Set(actorHeader, encodeActor(a))
			}
		},
		Transport: s.deps.Forward,
		ModifyResponse: func(r *http.Response) error {
			if to, ok := r.Request.Context().Value(leaderKey{}).(string); ok {
				r.Header.Set(leaderHeader, to)
			}
			return nil
		},
		FlushInterval: -1, // streams pass through message by message
		ErrorHandler:  s.forwardFailed,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.needsLeader(r) || hops(r) >= maxHops {
			next.ServeHTTP(w, r)
			return
		}
		to, ok := s.leaderAddress()
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), leaderKey{}, to)))
	})
}

type leaderKey struct{}

// hops is how often a request was forwarded already. Nonsense counts as too often.
func hops(r *http.Request) int {
	v := r.Header.Get(hopHeader)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return maxHops
	}
	return n
}

// leaderAddress returns the leader's address when another member leads and its address is known.
func (s *Server) leaderAddress() (string, bool) {
	st := s.deps.Backend.Status()
	if st.Leader == 0 || st.IsLeader() {
		return "", false
	}
	for _, m := range st.Members {
		if m.ID == st.Leader && m.Address != "" {
			return m.Address, true
		}
	}
	addr := ""
	s.deps.Machine.Read(func(r fsm.Reader) {
		for _, c := range r.Controllers() {
			if consensus.ID(c.RaftID) == st.Leader {
				addr = c.Address
			}
		}
	})
	return addr, addr != ""
}

// forwardFailed answers a request that did not reach the leader, or whose answer did not come back.
func (s *Server) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	to, _ := r.Context().Value(leaderKey{}).(string)
	s.log.Debug("forward ended", zap.String("path", r.URL.Path), zap.String("leader", to), zap.Error(err))
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		// Never sent, so never applied.
		e := cluster.Errorf(cluster.ReasonNoLeader, "the leader at %s can't be reached: %v", to, err)
		e.RetryAfter = 500 * time.Millisecond
		rest.WriteError(w, r, e)
		return
	}
	// Invariant I8: it may have been applied. No detail.
	rest.WriteError(w, r, connect.NewError(connect.CodeUnavailable, "the connection to the leader broke: the outcome of the request is unknown"))
}
