package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Source is the source's side of every move away from this node. Make it with NewSource; it is safe for
// concurrent use; Close it.
type Source struct {
	nodev1connect.UnimplementedTransferServiceHandler

	cfg    SourceConfig
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		parts  map[cluster.PartitionID]*part
		closed bool
	}
}

// part is what the source knows of one partition. Its lock is held while a marker is made, while an
// unmarked partition is opened, and while a fence is set: these exclude each other.
type part struct {
	id cluster.PartitionID
	// marked is the length of moves, for who looks at all parts.
	marked atomic.Int32

	mu struct {
		sync.Mutex
		moves map[cluster.MoveID]*outbound
		// assignment is the latest that was observed.
		assignment *cluster.Assignment
	}
}

// NewSource loads the outbound markers; every marked copy begins fenced (I7). Call Fence before the node
// serves anything, and Registered when its session is accepted.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Store == nil || cfg.Control == nil || cfg.Journal == nil || cfg.Session == nil {
		return nil, cluster.Invalid("source", "store, control, journal and session are required")
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Now == nil {
		cfg.Now = processClock()
	}
	if cfg.Random == nil {
		cfg.Random = rand.Reader
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = defaultCallTimeout
	}
	if cfg.FreezeTimeout == 0 {
		cfg.FreezeTimeout = defaultFreezeTimeout
	}
	s := &Source{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.parts = map[cluster.PartitionID]*part{}
	records, err := cfg.Journal.Load(outboundPrefix)
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("load outbound markers: %w", err)
	}
	markers := make([]Marker, 0, len(records))
	for key, b := range records {
		m, err := decodeMarker(b)
		if err != nil {
			s.cancel()
			return nil, fmt.Errorf("load %s: %w", key, err)
		}
		markers = append(markers, m)
	}
	for _, m := range markers {
		cfg.Store.SetOutbound(m.Partition, true)
		p := s.part(m.Partition)
		p.mu.Lock()
		s.run(p, m, handoff.Restored(), 0)
		p.mu.Unlock()
	}
	return s, nil
}

// Close stops every goroutine and waits for it. Freezes stay as they are.
func (s *Source) Close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// RegisterConnect registers the TransferService on server.
func (s *Source) RegisterConnect(server *connect.Server) {
	nodev1connect.RegisterTransferServiceHandler(server, s)
}

func (s *Source) part(id cluster.PartitionID) *part {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.mu.parts[id]
	if p == nil {
		p = &part{id: id}
		p.mu.moves = map[cluster.MoveID]*outbound{}
		s.mu.parts[id] = p
	}
	return p
}

func (s *Source) known(id cluster.PartitionID) *part {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.parts[id]
}

func (s *Source) allParts() []*part {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*part, 0, len(s.mu.parts))
	for _, p := range s.mu.parts {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *part) int { return a.id.Compare(b.id) })
	return out
}

// movingParts returns the parts that have, or a moment ago had, a marker.
func (s *Source) movingParts() []*part {
	s.mu.Lock()
	var out []*part
	for _, p := range s.mu.parts {
		if p.marked.Load() > 0 {
			out = append(out, p)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b *part) int { return a.id.Compare(b.id) })
	return out
}

// outbounds returns the moves of p, oldest first.
func (p *part) outbounds() []*outbound {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outboundsLocked()
}

func (p *part) outboundsLocked() []*outbound {
	out := make([]*outbound, 0, len(p.mu.moves))
	for _, o := range p.mu.moves {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b *outbound) int { return int(a.move) - int(b.move) })
	return out
}

// outbound returns a move that was begun; nil when it was not.
func (s *Source) outbound(p cluster.PartitionID, move cluster.MoveID) *outbound {
	pt := s.known(p)
	if pt == nil {
		return nil
	}
	pt.mu.Lock()
	defer pt.mu.Unlock()
	return pt.mu.moves[move]
}

