package fsm

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/zeebo/xxh3"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// snapshotMagic begins every stream. After it: for each key its length and the value's length as uvarints and
// both; a key length of zero ends them; then the XXH3-64 of everything before, 8 bytes big-endian.
const snapshotMagic = "NPFSM001"

const (
	maxSnapshotKey   = 1 << 16
	maxSnapshotValue = 1 << 30
	restoreBatch     = 4 << 20
)

// Snapshot is a pinned state. It is streamed from the database; memory does not grow with it.
type Snapshot struct {
	snap     *pebble.Snapshot
	db       *handle
	index    uint64
	revision cluster.Revision
	metadata []byte
}

// Snapshot pins the present state. The caller closes it.
func (m *Machine) Snapshot() (*Snapshot, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.closed {
		return nil, errors.New("snapshot: the state machine is closed")
	}
	m.mu.db.acquire()
	return &Snapshot{
		snap: m.mu.db.NewSnapshot(), db: m.mu.db, index: m.applied.Load(),
		revision: m.mu.state.revision, metadata: m.mu.state.metadata,
	}, nil
}

// Index is the applied index of the pinned state.
func (s *Snapshot) Index() uint64 { return s.index }

// Revision is the revision of the pinned state.
func (s *Snapshot) Revision() cluster.Revision { return s.revision }

// Metadata is the consensus record of the pinned state.
func (s *Snapshot) Metadata() []byte { return s.metadata }

// Close unpins the state.
func (s *Snapshot) Close() error {
	return errors.Join(s.snap.Close(), s.db.release())
}

// WriteTo streams the pinned state.
func (s *Snapshot) WriteTo(w io.Writer) (n int64, err error) {
	h := xxh3.New()
	cw := &countingWriter{w: w}
	bw := bufio.NewWriterSize(io.MultiWriter(cw, h), 1<<16)
	if _, err := bw.WriteString(snapshotMagic); err != nil {
		return cw.n, err
	}
	it, err := s.snap.NewIter(nil)
	if err != nil {
		return cw.n, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var head [2 * binary.MaxVarintLen64]byte
	for it.First(); it.Valid(); it.Next() {
		b := binary.AppendUvarint(head[:0], uint64(len(it.Key())))
		b = binary.AppendUvarint(b, uint64(len(it.Value())))
		for _, part := range [][]byte{b, it.Key(), it.Value()} {
			if _, err := bw.Write(part); err != nil {
				return cw.n, err
			}
		}
	}
	if err := it.Error(); err != nil {
		return cw.n, err
	}
	if err := bw.WriteByte(0); err != nil {
		return cw.n, err
	}
	if err := bw.Flush(); err != nil {
		return cw.n, err
	}
	_, err = cw.Write(value64(h.Sum64()))
	return cw.n, err
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// Restore replaces the whole state by a stream of Snapshot.WriteTo, durably. The old state stays whole until
// the new one is complete, verified and on disk.
func (m *Machine) Restore(r io.Reader) error {
	return m.replace(func(db *pebble.DB) error { return readSnapshot(r, db) })
}

func readSnapshot(r io.Reader, db *pebble.DB) error {
	batch := db.NewBatch()
	defer func() { _ = batch.Close() }()
	err := readStream(bufio.NewReaderSize(r, 1<<16), func(key, value []byte) error {
		if err := batch.Set(key, value, nil); err != nil || batch.Len() < restoreBatch {
			return err
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			return err
		}
		batch = db.NewBatch()
		return nil
	})
	if err != nil {
		return err
	}
	return batch.Commit(pebble.NoSync)
}

// byteReader is what a stream is read from.
type byteReader interface {
	io.Reader
	io.ByteReader
}

// readStream calls pair with all pairs of a stream and checks its sum.
func readStream(r byteReader, pair func(key, value []byte) error) error {
	h := xxh3.New()
	br := &hashingReader{r: r, h: h}
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(br, magic); err != nil {
		return fmt.Errorf("read stream: %w", noEOF(err))
	}
	if string(magic) != snapshotMagic {
		return fmt.Errorf("the stream is not a snapshot of this version (it begins with %q)", magic)
	}
	for {
		key, value, err := readPair(br)
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if key == nil {
			break
		}
		if err := pair(key, value); err != nil {
			return err
		}
	}
	want := h.Sum64()
	var sum [8]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return fmt.Errorf("read stream: %w", noEOF(err))
	}
	if binary.BigEndian.Uint64(sum[:]) != want {
		return errors.New("the stream's checksum differs")
	}
	return nil
}

// readPair returns nil at the end of the pairs.
func readPair(br *hashingReader) (key, value []byte, err error) {
	kn, err := binary.ReadUvarint(br)
	if err != nil {
		return nil, nil, noEOF(err)
	}
	if kn == 0 {
		return nil, nil, nil
	}
	vn, err := binary.ReadUvarint(br)
	if err != nil {
		return nil, nil, noEOF(err)
	}
	if kn > maxSnapshotKey || vn > maxSnapshotValue {
		return nil, nil, fmt.Errorf("a key of %d and a value of %d bytes are out of bounds", kn, vn)
	}
	key = make([]byte, kn)
	if _, err := io.ReadFull(br, key); err != nil {
		return nil, nil, noEOF(err)
	}
	// Read in pieces, so that a damaged length can't claim memory that the stream does not fill.
	var buf strings.Builder
	if _, err := io.CopyN(&buf, br, int64(vn)); err != nil {
		return nil, nil, noEOF(err)
	}
	return key, []byte(buf.String()), nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

type hashingReader struct {
	r byteReader
	h *xxh3.Hasher
}

func (r *hashingReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	_, _ = r.h.Write(b[:n])
	return n, err
}

func (r *hashingReader) ReadByte() (byte, error) {
	b, err := r.r.ReadByte()
	if err == nil {
		_, _ = r.h.Write([]byte{b})
	}
	return b, err
}

// StateHash returns a hash over all keys but those that are local to the replica (applied index and
// consensus record): replicas at the same revision have the same hash.
func (m *Machine) StateHash() (string, cluster.Revision, error) {
	s, err := m.Snapshot()
	if err != nil {
		return "", 0, err
	}
	hash, err := s.hash()
	return hash, s.revision, errors.Join(err, s.Close())
}

func (s *Snapshot) hash() (hash string, err error) {
	it, err := s.snap.NewIter(nil)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	h := xxh3.New()
	for it.First(); it.Valid(); it.Next() {
		if it.Key()[0] == prefixLocal {
			continue
		}
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(it.Key()))))
		_, _ = h.Write(it.Key())
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(it.Value()))))
		_, _ = h.Write(it.Value())
	}
	sum := h.Sum128().Bytes()
	return hex.EncodeToString(sum[:]), it.Error()
}
