package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

const (
	// pause is the time between two rounds over the addresses, unless an answer asks for another one.
	pause = 200 * time.Millisecond
	// maxPause bounds what an answer may ask for.
	maxPause = 2 * time.Second
)

// leaderHeader is on an answer that a controller had from the leader: the leader's address.
const leaderHeader = "Naradplane-Leader"

// picked is whom one call asks, in order.
type picked struct {
	addresses []string
	pool      *pool // told who answers; may be nil
}

// party is a connect.Transport over several addresses, of which any one can answer.
type party struct {
	*Client
	what string
	pick func(ctx context.Context, req any) (picked, error)
}

// NewClientStream implements connect.Transport. A stream of several messages stays with one address.
func (p *party) NewClientStream(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
	if spec.StreamType == connect.StreamTypeUnary {
		return &call{party: p, ctx: ctx, spec: spec}, nil
	}
	to, err := p.pick(ctx, nil)
	if err != nil {
		return nil, err
	}
	return p.at(to.addresses[0]).CallClientStream(ctx, spec)
}

// call is one unary call.
type call struct {
	*party
	ctx  context.Context
	spec connect.Spec
	req  proto.Message
	done bool

	tried   []Attempt // who did not answer, by address
	unknown error     // the first attempt that may have been applied
}

func (*call) SendHeaders() error { return nil }
func (*call) CloseSend() error   { return nil }
func (*call) Close() error       { return nil }

func (c *call) Send(msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return fmt.Errorf("client: %T is no protobuf message", msg)
	}
	c.req = withRequestID(m)
	return nil
}

// Receive performs the call.
func (c *call) Receive(res any) error {
	m, ok := res.(proto.Message)
	if c.done || !ok {
		return io.EOF
	}
	c.done = true
	start := time.Now()
	for {
		to, err := c.pick(c.ctx, c.req)
		if err != nil {
			return err
		}
		c.tried = nil
		passed, err, final := c.round(to, m)
		switch {
		case final:
			return err
		case passed == nil && time.Since(start) >= c.opts.Patience:
			return c.unreachable()
		}
		wait := pause
		if passed != nil {
			if d := DetailOf(passed).GetRetryAfter().AsDuration(); d > 0 {
				wait = min(d, maxPause)
			}
		}
		if !sleep(c.ctx, wait) {
			if passed == nil {
				return c.unreachable()
			}
			return c.ended(passed)
		}
	}
}

// round asks each address once. It is final with an answer, good or bad; otherwise passed is a refusal that another time, or
// another address, may not repeat, and nil when nobody answered.
func (c *call) round(to picked, res proto.Message) (passed, err error, final bool) {
	for i := 0; i < len(to.addresses); i++ {
		address := to.addresses[i]
		err := c.attempt(address, res)
		if err == nil {
			return nil, nil, true
		}
		detail := DetailOf(err)
		switch {
		case detail == nil:
			if to.pool != nil {
				to.pool.silent(address)
			}
			c.tried = append(c.tried, Attempt{address, err})
			if !neverSent(err) {
				// A connection that was kept may lead nowhere without ever reporting it.
				c.http.CloseIdleConnections()
				if c.mutates() && c.unknown == nil {
					c.unknown = err
				}
				if !c.repeatable() {
					return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err), true
				}
			}
		case c.elsewhere(detail):
			passed = err
			if a := detail.GetOwnerAddress(); a != "" && !slices.Contains(to.addresses, a) {
				to.addresses = append(slices.Clone(to.addresses), a)
			}
		default:
			return nil, err, true
		}
		if c.ctx.Err() != nil {
			if passed != nil {
				return nil, c.ended(passed), true
			}
			return nil, c.unreachable(), true
		}
	}
	return passed, nil, false
}

func (c *call) attempt(address string, res proto.Message) error {
	timeout := c.opts.AttemptTimeout
	if r, ok := c.req.(*nodev1.ConsumeRequest); ok {
		timeout += max(r.GetWait().AsDuration(), 0)
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	proto.Reset(res)
	err := c.at(address).CallUnary(ctx, c.spec, c.req, res)
	if info, ok := connect.CallInfoForClientContext(ctx); ok && c.what == "controller" && (err == nil || DetailOf(err) != nil) {
		c.controllers.answered(address, info.ResponseHeader().Get(leaderHeader))
	}
	return err
}

// elsewhere says whether a refusal speaks for one address, or for one moment.
func (c *call) elsewhere(d *planev1.ErrorDetail) bool {
	switch d.GetReason() {
	case planev1.ErrorReason_ERROR_REASON_NO_LEADER:
		return true
	case planev1.ErrorReason_ERROR_REASON_LIMIT:
		return d.GetRetryAfter() != nil
	case planev1.ErrorReason_ERROR_REASON_BLOCKED, planev1.ErrorReason_ERROR_REASON_NOT_OWNER:
		// An agent that drains takes no more records; a controller has none.
		return c.what == "agent"
	}
	return false
}

// mutates says whether a call changes something that its repetition would change again, if the cluster did not know it.
func (c *call) mutates() bool {
	if c.what == "agent" {
		return false // at least once
	}
	name := c.spec.Procedure[strings.LastIndexByte(c.spec.Procedure, '/')+1:]
	for _, prefix := range []string{"Get", "List", "Describe"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return c.spec.IdempotencyLevel == connect.IdempotencyUnknown
}

// repeatable says whether a call may be repeated after an unknown outcome.
func (c *call) repeatable() bool { return !c.mutates() || requestIDField(c.req) != nil }

// unreachable is the error of a call that nobody answered.
func (c *call) unreachable() error {
	e := &UnreachableError{Party: c.what, Attempts: c.tried, cause: c.ctx.Err()}
	if c.unknown != nil {
		e.cause = errors.Join(ErrOutcomeUnknown, e.cause)
	}
	return e
}

// ended is the error of a call whose time is over while it was refused for the moment. What may have been applied by an
// earlier attempt is not reported as refused.
func (c *call) ended(passed error) error {
	if c.unknown != nil {
		return fmt.Errorf("%w: %w; then: %v", ErrOutcomeUnknown, c.unknown, passed)
	}
	return passed
}

// neverSent says whether a request certainly did not leave.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// requestIDField returns the field of a request by which the cluster knows its repetition; nil when it has none.
func requestIDField(m proto.Message) protoreflect.FieldDescriptor {
	f := m.ProtoReflect().Descriptor().Fields().ByName("request_id")
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
		return nil
	}
	return f
}

// withRequestID returns m, or a copy of it with a request id where it lacks one.
func withRequestID(m proto.Message) proto.Message {
	f := requestIDField(m)
	if f == nil || m.ProtoReflect().Get(f).String() != "" {
		return m
	}
	m = proto.Clone(m)
	m.ProtoReflect().Set(f, protoreflect.ValueOfString(uuid.NewString()))
	return m
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
