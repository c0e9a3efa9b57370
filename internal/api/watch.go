package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// watchBatch bounds the revisions that are read from the history at once.
const watchBatch = 256

// leaderlessLimit is how long a watch goes on while this controller knows no leader: long enough for an
// election, short enough for a watcher of a controller that is cut off.
const leaderlessLimit = 10 * time.Second

// event is one message of a watch, before it becomes the message of its service.
type event struct {
	revision cluster.Revision
	snapshot *planev1.Snapshot
	delta    *planev1.Delta
}

func (s nodeService) WatchNode(ctx context.Context, req *planev1.WatchNodeRequest, stream planev1connect.NodeServiceWatchNodeServerStream) error {
	id := cluster.NodeID(req.GetNodeId())
	if err := cluster.ValidateNodeID(id); err != nil {
		return fail(err)
	}
	return s.watch(ctx, cluster.Revision(req.GetAfterRevision()), nodeFilter{id}, func(e event) error {
		m := &planev1.WatchNodeResponse{Revision: uint64(e.revision)}
		switch {
		case e.snapshot != nil:
			m.Event = &planev1.WatchNodeResponse_Snapshot{Snapshot: e.snapshot}
		case e.delta != nil:
			m.Event = &planev1.WatchNodeResponse_Delta{Delta: e.delta}
		default:
			m.Event = &planev1.WatchNodeResponse_Progress{Progress: &planev1.Progress{}}
		}
		return stream.Send(m)
	})
}

func (s nodeService) WatchRoutes(ctx context.Context, req *planev1.WatchRoutesRequest, stream planev1connect.NodeServiceWatchRoutesServerStream) error {
	for _, name := range req.GetTopics() {
		if err := cluster.ValidateTopicName(name); err != nil {
			return fail(cluster.Invalid("topics", "%v", err))
		}
	}
	return s.watch(ctx, cluster.Revision(req.GetAfterRevision()), newRoutesFilter(req.GetTopics()), func(e event) error {
		m := &planev1.WatchRoutesResponse{Revision: uint64(e.revision)}
		switch {
		case e.snapshot != nil:
			m.Event = &planev1.WatchRoutesResponse_Snapshot{Snapshot: e.snapshot}
		case e.delta != nil:
			m.Event = &planev1.WatchRoutesResponse_Delta{Delta: e.delta}
		default:
			m.Event = &planev1.WatchRoutesResponse_Progress{Progress: &planev1.Progress{}}
		}
		return stream.Send(m)
	})
}

// watch serves one stream until it ends; the error is the handler's.
func (s *Server) watch(ctx context.Context, after cluster.Revision, f filter, send func(event) error) error {
	release, err := s.admitWatch()
	if err != nil {
		return fail(err)
	}
	defer release()
	// The barrier comes first: a snapshot of a follower that lags could take back what the watcher has
	// seen elsewhere.
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return fail(err)
	}
	w := &watcher{Server: s, after: after, f: f, send: func(e event) error {
		if err := extendWrite(ctx, s.deps.WriteTimeout); err != nil {
			return err
		}
		return send(e)
	}}
	if after == 0 {
		if err := w.snapshot(); err != nil {
			return err
		}
	} else {
		s.deps.Machine.Read(f.begin)
	}
	return w.follow(ctx)
}

// admitWatch counts a stream against the limit; release must be called at its end.
func (s *Server) admitWatch() (release func(), err error) {
	if s.watchers.Add(1) > int64(s.deps.MaxWatchers) {
		s.watchers.Add(-1)
		e := cluster.Errorf(cluster.ReasonLimit, "this controller serves %d watches already; ask another one", s.deps.MaxWatchers)
		e.Field, e.RetryAfter = "watchers", time.Second
		return nil, e
	}
	return func() { s.watchers.Add(-1) }, nil
}

