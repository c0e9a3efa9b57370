package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// watchEvent is one message of a watch stream, decoded.
type watchEvent struct {
	revision cluster.Revision
	// snapshot is set for a part of a snapshot; first and last bound it.
	snapshot, first, last bool
	// delta is set for a whole revision; neither for progress.
	delta   bool
	changes []cluster.Change
}

// watchStream is an open stream. Receive blocks until a message, the stream's end, or the end of the
// context that it was opened with.
type watchStream interface {
	Receive() (watchEvent, error)
	Close() error
}

// folder takes over what a watch brings: a whole snapshot (reset) or one whole revision.
type folder interface {
	Apply(reset bool, rev cluster.Revision, changes []cluster.Change)
}

// maxSnapshotChanges bounds what is held of one unfinished snapshot. At the limit the stream is ended as
// broken; a cluster that large is beyond the limits of topics.
const maxSnapshotChanges = 4_000_000

// watchDecoder turns a stream's events into whole folds and checks their order. Pure.
type watchDecoder struct {
	// revision is the last one folded, from which the stream is resumed; zero asks for a snapshot.
	revision cluster.Revision
	// partial collects a snapshot, since only a whole one may replace the view.
	partial    []cluster.Change
	collecting bool
	partialRev cluster.Revision
}

// fold is what one event completes; nil when it completes nothing.
type fold struct {
	reset    bool
	revision cluster.Revision
	changes  []cluster.Change
}

// begin prepares for a new stream: an unfinished snapshot of the last one is worth nothing.
func (d *watchDecoder) begin() { d.partial, d.collecting, d.partialRev = nil, false, 0 }

// resync forgets the position, so that the next stream begins with a snapshot.
func (d *watchDecoder) resync() {
	d.begin()
	d.revision = 0
}

func (d *watchDecoder) next(e watchEvent) (*fold, error) {
	switch {
	case e.snapshot:
		return d.snapshot(e)
	case d.collecting:
		return nil, fmt.Errorf("watch: revision %d inside a snapshot of revision %d", e.revision, d.partialRev)
	case e.delta:
		if e.revision <= d.revision {
			// Folded before: a controller that lags repeats what another one sent.
			return nil, nil
		}
		d.revision = e.revision
		return &fold{revision: e.revision, changes: e.changes}, nil
	default: // progress
		if e.revision <= d.revision {
			return nil, nil
		}
		d.revision = e.revision
		return &fold{revision: e.revision}, nil
	}
}

func (d *watchDecoder) snapshot(e watchEvent) (*fold, error) {
	switch {
	case e.first:
		d.partial, d.collecting, d.partialRev = nil, true, e.revision
	case !d.collecting:
		return nil, errors.New("watch: snapshot without its first part")
	case e.revision != d.partialRev:
		return nil, fmt.Errorf("watch: part of revision %d in a snapshot of revision %d", e.revision, d.partialRev)
	}
	if len(d.partial)+len(e.changes) > maxSnapshotChanges {
		return nil, errors.New("watch: snapshot is too large")
	}
	d.partial = append(d.partial, e.changes...)
	if !e.last {
		return nil, nil
	}
	f := &fold{reset: true, revision: d.partialRev, changes: d.partial}
	d.begin()
	d.revision = f.revision
	return f, nil
}

// watcher keeps one watch stream open for ever: it resumes by revision, starts from a snapshot when
// told so, and leaves streams on which nothing arrives.
type watcher struct {
	name string
	// open dials a stream that goes on after a revision.
	open func(ctx context.Context, after cluster.Revision) (watchStream, error)
	sink folder
	// idle ends a silent stream.
	idle time.Duration
	log  *zap.Logger

	decoder watchDecoder
	mu      struct {
		sync.Mutex
		cancel context.CancelFunc // of the stream in progress
		heard  time.Time          // its last message, or its beginning
	}
}

// kick ends the stream in progress when nothing arrived on it for so long: its connection is suspected.
// Safe for concurrent use.
func (w *watcher) kick(silent time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.cancel != nil && time.Since(w.mu.heard) >= silent {
		w.mu.cancel()
	}
}

func (w *watcher) begin(cancel context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.cancel, w.mu.heard = cancel, time.Now()
}

func (w *watcher) message() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.heard = time.Now()
}

// run watches until ctx ends.
func (w *watcher) run(ctx context.Context) {
	backoff := newBackoff(50*time.Millisecond, 2*time.Second)
	for ctx.Err() == nil {
		progressed, err := w.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if progressed {
			backoff.reset()
		}
		if cluster.ReasonOf(err) == cluster.ReasonRevisionCompacted {
			w.log.Info("watch fell behind, starting from a snapshot", zap.String("watch", w.name),
				zap.Uint64("revision", uint64(w.decoder.revision)))
			w.decoder.resync()
		} else {
			w.log.Debug("watch stream ended, resuming", zap.String("watch", w.name), zap.Error(err))
		}
		if !backoff.wait(ctx) {
			return
		}
	}
}

// errWatchOrder marks events out of order. The view may be wrong then: the watch starts anew.
var errWatchOrder = errors.New("watch events out of order")

// stream runs one stream to its end, and says whether anything arrived on it.
func (w *watcher) stream(ctx context.Context) (progressed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.begin(cancel)
	// The idle timer cancels the stream's context, which ends a Receive that nothing else would end: a
	// connection whose packets are dropped reports no error.
	idle := time.AfterFunc(w.idle, cancel)
	defer idle.Stop()
	w.decoder.begin()
	s, err := w.open(ctx, w.decoder.revision)
	if err != nil {
		return false, err
	}
	// Close has nothing to report that Receive has not.
	defer func() { _ = s.Close() }()
	for {
		e, err := s.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the controller ended the stream")
			}
			return progressed, err
		}
		idle.Reset(w.idle)
		progressed = true
		w.message()
		f, err := w.decoder.next(e)
		if err != nil {
			w.decoder.resync()
			return progressed, errors.Join(errWatchOrder, err)
		}
		if f != nil {
			w.sink.Apply(f.reset, f.revision, f.changes)
		}
	}
}

// backoff doubles from min to max, with jitter of a quarter so that agents don't return in step.
type backoff struct{ min, max, next time.Duration }

func newBackoff(min, max time.Duration) *backoff { return &backoff{min: min, max: max, next: min} }

func (b *backoff) reset() { b.next = b.min }

// wait sleeps and doubles. It returns false when ctx ended first.
func (b *backoff) wait(ctx context.Context) bool {
	d := jitter(b.next)
	b.next = min(b.next*2, b.max)
	return sleep(ctx, d)
}

// sleep waits, or returns false when ctx ended first.
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
