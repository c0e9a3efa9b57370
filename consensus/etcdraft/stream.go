package etcdraft

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

// A stream carries messages to one member, in order and without waiting for answers: a request that asks for the protocol
// below, and its connection from then on. The request's header has the envelope, which the receiver checks before it agrees,
// and again with every batch.
//
// The sender writes frames, each a message with its length (4 bytes, big-endian); a length of zero only asks for another
// check. The receiver writes how many frames it has handed on since the beginning (8 bytes, big-endian), now and then. A
// sender whose frames are not counted within an election time-out takes them for lost.
const (
	streamProtocol = "naradplane-raft/1"
	headerEnvelope = "Naradplane-Raft-Envelope"
	// maxFrameBytes bounds what a receiver reads of one message; a single entry may exceed Config.MaxMessageBytes.
	maxFrameBytes = 128 << 20
	streamBuffer  = 64 << 10
)

// outStream is the sender's end. write is called by one goroutine.
type outStream struct {
	conn    io.ReadWriteCloser
	cancel  context.CancelFunc
	timeout time.Duration
	// ended is closed when nothing more is counted; err says why then.
	ended chan struct{}

	mu struct {
		sync.Mutex
		sent, counted uint64
		// silence fires when frames are under way and none is counted.
		silence *time.Timer
		err     error
	}
}

var errSilent = errors.New("it takes no messages")

// openStream asks a member to take a stream. What the answer says otherwise is judged as in judge.
func (t *transport) openStream(ctx context.Context, m consensus.Member) (*outStream, error) {
	raw, err := proto.Marshal(t.envelope(t.backend(), m))
	if err != nil {
		return nil, fmt.Errorf("encode the envelope: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	limit := time.AfterFunc(t.cfg.electionTimeout(), cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url(m.Address, pathStream), nil)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", streamProtocol)
	req.Header.Set(headerEnvelope, base64.StdEncoding.EncodeToString(raw))
	req.Header.Set(headerAddress, t.cfg.AdvertiseAddress)
	resp, err := t.client.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		err := t.judge(m, resp)
		cancel()
		if err == nil {
			err = fmt.Errorf("%w: it answers a stream with %s", errRefusedByPeer, resp.Status)
		}
		return nil, err
	}
	if !limit.Stop() {
		cancel()
		return nil, errors.Join(ctx.Err(), conn.Close())
	}
	s := &outStream{conn: conn, cancel: cancel, timeout: t.cfg.electionTimeout(), ended: make(chan struct{})}
	s.mu.silence = time.AfterFunc(time.Hour, func() { s.fail(errSilent) })
	s.mu.silence.Stop()
	t.wg.Go(s.count)
	return s, nil
}

// fail closes the stream; the first reason is the one that counts.
func (s *outStream) fail(err error) {
	s.mu.Lock()
	if s.mu.err == nil {
		s.mu.err = err
	}
	s.mu.silence.Stop()
	s.mu.Unlock()
	_ = s.conn.Close() // what was not counted is lost either way
	s.cancel()
}

// close ends the stream and waits for its goroutine.
func (s *outStream) close() {
	s.fail(context.Canceled)
	<-s.ended
}

func (s *outStream) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.err
}

// count reads what the receiver has counted, until the stream ends.
func (s *outStream) count() {
	defer close(s.ended)
	var b [8]byte
	for {
		if _, err := io.ReadFull(s.conn, b[:]); err != nil {
			s.fail(fmt.Errorf("the stream ended: %w", err))
			return
		}
		s.mu.Lock()
		s.mu.counted = binary.BigEndian.Uint64(b[:])
		switch {
		case s.mu.err != nil:
		case s.mu.counted == s.mu.sent:
			s.mu.silence.Stop()
		default:
			s.mu.silence.Reset(s.timeout)
		}
		s.mu.Unlock()
	}
}

// write sends frames. An error means that any of those that were not counted may be lost.
func (s *outStream) write(frames []byte, n int) error {
	s.mu.Lock()
	if s.mu.err == nil && s.mu.sent == s.mu.counted {
		s.mu.silence.Reset(s.timeout)
	}
	s.mu.sent += uint64(n)
	s.mu.Unlock()
	if _, err := s.conn.Write(frames); err != nil {
		s.fail(err)
		return s.err()
	}
	return nil
}

