package partitionlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// model is what a log must be: a slice of records with a beginning, an end of what is visible, and a lease.
type model struct {
	t      *rapid.T
	fs     *vfs.MemFS
	s      *Store
	l      *Log
	budget int // how often the lease is valid until it runs out; -1 is for ever
	now    int64

	recs   []store.Record // all visible ones ever
	start  cluster.Offset
	groups map[string]cluster.Offset
	frozen bool
}

// TestModel: a log is the slice of what was acknowledged, under any sequence of appends, lapses of the lease,
// freezes, restarts, power cuts, commits of offsets and retention.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, fs: vfs.NewCrashableMem(), groups: map[string]cluster.Offset{}, budget: -1, now: 1000}
		m.reopen()
		t.Repeat(map[string]func(*rapid.T){
			"append": m.append, "lapse": m.lapse, "freeze": m.freeze, "restart": m.restart, "power": m.power,
			"commit": m.commit, "expire": m.expire, "": m.check,
		})
		m.must(m.s.Shutdown())
	})
}

func (m *model) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) reopen() {
	var err error
	m.s, err = Open(Options{
		Dir: "/data", FS: m.fs, SegmentBytes: 400, RetentionInterval: -1,
		Clock: func() time.Time { return time.UnixMilli(m.now) },
		Lease: func() bool {
			if m.budget > 0 {
				m.budget--
				return true
			}
			return m.budget < 0
		},
	})
	m.must(err)
	m.must(m.s.Create(part, 7))
	m.must(m.s.Open(part, 1))
	m.l, err = m.s.Log(part)
	m.must(err)
	m.s.SetOutbound(part, true)
	m.frozen = false
}

func (m *model) draw(t *rapid.T) []store.Record {
	n := rapid.IntRange(1, 5).Draw(t, "records")
	out := make([]store.Record, n)
	for i := range out {
		m.now += int64(rapid.IntRange(0, 3).Draw(t, "later"))
		out[i] = store.Record{Time: m.now, Value: bytes.Repeat([]byte{byte(len(m.recs) + i)}, rapid.IntRange(0, 200).Draw(t, "length"))}
	}
	return out
}

func (m *model) append(t *rapid.T) {
	recs := m.draw(t)
	first, err := m.l.Append(bg, recs)
	if m.frozen {
		if cluster.ReasonOf(err) != cluster.ReasonFrozen {
			t.Fatalf("append to a frozen log: %v", err)
		}
		return
	}
	m.must(err)
	if int(first) != len(m.recs) {
		t.Fatalf("append at %d, want %d", first, len(m.recs))
	}
	for i := range recs {
		recs[i].Offset = first + cluster.Offset(i)
	}
	m.recs = append(m.recs, recs...)
}

// lapse appends while the lease runs out, before or after the sync.
func (m *model) lapse(t *rapid.T) {
	if m.frozen {
		return
	}
	m.budget = rapid.IntRange(0, 1).Draw(t, "valid checks")
	_, err := m.l.Append(bg, m.draw(t))
	m.budget = -1
	if cluster.ReasonOf(err) != cluster.ReasonNoLeader {
		t.Fatalf("append without a lease: %v", err)
	}
}

func (m *model) freeze(t *rapid.T) {
	token := store.FreezeToken{MoveID: 3, Handoff: 1}
	if m.frozen {
		m.must(m.s.Thaw(part, token))
	} else {
		m.must(m.s.Freeze(bg, part, token))
	}
	m.frozen = !m.frozen
}

func (m *model) restart(t *rapid.T) {
	if rapid.Bool().Draw(t, "orderly") {
		m.must(m.s.Shutdown())
	} // otherwise as after a kill: nothing is closed
	m.reopen()
}

// power cuts the power: unsynced writes are on disk or not.
func (m *model) power(t *rapid.T) {
	percent := rapid.IntRange(0, 100).Draw(t, "unsynced percent")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	m.fs = m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	m.reopen()
}

