package etcdraft

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

const (
	snapshotChunk = 256 << 10
	// snapshotStall is how long a stream may stand still before it is given up.
	snapshotStall     = 15 * time.Second
	maxSnapshotHeader = 1 << 20
)

// A stream is: length and SnapshotHeader; then chunks, each with its length; then length zero and the
// XXH3-64 of all chunks. A stream that breaks off is never taken for a whole one.

// sendSnapshot streams the state machine's present state in place of m's, on its own goroutine. At most one
// per receiver is under way. Only the loop calls it.
func (t *transport) sendSnapshot(id consensus.ID, m *raftpb.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	member, ok := t.lookup(id)
	if t.mu.closed || t.mu.snapshots[id] {
		return // The one under way will be reported.
	}
	if !ok {
		t.mu.backend.driver.rn.ReportSnapshot(uint64(id), raft.SnapshotFailure)
		return
	}
	t.mu.snapshots[id] = true
	t.wg.Go(func() {
		err := t.streamSnapshot(member, m)
		t.mu.Lock()
		delete(t.mu.snapshots, id)
		t.mu.Unlock()
		if err != nil {
			t.log.Warn("snapshot not delivered; it will be sent again", zap.String("peer", member.Name), zap.Error(err))
		}
		t.reportSnapshot(id, err == nil)
	})
}

func (t *transport) streamSnapshot(to consensus.Member, m *raftpb.Message) (err error) {
	b := t.backend()
	snap, err := b.sm.Snapshot()
	if err != nil {
		return fmt.Errorf("pin the state: %w", err)
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	env, err := t.snapshotEnvelope(b, to, m, snap)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	stall := time.AfterFunc(snapshotStall, cancel)
	defer stall.Stop()
	pr, pw := io.Pipe()
	var writer sync.WaitGroup
	writer.Go(func() { pw.CloseWithError(writeSnapshot(pw, env, snap, func() { stall.Reset(snapshotStall) })) })
	defer writer.Wait()
	defer pr.Close() //nolint:errcheck // Always nil.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url(to.Address, pathSnapshot), pr)
	if err != nil {
		return fmt.Errorf("post a snapshot: %w", err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set(headerAddress, t.cfg.AdvertiseAddress)
	t.log.Info("sending a snapshot", zap.String("peer", to.Name), zap.Uint64("index", snap.Index()))
	resp, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("post a snapshot: %w", err)
	}
	return t.judge(to, resp)
}

func (t *transport) snapshotEnvelope(b *Backend, to consensus.Member, m *raftpb.Message, snap consensus.Snapshot) (*raftv1.Envelope, error) {
	msg, err := b.driver.SnapshotMessage(m, snap)
	if err != nil {
		return nil, err
	}
	raw, err := proto.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot message: %w", err)
	}
	env := t.envelope(b, to)
	env.Messages = [][]byte{raw}
	return env, nil
}

// chunkWriter frames what is written to it.
type chunkWriter struct {
	w        *bufio.Writer
	h        hash.Hash64
	progress func()
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	c.progress()
	written := 0
	for len(p) > 0 {
		n := min(len(p), snapshotChunk)
		if err := writeLength(c.w, n); err != nil {
			return written, err
		}
		if _, err := c.w.Write(p[:n]); err != nil {
			return written, err
		}
		_, _ = c.h.Write(p[:n])
		written, p = written+n, p[n:]
	}
	return written, nil
}

func writeLength(w io.Writer, n int) error {
	_, err := w.Write(binary.BigEndian.AppendUint32(nil, uint32(n)))
	return err
}

func writeSnapshot(w io.Writer, env *raftv1.Envelope, snap io.WriterTo, progress func()) error {
	head, err := proto.Marshal(&raftv1.SnapshotHeader{Envelope: env})
	if err != nil {
		return fmt.Errorf("encode the snapshot header: %w", err)
	}
	bw := bufio.NewWriterSize(w, snapshotChunk)
	if err := writeLength(bw, len(head)); err != nil {
		return err
	}
	if _, err := bw.Write(head); err != nil {
		return err
	}
	c := &chunkWriter{w: bw, h: xxh3.New(), progress: progress}
	if _, err := snap.WriteTo(c); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := writeLength(bw, 0); err != nil {
		return err
	}
	if _, err := bw.Write(binary.BigEndian.AppendUint64(nil, c.h.Sum64())); err != nil {
		return err
	}
	return bw.Flush()
}

func readLength(r io.Reader) (int, error) {
	var b [4]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, fmt.Errorf("read a snapshot: it breaks off: %w", err)
	}
	return int(binary.BigEndian.Uint32(b[:])), nil
}

