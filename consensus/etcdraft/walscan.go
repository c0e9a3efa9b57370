package etcdraft

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"encoding/binary"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// walScan is everything that the files of a log hold.
type walScan struct {
	metadata []byte
	records  []logRecord
	// torn says that the last file ends in a write that was never completed.
	torn bool
}

type walName struct {
	name       string
	seq, index uint64
}

// walFiles lists the log's files in order.
func walFiles(dir string) ([]walName, error) {
	des, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the log: %w", err)
	}
	var out []walName
	for _, de := range des {
		var f walName
		if !strings.HasSuffix(de.Name(), ".wal") {
			continue
		}
		if _, err := fmt.Sscanf(de.Name(), "%016x-%016x.wal", &f.seq, &f.index); err != nil {
			continue
		}
		f.name = de.Name()
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b walName) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// scanWAL reads and checks every file. The library's own opening takes a zeroed stretch for the end of
// the log and wipes what follows, and its repair cuts at the first tear wherever that is; here, a tear is only
// accepted where nothing after it proves that it had been synced.
func scanWAL(dir string) (*walScan, error) {
	files, err := walFiles(dir)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, &DamageError{File: dir, Reason: "it holds no log file"}
	}
	s := &walScan{}
	var crc uint32
	for i, f := range files {
		if i > 0 && f.seq != files[i-1].seq+1 {
			return nil, &DamageError{File: filepath.Join(dir, f.name),
				Reason: fmt.Sprintf("the file before it is missing: it should be number %d, found is number %d", f.seq-1, files[i-1].seq)}
		}
		crc, err = s.scanFile(filepath.Join(dir, f.name), crc, i == 0, i == len(files)-1)
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *walScan) scanFile(path string, crc uint32, first, last bool) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open the log: %w", err)
	}
	defer f.Close() //nolint:errcheck // Only read.
	dec := wal.NewDecoder(fileutil.NewFileReader(f))
	damage := func(off int64, format string, args ...any) error {
		return &DamageError{File: path, Offset: off, Reason: fmt.Sprintf(format, args...)}
	}
	for n := 0; ; n++ {
		off := dec.LastOffset()
		rec := &walpb.Record{}
		if err := dec.Decode(rec); err != nil {
			return dec.LastCRC(), s.endOfFile(f, path, off, last, err)
		}
		switch rec.GetType() {
		case wal.CrcType:
			if n == 0 && !first && rec.GetCrc() != crc {
				return 0, damage(off, "it does not continue the file before it")
			}
			if n != 0 && rec.GetCrc() != dec.LastCRC() {
				return 0, damage(off, "its checksums do not chain")
			}
			dec.UpdateCRC(rec.GetCrc())
		case wal.MetadataType:
			if s.metadata != nil && !slices.Equal(s.metadata, rec.GetData()) {
				return 0, damage(off, "it belongs to another log")
			}
			s.metadata = slices.Clone(rec.GetData())
		default:
			r, err := decodeLogRecord(rec)
			if err != nil {
				return 0, damage(off, "%v", err)
			}
			s.records = append(s.records, r)
		}
	}
}

func decodeLogRecord(rec *walpb.Record) (logRecord, error) {
	switch rec.GetType() {
	case wal.EntryType:
		e := &raftpb.Entry{}
		err := proto.Unmarshal(rec.GetData(), e)
		return logRecord{entry: e}, err
	case wal.StateType:
		st := &raftpb.HardState{}
		err := proto.Unmarshal(rec.GetData(), st)
		return logRecord{state: st}, err
	case wal.SnapshotType:
		p := &walpb.Snapshot{}
		err := proto.Unmarshal(rec.GetData(), p)
		return logRecord{snap: &raftpb.SnapshotMetadata{Index: new(p.GetIndex()), Term: new(p.GetTerm()), ConfState: p.GetConfState()}}, err
	default:
		return logRecord{}, fmt.Errorf("unknown record type %d", rec.GetType())
	}
}

// endOfFile judges why decoding stopped at off.
func (s *walScan) endOfFile(f *os.File, path string, off int64, last bool, derr error) error {
	rest, err := readFrom(f, off)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	damage := func(reason string) error { return &DamageError{File: path, Offset: off, Reason: reason} }
	switch {
	case errors.Is(derr, io.EOF) && allZero(rest):
		if !last && len(rest) > 0 {
			return damage("it ends in zeros although another file follows")
		}
		return nil
	case !errors.Is(derr, io.EOF) && !errors.Is(derr, io.ErrUnexpectedEOF):
		return damage(derr.Error())
	case !last:
		return damage("it breaks off although another file follows")
	case laterBatch(rest, s.lastEntry()):
		return damage("a later batch, written after this place had been synced, is intact")
	}
	// A zero header with unsynced remains behind it needs no repair: opening wipes them.
	s.torn = s.torn || errors.Is(derr, io.ErrUnexpectedEOF)
	return nil
}

// lastEntry is the index of the last entry read; zero when the last batch read is complete.
func (s *walScan) lastEntry() uint64 {
	if len(s.records) == 0 {
		return 0
	}
	return s.records[len(s.records)-1].entry.GetIndex()
}

func readFrom(f *os.File, off int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, max(st.Size()-off, 0))
	n, err := f.ReadAt(buf, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buf[:n], err
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// laterBatch reports whether rest holds the end of one batch and the beginning of the next, which proves
// that whatever lies before was synced. Each batch is entries, then one state record; a snapshot
// record is a batch of its own. A record counts when its checksum chains from the one before it. open is the
// index of the last entry before rest when no state record followed: if the entry after it is intact, what is
// damaged is the end of a batch.
func laterBatch(rest []byte, open uint64) bool {
	for start := 8; start+16 <= len(rest); start += 8 {
		rec, next, ok := frameAt(rest, start)
		if !ok {
			continue
		}
		ended := rec.GetType() == wal.StateType || rec.GetType() == wal.SnapshotType
		continues := open > 0 && entryIndex(rec) == open+1
		for crc := rec.GetCrc(); ; {
			rec, at, ok := frameAt(rest, next)
			if !ok || crc32.Update(crc, castagnoli, rec.GetData()) != rec.GetCrc() {
				break
			}
			if continues || rec.GetType() == wal.SnapshotType || (rec.GetType() == wal.EntryType && ended) {
				return true
			}
			ended = ended || rec.GetType() == wal.StateType
			crc, next = rec.GetCrc(), at
		}
	}
	return false
}

func entryIndex(rec *walpb.Record) uint64 {
	e := &raftpb.Entry{}
	if rec.GetType() != wal.EntryType || proto.Unmarshal(rec.GetData(), e) != nil {
		return 0
	}
	return e.GetIndex()
}

// frameAt decodes the frame at off: a length with padding in its top byte, then a record.
func frameAt(b []byte, off int) (*walpb.Record, int, bool) {
	if off+8 > len(b) {
		return nil, 0, false
	}
	field := binary.LittleEndian.Uint64(b[off:])
	size, pad := int64(field&^(uint64(0xff)<<56)), int64(0)
	if int64(field) < 0 {
		pad = int64(field >> 56 & 0x7)
	}
	if size < 4 || size > int64(len(b)-off-8)-pad || (size+pad)%8 != 0 {
		return nil, 0, false
	}
	rec := &walpb.Record{}
	if err := proto.Unmarshal(b[off+8:off+8+int(size)], rec); err != nil {
		return nil, 0, false
	}
	if t := rec.GetType(); t < wal.MetadataType || t > wal.SnapshotType || rec.Crc == nil {
		return nil, 0, false
	}
	return rec, off + 8 + int(size+pad), true
}
