// Package apierr is the one place where a domain error becomes a Connect error and back.
//
// A *cluster.Error travels as a Connect code and one naradplane.v1.ErrorDetail; clients branch on the
// detail's reason, never on text. FromConnect(ToConnect(e)) has e's reason and fields.
//
// What it does not do: it never invents a domain error. An error without a detail (a broken connection,
// a deadline, a cancelled call) stays what it is, because for a mutation it means that the outcome is
// unknown (invariant I8), while a domain error is a definite answer.
//
// All functions are pure and safe for concurrent use. Files: apierr.go.
package apierr

import (
	"context"
	"errors"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// row is what one reason is on the wire.
type row struct {
	code   connect.Code
	reason planev1.ErrorReason
}

// rowOf is the mapping. Every reason has a line; a reason without one is reported as a bug.
func rowOf(r cluster.Reason) row {
	switch r {
	case cluster.ReasonInvalid:
		return row{connect.CodeInvalidArgument, planev1.ErrorReason_ERROR_REASON_INVALID}
	case cluster.ReasonNotFound:
		return row{connect.CodeNotFound, planev1.ErrorReason_ERROR_REASON_NOT_FOUND}
	case cluster.ReasonAlreadyExists:
		return row{connect.CodeAlreadyExists, planev1.ErrorReason_ERROR_REASON_ALREADY_EXISTS}
	case cluster.ReasonNoLeader:
		return row{connect.CodeUnavailable, planev1.ErrorReason_ERROR_REASON_NO_LEADER}
	case cluster.ReasonStaleEpoch:
		return row{connect.CodeAborted, planev1.ErrorReason_ERROR_REASON_STALE_EPOCH}
	case cluster.ReasonMoveMismatch:
		return row{connect.CodeAborted, planev1.ErrorReason_ERROR_REASON_MOVE_MISMATCH}
	case cluster.ReasonHandoffRevoked:
		return row{connect.CodeAborted, planev1.ErrorReason_ERROR_REASON_HANDOFF_REVOKED}
	case cluster.ReasonNotOwner:
		return row{connect.CodeFailedPrecondition, planev1.ErrorReason_ERROR_REASON_NOT_OWNER}
	case cluster.ReasonFrozen:
		return row{connect.CodeUnavailable, planev1.ErrorReason_ERROR_REASON_FROZEN}
	case cluster.ReasonRevisionCompacted:
		return row{connect.CodeOutOfRange, planev1.ErrorReason_ERROR_REASON_REVISION_COMPACTED}
	case cluster.ReasonBlocked:
		return row{connect.CodeFailedPrecondition, planev1.ErrorReason_ERROR_REASON_BLOCKED}
	case cluster.ReasonLimit:
		return row{connect.CodeResourceExhausted, planev1.ErrorReason_ERROR_REASON_LIMIT}
	case cluster.ReasonCorrupt:
		return row{connect.CodeDataLoss, planev1.ErrorReason_ERROR_REASON_CORRUPT}
	case cluster.ReasonStaleReceipt:
		return row{connect.CodeAborted, planev1.ErrorReason_ERROR_REASON_STALE_RECEIPT}
	case cluster.ReasonStaleIncarnation:
		return row{connect.CodeFailedPrecondition, planev1.ErrorReason_ERROR_REASON_STALE_INCARNATION}
	case cluster.ReasonForeignStore:
		return row{connect.CodeFailedPrecondition, planev1.ErrorReason_ERROR_REASON_FOREIGN_STORE}
	case cluster.ReasonGate:
		return row{connect.CodeFailedPrecondition, planev1.ErrorReason_ERROR_REASON_GATE}
	case cluster.ReasonBug:
		return row{connect.CodeInternal, planev1.ErrorReason_ERROR_REASON_BUG}
	}
	return row{connect.CodeInternal, planev1.ErrorReason_ERROR_REASON_BUG}
}

// reasonOf is rowOf backwards; zero for a reason that this version does not know.
func reasonOf(p planev1.ErrorReason) cluster.Reason {
	for _, r := range cluster.Reasons() {
		if rowOf(r).reason == p {
			return r
		}
	}
	return 0
}

// Code returns the Connect code of a reason.
func Code(r cluster.Reason) connect.Code { return rowOf(r).code }

// ToConnect returns err as a handler should return it. A *cluster.Error in err's chain becomes a code
// and a detail; its message is the whole chain's. A Connect error made in this process is returned
// unchanged. Ended contexts become Canceled and DeadlineExceeded, without a detail: the outcome is
// unknown. Everything else is a bug and becomes Internal. Nil stays nil.
func ToConnect(err error) error {
	if err == nil {
		return nil
	}
	if e := cluster.AsError(err); e != nil {
		return domain(e, err.Error())
	}
	var ce *connect.Error
	if errors.As(err, &ce) && !ce.IsRemote() {
		return ce
	}
	switch {
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, "cancelled: the outcome of the request is unknown").WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, "timed out: the outcome of the request is unknown").WithCause(err)
	}
	return domain(cluster.Errorf(cluster.ReasonBug, "%v", err), err.Error()).WithCause(err)
}

