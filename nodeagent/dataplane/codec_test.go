package dataplane

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func FuzzChunk(f *testing.F) {
	for _, records := range [][]store.Record{
		{{Time: 1, Key: []byte("k"), Value: []byte("v")}},
		{{Time: -1}, {Time: 1 << 60, Value: bytes.Repeat([]byte("x"), 300)}},
	} {
		b := make([]byte, encodedLen(records))
		encodeChunk(b, records)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := decodeChunk(b)
		if err != nil {
			return
		}
		again := make([]byte, encodedLen(records))
		encodeChunk(again, records)
		got, err := decodeChunk(again)
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		if diff := cmp.Diff(records, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("records differ (-want +got)\n%s", diff)
		}
	})
}

func FuzzReceipt(f *testing.F) {
	f.Add(receipt{partition: cluster.PartitionID{Topic: 7, Index: 3}, group: "g", offset: 9, nonce: 1 << 63, epoch: 4}.String())
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseReceipt(s)
		if err != nil {
			if cluster.ReasonOf(err) != cluster.ReasonInvalid {
				t.Fatalf("parse %q: %v, want INVALID", s, err)
			}
			return
		}
		again, err := parseReceipt(r.String())
		if err != nil || again != r {
			t.Fatalf("receipt %+v became %+v, %v", r, again, err)
		}
	})
}

func TestReceiptOfLongestGroup(t *testing.T) {
	r := receipt{partition: cluster.PartitionID{Topic: 1 << 63, Index: cluster.MaxPartitions - 1},
		group: strings.Repeat("g", cluster.MaxGroupNameLen), offset: 1 << 63, nonce: 1 << 63, epoch: 1 << 63}
	got, err := parseReceipt(r.String())
	if err != nil || got != r {
		t.Fatalf("parse: %+v, %v; want %+v", got, err, r)
	}
	garbled := []byte(r.String())
	garbled[10] ^= 1
	if _, err := parseReceipt(string(garbled)); cluster.ReasonOf(err) != cluster.ReasonInvalid {
		t.Errorf("a garbled receipt: %v, want INVALID", err)
	}
}

func TestChunksKeepOrderAndBound(t *testing.T) {
	var records []store.Record
	var at []uint32
	for i := range 300 {
		records = append(records, store.Record{Time: int64(i), Value: make([]byte, 4096)})
		at = append(at, uint32(i%2))
	}
	var seen [2][]int64
	for _, c := range chunksOf(9, records, at) {
		if c.size > chunkBytes+chunkOverhead {
			t.Errorf("a chunk of %d bytes, more than %d", c.size, chunkBytes)
		}
		for _, r := range c.records {
			seen[c.partition.Index] = append(seen[c.partition.Index], r.Time)
		}
	}
	if len(seen[0])+len(seen[1]) != 300 || !slices.IsSorted(seen[0]) || !slices.IsSorted(seen[1]) {
		t.Errorf("chunks hold %d and %d records, sorted %t and %t; want 300 in order",
			len(seen[0]), len(seen[1]), slices.IsSorted(seen[0]), slices.IsSorted(seen[1]))
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	err := Config{}.Validate()
	for _, key := range []string{"ingress_bytes", "reroute_after", "batch_bytes", "dispatch_memory", "appends_per_owner",
		"request_timeout", "visibility_timeout", "max_reservations", "max_groups"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("an empty config's error does not name %s: %v", key, err)
		}
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil || errors.Is(err, errChunk) {
		t.Errorf("New without dependencies: %v, want an error", err)
	}
}
