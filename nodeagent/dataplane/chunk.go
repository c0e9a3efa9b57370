package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// A chunk is one entry of the ingress queue: records of one produce for one partition. Chunks are
// delivered and removed whole.
//
// Key: prefix, topic id, partition index, sequence number, all big-endian, so that a partition's chunks
// are neighbours in the order of their acceptance. Value: format byte, record count, then per record time,
// key length, value length, key, value; numbers are varints. The database checks its own blocks, so a
// chunk carries no checksum.
type chunk struct {
	partition cluster.PartitionID
	seq       uint64
	records   []store.Record
	// size is the value's length plus chunkOverhead: what counts against limits.
	size uint64
}

const (
	chunkFormat = 1
	// chunkOverhead stands for a chunk's key and bookkeeping, so that very many tiny chunks are bounded.
	chunkOverhead = 128
	// chunkBytes is where a produce's records for one partition are cut into several chunks. Small
	// enough that batches fill well, large enough that a bulk load is few entries.
	chunkBytes = 256 << 10
	// recordOverhead bounds the varints of one record.
	recordOverhead = 3 * binary.MaxVarintLen64
)

const keySuffixLen = 8 + 4 + 8

func appendPartitionKey(dst, prefix []byte, p cluster.PartitionID) []byte {
	dst = append(dst, prefix...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.Topic))
	return binary.BigEndian.AppendUint32(dst, p.Index)
}

func appendChunkKey(dst, prefix []byte, p cluster.PartitionID, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(appendPartitionKey(dst, prefix, p), seq)
}

func parseChunkKey(prefix, key []byte) (cluster.PartitionID, uint64, error) {
	if len(key) != len(prefix)+keySuffixLen {
		return cluster.PartitionID{}, 0, fmt.Errorf("ingress key %x has %d bytes", key, len(key))
	}
	k := key[len(prefix):]
	p := cluster.PartitionID{Topic: cluster.TopicID(binary.BigEndian.Uint64(k)), Index: binary.BigEndian.Uint32(k[8:])}
	return p, binary.BigEndian.Uint64(k[12:]), nil
}

func uvarintLen(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

// encodedLen is the exact length of a chunk's value.
func encodedLen(records []store.Record) int {
	n := 1 + uvarintLen(uint64(len(records)))
	for i := range records {
		r := &records[i]
		n += uvarintLen(uint64(r.Time)) + uvarintLen(uint64(len(r.Key))) + uvarintLen(uint64(len(r.Value))) +
			len(r.Key) + len(r.Value)
	}
	return n
}

// encodeChunk writes a chunk's value into dst, which has encodedLen bytes.
func encodeChunk(dst []byte, records []store.Record) {
	b := append(dst[:0], chunkFormat)
	b = binary.AppendUvarint(b, uint64(len(records)))
	for i := range records {
		r := &records[i]
		b = binary.AppendUvarint(b, uint64(r.Time))
		b = binary.AppendUvarint(b, uint64(len(r.Key)))
		b = binary.AppendUvarint(b, uint64(len(r.Value)))
		b = append(b, r.Key...)
		b = append(b, r.Value...)
	}
	if len(b) != len(dst) {
		panic(fmt.Sprintf("ingress chunk encoded to %d bytes, want %d", len(b), len(dst)))
	}
}

var errChunk = errors.New("ingress chunk is malformed")

// countChunk returns how many records a chunk's value says it holds, and what follows the count.
func countChunk(b []byte) (n uint64, rest []byte, err error) {
	if len(b) == 0 || b[0] != chunkFormat {
		return 0, nil, errChunk
	}
	n, w := binary.Uvarint(b[1:])
	if w <= 0 || n > uint64(len(b)) {
		return 0, nil, errChunk
	}
	return n, b[1+w:], nil
}

// decodeChunk returns the records of a chunk's value; they alias b.
func decodeChunk(b []byte) ([]store.Record, error) {
	n, b, err := countChunk(b)
	if err != nil {
		return nil, err
	}
	next := func() uint64 {
		v, w := binary.Uvarint(b)
		if w <= 0 {
			err = errChunk
			return 0
		}
		b = b[w:]
		return v
	}
	take := func(n uint64) []byte {
		if err != nil || n > uint64(len(b)) {
			err = errChunk
			return nil
		}
		v := b[:n:n]
		b = b[n:]
		return v
	}
	records := make([]store.Record, 0, n)
	for range n {
		t, k, v := next(), next(), next()
		r := store.Record{Time: int64(t), Key: take(k), Value: take(v)}
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	if len(b) != 0 {
		return nil, errChunk
	}
	return records, nil
}

// chunksOf groups records by partition, in order, and cuts each group into chunks. at[i] is the
// partition index of records[i].
func chunksOf(topic cluster.TopicID, records []store.Record, at []uint32) []*chunk {
	type group struct {
		open *chunk
		size int
	}
	groups := map[uint32]*group{}
	var out []*chunk
	for i, r := range records {
		g := groups[at[i]]
		if g == nil {
			g = &group{}
			groups[at[i]] = g
		}
		n := len(r.Key) + len(r.Value) + recordOverhead
		if g.open == nil || g.size+n > chunkBytes {
			g.open, g.size = &chunk{partition: cluster.PartitionID{Topic: topic, Index: at[i]}}, 0
			out = append(out, g.open)
		}
		g.open.records = append(g.open.records, r)
		g.size += n
	}
	for _, c := range out {
		c.size = uint64(encodedLen(c.records)) + chunkOverhead
	}
	return out
}
