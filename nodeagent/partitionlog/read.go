package partitionlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// badFrame says where bytes were no frame.
type badFrame struct{ pos int64 }

func (e *badFrame) Error() string { return fmt.Sprintf("no frame at %d", e.pos) }

const (
	minReadChunk   = 64 << 10
	firstReadChunk = 128 << 10
)

// readFrames calls fn with the frames in [pos, limit) of a file until it returns false. chunk is a guess of
// how much will be wanted. Keys and values stay valid. *badFrame says where frames end before limit.
func readFrames(fs vfs.FS, path string, pos, limit int64, chunk int, fn func(r store.Record, start, end int64) bool) (err error) {
	if pos >= limit {
		return nil
	}
	f, err := fs.Open(path)
	if err != nil {
		return fmt.Errorf("read segment: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for want := int64(chunk); pos < limit; {
		buf := make([]byte, min(max(want, frameHeader), limit-pos))
		n, err := f.ReadAt(buf, pos)
		if err != nil && (err != io.EOF || n == 0) {
			if err == io.EOF {
				return &badFrame{pos}
			}
			return fmt.Errorf("read segment: %w", err)
		}
		buf = buf[:n]
		at := 0
		for {
			r, size, err := decodeFrame(buf[at:])
			if err != nil {
				return &badFrame{pos + int64(at)}
			}
			if size == 0 {
				break
			}
			if !fn(r, pos+int64(at), pos+int64(at+size)) {
				return nil
			}
			at += size
		}
		need, _ := frameLen(buf[at:])
		pos += int64(at)
		if short := n < cap(buf) || pos+int64(len(buf)-at) == limit; short && pos < limit {
			return &badFrame{pos} // the file or the limit ends within a frame
		}
		want = max(min(2*want, scanChunk), int64(need))
	}
	return nil
}

// Read returns up to maxRecords records (at least one, if there is one) from an offset on, below the HWM
// only, whose keys and values together take up to maxBytes, or one larger record. From below the log start it begins at the log start; from
// the HWM on there is nothing. The records are the caller's.
func (l *Log) Read(from cluster.Offset, maxRecords int, maxBytes cluster.Bytes) ([]store.Record, error) {
	maxRecords = max(maxRecords, 1)
	var out []store.Record
	var bytes cluster.Bytes
	for {
		if err := l.usable(); err != nil {
			return nil, err
		}
		l.view.RLock()
		from = max(from, l.view.logStart)
		hwm := l.view.hwm
		var g *segment
		var size int64
		var end cluster.Offset
		if from < hwm {
			segs := l.view.segs
			i := sort.Search(len(segs), func(i int) bool { return segs[i].base > from }) - 1
			g, end = segs[i], hwm
			size = g.size
			if i+1 < len(segs) {
				end = segs[i+1].base
			}
		}
		l.view.RUnlock()
		if g == nil {
			return out, nil
		}
		recs, full, err := l.readSegment(g, from, min(end, hwm), end, size, maxRecords-len(out), maxBytes, &bytes, len(out) == 0)
		if notExist(err) && l.LogStart() > from {
			continue // retention was faster
		}
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = recs
		} else {
			out = append(out, recs...)
		}
		if len(recs) > 0 {
			from = recs[len(recs)-1].Offset + 1
		}
		if full || len(recs) == 0 || len(out) >= maxRecords {
			return out, nil
		}
	}
}

// readSegment reads [from, to) of one segment.
func (l *Log) readSegment(g *segment, from, to, end cluster.Offset, size int64, maxRecords int, maxBytes cluster.Bytes, bytes *cluster.Bytes, first bool) (recs []store.Record, full bool, err error) {
	if err := l.ensureRead(g, end); err != nil {
		return nil, false, err
	}
	l.view.RLock()
	pos := g.idx.locate(g.base, from)
	l.view.RUnlock()
	// What is asked for is a bound and seldom what there is: begin with little, and read more as needed.
	chunk := int(min(max(int64(maxBytes-min(*bytes, maxBytes)), minReadChunk), firstReadChunk))
	next, began := cluster.Offset(0), false
	gap := int64(-1)
	err = readFrames(l.store.fs, l.path(g.name), pos, size, chunk, func(r store.Record, start, _ int64) bool {
		if began && r.Offset != next {
			gap = start
			return false
		}
		next, began = r.Offset+1, true
		if r.Offset < from {
			return true
		}
		if r.Offset >= to {
			return false
		}
		n := cluster.Bytes(len(r.Key) + len(r.Value))
		if (!first || len(recs) > 0) && *bytes+n > maxBytes {
			full = true
			return false
		}
		*bytes += n
		recs = append(recs, r)
		return len(recs) < maxRecords
	})
	bad := (*badFrame)(nil)
	switch {
	case errors.As(err, &bad):
		return nil, false, l.damage(corrupt(l.p, g.name, bad.pos, "no frame"))
	case gap >= 0:
		return nil, false, l.damage(corrupt(l.p, g.name, gap, "want record %d", next))
	case err != nil:
		return nil, false, err
	}
	return recs, full, nil
}

// ensureRead is ensureKnown for a segment that may be the active one, which is known from the start.
func (l *Log) ensureRead(g *segment, end cluster.Offset) error {
	l.view.RLock()
	known := g.known
	l.view.RUnlock()
	if known {
		return nil
	}
	return l.ensureKnown(context.Background(), g, end)
}

// readFile is an open segment for copying.
type readFile struct {
	file interface {
		io.ReaderAt
		io.Closer
	}
	size int64
}

// Close implements io.Closer.
func (f *readFile) Close() error { return f.file.Close() }

// Size implements store.ReadFile.
func (f *readFile) Size() int64 { return f.size }

// ReadAt implements io.ReaderAt up to the size.
func (f *readFile) ReadAt(b []byte, off int64) (int, error) {
	if off >= f.size {
		return 0, io.EOF
	}
	if off+int64(len(b)) <= f.size {
		return f.file.ReadAt(b, off)
	}
	n, err := f.file.ReadAt(b[:f.size-off], off)
	if err == nil {
		err = io.EOF
	}
	return n, err
}

// osReadFile is readFile on the real disk.
type osReadFile struct {
	readFile
	os *os.File
}

// OSFile gives the file itself to those who can send it without copying. Its position is theirs to use;
// they keep to Size.
func (f *osReadFile) OSFile() *os.File { return f.os }

// OpenFile implements store.PartitionStore. On the real disk the result also has OSFile() *os.File.
func (s *Store) OpenFile(p cluster.PartitionID, name string) (store.ReadFile, error) {
	l, err := s.Log(p)
	if err != nil {
		return nil, err
	}
	if err := l.usable(); err != nil {
		return nil, err
	}
	size := int64(-1)
	l.view.RLock()
	for _, g := range l.view.segs {
		if g.name == name {
			size = g.size
		}
	}
	l.view.RUnlock()
	if size < 0 {
		return nil, cluster.NotFound("partition %s has no file %q", p, name)
	}
	f, err := openRead(s.fs, l.path(name), size)
	if notExist(err) {
		return nil, cluster.NotFound("partition %s has no file %q any more", p, name)
	}
	return f, err
}

func openRead(fs vfs.FS, path string, size int64) (store.ReadFile, error) {
	if fs == vfs.Default {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("open segment: %w", err)
		}
		return &osReadFile{readFile{f, size}, f}, nil
	}
	f, err := fs.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	return &readFile{f, size}, nil
}
