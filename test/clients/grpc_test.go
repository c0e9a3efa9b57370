package clients_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// TestGRPC: a real gRPC client calls, reads the health and asks for the schema, of a controller and of an agent.
func TestGRPC(t *testing.T) {
	ctx := within(t, time.Minute)
	for address, services := range map[string][]string{
		live.cluster.Controllers[0].Address: {"naradplane.v1.ClusterService", "naradplane.v1.NodeService", "naradplane.v1.TopicService"},
		live.cluster.Agents[0].Address:      {"naradnode.v1.DataService"},
	} {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		defer conn.Close()
		health := grpc_health_v1.NewHealthClient(conn)
		for _, name := range append([]string{""}, services...) {
			res, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
			if err != nil || res.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
				t.Errorf("health of %q at %s: %v %v", name, address, res, err)
			}
		}
		if _, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "no.such.Service"}); status.Code(err) != codes.NotFound {
			t.Errorf("health of an unknown service: %v", err)
		}

		stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		must(t, err)
		must(t, stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}))
		res, err := stream.Recv()
		must(t, err)
		var names []string
		for _, s := range res.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		for _, name := range services {
			must(t, stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name}}))
			file, err := stream.Recv()
			must(t, err)
			if !slices.Contains(names, name) || len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
				t.Errorf("reflection at %s: %v; of %s: %v", address, names, name, file)
			}
		}
		must(t, stream.CloseSend())
	}
	conn, err := grpc.NewClient(live.cluster.Controllers[0].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	var members planev1.ListMembersResponse
	if err := conn.Invoke(ctx, "/naradplane.v1.ClusterService/ListMembers", &planev1.ListMembersRequest{}, &members); err != nil || len(members.GetMembers()) < 3 {
		t.Errorf("members by gRPC: %v %v", err, &members)
	}
	err = conn.Invoke(ctx, "/naradplane.v1.TopicService/DescribeTopic", &planev1.DescribeTopicRequest{Name: "nothing"}, &planev1.DescribeTopicResponse{})
	if d := status.Convert(err).Details(); status.Code(err) != codes.NotFound || len(d) != 1 || d[0].(*planev1.ErrorDetail).GetReason() != planev1.ErrorReason_ERROR_REASON_NOT_FOUND {
		t.Errorf("a refusal by gRPC: %v %v", err, d)
	}
}
