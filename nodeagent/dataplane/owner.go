package dataplane

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// parallel bounds the goroutines of one request on the owner's side.
const parallel = 16

// ownerHandler serves OwnerService.
type ownerHandler struct{ s *Service }

// Append appends each batch on its own: one that waits or is refused does not concern the others.
func (h ownerHandler) Append(ctx context.Context, req *nodev1.AppendRequest) (*nodev1.AppendResponse, error) {
	if err := h.s.enter(); err != nil {
		return nil, h.s.wire(err)
	}
	defer h.s.leave()
	results := make([]*nodev1.PartitionAppendResult, len(req.GetBatches()))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, b := range req.GetBatches() {
		g.Go(func() error {
			results[i] = h.s.appendOwned(ctx, b)
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	return &nodev1.AppendResponse{Results: results}, nil
}

func (s *Service) appendOwned(ctx context.Context, b *nodev1.PartitionBatch) *nodev1.PartitionAppendResult {
	p := cluster.PartitionID{Topic: cluster.TopicID(b.GetTopicId()), Index: b.GetIndex()}
	first, err := s.appendBatch(ctx, p, b.GetRecords())
	if err == nil {
		return &nodev1.PartitionAppendResult{FirstOffset: uint64(first)}
	}
	e := cluster.AsError(err)
	if e == nil {
		return &nodev1.PartitionAppendResult{Reason: cluster.ReasonBug.String(), Message: err.Error()}
	}
	res := &nodev1.PartitionAppendResult{Reason: e.Reason.String(), Message: e.Message}
	if e.Reason == cluster.ReasonNotOwner {
		res.Owner, res.Epoch = string(e.Owner), uint64(e.Epoch)
		if route, ok := s.router.Route(p); ok && route.Owner != s.deps.Self && res.GetOwner() == "" {
			res.Owner, res.Epoch = string(route.Owner), uint64(route.Epoch)
		}
	}
	return res
}

func (s *Service) appendBatch(ctx context.Context, p cluster.PartitionID, in []*nodev1.AppendRecord) (cluster.Offset, error) {
	if s.router.Gone(p.Topic) {
		return 0, cluster.NotFound("topic %d does not exist", p.Topic)
	}
	l, err := s.deps.Logs.Log(p)
	if err != nil {
		return 0, err
	}
	if len(in) == 0 {
		return 0, cluster.Invalid("records", "a batch needs at least one record")
	}
	records := make([]store.Record, len(in))
	for i, r := range in {
		if len(r.GetKey()) > cluster.MaxKeyBytes || len(r.GetKey())+len(r.GetValue()) > cluster.MaxRecordBytes {
			return 0, cluster.Invalid("records", "record %d exceeds the limits of a record", i)
		}
		records[i] = store.Record{Time: r.GetTime(), Key: r.GetKey(), Value: r.GetValue()}
	}
	return l.Append(ctx, records)
}

// ConsumeOwned reserves records of this node's partitions.
func (h ownerHandler) ConsumeOwned(ctx context.Context, req *nodev1.ConsumeOwnedRequest) (*nodev1.ConsumeOwnedResponse, error) {
	resp, err := h.s.consumeOwned(ctx, req)
	if err != nil {
		return nil, h.s.wire(err)
	}
	return resp, nil
}

func (s *Service) consumeOwned(ctx context.Context, req *nodev1.ConsumeOwnedRequest) (*nodev1.ConsumeOwnedResponse, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if err := cluster.ValidateGroupName(req.GetGroup()); err != nil {
		return nil, err
	}
	visibility, err := visibilityOf(req.GetVisibilityTimeout(), s.cfg)
	if err != nil {
		return nil, err
	}
	end := s.deps.Now().Add(min(max(req.GetWait().AsDuration(), 0), MaxConsumeWait))
	b := budget{records: int(min(req.GetMaxRecords(), MaxConsumeRecords)),
		bytes: cluster.Bytes(min(req.GetMaxBytes(), MaxConsumeBytes)), visibility: visibility}
	for {
		resp, w, err := s.owned.round(ctx, req, b)
		if cerr := ctx.Err(); cerr != nil && len(resp.GetRecords()) > 0 {
			// Who asked has gone: the records are for the next.
			_, _, err := s.settleOwned(context.WithoutCancel(ctx), receiptsOf(resp.GetRecords()), s.extendBy(0))
			return nil, errors.Join(cerr, err)
		}
		if err != nil || len(resp.GetRecords()) > 0 || w.ready || ctx.Err() != nil || !s.deps.Now().Before(end) ||
			len(resp.GetNotOwned()) == len(req.GetIndexes()) {
			return resp, err
		}
		waitAny(ctx, s.stop, w.changed, minTime(end, w.until))
		select {
		case <-s.stop:
			return resp, nil
		default:
		}
	}
}

// watch is what a consume that found nothing waits for.
type watch struct {
	changed []<-chan struct{}
	until   time.Time
	// ready answers a request for zero records: there is something to reserve.
	ready bool
}

// round asks each partition once, or twice when a fair share of each leaves room.
func (op *ownedPartitions) round(ctx context.Context, req *nodev1.ConsumeOwnedRequest, b budget) (*nodev1.ConsumeOwnedResponse, watch, error) {
	resp := &nodev1.ConsumeOwnedResponse{}
	w := watch{until: op.now().Add(MaxConsumeWait)}
	type source struct {
		o *owned
		g *group
	}
	var sources []source
	var failed error
	for _, i := range req.GetIndexes() {
		p := cluster.PartitionID{Topic: cluster.TopicID(req.GetTopicId()), Index: i}
		o, err := op.get(p)
		if err != nil {
			resp.NotOwned = append(resp.NotOwned, i)
			continue
		}
		// Taken before reading, so that what comes in between is not missed.
		changed := o.log.Changed()
		g, err := o.group(req.GetGroup(), true, op.cfg)
		if err != nil {
			failed = err
			resp.NotOwned = append(resp.NotOwned, i)
			continue
		}
		w.changed = append(w.changed, changed, g.released())
		sources = append(sources, source{o, g})
	}
	if len(sources) == 0 {
		if cluster.ReasonOf(failed) == cluster.ReasonLimit {
			return nil, w, failed
		}
		return resp, w, nil
	}
	turn := int(op.turn.Add(1) % uint64(len(sources)))
	sources = append(sources[turn:len(sources):len(sources)], sources[:turn]...)
	share := (b.records + len(sources) - 1) / len(sources)
	for _, n := range []int{share, b.records} {
		for _, src := range sources {
			if b.records == 0 || (b.any && b.bytes == 0) || ctx.Err() != nil {
				break
			}
			records, err := src.o.reserve(src.g, n, &b, op.stats)
			resp.Records = append(resp.Records, records...)
			if err != nil && n == share {
				// Closed meanwhile, or not readable: its records come from elsewhere or later.
				resp.NotOwned = append(resp.NotOwned, src.o.partition.Index)
			}
		}
	}
	op.stats.consumed.Add(uint64(len(resp.GetRecords())))
	if len(resp.GetRecords()) == 0 {
		for _, src := range sources {
			ready, next := src.o.ready(src.g)
			w.ready = w.ready || (ready && req.GetMaxRecords() == 0)
			if ready {
				// Offered but not read: look again soon, not at once.
				next = op.now().Add(20 * time.Millisecond)
			}
			if !next.IsZero() {
				w.until = minTime(w.until, next)
			}
		}
	}
	return resp, w, nil
}

// AckOwned confirms records that this node reserved.
func (h ownerHandler) AckOwned(ctx context.Context, req *nodev1.AckOwnedRequest) (*nodev1.AckOwnedResponse, error) {
	n, errs, err := h.s.settleOwned(ctx, req.GetReceipts(), (*reservations).ack)
	if err != nil {
		return nil, h.s.wire(err)
	}
	h.s.stats.acked.Add(uint64(n))
	return &nodev1.AckOwnedResponse{Acked: n, Errors: errs}, nil
}

// ExtendOwned extends reservations of this node.
func (h ownerHandler) ExtendOwned(ctx context.Context, req *nodev1.ExtendOwnedRequest) (*nodev1.ExtendOwnedResponse, error) {
	var visibility time.Duration
	if d := req.GetVisibilityTimeout(); d == nil || d.AsDuration() != 0 {
		var err error
		if visibility, err = visibilityOf(d, h.s.cfg); err != nil {
			return nil, h.s.wire(err)
		}
	}
	n, errs, err := h.s.settleOwned(ctx, req.GetReceipts(), h.s.extendBy(visibility))
	if err != nil {
		return nil, h.s.wire(err)
	}
	return &nodev1.ExtendOwnedResponse{Extended: n, Errors: errs}, nil
}

func receiptsOf(records []*nodev1.ConsumedRecord) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = r.GetReceipt()
	}
	return out
}

func (s *Service) extendBy(d time.Duration) settleFunc {
	return func(r *reservations, o cluster.Offset, nonce uint64) settlement {
		return r.extend(o, nonce, s.deps.Now().Add(d))
	}
}

func visibilityOf(d *durationpb.Duration, cfg Config) (time.Duration, error) {
	if d == nil {
		return cfg.VisibilityTimeout, nil
	}
	if v := d.AsDuration(); d.IsValid() && v >= MinVisibility && v <= MaxVisibility {
		return v, nil
	}
	return 0, cluster.Invalid("visibility_timeout", "must be %s to %s", MinVisibility, MaxVisibility)
}
