package partitionlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// A frame, all little endian:
//
//	crc     uint32  CRC32C over everything that follows
//	word    uint32  version in the upper 8 bits, length of what follows in the lower 24
//	offset  uint64
//	time    int64   Unix milliseconds
//	key len uint32
//	key, value
//
// Version 1 is the only one. Version 0 never exists, so zeroes are not a frame.
const (
	frameVersion = 1
	frameHeader  = 8  // crc, word
	frameFixed   = 20 // offset, time, key length
	// FrameOverhead is what a record takes on disk beyond its key and value, in bytes.
	FrameOverhead = frameHeader + frameFixed
	maxFrame      = FrameOverhead + cluster.MaxRecordBytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errBadFrame says that bytes can't be the beginning of a frame, whatever follows them.
var errBadFrame = errors.New("not a frame")

func frameSize(r *store.Record) int { return FrameOverhead + len(r.Key) + len(r.Value) }

// appendFrame appends r's frame with the given offset. The caller has checked the record's size.
func appendFrame(dst []byte, off cluster.Offset, r *store.Record) []byte {
	n := frameFixed + len(r.Key) + len(r.Value)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, frameVersion<<24|uint32(n))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(off))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Time))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(r.Key)))
	dst = append(dst, r.Key...)
	dst = append(dst, r.Value...)
	binary.LittleEndian.PutUint32(dst[at:], crc32.Checksum(dst[at+4:], castagnoli))
	return dst
}

// frameLen returns the whole length of the frame that b begins with; zero when b is too short to tell.
func frameLen(b []byte) (int, error) {
	if len(b) < frameHeader {
		return 0, nil
	}
	word := binary.LittleEndian.Uint32(b[4:])
	n := frameHeader + int(word&0xffffff)
	if word>>24 != frameVersion || n < FrameOverhead || n > maxFrame {
		return 0, errBadFrame
	}
	return n, nil
}

// decodeFrame decodes the frame that b begins with. n is zero when b does not hold all of it. Key and
// value alias b.
func decodeFrame(b []byte) (r store.Record, n int, err error) {
	n, err = frameLen(b)
	if err != nil || n == 0 || len(b) < n {
		return store.Record{}, 0, err
	}
	if crc32.Checksum(b[4:n], castagnoli) != binary.LittleEndian.Uint32(b) {
		return store.Record{}, 0, errBadFrame
	}
	r.Offset = cluster.Offset(binary.LittleEndian.Uint64(b[8:]))
	r.Time = int64(binary.LittleEndian.Uint64(b[16:]))
	keyLen := uint64(binary.LittleEndian.Uint32(b[24:]))
	if keyLen > uint64(n-FrameOverhead) {
		return store.Record{}, 0, errBadFrame
	}
	k := FrameOverhead + int(keyLen)
	if keyLen > 0 {
		r.Key = b[FrameOverhead:k:k]
	}
	if k < n {
		r.Value = b[k:n:n]
	}
	return r, n, nil
}
