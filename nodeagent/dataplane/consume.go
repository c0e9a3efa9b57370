package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// maxUnavailable bounds the sentences of one answer, maxUnavailableBytes leaves room for them.
const (
	maxUnavailable      = 100
	maxUnavailableBytes = 64 << 10
)

// Consume reserves records of a topic at whatever nodes own its partitions.
func (h dataHandler) Consume(ctx context.Context, req *nodev1.ConsumeRequest) (*nodev1.ConsumeResponse, error) {
	resp, err := h.s.consume(ctx, req)
	if err != nil {
		return nil, h.s.wire(err)
	}
	return resp, nil
}

// consumer is one Consume in progress.
type consumer struct {
	s          *Service
	topic      cluster.Topic
	group      string
	visibility *durationpb.Duration
	records    int
	bytes      cluster.Bytes
	resp       *nodev1.ConsumeResponse
	// taken are the records of resp, by whom they are from.
	taken []handedOut
	// unavailable is by partition index, of the last round.
	unavailable map[uint32]string
}

// handedOut are records that an owner has reserved.
type handedOut struct {
	owner   Route
	records []*nodev1.ConsumedRecord
}

func (s *Service) newConsumer(ctx context.Context, req *nodev1.ConsumeRequest) (*consumer, error) {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return nil, err
	}
	if err := cluster.ValidateGroupName(req.GetGroup()); err != nil {
		return nil, err
	}
	if req.GetMaxRecords() > MaxConsumeRecords {
		return nil, cluster.Invalid("max_records", "%d; at most %d are allowed", req.GetMaxRecords(), MaxConsumeRecords)
	}
	if req.GetMaxBytes() > MaxConsumeBytes {
		return nil, cluster.Invalid("max_bytes", "%d; at most %d are allowed", req.GetMaxBytes(), MaxConsumeBytes)
	}
	if d := req.GetWait(); d != nil && (!d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > MaxConsumeWait) {
		return nil, cluster.Invalid("wait", "must be 0s to %s", MaxConsumeWait)
	}
	if _, err := visibilityOf(req.GetVisibilityTimeout(), s.cfg); err != nil {
		return nil, err
	}
	topic, err := s.router.Await(ctx, req.GetTopic())
	if err != nil {
		return nil, err
	}
	c := &consumer{s: s, topic: topic, group: req.GetGroup(), visibility: req.GetVisibilityTimeout(),
		records: int(req.GetMaxRecords()), bytes: cluster.Bytes(req.GetMaxBytes()), resp: &nodev1.ConsumeResponse{}}
	if c.records == 0 {
		c.records = defaultConsumeRecords
	}
	if c.bytes == 0 {
		c.bytes = defaultConsumeBytes
	}
	c.bytes = min(c.bytes, MaxConsumeBytes-maxUnavailableBytes)
	return c, nil
}

func (s *Service) consume(ctx context.Context, req *nodev1.ConsumeRequest) (*nodev1.ConsumeResponse, error) {
	c, err := s.newConsumer(ctx, req)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(req.GetWait().AsDuration())
	for fruitless := 1; ; fruitless++ {
		changed := s.router.TopicChanged(c.topic.ID)
		c.unavailable = map[uint32]string{}
		owners := c.owners()
		if err := c.collect(ctx, owners); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			// The client has gone: somebody else gets the records at once.
			for _, t := range c.taken {
				c.giveBack(ctx, t.owner, t.records)
			}
			return nil, err
		}
		if len(c.resp.GetRecords()) > 0 || !time.Now().Before(end) {
			return c.answer(), nil
		}
		// What is offered and not handed out, such as by an owner that just closed, must not spin.
		pause := time.Now().Add(backoff(fruitless))
		c.await(ctx, owners, changed, end)
		if !c.sleep(ctx, minTime(pause, end)) {
			return c.answer(), nil
		}
	}
}

func (c *consumer) sleep(ctx context.Context, until time.Time) bool {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-c.s.stop:
	}
	return false
}

// ownerParts is an owner and the partitions to ask it for.
type ownerParts struct {
	route   Route
	indexes []uint32
}

// turns rotates which owner is asked first.
var turns atomic.Uint64

