package client

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// ErrOutcomeUnknown marks a mutation that may have been applied, or be applied later, and could not be repeated: the answer
// was lost, and no other was had before the context ended. errors.Is finds it.
var ErrOutcomeUnknown = errors.New("the outcome is unknown")

// DetailOf returns the cluster's detail of an error; nil when it has none, because nobody answered or the answer was lost.
func DetailOf(err error) *planev1.ErrorDetail {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return nil
	}
	for _, d := range ce.Details() {
		if m, err := connectproto.UnmarshalErrorDetail(d); err == nil {
			if detail, ok := m.(*planev1.ErrorDetail); ok {
				return detail
			}
		}
	}
	return nil
}

// ReasonOf returns why the cluster refused: what callers branch on. It is unspecified when there is no detail.
func ReasonOf(err error) planev1.ErrorReason { return DetailOf(err).GetReason() }

// Attempt is an address that did not answer, and why.
type Attempt struct {
	Address string
	Err     error
}

// UnreachableError says that no address answered.
type UnreachableError struct {
	// Party is "controller" or "agent".
	Party string
	// Attempts are in order, the last one for each address.
	Attempts []Attempt
	cause    error // the context's end, or ErrOutcomeUnknown; or nil
}

// Error names each address with its fault.
func (e *UnreachableError) Error() string {
	var each []string
	for _, a := range e.Attempts {
		each = append(each, fmt.Sprintf("%s: %v", a.Address, shorten(a.Err)))
	}
	text := fmt.Sprintf("no %s answers: %s", e.Party, strings.Join(each, "; "))
	if errors.Is(e.cause, ErrOutcomeUnknown) {
		text += "; " + ErrOutcomeUnknown.Error()
	}
	return text
}

// Unwrap returns the context's error when it ended first, and ErrOutcomeUnknown for a mutation that may have been applied.
func (e *UnreachableError) Unwrap() error { return e.cause }

// shorten drops what a person does not need of a network error.
func shorten(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	var ce *connect.Error
	if errors.As(err, &ce) && ce.Code() == connect.CodeUnimplemented {
		return errors.New("something else listens there")
	}
	if errors.As(err, &ce) && ce.Message() != "" {
		return errors.New(ce.Message())
	}
	return err
}