// run starts the goroutine of a marker. p's lock is held.
func (s *Source) run(p *part, m Marker, st handoff.State, epoch cluster.Epoch) *outbound {
	o := newOutbound(s, p, m, st, epoch)
	p.mu.moves[m.MoveID] = o
	p.marked.Store(int32(len(p.mu.moves)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		close(o.done)
		return o
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		o.loop(s.ctx)
	}()
	return o
}

// Marked returns every marker, by partition and move.
func (s *Source) Marked() []Marker {
	var out []Marker
	for _, p := range s.movingParts() {
		for _, o := range p.outbounds() {
			out = append(out, o.markerNow())
		}
	}
	return out
}

// MarkersOf returns the markers of one partition, the oldest move first.
func (s *Source) MarkersOf(id cluster.PartitionID) []Marker {
	p := s.known(id)
	if p == nil {
		return nil
	}
	var out []Marker
	for _, o := range p.outbounds() {
		out = append(out, o.markerNow())
	}
	return out
}

// Began reports whether a move of p has a marker here.
func (s *Source) Began(p cluster.PartitionID, move cluster.MoveID) bool {
	return s.outbound(p, move) != nil
}

// HasMarker reports whether p has an outbound marker, so that only the source side may open or close it.
func (s *Source) HasMarker(id cluster.PartitionID) bool {
	p := s.known(id)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.moves) > 0
}

// Latest returns a marker as it was updated last; as it is when the move is not known.
func (s *Source) Latest(m Marker) Marker {
	if o := s.outbound(m.Partition, m.MoveID); o != nil {
		return o.markerNow()
	}
	return m
}

// Ended returns the markers whose moves have taken the copy away: what Reclaimer works on.
func (s *Source) Ended() []Marker {
	var out []Marker
	for _, p := range s.movingParts() {
		for _, o := range p.outbounds() {
			if o.phase() == handoff.Flipped {
				out = append(out, o.markerNow())
			}
		}
	}
	return out
}

// Fence freezes every marked copy (I7): at start, and when the node was declared dead, before it takes a new
// incarnation. epoch returns what is known of a partition that may be opened for reading; false when it
// must stay closed. It returns when nothing marked accepts appends.
func (s *Source) Fence(ctx context.Context, epoch func(cluster.PartitionID) (cluster.Epoch, bool)) error {
	var errs []error
	for _, p := range s.allParts() {
		p.mu.Lock()
		err := s.fencePart(ctx, p, epoch)
		for _, o := range p.outboundsLocked() {
			o.fence(ctx)
		}
		p.mu.Unlock()
		if err != nil {
			errs = append(errs, fmt.Errorf("fence %s: %w", p.id, err))
		}
	}
	return errors.Join(errs...)
}

// fencePart freezes the active copy if one of the markers is its own. p's lock is held.
func (s *Source) fencePart(ctx context.Context, p *part, epoch func(cluster.PartitionID) (cluster.Epoch, bool)) error {
	c, ok, err := activeCopy(s.cfg.Store, p.id)
	if err != nil || !ok || c.Pending != nil {
		return err
	}
	var move cluster.MoveID
	for _, o := range p.mu.moves {
		if o.identity == c.Identity {
			move = max(move, o.move)
		}
	}
	if move == 0 {
		return nil
	}
	token := fenceToken(move)
	if c.Open {
		return s.cfg.Store.Freeze(ctx, p.id, token)
	}
	if e, ok := epoch(p.id); ok {
		return s.cfg.Store.OpenFrozen(p.id, e, token)
	}
	return nil
}

func fenceToken(move cluster.MoveID) store.FreezeToken {
	return store.FreezeToken{MoveID: move, Handoff: handoff.FenceHandoff}
}

// Registered says that the session of the present incarnation is accepted: every fenced move is read and
// resolved.
func (s *Source) Registered() {
	s.broadcast(func(o *outbound) handoff.Event { return handoff.Registered{} })
}

