package dataplane

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// receipt names one reservation. Clients see it as an opaque string.
type receipt struct {
	partition cluster.PartitionID
	group     string
	offset    cluster.Offset
	nonce     uint64
	epoch     cluster.Epoch
}

const receiptFormat = 1

// maxReceiptLen bounds the text of a receipt: five varints, a group name, format and checksum, in base64.
const maxReceiptLen = 400

// String encodes the receipt: format, varints, group, and a checksum that tells a garbled receipt from
// a stale one. It is no protection against forgery; who may consume may also acknowledge.
func (r receipt) String() string {
	b := make([]byte, 0, 64+len(r.group))
	b = append(b, receiptFormat)
	b = binary.AppendUvarint(b, uint64(r.partition.Topic))
	b = binary.AppendUvarint(b, uint64(r.partition.Index))
	b = binary.AppendUvarint(b, uint64(r.offset))
	b = binary.AppendUvarint(b, r.nonce)
	b = binary.AppendUvarint(b, uint64(r.epoch))
	b = append(b, r.group...)
	b = binary.BigEndian.AppendUint32(b, uint32(xxhash.Sum64(b)))
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseReceipt(s string) (receipt, error) {
	bad := func() (receipt, error) {
		return receipt{}, cluster.Invalid("receipts", "not a receipt of this service")
	}
	if len(s) > maxReceiptLen {
		return bad()
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 5 || b[0] != receiptFormat {
		return bad()
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if uint32(xxhash.Sum64(body)) != sum {
		return bad()
	}
	body = body[1:]
	var v [5]uint64
	for i := range v {
		n, w := binary.Uvarint(body)
		if w <= 0 {
			return bad()
		}
		v[i], body = n, body[w:]
	}
	if v[1] >= cluster.MaxPartitions || cluster.ValidateGroupName(string(body)) != nil {
		return bad()
	}
	return receipt{partition: cluster.PartitionID{Topic: cluster.TopicID(v[0]), Index: uint32(v[1])},
		offset: cluster.Offset(v[2]), nonce: v[3], epoch: cluster.Epoch(v[4]), group: string(body)}, nil
}
