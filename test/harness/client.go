package harness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// wire is how the harness talks to daemons.
type wire struct {
	scheme string
	calls  *http.Client
	// brief gives up soon.
	brief *http.Client
}

func newWire(scheme string, credentials *tls.Config) *wire {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     30 * time.Second,
		TLSClientConfig:     credentials,
	}
	return &wire{scheme, &http.Client{Transport: t}, &http.Client{Transport: t, Timeout: 5 * time.Second}}
}

var present atomic.Pointer[wire]

func init() { Plain() }

// Plain makes the harness talk plain HTTP, as it does from the start. Secure makes it use TLS. Both are for the whole process.
func Plain() { present.Store(newWire("http", nil)) }

// Secure makes the harness talk TLS with these credentials; see Plain.
func Secure(credentials *tls.Config) { present.Store(newWire("https", credentials)) }

func connectTo(address string) *connect.Client {
	w := present.Load()
	return connect.NewClient(connecthttp.NewTransport(w.calls, w.scheme+"://"+address))
}

// Data returns the data service of an agent.
func Data(address string) nodev1connect.DataServiceClient {
	return nodev1connect.NewDataServiceClient(connectTo(address))
}

// Clients are the services of one controller.
type Clients struct {
	planev1connect.ClusterServiceClient
	planev1connect.TopicServiceClient
	planev1connect.NodeServiceClient
}

// ClientsOf returns the services of one controller.
func ClientsOf(address string) Clients {
	c := connectTo(address)
	return Clients{planev1connect.NewClusterServiceClient(c), planev1connect.NewTopicServiceClient(c), planev1connect.NewNodeServiceClient(c)}
}

// API calls the controllers, whichever answers.
type API struct {
	mu struct {
		sync.Mutex
		addresses []string
	}
}

// NewAPI returns an API over the addresses.
func NewAPI(addresses []string) *API {
	a := &API{}
	a.SetAddresses(addresses)
	return a
}

// SetAddresses replaces the addresses.
func (a *API) SetAddresses(addresses []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.addresses = addresses
}

func (a *API) addresses() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.addresses
}

// Call calls fn at one controller after the other until one answers: with a result, or with a domain
// error other than NO_LEADER. It gives up when ctx ends.
func Call[T any](ctx context.Context, a *API, fn func(context.Context, Clients) (T, error)) (T, error) {
	var zero T
	var last error
	for {
		for _, address := range a.addresses() {
			attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
			v, err := fn(attempt, ClientsOf(address))
			cancel()
			if err == nil {
				return v, nil
			}
			last = apierr.FromConnect(err)
			if r := cluster.ReasonOf(last); r != 0 && r != cluster.ReasonNoLeader {
				return zero, last
			}
		}
		select {
		case <-ctx.Done():
			return zero, fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Status returns the cluster's status.
func (a *API) Status(ctx context.Context) (*planev1.GetClusterStatusResponse, error) {
	return Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.GetClusterStatusResponse, error) {
		return c.GetClusterStatus(ctx, &planev1.GetClusterStatusRequest{})
	})
}

// Members returns the members by id.
func (a *API) Members(ctx context.Context) (map[string]*planev1.Member, error) {
	resp, err := Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.ListMembersResponse, error) {
		return c.ListMembers(ctx, &planev1.ListMembersRequest{})
	})
	out := map[string]*planev1.Member{}
	for _, m := range resp.GetMembers() {
		out[m.GetNode().GetNodeId()] = m
	}
	return out, err
}

// Moves returns the moves; with history the ended ones too.
func (a *API) Moves(ctx context.Context, history bool) (*planev1.ListMovesResponse, error) {
	return Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.ListMovesResponse, error) {
		return c.ListMoves(ctx, &planev1.ListMovesRequest{History: history})
	})
}

// CreateTopic creates a topic.
func (a *API) CreateTopic(ctx context.Context, name string, partitions uint32, parent string) (*planev1.Topic, error) {
	resp, err := Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.CreateTopicResponse, error) {
		return c.CreateTopic(ctx, &planev1.CreateTopicRequest{Name: name, Partitions: partitions, Parent: parent, RequestId: "create-" + name})
	})
	return resp.GetTopic(), err
}

// Assignments returns a topic's assignments by index.
func (a *API) Assignments(ctx context.Context, topic string) ([]*planev1.Assignment, error) {
	resp, err := Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.DescribeTopicResponse, error) {
		return c.DescribeTopic(ctx, &planev1.DescribeTopicRequest{Name: topic})
	})
	return resp.GetAssignments(), err
}

// AwaitOpen waits until all partitions of a topic are open at their owners.
func (a *API) AwaitOpen(ctx context.Context, topic string) error {
	return Poll(ctx, "all partitions of "+topic+" are open", func() error {
		as, err := a.Assignments(ctx, topic)
		if err != nil {
			return err
		}
		for _, x := range as {
			if !x.GetOpened() {
				return fmt.Errorf("%s/%d is not open", topic, x.GetPartition().GetIndex())
			}
		}
		return nil
	})
}

// Assignment is a linearizable read of a partition and of one move of it.
func (a *API) Assignment(ctx context.Context, topicID uint64, index uint32, move uint64) (*planev1.GetAssignmentResponse, error) {
	return Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.GetAssignmentResponse, error) {
		return c.GetAssignment(ctx, &planev1.GetAssignmentRequest{TopicId: topicID, Index: index, MoveId: move})
	})
}

// StartMove sets the target of a partition and returns the move's id.
func (a *API) StartMove(ctx context.Context, topic string, index uint32, to string) (uint64, error) {
	resp, err := Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.StartMoveResponse, error) {
		return c.StartMove(ctx, &planev1.StartMoveRequest{Topic: topic, Index: index, To: to})
	})
	return resp.GetAssignment().GetMoveId(), err
}

// UpdateSettings changes the settings that are set.
func (a *API) UpdateSettings(ctx context.Context, s *planev1.Settings) error {
	_, err := Call(ctx, a, func(ctx context.Context, c Clients) (*planev1.UpdateSettingsResponse, error) {
		return c.UpdateSettings(ctx, &planev1.UpdateSettingsRequest{Settings: s})
	})
	return err
}

// Leader returns the name of the leading controller.
func (a *API) Leader(ctx context.Context) (string, error) {
	var name string
	err := Poll(ctx, "a controller leads", func() error {
		s, err := a.Status(ctx)
		if err != nil {
			return err
		}
		if name = s.GetLeader(); name == "" {
			return errors.New("no leader")
		}
		return nil
	})
	return name, err
}

func isCompacted(err error) bool {
	return cluster.ReasonOf(apierr.FromConnect(err)) == cluster.ReasonRevisionCompacted
}