// appendFrame appends m as a frame; nil is the empty one.
func appendFrame(b []byte, m *raftpb.Message) ([]byte, error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	if m == nil {
		return b, nil
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("encode a raft message: %w", err)
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b, nil
}

// serveStream takes a stream: it checks the envelope, agrees, and hands on what comes until either side ends it.
func (t *transport) serveStream(w http.ResponseWriter, r *http.Request) {
	env := &raftv1.Envelope{}
	raw, err := base64.StdEncoding.DecodeString(r.Header.Get(headerEnvelope))
	if err == nil {
		err = proto.Unmarshal(raw, env)
	}
	if err != nil || r.Header.Get("Upgrade") != streamProtocol {
		http.Error(w, fmt.Sprintf("this path takes streams of %s with an envelope: %v", streamProtocol, err), http.StatusBadRequest)
		return
	}
	b, no := t.check(env, r.Header.Get(headerAddress))
	if no != nil {
		t.refuseRequest(w, env, no)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	in := &inbound{conn: conn}
	if !t.keep(in) {
		_ = conn.Close()
		return
	}
	defer t.release(in)
	err = conn.SetDeadline(time.Time{})
	if err == nil {
		_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", streamProtocol)
	}
	if err == nil {
		err = t.receive(b, in, rw.Reader, env, r.Header.Get(headerAddress))
	}
	t.log.Debug("a stream ended", zap.Uint64("from", env.GetFrom()), zap.Error(err))
}

// receive hands on a stream's messages until it ends, or the sender is no longer welcome.
func (t *transport) receive(b *Backend, in *inbound, from *bufio.Reader, env *raftv1.Envelope, address string) error {
	done := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { in.report(t.cfg.TickInterval, done) })
	defer reporting.Wait()
	defer close(done)
	r := bufio.NewReaderSize(from, streamBuffer)
	for {
		ms, n, err := readFrames(r)
		if err != nil {
			return err
		}
		// Members change while a stream lasts.
		if _, no := t.check(env, address); no != nil {
			return errors.New(no.text) // the sender asks again, and is told
		}
		for _, m := range ms {
			if err := addressed(m, env); err != nil {
				return err
			}
		}
		if len(ms) > 0 {
			if err := b.received(t.ctx, consensus.ID(env.GetFrom()), ms); err != nil {
				return err
			}
		}
		in.mu.Lock()
		in.mu.taken += uint64(n)
		in.mu.Unlock()
	}
}

// keep notes an incoming stream, so that close ends it. False when the transport is closed.
func (t *transport) keep(in *inbound) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	t.mu.inbound[in] = true
	t.wg.Add(1)
	return true
}

func (t *transport) release(in *inbound) {
	_ = in.conn.Close() // the sender sees it
	t.mu.Lock()
	delete(t.mu.inbound, in)
	t.mu.Unlock()
	t.wg.Done()
}

// inbound is a receiver's end.
type inbound struct {
	conn io.ReadWriteCloser
	mu   struct {
		sync.Mutex
		taken uint64
	}
}

// report tells the sender what was taken, at most once a tick, until done.
func (in *inbound) report(every time.Duration, done <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var said uint64
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		in.mu.Lock()
		taken := in.mu.taken
		in.mu.Unlock()
		if taken == said {
			continue
		}
		said = taken
		if _, err := in.conn.Write(binary.BigEndian.AppendUint64(nil, taken)); err != nil {
			_ = in.conn.Close() // ends the reading
			return
		}
	}
}

// readFrames reads at least one frame, and those that have arrived with it. n counts the empty ones, too.
func readFrames(r *bufio.Reader) (ms []*raftpb.Message, n int, err error) {
	for size := 0; n == 0 || (r.Buffered() > 0 && size < peerBatchBytes); n++ {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return nil, n, err
		}
		length := int(binary.BigEndian.Uint32(head[:]))
		if length > maxFrameBytes {
			return nil, n, fmt.Errorf("a frame of %d bytes is too long", length)
		}
		if length == 0 {
			continue
		}
		b := make([]byte, length)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, n, err
		}
		m := &raftpb.Message{}
		if err := proto.Unmarshal(b, m); err != nil {
			return nil, n, fmt.Errorf("decode a raft message: %w", err)
		}
		ms, size = append(ms, m), size+length
	}
	return ms, n, nil
}