func (m *model) commit(t *rapid.T) {
	g := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
	off := cluster.Offset(rapid.IntRange(0, len(m.recs)+3).Draw(t, "offset"))
	m.must(m.l.CommitOffset(g, off))
	off = min(max(off, m.start), cluster.Offset(len(m.recs)))
	m.groups[g] = max(m.groups[g], off)
}

func (m *model) expire(t *rapid.T) {
	m.l.SetRetention(time.Duration(rapid.IntRange(1, 60).Draw(t, "retention")) * time.Millisecond)
	m.must(m.s.EnforceRetention())
	m.l.SetRetention(0)
	start := m.l.LogStart()
	if m.frozen && start != m.start {
		t.Fatalf("log start went from %d to %d during a freeze", m.start, start)
	}
	for _, r := range m.recs[m.start:max(start, m.start)] {
		if r.Time >= m.now {
			t.Fatalf("record %d of time %d was removed at %d", r.Offset, r.Time, m.now)
		}
	}
	m.start = start
}

func (m *model) check(t *rapid.T) {
	if m.l.LogStart() != m.start || int(m.l.HWM()) != len(m.recs) || m.l.LEO() < m.l.HWM() {
		t.Fatalf("log start %d, HWM %d, LEO %d; want %d and %d", m.l.LogStart(), m.l.HWM(), m.l.LEO(), m.start, len(m.recs))
	}
	for g, off := range m.groups {
		if got, ok := m.l.CommittedOffset(g); !ok || got != max(off, m.start) {
			t.Fatalf("group %s: committed offset %d, %v; want %d", g, got, ok, max(off, m.start))
		}
	}
	from := cluster.Offset(rapid.IntRange(0, len(m.recs)+1).Draw(t, "from"))
	count, size := rapid.IntRange(1, 20).Draw(t, "count"), cluster.Bytes(rapid.IntRange(0, 1000).Draw(t, "bytes"))
	got, err := m.l.Read(from, count, size)
	m.must(err)
	from = max(from, m.start)
	var sum cluster.Bytes
	for i, r := range got {
		sum += cluster.Bytes(len(r.Key) + len(r.Value))
		want := m.recs[int(from)+i]
		if r.Offset != want.Offset || r.Time != want.Time || !bytes.Equal(r.Value, want.Value) {
			t.Fatalf("record %d: got %s, want %s", int(from)+i, brief(r), brief(want))
		}
	}
	rest := len(m.recs) - int(from)
	if len(got) > count || len(got) > 1 && sum > size || len(got) == 0 && rest > 0 {
		t.Fatalf("%d records of %d bytes; asked for at most %d and %d, there are %d", len(got), sum, count, size, rest)
	}
	if n := len(got); n < count && n < rest {
		if next := m.recs[int(from)+n]; sum+cluster.Bytes(len(next.Value)) <= size {
			t.Fatalf("%d records of %d bytes, and the next of %d bytes was wanted too", n, sum, len(next.Value))
		}
	}
	m.checkManifest(t)
}

// checkManifest compares what the manifest says of files with the files.
func (m *model) checkManifest(t *rapid.T) {
	man, err := m.s.Manifest(part, nil)
	m.must(err)
	for i, f := range man.Files {
		s, err := scan(bg, m.fs, m.l.path(f.Name), f.BaseOffset, int64(f.Size), true)
		m.must(err)
		if s.chk.good != int64(f.Size) || firstDifference(s.blocks, f.Blocks) >= 0 {
			t.Fatalf("file %s: manifest %+v, on disk frames up to %d, digests %x", f.Name, f, s.chk.good, s.blocks)
		}
		end := man.LEO
		if i+1 < len(man.Files) {
			end = man.Files[i+1].BaseOffset
		}
		if s.chk.next != end {
			t.Fatalf("file %s ends at %d, want %d", f.Name, s.chk.next, end)
		}
	}
}

func brief(r store.Record) string {
	return fmt.Sprintf("{%d at %d, %d bytes}", r.Offset, r.Time, len(r.Value))
}
