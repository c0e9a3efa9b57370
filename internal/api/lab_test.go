package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
	"github.com/naradctl/naradctl-plane/test/memgroup"
)

// lab is a group of controllers behind real listeners.
type lab struct {
	t    *testing.T
	ctx  context.Context
	g    *memgroup.Group
	srv  []*Server
	addr []string
	http *http.Client
}

// newLab starts n controllers, of which the first one leads.
func newLab(t *testing.T, n int, opts fsm.Options, change func(d *Deps)) *lab {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &lab{t: t, ctx: ctx}
	var listeners []net.Listener
	for range n {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, ln)
		l.addr = append(l.addr, ln.Addr().String())
	}
	l.g = memgroup.New(t, n, func(i int) string { return l.addr[i-1] }, opts)
	var wg sync.WaitGroup
	var servers []*http.Server
	for i := 1; i <= n; i++ {
		cfg := controller.DefaultConfig()
		cfg.Name, cfg.ClusterID = cluster.ControllerName(fmt.Sprintf("ctl-%d", i)), "cluster-1"
		m := l.g.Member(i)
		ctl := controller.New(cfg, m, m.Machine, nil)
		d := Deps{Controller: ctl, Backend: m, Machine: m.Machine, KeepAlive: 20 * time.Millisecond}
		if change != nil {
			change(&d)
		}
		s, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		l.srv = append(l.srv, s)
		hs := &http.Server{Handler: s, Protocols: new(http.Protocols), ReadHeaderTimeout: 5 * time.Second}
		hs.Protocols.SetHTTP1(true)
		hs.Protocols.SetUnencryptedHTTP2(true)
		servers = append(servers, hs)
		wg.Go(func() {
			if err := hs.Serve(listeners[i-1]); !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("serve: %v", err)
			}
		})
		wg.Go(func() {
			if err := ctl.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	l.http = &http.Client{Transport: tr}
	t.Cleanup(func() {
		cancel()
		tr.CloseIdleConnections()
		for i, hs := range servers {
			l.srv[i].Close()
			_ = hs.Close()
		}
		wg.Wait()
	})
	l.g.Lead(1)
	return l
}

func (l *lab) client(i int, opts ...connecthttp.Option) *connect.Client {
	return connect.NewClient(connecthttp.NewTransport(l.http, "http://"+l.addr[i-1], opts...))
}

func (l *lab) nodes(i int) planev1connect.NodeServiceClient {
	return planev1connect.NewNodeServiceClient(l.client(i))
}

func (l *lab) topics(i int) planev1connect.TopicServiceClient {
	return planev1connect.NewTopicServiceClient(l.client(i))
}

func (l *lab) cluster(i int) planev1connect.ClusterServiceClient {
	return planev1connect.NewClusterServiceClient(l.client(i))
}

// join registers agents through controller i and sends one heartbeat each.
func (l *lab) join(i int, ids ...string) {
	l.t.Helper()
	for _, id := range ids {
		res, err := l.nodes(i).RegisterNode(l.ctx, &planev1.RegisterNodeRequest{
			NodeId: id, StoreId: "store-" + id, Incarnation: 1, Address: id + ".example:7000",
		})
		if err != nil {
			l.t.Fatalf("register %s: %v", id, err)
		}
		if res.GetClusterId() != "cluster-1" || res.GetNode().GetIncarnation() != 1 {
			l.t.Fatalf("register %s: %v", id, res)
		}
		l.beat(i, id)
	}
}

func (l *lab) beat(i int, id string) {
	l.t.Helper()
	res, err := l.nodes(i).Heartbeat(l.ctx, &planev1.HeartbeatRequest{
		NodeId: id, Incarnation: 1, Address: id + ".example:7000", DiskTotalBytes: 1 << 40, DiskFreeBytes: 1 << 39, SizesComplete: true,
	})
	if err != nil || res.GetLeaseTtl().AsDuration() != 10*time.Second {
		l.t.Fatalf("heartbeat of %s: %v %v", id, res, err)
	}
}

func (l *lab) topic(i int, name string, partitions uint32) *planev1.Topic {
	l.t.Helper()
	res, err := l.topics(i).CreateTopic(l.ctx, &planev1.CreateTopicRequest{Name: name, Partitions: partitions})
	if err != nil {
		l.t.Fatalf("create topic %s: %v", name, err)
	}
	return res.GetTopic()
}

// refused fails unless err is a domain error of reason r.
func (l *lab) refused(r cluster.Reason, err error) *cluster.Error {
	l.t.Helper()
	e := cluster.AsError(apierr.FromConnect(err))
	if e == nil || e.Reason != r {
		l.t.Fatalf("got %v, want %s", err, r)
	}
	return e
}

// until waits for a condition.
func (l *lab) until(what string, ok func() bool) {
	l.t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			l.t.Fatalf("timed out: %s", what)
		}
	}
}
