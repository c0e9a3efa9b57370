package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/config"
	"github.com/naradctl/naradctl-plane/internal/rest"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// joinTimeout bounds the search for a leader that admits a new controller.
const joinTimeout = time.Minute

// askToJoin has an existing cluster admit this controller as a learner. Asking again after an unknown outcome is
// answered like the first time, since name and store id are the same.
func askToJoin(ctx context.Context, c config.Controller, creds *credentials, address, storeID string) (*etcdraft.JoinInfo, error) {
	a := &app{addrs: c.Join, timeout: joinTimeout, creds: creds, joining: true}
	defer a.close()
	req := &planev1.AddControllerRequest{Name: c.Name, Address: address, StoreId: storeID, RequestId: requestID()}
	m, err := call(ctx, a, func(ctx context.Context, k clients) (*planev1.AddControllerResponse, error) {
		return k.AddController(ctx, req)
	})
	if err != nil {
		return nil, fmt.Errorf("join through %s: %w", strings.Join(c.Join, ", "), err)
	}
	info := &etcdraft.JoinInfo{ClusterID: m.GetClusterId(), Self: memberOf(m.GetController())}
	for _, k := range m.GetControllers() {
		info.Members = append(info.Members, memberOf(k))
	}
	return info, nil
}

func memberOf(c *planev1.Controller) consensus.Member {
	role := consensus.Voter
	if c.GetLearner() {
		role = consensus.Learner
	}
	return consensus.Member{
		ID: consensus.ID(c.GetRaftId()), Name: c.GetName(), Address: c.GetAddress(), StoreID: c.GetStoreId(), Role: role,
	}
}

// waitingHandler answers for a controller that has not found its cluster yet: it lives, it is not ready, and
// every call is told that there is no leader.
func waitingHandler(why string) http.Handler {
	mux := http.NewServeMux()
	mountHealth(mux, func() []string { return []string{why} })
	mux.Handle(rest.NewHealth(func() []string { return []string{why} },
		planev1connect.NodeServiceName, planev1connect.TopicServiceName, planev1connect.ClusterServiceName))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		e := cluster.Errorf(cluster.ReasonNoLeader, "no leader: %s", why)
		e.RetryAfter = time.Second
		rest.WriteError(w, r, e)
	})
	return mux
}
