package api

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// defaultEvents is how many events are listed unless a number is asked for.
const defaultEvents = 100

func eventFilter(node string, since time.Time) (func(cluster.Event) bool, error) {
	id := cluster.NodeID(node)
	if node != "" {
		if err := cluster.ValidateNodeID(id); err != nil {
			return nil, cluster.Invalid("node", "%v", err)
		}
	}
	return func(e cluster.Event) bool {
		return (node == "" || e.Concerns(id)) && (since.IsZero() || !e.At.Before(since))
	}, nil
}

// ListEvents answers on any controller.
func (s clusterService) ListEvents(ctx context.Context, req *planev1.ListEventsRequest) (*planev1.ListEventsResponse, error) {
	var since time.Time
	if t := req.GetSince(); t != nil {
		if err := t.CheckValid(); err != nil {
			return nil, fail(cluster.Invalid("since", "%v", err))
		}
		since = t.AsTime()
	}
	match, err := eventFilter(req.GetNode(), since)
	if err != nil {
		return nil, fail(err)
	}
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultEvents
	case limit > fsm.EventLimit:
		return nil, fail(cluster.Invalid("limit", "must be at most %d, is %d", fsm.EventLimit, limit))
	}
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return nil, fail(err)
	}
	res := &planev1.ListEventsResponse{KeptLimit: fsm.EventLimit}
	var list []cluster.Event
	s.deps.Machine.Read(func(r fsm.Reader) {
		res.Revision = uint64(r.Revision())
		if req.GetAfterId() > 0 {
			list, res.OldestId, res.NewestId = r.Events(req.GetAfterId(), limit, match)
			return
		}
		list, res.OldestId, res.NewestId = r.Events(0, 0, match)
		list = list[max(0, len(list)-limit):]
	})
	for _, e := range list {
		res.Events = append(res.Events, wire.EventToProto(e))
	}
	return res, nil
}

// WatchEvents is served by any controller, within the bounds of the other watches.
func (s clusterService) WatchEvents(ctx context.Context, req *planev1.WatchEventsRequest, stream planev1connect.ClusterServiceWatchEventsServerStream) error {
	match, err := eventFilter(req.GetNode(), time.Time{})
	if err != nil {
		return fail(err)
	}
	release, err := s.admitWatch()
	if err != nil {
		return fail(err)
	}
	defer release()
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return fail(err)
	}
	w := &watcher{Server: s.Server}
	tick := time.NewTicker(s.deps.KeepAlive)
	defer tick.Stop()
	after := req.GetAfterId()
	send := func(m *planev1.WatchEventsResponse) error {
		if err := extendWrite(ctx, s.deps.WriteTimeout); err != nil {
			return err
		}
		return stream.Send(m)
	}
	for {
		// The channel before the events, so that nothing falls between.
		updated := s.deps.Machine.Updated()
		list, newest, err := s.eventsAfter(after)
		if err != nil {
			return fail(err)
		}
		for _, e := range list {
			if after = e.ID; match(e) {
				if err := send(&planev1.WatchEventsResponse{Id: e.ID, Event: wire.EventToProto(e)}); err != nil {
					return err
				}
			}
		}
		if after < newest {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stopping:
			return fail(stopping())
		case <-updated:
		case now := <-tick.C:
			if err := w.checkLeader(now); err != nil {
				return fail(err)
			}
			if err := send(&planev1.WatchEventsResponse{Id: after}); err != nil {
				return err
			}
		}
	}
}

// eventsAfter reads the next events of a watch.
func (s *Server) eventsAfter(after uint64) (list []cluster.Event, newest uint64, err error) {
	var oldest uint64
	s.deps.Machine.Read(func(r fsm.Reader) { list, oldest, newest = r.Events(after, watchBatch, nil) })
	if after > 0 && (after+1 < oldest || after > newest) {
		e := cluster.Errorf(cluster.ReasonRevisionCompacted, "event %d is not kept (kept: %d to %d)", after+1, oldest, newest)
		return nil, 0, e
	}
	return list, newest, nil
}
