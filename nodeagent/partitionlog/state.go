package partitionlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// state is the content of a copy's state file.
//
// The file: "NPLS", version byte, CRC32C (little endian) over what follows, then unsigned varints.
// Version 1: identity, log start, 1 or 0, HWM (only after 1), number of segments, for each {base, cut,
// 1 or 0 for sealed, size, time as zigzag}, number of groups, for each {length, name, offset}. It is
// replaced by renaming a synced temporary file over it.
type state struct {
	Identity store.Identity
	LogStart cluster.Offset
	// Hidden says that records from HWM on must stay hidden; without it the HWM is the end of the log.
	Hidden bool
	HWM    cluster.Offset
	// Segments are what is known of them, by base. A file may exist that is not listed yet.
	Segments []segmentState
	Groups   []store.GroupOffset // by name
}

// segmentState is what the state file keeps of one segment.
type segmentState struct {
	Base cluster.Offset
	// Cut is how often the segment was cut; it is part of the file's identity.
	Cut    uint32
	Sealed bool
	// Size is the length of a sealed segment. Of the active one it is the floor, a length known to be
	// synced: frames that end below it are damage, not a torn tail.
	Size     int64
	LastTime int64
}

const (
	stateName    = "state"
	stateTmpName = "state.tmp"
	stateMagic   = "NPLS"
	stateVersion = 1
	stateHeader  = len(stateMagic) + 1 + 4
	maxStateSize = 64 << 20
	// MaxGroups bounds the consumer groups of one partition. More are refused with LIMIT.
	MaxGroups = 10_000
)

var errBadState = errors.New("state file is damaged")

func (s *state) encode() []byte {
	b := make([]byte, stateHeader, 256)
	copy(b, stateMagic)
	b[len(stateMagic)] = stateVersion
	b = binary.AppendUvarint(b, uint64(s.Identity))
	b = binary.AppendUvarint(b, uint64(s.LogStart))
	if s.Hidden {
		b = append(b, 1)
		b = binary.AppendUvarint(b, uint64(s.HWM))
	} else {
		b = append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Segments)))
	for _, g := range s.Segments {
		b = binary.AppendUvarint(b, uint64(g.Base))
		b = binary.AppendUvarint(b, uint64(g.Cut))
		sealed := byte(0)
		if g.Sealed {
			sealed = 1
		}
		b = append(b, sealed)
		b = binary.AppendUvarint(b, uint64(g.Size))
		b = binary.AppendVarint(b, g.LastTime)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Groups)))
	for _, g := range s.Groups {
		b = binary.AppendUvarint(b, uint64(len(g.Group)))
		b = append(b, g.Group...)
		b = binary.AppendUvarint(b, uint64(g.Offset))
	}
	binary.LittleEndian.PutUint32(b[stateHeader-4:], crc32.Checksum(b[stateHeader:], castagnoli))
	return b
}

// stateReader reads varints and remembers whether one was missing.
type stateReader struct {
	b   []byte
	bad bool
}

func (r *stateReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *stateReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *stateReader) flag() bool {
	v := r.uvarint()
	r.bad = r.bad || v > 1
	return v == 1
}

// count reads the number of elements to come, each at least one byte long.
func (r *stateReader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *stateReader) string() string {
	n := r.count()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func decodeState(b []byte) (*state, error) {
	if len(b) < stateHeader || string(b[:len(stateMagic)]) != stateMagic {
		return nil, errBadState
	}
	if v := b[len(stateMagic)]; v != stateVersion {
		return nil, fmt.Errorf("state file has version %d, this program knows %d", v, stateVersion)
	}
	if crc32.Checksum(b[stateHeader:], castagnoli) != binary.LittleEndian.Uint32(b[stateHeader-4:]) {
		return nil, errBadState
	}
	r := &stateReader{b: b[stateHeader:]}
	s := &state{Identity: store.Identity(r.uvarint()), LogStart: cluster.Offset(r.uvarint())}
	if s.Hidden = r.flag(); s.Hidden {
		s.HWM = cluster.Offset(r.uvarint())
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		g := segmentState{Base: cluster.Offset(r.uvarint())}
		cut := r.uvarint()
		g.Cut, g.Sealed = uint32(cut), r.flag()
		g.Size, g.LastTime = int64(r.uvarint()), r.varint()
		r.bad = r.bad || cut > 1<<32-1 || g.Size < 0
		s.Segments = append(s.Segments, g)
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		s.Groups = append(s.Groups, store.GroupOffset{Group: r.string(), Offset: cluster.Offset(r.uvarint())})
	}
	if r.bad || len(r.b) != 0 {
		return nil, errBadState
	}
	return s, nil
}

// writeState replaces dir's state file durably. The directory itself must be durable in its parent.
func writeState(fs vfs.FS, dir string, s *state) error {
	tmp := fs.PathJoin(dir, stateTmpName)
	if err := writeSynced(fs, tmp, s.encode()); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := fs.Rename(tmp, fs.PathJoin(dir, stateName)); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return syncDir(fs, dir)
}

func readState(fs vfs.FS, dir string) (*state, error) {
	f, err := fs.Open(fs.PathJoin(dir, stateName))
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxStateSize))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return decodeState(b)
}
