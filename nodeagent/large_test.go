package nodeagent

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// The largest topic is created, reaches watchers as one revision and as a snapshot, and can be described.
func TestLargestTopicReachesAgents(t *testing.T) {
	c := startController(t)
	client := NewClient(ClientOptions{Controllers: []string{c.address}, CallTimeout: 20 * time.Second})
	t.Cleanup(client.Close)
	node := control{client: client, node: "n1"}
	cfg := DefaultConfig()
	cfg.NodeID, cfg.Listen = "n1", "127.0.0.1:7000"
	if _, err := node.register(t.Context(), cfg, "store-n1", "", 1); err != nil {
		t.Fatal(err)
	}
	beat := func() error {
		_, err := node.heartbeat(t.Context(), time.Second, &planev1.HeartbeatRequest{
			NodeId: "n1", Incarnation: 1, SizesComplete: true, DiskTotalBytes: 1 << 40, DiskFreeBytes: 1 << 40})
		return err
	}
	eventually(t, "heartbeat", beat)
	var before cluster.Revision
	c.machine.Read(func(r fsm.Reader) { before = r.Revision() })
	topic := c.createTopic(t, "wide", cluster.MaxPartitions)

	routes := client.openRoutesWatch
	for name, open := range map[string]func(context.Context, cluster.Revision) (watchStream, error){
		"routes": routes, "node": client.openNodeWatch("n1"),
	} {
		for _, after := range []cluster.Revision{before, 0} {
			t.Run(fmt.Sprintf("%s after %d", name, after), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				s, err := open(ctx, after)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				d, v := watchDecoder{revision: after}, NewView()
				v.Revision = after
				for len(v.Assignments) == 0 {
					e, err := s.Receive()
					if err != nil {
						t.Fatal(err)
					}
					f, err := d.next(e)
					if err != nil {
						t.Fatal(err)
					}
					if f != nil {
						v.Fold(f.reset, f.revision, f.changes)
					}
				}
				if n := len(v.Assignments); n != cluster.MaxPartitions || v.Topics[topic.ID].Name != "wide" {
					t.Fatalf("%d assignments of %+v", n, v.Topics)
				}
			})
		}
	}
	topics := planev1connect.NewTopicServiceClient(connect.NewClient(connecthttp.NewTransport(
		http.DefaultClient, "http://"+c.address, connecthttp.WithReadMaxBytes(wire.MaxMessageBytes))))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	res, err := topics.DescribeTopic(t.Context(), &planev1.DescribeTopicRequest{Name: "wide"})
	if err != nil || len(res.GetAssignments()) != cluster.MaxPartitions {
		t.Fatalf("described %d partitions, %v", len(res.GetAssignments()), err)
	}
}
