package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Begin implements the TransferService.
func (s *Source) Begin(ctx context.Context, req *nodev1.BeginRequest) (*nodev1.BeginResponse, error) {
	p, move, err := refOf(req.GetMove())
	if err != nil {
		return nil, s.cfg.Errors.toWire(err)
	}
	inc, m, err := s.begin(ctx, p, move, cluster.NodeID(req.GetDestination()))
	if err != nil {
		return nil, s.cfg.Errors.toWire(err)
	}
	return &nodev1.BeginResponse{Incarnation: uint64(inc), Manifest: manifestToProto(m)}, nil
}

func (s *Source) begin(ctx context.Context, id cluster.PartitionID, move cluster.MoveID, dest cluster.NodeID) (cluster.Incarnation, store.Manifest, error) {
	var none store.Manifest
	inc, err := s.registered()
	if err != nil {
		return 0, none, err
	}
	p := s.part(id)
	o, err := s.mark(ctx, p, move, dest)
	if err != nil {
		return 0, none, err
	}
	m, err := s.cfg.Store.Manifest(id, nil)
	if err != nil {
		return 0, none, fmt.Errorf("manifest of %s: %w", id, err)
	}
	o.remember(m)
	// The manifest and the incarnation belong together: a new session in between makes another one.
	if now, err := s.registered(); err != nil || now != inc {
		return 0, none, errors.Join(err, cluster.Errorf(cluster.ReasonNoLeader, "node %s takes a new incarnation", s.cfg.Node))
	}
	return inc, m, nil
}