func domain(e *cluster.Error, message string) *connect.Error {
	r := rowOf(e.Reason)
	ce := connect.NewError(r.code, message)
	detail, err := connectproto.NewErrorDetail(Detail(e))
	if err != nil {
		// Only invalid UTF-8 in a field can do this. Without its detail the answer would read as
		// "unknown outcome"; the reason alone always marshals.
		detail, err = connectproto.NewErrorDetail(&planev1.ErrorDetail{Reason: r.reason})
		if err != nil {
			return ce
		}
	}
	return ce.WithDetail(detail)
}

// Detail returns the detail that carries e's fields.
func Detail(e *cluster.Error) *planev1.ErrorDetail {
	d := &planev1.ErrorDetail{
		Reason:         rowOf(e.Reason).reason,
		Field:          e.Field,
		Owner:          string(e.Owner),
		OwnerAddress:   e.OwnerAddress,
		Epoch:          uint64(e.Epoch),
		MoveId:         uint64(e.MoveID),
		Handoff:        uint32(e.Handoff),
		OldestRevision: uint64(e.Oldest),
		Blockers:       e.Blockers,
	}
	if e.RetryAfter != 0 {
		d.RetryAfter = durationpb.New(e.RetryAfter)
	}
	if e.Assignment != nil {
		d.Assignment = wire.AssignmentToProto(*e.Assignment)
	}
	if e.Outcome != nil {
		d.Outcome = wire.OutcomeToProto(*e.Outcome)
	}
	return d
}

// FromConnect returns the *cluster.Error that err carries, or err itself when it carries none, which
// for a mutation means that its outcome is unknown.
func FromConnect(err error) error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err
	}
	for _, detail := range ce.Details() {
		m, uerr := connectproto.UnmarshalErrorDetail(detail)
		if uerr != nil {
			continue
		}
		d, ok := m.(*planev1.ErrorDetail)
		if !ok {
			continue
		}
		if r := reasonOf(d.GetReason()); r != 0 {
			return fromDetail(r, ce.Message(), d)
		}
	}
	return err
}

func fromDetail(r cluster.Reason, message string, d *planev1.ErrorDetail) *cluster.Error {
	e := &cluster.Error{
		Reason:       r,
		Message:      message,
		Field:        d.GetField(),
		RetryAfter:   d.GetRetryAfter().AsDuration(),
		Owner:        cluster.NodeID(d.GetOwner()),
		OwnerAddress: d.GetOwnerAddress(),
		Epoch:        cluster.Epoch(d.GetEpoch()),
		MoveID:       cluster.MoveID(d.GetMoveId()),
		Handoff:      cluster.Handoff(d.GetHandoff()),
		Oldest:       cluster.Revision(d.GetOldestRevision()),
		Blockers:     d.GetBlockers(),
	}
	if d.Assignment != nil {
		a := wire.AssignmentFromProto(d.GetAssignment())
		e.Assignment = &a
	}
	if d.Outcome != nil {
		o := wire.OutcomeFromProto(d.GetOutcome())
		e.Outcome = &o
	}
	return e
}
