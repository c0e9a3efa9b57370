package apierr

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// TestEveryReasonHasItsRow compares the mapping with this table, so that neither changes alone.
func TestEveryReasonHasItsRow(t *testing.T) {
	want := map[string]connect.Code{
		"INVALID": connect.CodeInvalidArgument, "NOT_FOUND": connect.CodeNotFound,
		"ALREADY_EXISTS": connect.CodeAlreadyExists, "NO_LEADER": connect.CodeUnavailable,
		"STALE_EPOCH": connect.CodeAborted, "MOVE_MISMATCH": connect.CodeAborted,
		"HANDOFF_REVOKED": connect.CodeAborted, "NOT_OWNER": connect.CodeFailedPrecondition,
		"FROZEN": connect.CodeUnavailable, "REVISION_COMPACTED": connect.CodeOutOfRange,
		"BLOCKED": connect.CodeFailedPrecondition, "LIMIT": connect.CodeResourceExhausted,
		"CORRUPT": connect.CodeDataLoss, "STALE_RECEIPT": connect.CodeAborted,
		"STALE_INCARNATION": connect.CodeFailedPrecondition, "FOREIGN_STORE": connect.CodeFailedPrecondition,
		"GATE": connect.CodeFailedPrecondition, "BUG": connect.CodeInternal,
	}
	if len(want) != len(cluster.Reasons()) {
		t.Fatalf("%d reasons, the table has %d", len(cluster.Reasons()), len(want))
	}
	seen := map[planev1.ErrorReason]bool{}
	for _, r := range cluster.Reasons() {
		if got := Code(r); got != want[r.String()] {
			t.Errorf("%s: code %v, want %v", r, got, want[r.String()])
		}
		p := rowOf(r).reason
		if p.String() != "ERROR_REASON_"+r.String() {
			t.Errorf("%s is sent as %s", r, p)
		}
		if seen[p] {
			t.Errorf("%s: %s is sent for two reasons", r, p)
		}
		seen[p] = true
	}
	for n := range planev1.ErrorReason_name {
		p := planev1.ErrorReason(n)
		if p != planev1.ErrorReason_ERROR_REASON_UNSPECIFIED && !seen[p] {
			t.Errorf("no reason is sent as %s", p)
		}
	}
}

func TestRoundTripKeepsReasonAndFields(t *testing.T) {
	for _, r := range cluster.Reasons() {
		want := &cluster.Error{
			Reason: r, Message: "why it was refused", Field: "field", RetryAfter: time.Second, Owner: "agent-1",
			OwnerAddress: "127.0.0.1:7000", Epoch: 2, MoveID: 3, Handoff: 4, Oldest: 5, Blockers: []string{"no receivers"},
			Assignment: &cluster.Assignment{Owner: "agent-1", Target: "agent-2", Epoch: 9},
			Outcome:    &cluster.Outcome{MoveID: 7, Kind: cluster.OutcomeFlipped},
		}
		sent := ToConnect(want)
		if connect.CodeOf(sent) != Code(r) {
			t.Errorf("%s: code %v", r, connect.CodeOf(sent))
		}
		var got *cluster.Error
		if !errors.As(FromConnect(sent), &got) {
			t.Fatalf("%s: came back as %v", r, FromConnect(sent))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-sent +received):\n%s", r, d)
		}
	}
}

func TestWrappedDomainErrorKeepsItsContext(t *testing.T) {
	err := fmt.Errorf("create topic orders: %w", cluster.NotFound("parent x does not exist"))
	got := cluster.AsError(FromConnect(ToConnect(err)))
	if got == nil || got.Reason != cluster.ReasonNotFound || got.Message != err.Error() {
		t.Fatalf("got %+v", got)
	}
}

// TestI8UnknownOutcomesStayUnknown: only a domain error is a definite answer.
func TestI8UnknownOutcomesStayUnknown(t *testing.T) {
	for _, err := range []error{
		context.DeadlineExceeded, context.Canceled, fmt.Errorf("flip: %w", context.DeadlineExceeded),
		connect.NewError(connect.CodeUnavailable, "connection reset"),
		connect.NewError(connect.CodeDeadlineExceeded, "late"),
	} {
		if got := FromConnect(ToConnect(err)); cluster.AsError(got) != nil {
			t.Errorf("%v became the definite answer %v", err, got)
		}
	}
	if got := connect.CodeOf(ToConnect(context.DeadlineExceeded)); got != connect.CodeDeadlineExceeded {
		t.Errorf("deadline: code %v", got)
	}
}

func TestOtherErrorsAreBugs(t *testing.T) {
	err := ToConnect(errors.New("disk on fire"))
	if connect.CodeOf(err) != connect.CodeInternal || cluster.ReasonOf(FromConnect(err)) != cluster.ReasonBug {
		t.Fatalf("got %v", err)
	}
	// A peer's verdict is not this handler's own: its code must not leak through.
	remote := connect.NewError(connect.CodeNotFound, "elsewhere").WithRemote()
	if got := connect.CodeOf(ToConnect(fmt.Errorf("ask: %w", remote))); got != connect.CodeInternal {
		t.Fatalf("a remote error was forwarded as %v", got)
	}
}

func TestNilStaysNil(t *testing.T) {
	if ToConnect(nil) != nil || FromConnect(nil) != nil {
		t.Fatal("nil became an error")
	}
}