func (s *Source) broadcast(event func(*outbound) handoff.Event) {
	for _, p := range s.allParts() {
		for _, o := range p.outbounds() {
			if e := event(o); e != nil {
				o.send(s.ctx, e)
			}
		}
	}
}

// Observe is told of an assignment when the watch shows it.
func (s *Source) Observe(a cluster.Assignment) {
	p := s.known(a.Partition)
	if p == nil {
		if a.Owner != s.cfg.Node || !a.Moving() {
			return
		}
		p = s.part(a.Partition)
	}
	p.mu.Lock()
	if have := p.mu.assignment; have != nil && have.Epoch > a.Epoch {
		p.mu.Unlock()
		return
	}
	p.mu.assignment = &a
	outbounds := p.outboundsLocked()
	p.mu.Unlock()
	for _, o := range outbounds {
		switch {
		case a.Owner != s.cfg.Node && o.seen() != 0 && a.Epoch > o.seen():
			o.send(s.ctx, handoff.MovedAway{})
		case a.Owner != s.cfg.Node || a.MoveID != o.move:
			o.send(s.ctx, handoff.Hinted{})
		}
	}
}

// ObserveRemoved is told that a partition is gone with its topic: its moves are over, and nobody else says so.
func (s *Source) ObserveRemoved(id cluster.PartitionID) {
	p := s.known(id)
	if p == nil {
		return
	}
	for _, o := range p.outbounds() {
		o.send(s.ctx, handoff.Hinted{})
	}
}

// Owned opens an owned partition without an outbound marker, or tells an open one its new epoch. With a
// marker it does the latter alone: when it may be opened is for the handoff to say.
func (s *Source) Owned(id cluster.PartitionID, epoch cluster.Epoch) error {
	p := s.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.moves) == 0 {
		return s.cfg.Store.Open(id, epoch)
	}
	c, ok, err := activeCopy(s.cfg.Store, id)
	if err != nil {
		return err
	}
	if ok && c.Open {
		return s.cfg.Store.Open(id, epoch)
	}
	for _, o := range p.mu.moves {
		if ok && o.identity == c.Identity && o.holds() {
			return cluster.Errorf(cluster.ReasonFrozen, "partition %s waits for the end of move %d", id, o.move)
		}
	}
	return s.cfg.Store.Open(id, epoch)
}

// Forget removes a marker whose copy is gone. The journal comes first: a marker that comes back is
// resolved again.
func (s *Source) Forget(m Marker) error {
	if err := s.cfg.Journal.Delete(m.key()); err != nil {
		return fmt.Errorf("remove marker of move %d of %s: %w", m.MoveID, m.Partition, err)
	}
	p := s.known(m.Partition)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	o := p.mu.moves[m.MoveID]
	delete(p.mu.moves, m.MoveID)
	p.marked.Store(int32(len(p.mu.moves)))
	if len(p.mu.moves) == 0 {
		s.cfg.Store.SetOutbound(m.Partition, false)
	}
	p.mu.Unlock()
	if o != nil {
		o.stop()
	}
	return nil
}

// saveMarker journals a marker, synced.
func (s *Source) saveMarker(m Marker) error {
	b, err := m.encode()
	if err == nil {
		err = s.cfg.Journal.Save(m.key(), b)
	}
	if err != nil {
		return fmt.Errorf("save marker of move %d of %s: %w", m.MoveID, m.Partition, err)
	}
	return nil
}

// registered returns the present incarnation, or an error that asks to come back.
func (s *Source) registered() (cluster.Incarnation, error) {
	inc, ok := s.cfg.Session()
	if !ok {
		// Invariant I7: before its registration the node neither begins nor freezes.
		e := cluster.Errorf(cluster.ReasonNoLeader, "node %s is not registered yet", s.cfg.Node)
		e.RetryAfter = 100 * time.Millisecond
		return 0, e
	}
	return inc, nil
}
