package transfer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// FuzzMarker: what a journal holds is a marker that is written the same again, or CORRUPT.
func FuzzMarker(f *testing.F) {
	b, err := Marker{Partition: cluster.PartitionID{Topic: 3, Index: 1}, MoveID: 9, Destination: "b", Identity: 7, SalvageAt: 4, Damage: "x"}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{markerVersion, '{', '}'})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMarker(b)
		if err != nil {
			if cluster.ReasonOf(err) != cluster.ReasonCorrupt {
				t.Fatalf("decode %q: %v, want CORRUPT", b, err)
			}
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeMarker(again)
		if err != nil || back != m {
			t.Fatalf("%+v became %+v, %v", m, back, err)
		}
	})
}

// FuzzManifest: a manifest off the wire is refused, or holds what later code relies on.
func FuzzManifest(f *testing.F) {
	for _, m := range []store.Manifest{
		{LEO: 5, HWM: 4, LogStart: 1, Groups: []store.GroupOffset{{Group: "g", Offset: 3}},
			Files: []store.File{{Name: "00000000000000000000.log", Identity: "i", Size: 10, Blocks: []uint64{1}, LastRecordTime: -1}}},
		{},
	} {
		b, err := proto.Marshal(manifestToProto(m))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	bad, err := proto.Marshal(&nodev1.PartitionManifest{Files: []*nodev1.ManifestFile{{Name: "../x", Size: 1 << 63}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bad)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &nodev1.PartitionManifest{}
		if proto.Unmarshal(b, p) != nil {
			return
		}
		m, err := manifestFromProto(p)
		if err != nil {
			if cluster.ReasonOf(err) != cluster.ReasonCorrupt {
				t.Fatalf("manifest %v: %v, want CORRUPT", p, err)
			}
			return
		}
		if m.HWM > m.LEO || m.LogStart > m.LEO {
			t.Fatalf("log start %d, high watermark %d, end %d", m.LogStart, m.HWM, m.LEO)
		}
		for _, file := range m.Files {
			if !plainName(file.Name) {
				t.Fatalf("the name %q can leave its directory", file.Name)
			}
			if int64(file.Size) < 0 {
				t.Fatalf("%s has %d bytes", file.Name, file.Size)
			}
		}
		back, err := manifestFromProto(manifestToProto(m))
		if err != nil {
			t.Fatalf("what was taken is refused when it is sent on: %v", err)
		}
		if d := cmp.Diff(m, back); d != "" {
			t.Fatalf("manifest (-first +second):\n%s", d)
		}
	})
}

// FuzzJournaledManifest: what a promotion reads from the journal is written the same again, or CORRUPT.
func FuzzJournaledManifest(f *testing.F) {
	m := store.Manifest{LEO: 5, HWM: 4, LogStart: 1, Groups: []store.GroupOffset{{Group: "g", Offset: 3}},
		Files: []store.File{{Name: "a", Identity: "i", Size: 10, BaseOffset: 2}}}
	b, err := encodeMeta(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	if b, err = encodePromoted(m.LEO, m.Files); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{metaVersion, '{', '}'})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil && cluster.ReasonOf(err) != cluster.ReasonCorrupt {
			t.Fatalf("decode %q: %v, want CORRUPT", b, err)
		}
		if err == nil {
			again, err := encodeMeta(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeMeta(again); err != nil {
				t.Fatalf("decode what was encoded from %q: %v", b, err)
			}
		}
		r, err := decodePromoted(b)
		if err != nil {
			if cluster.ReasonOf(err) != cluster.ReasonCorrupt {
				t.Fatalf("decode %q: %v, want CORRUPT", b, err)
			}
			return
		}
		if from := firstDifference(store.Manifest{Files: r.Files, LEO: r.LEO}, r); from != r.LEO {
			t.Fatalf("a copy differs from itself at %d of %d", from, r.LEO)
		}
	})
}

// FuzzRange: a range that is accepted is not empty and does not overflow.
func FuzzRange(f *testing.F) {
	for _, h := range []string{"bytes=0-0", "bytes=5-1048580", "bytes=-5", "bytes=5-", "bytes=0-1,3-4", "bytes=4611686018427387903-4611686018427387903", ""} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, h string) {
		start, size, err := parseRange(h)
		if err != nil {
			if cluster.ReasonOf(err) != cluster.ReasonInvalid {
				t.Fatalf("%q: %v, want INVALID", h, err)
			}
			return
		}
		if start < 0 || size <= 0 || start+size < start {
			t.Fatalf("%q: start %d, size %d", h, start, size)
		}
	})
}
