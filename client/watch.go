package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// WatchOptions say what is watched, and from where on.
type WatchOptions struct {
	// Topics are names; none is all topics.
	Topics []string
	// After is the revision of the last event that was handled before; zero begins with a snapshot.
	After uint64
	// Idle is how long a stream may be silent before another one is opened. Zero is 10 s; controllers send a sign of life
	// every 2 s.
	Idle time.Duration
}

// Event is one step of a watch.
type Event struct {
	// Revision is what the watcher has seen once it has handled the event; it grows with each one, but for a Reset.
	Revision uint64
	// Reset says that Changes are the whole state at Revision: what was folded before is void.
	Reset bool
	// Changes are all that the revision changed of what is watched. They may be none: then the revision has only gone on.
	Changes []*planev1.Change
}

// maxSnapshotChanges bounds what is held of an unfinished snapshot.
const maxSnapshotChanges = 4_000_000

const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// WatchRoutes follows nodes, topics and assignments: first the whole state, then each revision, whole and in order. It goes
// on over broken connections, and over controllers that stop, without losing a revision; when the history does not reach
// back to where it was, it goes on with a Reset. It ends with an error: ctx's own, or a refusal of the request.
//
// Leaving the loop ends the watch.
func (c *Client) WatchRoutes(ctx context.Context, o WatchOptions) iter.Seq2[Event, error] {
	return c.watchRoutes(ctx, o, func(error) {})
}

// watchRoutes is WatchRoutes that tells each time that no controller has a stream for it.
func (c *Client) watchRoutes(ctx context.Context, o WatchOptions, failed func(error)) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if o.Idle <= 0 {
			o.Idle = 10 * time.Second
		}
		w := &watch{c: c, o: o, revision: o.After, yield: yield, failed: failed}
		if err := w.run(ctx); err != nil && !w.left {
			yield(Event{}, err)
		}
	}
}

// watch is one WatchRoutes.
type watch struct {
	c        *Client
	o        WatchOptions
	yield    func(Event, error) bool
	left     bool   // the loop was left
	revision uint64 // of the last event; zero asks for a snapshot
	partial  *Event // a snapshot that is not whole yet
	failed   func(error)
}

// run opens one stream after the other.
func (w *watch) run(ctx context.Context) error {
	backoff := minBackoff
	for {
		var tried []Attempt
		var last error
		for _, address := range w.c.controllers.order() {
			progressed, err := w.stream(ctx, address)
			last = err
			switch {
			case w.left:
				return nil
			case ctx.Err() != nil:
				return ctx.Err()
			case ReasonOf(err) == planev1.ErrorReason_ERROR_REASON_INVALID:
				return err
			case ReasonOf(err) == planev1.ErrorReason_ERROR_REASON_REVISION_COMPACTED:
				w.revision = 0
			case ReasonOf(err) == planev1.ErrorReason_ERROR_REASON_UNSPECIFIED:
				w.c.controllers.silent(address)
				tried = append(tried, Attempt{address, err})
			}
			if progressed {
				backoff, tried, last = minBackoff, nil, nil
				break // begin with the best one again
			}
		}
		switch {
		case last == nil:
		case len(tried) == len(w.c.controllers.addresses):
			w.failed(&UnreachableError{Party: "controller", Attempts: tried})
		default:
			w.failed(last)
		}
		if !sleep(ctx, backoff) {
			return ctx.Err()
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// errLeft ends a stream whose watcher has left.
var errLeft = errors.New("the watch was left")

// stream runs one stream to its end, and says whether anything arrived on it.
func (w *watch) stream(ctx context.Context, address string) (progressed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A connection whose packets are dropped reports no error: the context's end does.
	idle := time.AfterFunc(w.o.Idle, cancel)
	defer idle.Stop()
	w.partial = nil
	s, err := planev1connect.NewNodeServiceClient(w.c.at(address)).WatchRoutes(ctx,
		&planev1.WatchRoutesRequest{AfterRevision: w.revision, Topics: w.o.Topics})
	if err != nil {
		return false, err
	}
	// What it could report, Receive has.
	defer func() { _ = s.Close() }()
	for {
		m, err := s.Receive()
		if errors.Is(err, io.EOF) {
			err = errors.New("the controller ended the stream")
		}
		if err != nil {
			return progressed, err
		}
		idle.Reset(w.o.Idle)
		progressed = true
		e, err := w.fold(m)
		if err != nil {
			w.revision = 0
			return progressed, err
		}
		if e == nil {
			continue
		}
		w.revision = e.Revision
		// The watcher may take its time; the stream's silence does not count meanwhile.
		idle.Stop()
		if !w.yield(*e, nil) {
			w.left = true
			return progressed, errLeft
		}
		idle.Reset(w.o.Idle)
	}
}

// fold takes one message, and returns the event that it completes, if any.
func (w *watch) fold(m *planev1.WatchRoutesResponse) (*Event, error) {
	if s := m.GetSnapshot(); s != nil {
		return w.snapshot(m.GetRevision(), s)
	}
	if w.partial != nil {
		return nil, fmt.Errorf("watch: revision %d inside a snapshot of revision %d", m.GetRevision(), w.partial.Revision)
	}
	if m.GetRevision() <= w.revision {
		// A controller that lags repeats what another one sent.
		return nil, nil
	}
	return &Event{Revision: m.GetRevision(), Changes: m.GetDelta().GetChanges()}, nil
}

func (w *watch) snapshot(revision uint64, s *planev1.Snapshot) (*Event, error) {
	switch {
	case s.GetFirst():
		w.partial = &Event{Revision: revision, Reset: true}
	case w.partial == nil || w.partial.Revision != revision:
		return nil, fmt.Errorf("watch: a part of a snapshot of revision %d without its beginning", revision)
	}
	w.partial.Changes = append(w.partial.Changes, s.GetChanges()...)
	if len(w.partial.Changes) > maxSnapshotChanges {
		return nil, errors.New("watch: the snapshot is too large; watch fewer topics")
	}
	if !s.GetLast() {
		return nil, nil
	}
	e := w.partial
	w.partial = nil
	return e, nil
}