// owners groups the topic's partitions by owner, in turn. Partitions that can't be asked are noted.
func (c *consumer) owners() []ownerParts {
	byOwner := map[cluster.NodeID]int{}
	var out []ownerParts
	known := make([]bool, c.topic.Partitions)
	for _, r := range c.s.router.Routes(c.topic.ID) {
		if int(r.Partition.Index) >= len(known) {
			continue
		}
		known[r.Partition.Index] = true
		if !r.Alive && r.Owner != c.s.deps.Self {
			c.miss(fmt.Sprintf("its owner %s is dead", r.Owner), r.Partition.Index)
			continue
		}
		i, ok := byOwner[r.Owner]
		if !ok {
			i = len(out)
			byOwner[r.Owner] = i
			out = append(out, ownerParts{route: r})
		}
		out[i].indexes = append(out[i].indexes, r.Partition.Index)
	}
	for i, ok := range known {
		if !ok {
			c.miss("it has no known owner", uint32(i))
		}
	}
	// Not this node first: its backlog would keep the others' records waiting for as long as it lasts.
	if len(out) > 1 {
		turn := int(turns.Add(1) % uint64(len(out)))
		out = append(out[turn:len(out):len(out)], out[:turn]...)
	}
	return out
}

func (c *consumer) miss(why string, indexes ...uint32) {
	for _, i := range indexes {
		c.unavailable[i] = fmt.Sprintf("%s: %s", cluster.FormatPartition(c.topic.Name, i), why)
	}
}

// collect asks the owners one after the other until enough is reserved. Asking all at once would reserve
// more than can be handed out. An owner that hangs is waited for once, for a second; after that it is passed over
// until it has answered a probe.
func (c *consumer) collect(ctx context.Context, owners []ownerParts) error {
	for _, o := range owners {
		if c.records <= 0 || (c.bytes == 0 && len(c.resp.GetRecords()) > 0) || ctx.Err() != nil {
			return nil
		}
		req := c.request(o, uint32(c.records), 0)
		resp, err := c.s.askOwner(ctx, o.route, 0, req)
		if err != nil {
			if errors.Is(err, errPeerDown) {
				c.s.probe(o.route)
			}
			if cluster.ReasonOf(err) == cluster.ReasonLimit && o.route.Owner == c.s.deps.Self {
				return err
			}
			c.miss(fmt.Sprintf("its owner %s does not answer", o.route.Owner), o.indexes...)
			continue
		}
		c.miss(fmt.Sprintf("its owner %s does not serve it at the moment", o.route.Owner), resp.GetNotOwned()...)
		if !c.take(o.route, resp.GetRecords()) {
			c.giveBack(ctx, o.route, resp.GetRecords())
			return nil
		}
	}
	return nil
}

// take adds an owner's records. It returns false, and adds none, when they exceed what was left: an owner
// hands out its first record whatever its size.
func (c *consumer) take(from Route, records []*nodev1.ConsumedRecord) bool {
	var size cluster.Bytes
	for _, r := range records {
		size += consumedSize(r.GetKey(), r.GetValue(), c.group)
	}
	if size > c.bytes && len(c.resp.GetRecords()) > 0 {
		return false
	}
	c.resp.Records = append(c.resp.Records, records...)
	c.taken = append(c.taken, handedOut{from, records})
	c.records -= len(records)
	c.bytes -= min(c.bytes, size)
	return true
}

// giveBack ends reservations that the client will not hear of. When that does not arrive they end with
// their visibility time-out.
func (c *consumer) giveBack(ctx context.Context, to Route, records []*nodev1.ConsumedRecord) {
	if len(records) == 0 {
		return
	}
	receipts := receiptsOf(records)
	ctx = context.WithoutCancel(ctx)
	var err error
	if to.Owner == c.s.deps.Self {
		_, _, err = c.s.settleOwned(ctx, receipts, c.s.extendBy(0))
	} else {
		p := c.s.peers.at(to.Address)
		err = p.call(ctx, c.s.cfg.RequestTimeout, func(ctx context.Context) error {
			_, err := p.client.ExtendOwned(ctx, &nodev1.ExtendOwnedRequest{Receipts: receipts, VisibilityTimeout: durationpb.New(0)})
			return err
		})
	}
	if err != nil {
		c.s.log.Debug("reservations could not be given back, they end by time", zap.String("owner", string(to.Owner)), zap.Error(err))
	}
}

