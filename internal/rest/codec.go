package rest

import (
	"fmt"
	"strings"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// strictJSON is vanguard's JSON with unknown fields refused and errors that say whose fault they are.
type strictJSON struct{ vanguard.JSONCodec }

func newCodec(res vanguard.TypeResolver) vanguard.Codec {
	return strictJSON{vanguard.JSONCodec{
		MarshalOptions:   protojson.MarshalOptions{Resolver: res},
		UnmarshalOptions: protojson.UnmarshalOptions{Resolver: res},
	}}
}

// Unmarshal implements vanguard.Codec.
func (j strictJSON) Unmarshal(b []byte, msg proto.Message) error {
	return invalidBody(j.JSONCodec.Unmarshal(b, msg))
}

// UnmarshalField implements vanguard.RESTCodec.
func (j strictJSON) UnmarshalField(b []byte, msg proto.Message, field protoreflect.FieldDescriptor) error {
	return invalidBody(j.JSONCodec.UnmarshalField(b, msg, field))
}

func invalidBody(err error) error {
	if err == nil {
		return nil
	}
	// Protobuf's messages have a random space, so that nobody compares them.
	text := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))
	ce := connectv1.NewError(connectv1.CodeInvalidArgument, fmt.Errorf("request body: %s", text))
	if d, err := connectv1.NewErrorDetail(&planev1.ErrorDetail{Reason: planev1.ErrorReason_ERROR_REASON_INVALID, Field: "body"}); err == nil {
		ce.AddDetail(d)
	}
	return ce
}