func readSnapshotHeader(r io.Reader) (*raftv1.SnapshotHeader, error) {
	n, err := readLength(r)
	if err != nil {
		return nil, err
	}
	if n > maxSnapshotHeader {
		return nil, fmt.Errorf("read a snapshot: a header of %d bytes is too long", n)
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, fmt.Errorf("read a snapshot: its header breaks off: %w", err)
	}
	h := &raftv1.SnapshotHeader{}
	if err := proto.Unmarshal(raw, h); err != nil {
		return nil, fmt.Errorf("decode the snapshot header: %w", err)
	}
	return h, nil
}

// copyChunks writes the chunks to w and checks their digest.
func copyChunks(w io.Writer, r io.Reader) error {
	h := xxh3.New()
	out := io.MultiWriter(w, h)
	for {
		n, err := readLength(r)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if n > snapshotChunk {
			return fmt.Errorf("read a snapshot: a chunk of %d bytes is too long", n)
		}
		if _, err := io.CopyN(out, r, int64(n)); err != nil {
			return fmt.Errorf("read a snapshot: %w", err)
		}
	}
	var sum [8]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return fmt.Errorf("read a snapshot: its digest is missing: %w", err)
	}
	if got, want := h.Sum64(), binary.BigEndian.Uint64(sum[:]); got != want {
		return fmt.Errorf("read a snapshot: its digest is %016x, sent was %016x", got, want)
	}
	return nil
}

var errSpoolBusy = errors.New("another snapshot is being received")

// spool holds one incoming snapshot on disk from its first byte until it is restored or of no use. A
// sender that dies half-way thus never touches the state machine.
type spool struct {
	path string
	mu   struct {
		sync.Mutex
		busy   bool
		opened bool
		meta   *raftpb.SnapshotMetadata
	}
}

func (s *spool) receive(meta *raftpb.SnapshotMetadata, body io.Reader) error {
	s.mu.Lock()
	if s.mu.busy {
		s.mu.Unlock()
		return errSpoolBusy
	}
	s.mu.busy, s.mu.opened, s.mu.meta = true, false, nil
	s.mu.Unlock()
	err := s.write(body)
	if err != nil {
		s.discard()
		return err
	}
	s.mu.Lock()
	s.mu.meta = meta
	s.mu.Unlock()
	return nil
}

func (s *spool) write(body io.Reader) (err error) {
	// It need not be synced: after a crash it is deleted and sent again.
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("spool a snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return copyChunks(f, body)
}

// Open implements SnapshotSource.
func (s *spool) Open(meta *raftpb.SnapshotMetadata) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.meta.GetIndex() != meta.GetIndex() || s.mu.meta.GetTerm() != meta.GetTerm() {
		return nil, fmt.Errorf("no snapshot of index %d, term %d was received", meta.GetIndex(), meta.GetTerm())
	}
	f, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	s.mu.opened = true
	return &spoolReader{File: f, s: s}, nil
}

// discard drops the snapshot unless it is being restored.
func (s *spool) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.opened {
		s.drop()
	}
}

func (s *spool) drop() {
	if s.mu.busy {
		_ = os.Remove(s.path) // A left-over is deleted at the next start.
	}
	s.mu.busy, s.mu.opened, s.mu.meta = false, false, nil
}

type spoolReader struct {
	*os.File
	s *spool
}

func (r *spoolReader) Close() error {
	err := r.File.Close()
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.drop()
	return err
}
