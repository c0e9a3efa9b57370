package partitionlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// blockHasher keeps the XXH3-64 digests of a file that only grows.
type blockHasher struct {
	done []uint64 // digests of whole blocks; only appended to, so that snapshots may share it
	cur  xxh3.Hasher
	part int // bytes in cur
}

func (h *blockHasher) write(b []byte) {
	for len(b) > 0 {
		n := min(len(b), store.BlockSize-h.part)
		_, _ = h.cur.Write(b[:n])
		h.part += n
		b = b[n:]
		if h.part == store.BlockSize {
			h.done = append(h.done, h.cur.Sum64())
			h.cur.Reset()
			h.part = 0
		}
	}
}

// blocks returns the digests up to the present end, in a slice of the caller's.
func (h *blockHasher) blocks() []uint64 {
	out := make([]uint64, len(h.done), len(h.done)+1)
	copy(out, h.done)
	if h.part > 0 {
		out = append(out, h.cur.Sum64())
	}
	return out
}

// indexStep is the distance of index entries in bytes: 8 bytes of memory for 64 KiB of log.
const indexStep = 64 << 10

// indexEntry says that the frame of base+rel begins at pos.
type indexEntry struct{ rel, pos uint32 }

// index locates offsets in a segment. The beginning of the file is an entry that it does not hold.
type index []indexEntry

func (x index) add(base, off cluster.Offset, pos int64) index {
	var last int64
	if len(x) > 0 {
		last = int64(x[len(x)-1].pos)
	}
	if pos-last < indexStep {
		return x
	}
	return append(x, indexEntry{rel: uint32(off - base), pos: uint32(pos)})
}

// locate returns the position of a frame at or before off.
func (x index) locate(base, off cluster.Offset) int64 {
	i, found := slices.BinarySearchFunc(x, off, func(e indexEntry, o cluster.Offset) int {
		switch at := base + cluster.Offset(e.rel); {
		case at < o:
			return -1
		case at > o:
			return 1
		}
		return 0
	})
	switch {
	case found:
		return int64(x[i].pos)
	case i == 0:
		return 0
	}
	return int64(x[i-1].pos)
}

// checker follows a segment's bytes as they come, in pieces of any length: frames must be whole, have good
// checksums and contiguous offsets from base on. Its zero value is not usable; see newChecker.
type checker struct {
	base cluster.Offset
	next cluster.Offset // the offset that the next frame must have
	good int64          // end of the last complete frame
	last int64          // newest record time
	idx  index

	// Of a frame that has begun after good: how many bytes there were, the first of them, its whole length
	// (zero while that is not known), and the checksum so far. Its key and value are not kept.
	begun int
	head  [FrameOverhead]byte
	want  int
	crc   uint32
}

func newChecker(base cluster.Offset) *checker { return &checker{base: base, next: base} }

// write takes the next bytes. After errBadFrame, good is where the bad frame begins, and the checker must
// not be used on before restart.
func (c *checker) write(b []byte) error {
	for len(b) > 0 {
		if c.begun == 0 {
			n, err := c.frame(b)
			if err != nil {
				return err
			}
			if n > 0 {
				b = b[n:]
				continue
			}
		}
		n, err := c.piece(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// restart forgets the frame that has begun: the bytes after good are to come again.
func (c *checker) restart() { c.begun, c.want = 0, 0 }

// piece takes some of b as the next bytes of a frame that does not come at once.
func (c *checker) piece(b []byte) (int, error) {
	if c.begun < FrameOverhead {
		n := copy(c.head[c.begun:], b)
		c.begun += n
		if c.want == 0 && c.begun >= frameHeader {
			var err error
			if c.want, err = frameLen(c.head[:c.begun]); err != nil {
				return 0, err
			}
		}
		if c.begun == FrameOverhead {
			c.crc = crc32.Checksum(c.head[4:], castagnoli)
			if !c.headGood() {
				return 0, errBadFrame
			}
		}
		return n, c.finish()
	}
	n := min(len(b), c.want-c.begun)
	c.crc = crc32.Update(c.crc, castagnoli, b[:n])
	c.begun += n
	return n, c.finish()
}

func (c *checker) headGood() bool {
	r := c.headRecord()
	return r.Offset == c.next && uint64(binary.LittleEndian.Uint32(c.head[24:])) <= uint64(c.want-FrameOverhead)
}

func (c *checker) headRecord() store.Record {
	return store.Record{
		Offset: cluster.Offset(binary.LittleEndian.Uint64(c.head[8:])), Time: int64(binary.LittleEndian.Uint64(c.head[16:])),
	}
}

// finish ends the begun frame when all of it was there.
func (c *checker) finish() error {
	if c.want == 0 || c.begun < c.want {
		return nil
	}
	if c.crc != binary.LittleEndian.Uint32(c.head[:]) {
		return errBadFrame
	}
	n := c.want
	c.restart()
	c.advance(c.headRecord(), n)
	return nil
}

func (c *checker) advance(r store.Record, n int) {
	c.idx = c.idx.add(c.base, r.Offset, c.good)
	c.next++
	c.good += int64(n)
	c.last = max(c.last, r.Time)
}

func (c *checker) frame(b []byte) (int, error) {
	r, n, err := decodeFrame(b)
	if err != nil || n == 0 {
		return 0, err
	}
	if r.Offset != c.next {
		return 0, errBadFrame
	}
	c.advance(r, n)
	return n, nil
}

// scanned is what one reading of a segment tells.
type scanned struct {
	size   int64 // bytes read
	chk    *checker
	hash   blockHasher
	bad    bool // frames end at chk.good with bytes that are no frame
	blocks []uint64
}

const scanChunk = store.BlockSize

// scan reads [0, size) of a segment. Frames that are bad end the check, not the reading, unless stopAtBad.
func scan(ctx context.Context, fs vfs.FS, path string, base cluster.Offset, size int64, stopAtBad bool) (s *scanned, err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, fmt.Errorf("scan segment: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s = &scanned{chk: newChecker(base)}
	buf := make([]byte, min(scanChunk, max(size, 1)))
	for s.size < size {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, rerr := f.ReadAt(buf[:min(int64(len(buf)), size-s.size)], s.size)
		s.hash.write(buf[:n])
		s.size += int64(n)
		if !s.bad && s.chk.write(buf[:n]) != nil {
			s.bad = true
			if stopAtBad {
				break
			}
		}
		if rerr == io.EOF || n == 0 && rerr == nil {
			break
		}
		if rerr != nil {
			return nil, fmt.Errorf("scan segment: %w", rerr)
		}
	}
	s.blocks = s.hash.blocks()
	return s, nil
}

// corrupt names the file and the position in it.
func corrupt(p cluster.PartitionID, name string, pos int64, format string, args ...any) *cluster.Error {
	e := cluster.Errorf(cluster.ReasonCorrupt, "partition %s: file %s, offset %d: %s", p, name, pos, fmt.Sprintf(format, args...))
	e.Field = name
	return e
}
