package partitionlog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// TestI4StoredPositionBeyondTheEnd: a copy recovers to fewer records than a group's stored position. What is
// appended there is not passed over, commits below the stored position count, and so they do after a restart.
func TestI4StoredPositionBeyondTheEnd(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs, 0)
	l := openPart(t, s)
	appendAll := func(l *Log, n int) {
		t.Helper()
		for k := range n {
			if _, err := l.Append(bg, []store.Record{rec(k)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	appendAll(l, 3)
	if err := l.CommitOffset("g", 3); err != nil {
		t.Fatal(err)
	}
	dir := s.activeDir(part)
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	st, err := readState(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	st.Groups[0].Offset = 100
	if err := writeState(fs, dir, st); err != nil {
		t.Fatal(err)
	}
	want := func(l *Log, off cluster.Offset) {
		t.Helper()
		if got, ok := l.CommittedOffset("g"); !ok || got != off {
			t.Fatalf("committed offset %d, %t; want %d", got, ok, off)
		}
	}
	reopen := func() *Log {
		t.Helper()
		s := openStore(t, fs, 0)
		if err := s.Open(part, 1); err != nil {
			t.Fatal(err)
		}
		l, err := s.Log(part)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown() })
		return l
	}
	l = reopen()
	want(l, 3)
	appendAll(l, 5)
	want(l, 3)
	if err := l.CommitOffset("g", 4); err != nil {
		t.Fatal(err)
	}
	want(l, 4)
	want(reopen(), 4)
}

// TestAskingForUnknownPartitionsMakesNothing: clients name partitions freely, and each must not cost memory for ever.
func TestAskingForUnknownPartitionsMakesNothing(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0)
	for i := range uint32(100) {
		if _, err := s.Log(cluster.PartitionID{Topic: 99, Index: i}); cluster.ReasonOf(err) != cluster.ReasonNotOwner {
			t.Fatalf("got %v, want NOT_OWNER", err)
		}
	}
	if n := len(s.allSlots()); n != 0 {
		t.Fatalf("%d partitions are remembered", n)
	}
}
