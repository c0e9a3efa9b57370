package rest

import (
	"strings"
	"testing"

	connectv1 "connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// requests lists an empty message of each request of the contract.
func requests() []proto.Message {
	var out []proto.Message
	for _, file := range []protoreflect.FileDescriptor{
		planev1.File_naradplane_v1_cluster_service_proto, planev1.File_naradplane_v1_topic_service_proto,
		planev1.File_naradplane_v1_node_service_proto, nodev1.File_naradnode_v1_data_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for k := range methods.Len() {
				m, err := protoregistry.GlobalTypes.FindMessageByName(methods.Get(k).Input().FullName())
				if err == nil {
					out = append(out, m.New().Interface())
				}
			}
		}
	}
	return out
}

// FuzzBody: a body is taken for a request, or refused as INVALID; what is taken is the same when it is written again.
func FuzzBody(f *testing.F) {
	n := len(requests())
	if n < 20 {
		f.Fatalf("only %d requests were found", n)
	}
	f.Add(uint8(0), []byte(`{}`))
	for i, body := range []string{
		`{"records":[{"key":"aw==","value":"aGVsbG8="}]}`, `{"group":"g","max_records":3,"wait":"1.5s"}`, `{"receipts":["x"]}`,
		`{"reason":"disk","dry_run":true}`, `{"settings":{"max_in_flight_moves":3,"handoff_ttl":"10s"}}`, `{"naem":1}`, `[`, "\xff",
	} {
		f.Add(uint8(i*3), []byte(body))
	}
	codec := newCodec(protoregistry.GlobalTypes)
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		all := requests()
		msg := all[int(which)%len(all)]
		if err := codec.Unmarshal(body, msg); err != nil {
			if connectv1.CodeOf(err) != connectv1.CodeInvalidArgument || !strings.Contains(err.Error(), "request body") {
				t.Fatalf("%q as %T: %v, want INVALID", body, msg, err)
			}
			return
		}
		text, err := codec.MarshalAppend(nil, msg)
		if err != nil {
			t.Fatalf("%q as %T can't be written: %v", body, msg, err)
		}
		again := msg.ProtoReflect().New().Interface()
		if err := codec.Unmarshal(text, again); err != nil {
			t.Fatalf("%T was written as %q, which is refused: %v", msg, text, err)
		}
		if !proto.Equal(msg, again) {
			t.Fatalf("%q as %T differs from what it is written as, %q", body, msg, text)
		}
	})
}