type watcher struct {
	*Server
	after cluster.Revision // everything up to it was sent, or does not concern the watcher
	f     filter
	send  func(event) error
	// said is the last revision that a message named.
	said       cluster.Revision
	leaderless time.Time // since when no leader is known; zero when one is
}

// snapshot sends the state at one revision, in parts.
func (w *watcher) snapshot() error {
	var changes []cluster.Change
	w.deps.Machine.Read(func(r fsm.Reader) {
		w.after = r.Revision()
		changes = w.f.snapshot(r)
	})
	for first := true; first || len(changes) > 0; first = false {
		n := min(len(changes), w.deps.SnapshotPart)
		part := &planev1.Snapshot{First: first, Last: n == len(changes)}
		for _, c := range changes[:n] {
			part.Changes = append(part.Changes, wire.ChangeToProto(c))
		}
		changes = changes[n:]
		if err := w.send(event{revision: w.after, snapshot: part}); err != nil {
			return err
		}
	}
	w.said = w.after
	return nil
}

// follow sends whole revisions as they come, and progress.
func (w *watcher) follow(ctx context.Context) error {
	tick := time.NewTicker(w.deps.KeepAlive)
	defer tick.Stop()
	for {
		// The channel before the history, so that nothing falls between.
		updated := w.deps.Machine.Updated()
		more, err := w.drain()
		if err != nil {
			return err
		}
		if more {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-w.stopping:
				return fail(stopping())
			case <-tick.C:
				if err := w.progress(); err != nil {
					return err
				}
			default:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.stopping:
			return fail(stopping())
		case <-updated:
		case now := <-tick.C:
			if err := w.checkLeader(now); err != nil {
				return fail(err)
			}
			if err := w.progress(); err != nil {
				return err
			}
		}
	}
}

// drain sends one batch of the history and says whether there may be more.
func (w *watcher) drain() (more bool, err error) {
	revisions, err := w.deps.Machine.Changes(w.after, watchBatch)
	if err != nil {
		return false, fail(err)
	}
	for _, rc := range revisions {
		d := &planev1.Delta{}
		for _, c := range rc.Changes {
			if !w.f.pass(c) {
				continue
			}
			if m := wire.ChangeToProto(c); m != nil {
				d.Changes = append(d.Changes, m)
			}
		}
		w.after = rc.Revision
		if len(d.Changes) == 0 {
			continue
		}
		if err := w.send(event{revision: rc.Revision, delta: d}); err != nil {
			return false, err
		}
		w.said = rc.Revision
	}
	return len(revisions) == watchBatch, nil
}

func (w *watcher) progress() error {
	w.said = w.after
	return w.send(event{revision: w.after})
}

// checkLeader ends the watch of a controller that has been without a leader for long.
func (w *watcher) checkLeader(now time.Time) error {
	if w.deps.Backend.Status().Leader != 0 {
		w.leaderless = time.Time{}
		return nil
	}
	if w.leaderless.IsZero() {
		w.leaderless = now
	}
	if now.Sub(w.leaderless) < leaderlessLimit {
		return nil
	}
	err := cluster.Errorf(cluster.ReasonNoLeader, "this controller has known no leader for %s", leaderlessLimit)
	err.RetryAfter = time.Second
	return err
}

func stopping() error {
	err := cluster.Errorf(cluster.ReasonNoLeader, "this controller is stopping; ask another one")
	err.RetryAfter = 100 * time.Millisecond
	return err
}

type writerKey struct{}

// withWriter keeps the response's controller, so that watches can set deadlines by message.
func withWriter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), writerKey{}, http.NewResponseController(w))))
	})
}

// extendWrite gives the next message d to be written. A watcher that stopped reading is ended by it.
func extendWrite(ctx context.Context, d time.Duration) error {
	rc, ok := ctx.Value(writerKey{}).(*http.ResponseController)
	if !ok {
		return nil
	}
	if err := rc.SetWriteDeadline(time.Now().Add(d)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
