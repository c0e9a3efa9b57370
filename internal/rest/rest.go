// Package rest makes the REST routes of the services whose methods have an HTTP annotation in the contract. It
// serves nothing else: the Connect, gRPC and plain JSON protocols are the services' own.
//
// A body that is no JSON, or has a field that the request does not, is refused as INVALID: a misspelt field must not
// be an option that silently does not apply.
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

// NewTranscoder returns the handler of the services' REST routes. Safe for concurrent use.
func NewTranscoder(services ...*vanguard.Service) (*vanguard.Transcoder, error) {
	t, err := vanguard.NewTranscoder(services, vanguard.WithCodec(newCodec))
	if err != nil {
		return nil, fmt.Errorf("make REST routes: %w", err)
	}
	return t, nil
}

// strictJSON is vanguard's JSON with unknown fields refused and errors that say whose fault they are.
type strictJSON struct{ vanguard.JSONCodec }

func newCodec(res vanguard.TypeResolver) vanguard.Codec {
	return strictJSON{vanguard.JSONCodec{
		MarshalOptions:   protojson.MarshalOptions{Resolver: res, EmitUnpopulated: true},
		UnmarshalOptions: protojson.UnmarshalOptions{Resolver: res},
	}}
}

// Unmarshal implements vanguard.Codec.
func (j strictJSON) Unmarshal(b []byte, msg proto.Message) error {
	return invalid(j.JSONCodec.Unmarshal(b, msg))
}

// UnmarshalField implements vanguard.RESTCodec.
func (j strictJSON) UnmarshalField(b []byte, msg proto.Message, field protoreflect.FieldDescriptor) error {
	return invalid(j.JSONCodec.UnmarshalField(b, msg, field))
}

func invalid(err error) error {
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))
	ce := connectv1.NewError(connectv1.CodeInvalidArgument, fmt.Errorf("request body: %s", text))
	if d, err := connectv1.NewErrorDetail(&planev1.ErrorDetail{Reason: planev1.ErrorReason_ERROR_REASON_INVALID, Field: "body"}); err == nil {
		ce.AddDetail(d)
	}
	return ce
}
