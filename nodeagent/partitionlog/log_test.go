package partitionlog

import (
	"context"
	"errors"
	"path"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// stallingLog is a log of which the next sync waits for release and tells that it does on stalled.
func stallingLog(t *testing.T) (s *Store, l *Log, arm func(), stalled, release chan struct{}) {
	t.Helper()
	var armed atomic.Bool
	stalled, release = make(chan struct{}), make(chan struct{})
	s = openStore(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && path.Ext(op.Path) == segmentSuffix && armed.CompareAndSwap(true, false) {
			close(stalled)
			<-release
		}
		return nil
	})), 0)
	return s, openPart(t, s), func() { armed.Store(true) }, stalled, release
}

// TestC04LateWriter: an append passes the freeze check and stalls in its sync across the freeze. The freeze
// waits, and the manifest has it; what waits behind it is refused.
func TestC04LateWriter(t *testing.T) {
	s, l, arm, stalled, release := stallingLog(t)
	token := store.FreezeToken{MoveID: 1, Handoff: 1}
	arm()
	first, frozen := make(chan error, 1), make(chan error, 1)
	go func() { _, err := l.Append(bg, []store.Record{rec(0)}); first <- err }()
	<-stalled
	// A freeze that is given up leaves no freeze behind.
	short, cancel := context.WithCancel(bg)
	cancel()
	if err := s.Freeze(short, part, token); !errors.Is(err, context.Canceled) {
		t.Fatalf("freeze while an append stalls, given up: %v", err)
	}
	if l.Frozen() != nil {
		t.Fatal("frozen by a freeze that did not succeed")
	}
	// An append that is given up while it waits was not written.
	if _, err := l.Append(short, []store.Record{rec(9)}); !errors.Is(err, context.Canceled) {
		t.Fatalf("append that was given up: %v", err)
	}
	go func() { frozen <- s.Freeze(bg, part, token) }()
	for l.Frozen() == nil {
		select {
		case err := <-frozen:
			t.Fatalf("freeze returned while an append was under way: %v", err)
		default:
		}
	}
	if _, err := l.Append(bg, []store.Record{rec(1)}); cluster.ReasonOf(err) != cluster.ReasonFrozen {
		t.Fatalf("append after the freeze has begun: %v, want FROZEN", err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Fatalf("append that stalled: %v", err)
	}
	if err := <-frozen; err != nil {
		t.Fatal(err)
	}
	if m, err := s.Manifest(part, nil); err != nil || m.HWM != 1 || m.LEO != 1 {
		t.Fatalf("manifest %+v, %v; want exactly the record that was acknowledged", m, err)
	}
}

// TestCloseWaitsForTheAppendUnderWay: it is acknowledged, what waits behind it gets NOT_OWNER, and who waits
// for a change is woken.
func TestCloseWaitsForTheAppendUnderWay(t *testing.T) {
	s, l, arm, stalled, release := stallingLog(t)
	arm()
	first, second, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { _, err := l.Append(bg, []store.Record{rec(0)}); first <- err }()
	<-stalled
	go func() { _, err := l.Append(bg, []store.Record{rec(1)}); second <- err }()
	go func() { closed <- s.Close(part) }()
	if err := <-second; cluster.ReasonOf(err) != cluster.ReasonNotOwner {
		t.Fatalf("waiting append: %v, want NOT_OWNER", err)
	}
	close(release)
	if err := errors.Join(<-first, <-closed); err != nil {
		t.Fatal(err)
	}
	<-l.Changed()
	if _, err := l.Read(0, 1, 1); cluster.ReasonOf(err) != cluster.ReasonNotOwner {
		t.Fatalf("read of a closed log: %v, want NOT_OWNER", err)
	}
	if err := l.CommitOffset("g", 1); cluster.ReasonOf(err) != cluster.ReasonNotOwner {
		t.Fatalf("committed offset of a closed log: %v, want NOT_OWNER", err)
	}
}

func TestLimits(t *testing.T) {
	l := openPart(t, openStore(t, vfs.NewMem(), 0))
	big := store.Record{Value: make([]byte, cluster.MaxRecordBytes)}
	for what, recs := range map[string][]store.Record{
		"a value that is too long": {{Key: []byte("k"), Value: big.Value}},
		"a key that is too long":   {{Key: make([]byte, cluster.MaxKeyBytes+1)}},
		"too much at once":         append(make([]store.Record, 40), big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big, big),
	} {
		if _, err := l.Append(bg, recs); cluster.ReasonOf(err) != cluster.ReasonLimit {
			t.Errorf("append of %s: %v, want LIMIT", what, err)
		}
	}
	if _, err := l.Append(bg, nil); cluster.ReasonOf(err) != cluster.ReasonInvalid {
		t.Errorf("append of nothing: %v, want INVALID", err)
	}
	if l.LEO() != 0 {
		t.Fatalf("LEO %d after refused appends", l.LEO())
	}
	// The largest record is written and read back, also within bounds that are smaller.
	changed := l.Changed()
	if _, err := l.Append(bg, []store.Record{rec(0), big, rec(2)}); err != nil {
		t.Fatal(err)
	}
	<-changed
	got, err := l.Read(1, 10, 10)
	if err != nil || len(got) != 1 || len(got[0].Value) != len(big.Value) {
		t.Fatalf("%d records, %v; want the one large record", len(got), err)
	}
}

func TestGroups(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0)
	l := openPart(t, s)
	if _, err := l.Append(bg, []store.Record{rec(0), rec(1), rec(2)}); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.CommittedOffset("g"); ok {
		t.Fatal("a group is there that nobody made")
	}
	if off, err := l.EnsureGroup("g"); err != nil || off != 0 {
		t.Fatalf("new group: offset %d, %v; want the log start", off, err)
	}
	for _, c := range []struct{ commit, want cluster.Offset }{{2, 2}, {1, 2}, {99, 3}} {
		if err := l.CommitOffset("g", c.commit); err != nil {
			t.Fatal(err)
		}
		if off, err := l.EnsureGroup("g"); err != nil || off != c.want {
			t.Fatalf("committed %d: offset %d, %v; want %d", c.commit, off, err, c.want)
		}
	}
	if err := l.CommitOffset("no group", 1); cluster.ReasonOf(err) != cluster.ReasonInvalid {
		t.Fatalf("bad name: %v, want INVALID", err)
	}
}
