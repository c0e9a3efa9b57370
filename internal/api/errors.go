package api

import (
	"errors"
	"strings"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// fail is the error that a handler returns for err. Nil stays nil.
func fail(err error) error {
	if err != nil && cluster.AsError(err) == nil && errors.Is(err, consensus.ErrOutcomeUnknown) {
		// Invariant I8: without a detail, so that nobody takes it for an answer.
		return connect.NewError(connect.CodeDeadlineExceeded, "the outcome of the request is unknown: "+err.Error()).WithCause(err)
	}
	return apierr.ToConnect(err)
}

// lostReply is what a caller sees of an answer that was lost.
func lostReply(err error) error {
	return connect.NewError(connect.CodeUnavailable, "the answer was lost: "+err.Error()).WithCause(err)
}

// maxRequestID bounds a request id: the state machine remembers the newest ten thousand.
const maxRequestID = 128

// requestID returns the id under which the state machine remembers a request. It is made here when the
// client gave none. The method's name keeps an id that was used for two methods from being
// answered with the other one's result.
func requestID(method, id string) (string, error) {
	if id == "" {
		return uuid.NewString(), nil
	}
	if len(id) > maxRequestID {
		return "", cluster.Invalid("request_id", "must be at most %d bytes, has %d", maxRequestID, len(id))
	}
	return strings.Join([]string{method, id}, "/"), nil
}