func (c *consumer) request(o ownerParts, records uint32, wait time.Duration) *nodev1.ConsumeOwnedRequest {
	return &nodev1.ConsumeOwnedRequest{TopicId: uint64(c.topic.ID), Indexes: o.indexes, Group: c.group,
		MaxRecords: records, MaxBytes: uint64(max(c.bytes, 1)), Wait: durationpb.New(wait), VisibilityTimeout: c.visibility}
}

// await returns when an owner has something to reserve, the routes change, or at end. It asks all owners
// at once for nothing but a sign, so nothing is reserved that nobody gets.
func (c *consumer) await(ctx context.Context, owners []ownerParts, changed <-chan struct{}, end time.Time) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wait := time.Until(end)
	sign := make(chan struct{}, len(owners))
	for _, o := range owners {
		wg.Go(func() {
			// A call that waits must not be the probe of a peer: nobody else would ask it meanwhile.
			if o.route.Owner != c.s.deps.Self && c.s.peers.at(o.route.Address).failing() {
				if c.s.answers(ctx, o.route) {
					sign <- struct{}{}
				}
				return
			}
			resp, err := c.s.askOwner(ctx, o.route, wait+c.s.cfg.RequestTimeout, c.request(o, 0, wait))
			if err == nil && len(resp.GetNotOwned()) < len(o.indexes) {
				sign <- struct{}{}
			}
		})
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	// Owners that could not be asked, or closed partitions, are asked again after this.
	again := time.NewTimer(c.again())
	defer again.Stop()
	select {
	case <-sign:
	case <-changed:
	case <-t.C:
	case <-again.C:
	case <-ctx.Done():
	case <-c.s.stop:
	}
}

func (c *consumer) again() time.Duration {
	if len(c.unavailable) > 0 {
		return maxBackoff
	}
	return MaxConsumeWait
}

func (c *consumer) answer() *nodev1.ConsumeResponse {
	indexes := make([]uint32, 0, len(c.unavailable))
	for i := range c.unavailable {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	for n, i := range indexes {
		if n == maxUnavailable {
			c.resp.Unavailable = append(c.resp.Unavailable, fmt.Sprintf("%s: %d further partitions can't be asked", c.topic.Name, len(indexes)-n))
			break
		}
		c.resp.Unavailable = append(c.resp.Unavailable, c.unavailable[i])
	}
	return c.resp
}

// askOwner calls ConsumeOwned at the owner, which may be this node. Without a timeout it is one of several that are asked
// in turn: see peer.ask.
func (s *Service) askOwner(ctx context.Context, to Route, timeout time.Duration, req *nodev1.ConsumeOwnedRequest) (resp *nodev1.ConsumeOwnedResponse, err error) {
	if to.Owner == s.deps.Self {
		return s.consumeOwned(ctx, req)
	}
	p := s.peers.at(to.Address)
	fn := func(ctx context.Context) error {
		resp, err = p.client.ConsumeOwned(ctx, req)
		return err
	}
	if timeout == 0 {
		err = p.ask(ctx, s.cfg.RequestTimeout, fn)
	} else {
		err = p.call(ctx, timeout, fn)
	}
	return resp, err
}

// probe asks an owner for nothing, beside whoever noticed that it does not answer. Each owner has one probe at a time.
func (s *Service) probe(to Route) {
	p := s.peers.at(to.Address)
	if !p.unreachable(time.Now()).IsZero() || s.enter() != nil {
		return
	}
	go func() {
		defer s.leave()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-s.stop:
				cancel()
			case <-ended:
			}
		}()
		s.probeNow(ctx, p)
	}()
}

func (s *Service) probeNow(ctx context.Context, p *peer) bool {
	return p.call(ctx, s.cfg.RequestTimeout, func(ctx context.Context) error {
		_, err := p.client.ConsumeOwned(ctx, &nodev1.ConsumeOwnedRequest{Group: "probe"})
		return err
	}) == nil
}

// answers returns true as soon as an owner that did not answer does so, and false when ctx ends first.
func (s *Service) answers(ctx context.Context, to Route) bool {
	p := s.peers.at(to.Address)
	for p.failing() && ctx.Err() == nil {
		if at := p.unreachable(time.Now()); at.IsZero() {
			s.probeNow(ctx, p)
		} else if !sleepUntil(ctx, at) {
			return false
		}
	}
	return ctx.Err() == nil
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