// mark makes the outbound marker durable, once, and returns the move's goroutine.
func (s *Source) mark(ctx context.Context, p *part, move cluster.MoveID, dest cluster.NodeID) (*outbound, error) {
	p.mu.Lock()
	o, a := p.mu.moves[move], p.mu.assignment
	p.mu.Unlock()
	if o != nil {
		return o, o.usable()
	}
	// The watch may be behind. A marker of a move that is over would cost a read later, and one of a
	// move that has ended long ago must not touch a copy that came home since.
	if a == nil || a.MoveID != move || a.Owner != s.cfg.Node || a.Target != dest {
		cctx, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
		v, err := s.cfg.Control.ReadMove(cctx, p.id, move)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("read move %d of %s: %w", move, p.id, err)
		}
		a = v.Assignment
		if a == nil || v.State != MoveCurrent || a.Owner != s.cfg.Node || a.Target != dest {
			e := cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s to %s is not current", move, p.id, dest)
			e.Assignment, e.Outcome = v.Assignment, v.Outcome
			return nil, e
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.mu.moves[move]; o != nil {
		return o, o.usable()
	}
	if now := p.mu.assignment; now != nil && now.Epoch > a.Epoch && now.MoveID != move {
		// The move ended since the read. Nobody would tell a marker that is made now.
		e := cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s is not current", move, p.id)
		e.Assignment = now
		return nil, e
	}
	c, ok, err := activeCopy(s.cfg.Store, p.id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the copy of %s: %w", p.id, err)
	case !ok || c.Pending != nil || !c.Open:
		return nil, cluster.Errorf(cluster.ReasonNotOwner, "partition %s is not open here yet", p.id)
	case cluster.MoveID(c.Identity) >= move:
		return nil, cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s is older than its copy", move, p.id)
	}
	m := Marker{Partition: p.id, MoveID: move, Destination: dest, Identity: c.Identity}
	// The lease check comes first: from when the marker may be durable, an acknowledgement needs a lease.
	s.cfg.Store.SetOutbound(p.id, true)
	if err := s.saveMarker(m); err != nil {
		if len(p.mu.moves) == 0 {
			s.cfg.Store.SetOutbound(p.id, false)
		}
		return nil, err
	}
	if err := hit(faults.HandoffMarked, p.id, move, 0); err != nil {
		return nil, err
	}
	return s.run(p, m, handoff.New(), a.Epoch), nil
}

// usable says whether the move can go on here.
func (o *outbound) usable() error {
	switch o.phase() {
	case handoff.Redirecting, handoff.Flipped, handoff.Unmarking, handoff.Gone:
		return cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s is over", o.move, o.p)
	case handoff.Fenced:
		return cluster.Errorf(cluster.ReasonNoLeader, "partition %s is fenced until its owner was read", o.p)
	default:
		return nil
	}
}

// begun returns the incarnation and the move's goroutine when both may be used.
func (s *Source) begun(ref *nodev1.MoveRef) (cluster.Incarnation, *outbound, error) {
	p, move, err := refOf(ref)
	if err != nil {
		return 0, nil, err
	}
	inc, err := s.registered()
	if err != nil {
		return 0, nil, err
	}
	o := s.outbound(p, move)
	if o == nil {
		return 0, nil, cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s was not begun here", move, p)
	}
	return inc, o, o.usable()
}

// Manifest implements the TransferService.
func (s *Source) Manifest(ctx context.Context, req *nodev1.ManifestRequest) (*nodev1.ManifestResponse, error) {
	if m, ok, err := s.promoted(req.GetMove()); ok || err != nil {
		return m, s.cfg.Errors.toWire(err)
	}
	inc, o, err := s.begun(req.GetMove())
	if err != nil {
		return nil, s.cfg.Errors.toWire(err)
	}
	m, err := s.cfg.Store.Manifest(o.p, filesFromProto(req.GetKnown()))
	if err != nil {
		return nil, s.cfg.Errors.toWire(fmt.Errorf("manifest of %s: %w", o.p, err))
	}
	o.remember(m)
	return &nodev1.ManifestResponse{Incarnation: uint64(inc), Manifest: manifestToProto(m)}, nil
}

// PrepareHandoff implements the TransferService. Requests for one move share one handoff.
func (s *Source) PrepareHandoff(ctx context.Context, req *nodev1.PrepareHandoffRequest) (*nodev1.PrepareHandoffResponse, error) {
	inc, o, err := s.begun(req.GetMove())
	if err != nil {
		return nil, s.cfg.Errors.toWire(err)
	}
	ev := handoff.Prepared{Incarnation: inc, TTL: req.GetTtl().AsDuration()}
	if ev.TTL <= 0 {
		return nil, s.cfg.Errors.toWire(cluster.Invalid("ttl", "must be positive"))
	}
	if _, err := io.ReadFull(s.cfg.Random, ev.Nonce[:]); err != nil {
		return nil, s.cfg.Errors.toWire(fmt.Errorf("make a nonce: %w", err))
	}
	reply := make(chan final, 1)
	if !o.post(ctx, message{event: ev, reply: reply, known: filesFromProto(req.GetKnown())}) {
		return nil, s.cfg.Errors.toWire(cluster.Errorf(cluster.ReasonNoLeader, "move %d of %s is ending", o.move, o.p))
	}
	var f final
	select {
	case f = <-reply:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-o.done:
		select {
		case f = <-reply:
		default:
			f.err = cluster.Errorf(cluster.ReasonNoLeader, "move %d of %s is ending", o.move, o.p)
		}
	}
	if f.err != nil {
		return nil, s.cfg.Errors.toWire(f.err)
	}
	return &nodev1.PrepareHandoffResponse{
		Incarnation: uint64(f.incarnation), Handoff: uint32(f.handoff), Nonce: f.nonce[:],
		Manifest: manifestToProto(f.manifest), FrozenFor: durationpb.New(f.frozenFor),
	}, nil
}

// KeepFrozen implements the TransferService.
func (s *Source) KeepFrozen(ctx context.Context, req *nodev1.KeepFrozenRequest) (*nodev1.KeepFrozenResponse, error) {
	_, o, err := s.begun(req.GetMove())
	if err == nil {
		st, h := o.state(), cluster.Handoff(req.GetHandoff())
		if st.Phase != handoff.Frozen || st.Handoff != h {
			err = cluster.Errorf(cluster.ReasonHandoffRevoked, "handoff %d of move %d of %s is not frozen", h, o.move, o.p)
		} else {
			o.send(ctx, handoff.Progressed{Handoff: h, Step: req.GetStep()})
		}
	}
	if err != nil {
		return nil, s.cfg.Errors.toWire(err)
	}
	return &nodev1.KeepFrozenResponse{}, nil
}

// NotifyOpened implements the TransferService. It is a hint: what follows is a linearizable read.
func (s *Source) NotifyOpened(ctx context.Context, req *nodev1.NotifyOpenedRequest) (*nodev1.NotifyOpenedResponse, error) {
	p, move, err := refOf(req.GetMove())
	if err != nil {
		return nil, s.cfg.Errors.toWire(err)
	}
	if o := s.outbound(p, move); o != nil {
		o.send(ctx, handoff.Hinted{})
	}
	return &nodev1.NotifyOpenedResponse{}, nil
}

// Handler serves the bulk reads under BulkPath.
func (s *Source) Handler() http.Handler { return http.HandlerFunc(s.serveBulk) }

// bulk is a parsed bulk request.
type bulk struct {
	o           *outbound
	file        store.File
	name        string
	start, size int64
}

func (s *Source) serveBulk(w http.ResponseWriter, r *http.Request) {
	b, status, err := s.parseBulk(r)
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	f, err := s.cfg.Store.OpenFile(b.o.p, b.name)
	if err != nil {
		status = http.StatusInternalServerError
		if cluster.ReasonOf(err) == cluster.ReasonNotFound || cluster.ReasonOf(err) == cluster.ReasonNotOwner {
			status = http.StatusNotFound
		}
		http.Error(w, err.Error(), status)
		return
	}
	defer func() {
		if err := f.Close(); err != nil {
			s.cfg.Log.Warn("close after a bulk read", append(logFields(b.o.p, b.o.move), zap.Error(err))...)
		}
	}()
	// Only what is synced now is sent; the rest of the range is for a later request.
	end := b.start + b.size
	if end > f.Size() {
		http.Error(w, fmt.Sprintf("range ends at %d, synced are %d", end, f.Size()), http.StatusRequestedRangeNotSatisfiable)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(b.size, 10))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", b.start, end-1, f.Size()))
	w.WriteHeader(http.StatusPartialContent)
	if err := b.send(w, f); err != nil {
		// The status is out; an aborted body tells the reader.
		s.cfg.Log.Warn("bulk read ended early", append(logFields(b.o.p, b.o.move), zap.String("file", b.name), zap.Error(err))...)
		panic(http.ErrAbortHandler)
	}
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// touchEvery is after how many bytes a read counts as progress of the destination.
const touchEvery = 64 << 10

// send writes the range; what went out is progress of the destination.
func (b bulk) send(w io.Writer, f io.ReaderAt) error {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for at, end := b.start, b.start+b.size; at < end; {
		n, err := f.ReadAt(buf[:min(int64(bufferSize), end-at)], at)
		if n == 0 || (err != nil && !errors.Is(err, io.EOF)) {
			return fmt.Errorf("read %s at %d: %w", b.name, at, err)
		}
		for out := buf[:n]; len(out) > 0; {
			k, err := w.Write(out[:min(len(out), touchEvery)])
			if err != nil {
				return err
			}
			b.o.touch()
			out = out[k:]
		}
		at += int64(n)
	}
	return nil
}

func (s *Source) parseBulk(r *http.Request) (b bulk, status int, err error) {
	rest, ok := strings.CutPrefix(r.URL.Path, BulkPath)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 || !plainName(parts[2]) {
		return b, http.StatusNotFound, cluster.NotFound("no such path")
	}
	topic, err1 := strconv.ParseUint(parts[0], 10, 64)
	index, err2 := strconv.ParseUint(parts[1], 10, 32)
	move, err3 := strconv.ParseUint(r.Header.Get(HeaderMoveID), 10, 64)
	inc, err4 := strconv.ParseUint(r.Header.Get(HeaderIncarnation), 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return b, http.StatusBadRequest, err
	}
	b.name = parts[2]
	p := cluster.PartitionID{Topic: cluster.TopicID(topic), Index: uint32(index)}
	now, o, err := s.begun(moveRef(p, cluster.MoveID(move)))
	switch {
	case cluster.ReasonOf(err) == cluster.ReasonNoLeader:
		return b, http.StatusServiceUnavailable, err
	case err != nil:
		return b, http.StatusConflict, err
	case now != cluster.Incarnation(inc):
		return b, http.StatusPreconditionFailed, cluster.Errorf(cluster.ReasonStaleIncarnation, "this is incarnation %d", now)
	}
	b.o = o
	if b.file, ok = o.file(b.name); !ok {
		return b, http.StatusNotFound, cluster.NotFound("no file %s in the manifest of %s", b.name, p)
	}
	if b.file.Identity != r.Header.Get(HeaderFileIdentity) {
		return b, http.StatusPreconditionFailed, cluster.Errorf(cluster.ReasonStaleIncarnation, "%s is another file now", b.name)
	}
	if b.start, b.size, err = parseRange(r.Header.Get("Range")); err != nil {
		return b, http.StatusRequestedRangeNotSatisfiable, err
	}
	return b, 0, nil
}

// parseRange accepts one range with both ends, "bytes=a-b".
func parseRange(h string) (start, size int64, err error) {
	spec, ok := strings.CutPrefix(h, "bytes=")
	a, z, ok2 := strings.Cut(spec, "-")
	if !ok || !ok2 || strings.Contains(z, ",") {
		return 0, 0, cluster.Invalid("range", "%q is not one range with both ends", h)
	}
	first, err1 := strconv.ParseUint(a, 10, 62)
	last, err2 := strconv.ParseUint(z, 10, 62)
	if err1 != nil || err2 != nil || last < first {
		return 0, 0, cluster.Invalid("range", "%q is not one range with both ends", h)
	}
	return int64(first), int64(last-first) + 1, nil
}
