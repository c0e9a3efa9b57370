package partitionlog

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func FuzzFrame(f *testing.F) {
	for _, r := range []store.Record{
		{}, {Offset: 1, Time: 2, Key: []byte("k"), Value: []byte("v")}, {Offset: 1 << 60, Time: -5, Value: make([]byte, 300)},
	} {
		f.Add(appendFrame(nil, r.Offset, &r))
	}
	f.Add([]byte{0, 0, 0, 0, 20, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, n, err := decodeFrame(b)
		if err != nil || n == 0 {
			return
		}
		if again := appendFrame(nil, r.Offset, &r); !bytes.Equal(again, b[:n]) {
			t.Fatalf("decoded %+v of %x, encoded is %x", r, b[:n], again)
		}
		for cut := range n {
			if _, m, err := decodeFrame(b[:cut]); m != 0 || err != nil {
				t.Fatalf("%d of %d bytes: got length %d, error %v; want more to be asked for", cut, n, m, err)
			}
		}
	})
}

// FuzzChecker: in whatever pieces bytes come, the checker finds the same end.
func FuzzChecker(f *testing.F) {
	var log []byte
	for i := range 5 {
		log = appendFrame(log, cluster.Offset(i), &store.Record{Time: int64(i), Value: make([]byte, i*30)})
	}
	f.Add(log, uint8(7))
	f.Add(append(bytes.Clone(log), 1, 2, 3, 4, 5, 6, 7, 8, 9), uint8(1))
	f.Add(log[:len(log)-3], uint8(64))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		whole, pieces := newChecker(0), newChecker(0)
		err := whole.write(b)
		var perr error
		for at, n := 0, int(step)+1; at < len(b) && perr == nil; at += n {
			perr = pieces.write(b[at:min(at+n, len(b))])
		}
		if (err == nil) != (perr == nil) || whole.good != pieces.good || whole.next != pieces.next || whole.last != pieces.last {
			t.Fatalf("at once: %v, end %d, record %d; in pieces of %d: %v, end %d, record %d",
				err, whole.good, whole.next, int(step)+1, perr, pieces.good, pieces.next)
		}
		if err == nil && int64(len(b)) != whole.good+int64(whole.begun) {
			t.Fatalf("%d bytes, of which %d are whole and %d begun", len(b), whole.good, whole.begun)
		}
	})
}

func exampleState() *state {
	return &state{
		Identity: 9, LogStart: 100, Hidden: true, HWM: 250,
		Segments: []segmentState{
			{Base: 90, Sealed: true, Size: 4096, LastTime: -3},
			{Base: 200, Cut: 2, Size: 77, LastTime: 1_700_000_000_000},
		},
		Groups: []store.GroupOffset{{Group: "a", Offset: 100}, {Group: "b", Offset: 240}},
	}
}

func FuzzState(f *testing.F) {
	f.Add((&state{}).encode())
	f.Add(exampleState().encode())
	f.Add([]byte("NPLS\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would keep the fuzzer out: what is behind it is tried as well.
		for _, in := range [][]byte{b, sealState(b)} {
			st, err := decodeState(in)
			if err != nil {
				continue
			}
			again, err := decodeState(st.encode())
			if err != nil {
				t.Fatalf("decoded %+v, but what it is encoded to can't be: %v", st, err)
			}
			if d := cmp.Diff(st, again); d != "" {
				t.Fatalf("decoding of the encoding differs:\n%s", d)
			}
		}
	})
}

// sealState puts a header with a right checksum before b.
func sealState(b []byte) []byte {
	s := (&state{}).encode()[:stateHeader]
	out := append(bytes.Clone(s), b...)
	return fixStateCRC(out)
}

// TestStateFormatVersion1: files that were written stay readable.
func TestStateFormatVersion1(t *testing.T) {
	golden := []byte("NPLS\x01_UL\xc6\td\x01\xfa\x01\x02Z\x00\x01\x80 \x05\xc8\x01\x02\x00M\x80\xa0\xab\xfe\xf9b\x02\x01ad\x01b\xf0\x01")
	got, err := decodeState(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(exampleState(), got); d != "" {
		t.Fatalf("state (-want +got):\n%s", d)
	}
	if !bytes.Equal(exampleState().encode(), golden) {
		t.Fatalf("encoding has changed without a new version:\n got %q\nwant %q", exampleState().encode(), golden)
	}
	for i := range golden {
		bad := bytes.Clone(golden)
		bad[i] ^= 1
		if _, err := decodeState(bad); err == nil {
			t.Fatalf("a bit flip at %d was not seen", i)
		}
	}
}

// TestFrameFormatVersion1: files that were written stay readable.
func TestFrameFormatVersion1(t *testing.T) {
	r := store.Record{Offset: 258, Time: 3, Key: []byte("key"), Value: []byte("value")}
	golden := []byte("\xc9t\xd5\xc6\x1c\x00\x00\x01\x02\x01\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00keyvalue")
	if got := appendFrame(nil, r.Offset, &r); !bytes.Equal(got, golden) {
		t.Fatalf("frame has changed without a new version:\n got %q\nwant %q", got, golden)
	}
	for i := range golden {
		bad := bytes.Clone(golden)
		bad[i] ^= 1
		if _, n, _ := decodeFrame(bad); n != 0 {
			t.Fatalf("a bit flip at %d was not seen", i)
		}
	}
}

func fixStateCRC(b []byte) []byte {
	if len(b) < stateHeader {
		return b
	}
	binary.LittleEndian.PutUint32(b[stateHeader-4:], crc32.Checksum(b[stateHeader:], castagnoli))
	return b
}
