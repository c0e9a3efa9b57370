package partitionlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

var (
	bg   = context.Background()
	part = cluster.PartitionID{Topic: 7, Index: 3}
)

func openStore(t *testing.T, fs vfs.FS, segment cluster.Bytes) *Store {
	t.Helper()
	s, err := Open(Options{Dir: "/data", FS: fs, SegmentBytes: segment, RetentionInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

func openPart(t *testing.T, s *Store) *Log {
	t.Helper()
	if err := s.Create(part, 7); err != nil {
		t.Fatal(err)
	}
	if err := s.Open(part, 1); err != nil {
		t.Fatal(err)
	}
	l, err := s.Log(part)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rec makes a record of which the content tells its number and is of varying length.
func rec(k int) store.Record {
	return store.Record{Time: int64(k), Key: fmt.Appendf(nil, "k%d", k), Value: fmt.Appendf(nil, "%0*d", 1+k*37%500, k)}
}

func values(t *testing.T, l *Log) []string {
	t.Helper()
	var out []string
	for from := l.LogStart(); ; {
		recs, err := l.Read(from, 100, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(recs) == 0 {
			return out
		}
		for _, r := range recs {
			if r.Offset != from {
				t.Fatalf("record %d where %d should be", r.Offset, from)
			}
			from++
			out = append(out, string(r.Key))
		}
	}
}

// TestC83I2I3AckedRecordsSurviveEveryCrash cuts the power at random moments while appends, commits of offsets and
// retention run, with any part of the unsynced writes on disk.
func TestC83I2I3AckedRecordsSurviveEveryCrash(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewCrashableMem()
			var mu sync.Mutex // next and acked
			acked := map[int]string{}
			next := 0
			for range 6 {
				s, err := Open(Options{Dir: "/data", FS: fs, SegmentBytes: 2 << 10, RetentionInterval: -1, Clock: func() time.Time {
					mu.Lock()
					defer mu.Unlock()
					return time.UnixMilli(int64(next))
				}})
				if err != nil {
					t.Fatal(err)
				}
				l := openPart(t, s)
				got := values(t, l)
				start := int(l.LogStart())
				for off, key := range acked {
					if off >= start && (off >= start+len(got) || got[off-start] != key) {
						t.Fatalf("record %d, %s, was acknowledged; there are %d to %d: %v", off, key, start, start+len(got), got)
					}
				}
				// What was written and not acknowledged may be there (a duplicate at most), and stays.
				for i, key := range got {
					acked[start+i] = key
				}
				var wg sync.WaitGroup
				var crashed atomic.Bool
				for w := range 3 {
					wg.Go(func() {
						for i := range 8 {
							mu.Lock()
							r := rec(next)
							next++
							mu.Unlock()
							off, err := l.Append(bg, []store.Record{r})
							if err != nil {
								t.Errorf("append: %v", err)
								return
							}
							mu.Lock()
							if !crashed.Load() {
								acked[int(off)] = string(r.Key)
							}
							mu.Unlock()
							if i%3 == w {
								_ = l.CommitOffset("g", off)
							}
						}
					})
				}
				wg.Go(func() {
					l.SetRetention(40 * time.Millisecond)
					for range 3 {
						if err := s.EnforceRetention(); err != nil {
							t.Errorf("retention: %v", err)
						}
					}
				})
				// The ledger is closed first, then the power is cut: whatever it holds must survive.
				turns := rng.IntN(20)
				for range turns {
					runtime.Gosched() // lets the writers go on for a while
				}
				mu.Lock()
				crashed.Store(true)
				after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
				mu.Unlock()
				wg.Wait()
				_ = s.Shutdown()
				fs = after
			}
		})
	}
}

// TestC20PowerCutAtEveryWrite moves a partition and cuts the power after each operation of the file system: the
// copy is staged, or installed with a marker, or being served, and always whole.
func TestC20PowerCutAtEveryWrite(t *testing.T) {
	src := openStore(t, vfs.NewMem(), 2<<10)
	l := openPart(t, src)
	var want []string
	for k := range 40 {
		r := rec(k)
		if _, err := l.Append(bg, []store.Record{r}); err != nil {
			t.Fatal(err)
		}
		want = append(want, string(r.Key))
	}
	m, err := src.Manifest(part, nil)
	if err != nil {
		t.Fatal(err)
	}
	mem := vfs.NewCrashableMem()
	type moment struct {
		fs    *vfs.MemFS
		op    string
		phase string
	}
	var moments []moment
	phase := "staging"
	rng := rand.New(rand.NewPCG(3, 4))
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			for _, percent := range []int{0, 50, 100} {
				moments = append(moments, moment{
					mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), fmt.Sprintf("%v %s, %d%%", op.Kind, path.Base(op.Path), percent), phase,
				})
			}
		}
		return nil
	}))
	s := openStore(t, fs, 2<<10)
	st, err := s.Stage(bg, part, 11)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		r, err := src.OpenFile(part, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, f.Size)
		if _, err := r.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		if err := st.Write(f.Name, 0, b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Finalize(bg, m); err != nil {
		t.Fatal(err)
	}
	phase = "final"
	if err := st.Install(store.Pending{MoveID: 11, Handoff: 1}); err != nil {
		t.Fatal(err)
	}
	phase = "installed"
	if err := s.ConfirmFlip(part, 11); err != nil {
		t.Fatal(err)
	}
	phase = "confirmed"
	if err := s.Open(part, 2); err != nil {
		t.Fatal(err)
	}
	log, err := s.Log(part)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(bg, []store.Record{rec(40)}); err != nil {
		t.Fatal(err)
	}
	for _, at := range moments {
		checkMoment(t, at.fs, at.phase, at.op, m, want)
	}
	if len(moments) < 50 {
		t.Fatalf("only %d moments were tried", len(moments))
	}
}

func checkMoment(t *testing.T, fs *vfs.MemFS, phase, op string, m store.Manifest, want []string) {
	t.Helper()
	s := openStore(t, fs, 2<<10)
	defer func() { _ = s.Shutdown() }()
	cs, err := s.Copies()
	if err != nil {
		t.Fatalf("%s, before %s: %v", phase, op, err)
	}
	if phase == "staging" {
		return
	}
	if len(cs) != 1 {
		t.Fatalf("%s, before %s: copies %+v, want exactly one", phase, op, cs)
	}
	c := cs[0]
	switch {
	case phase == "installed" && c.Place != store.Active, phase == "confirmed" && (c.Place != store.Active || c.Pending != nil),
		phase == "final" && c.Place == store.Active && c.Pending == nil:
		t.Fatalf("%s, before %s: copy %+v", phase, op, c)
	}
	if c.Place == store.Staged {
		st, err := s.Stage(bg, part, 11)
		if err != nil {
			t.Fatalf("%s, before %s: %v", phase, op, err)
		}
		if _, err := st.Finalize(bg, m); err != nil {
			t.Fatalf("%s, before %s: %v", phase, op, err)
		}
		if err := st.Install(store.Pending{MoveID: 11, Handoff: 2}); err != nil {
			t.Fatalf("%s, before %s: %v", phase, op, err)
		}
	}
	if err := s.ConfirmFlip(part, 11); err != nil {
		t.Fatalf("%s, before %s: %v", phase, op, err)
	}
	if err := s.Open(part, 2); err != nil {
		t.Fatalf("%s, before %s: %v", phase, op, err)
	}
	l, err := s.Log(part)
	if err != nil {
		t.Fatal(err)
	}
	got := values(t, l)
	if len(got) < len(want) {
		t.Fatalf("%s, before %s: %d records, want %d", phase, op, len(got), len(want))
	}
	if d := cmp.Diff(want, got[:len(want)]); d != "" {
		t.Fatalf("%s, before %s: records (-want +got):\n%s", phase, op, d)
	}
}

// TestI3FailedSyncStaysHidden: after a failing write or sync the append has no known outcome, what it wrote
// stays hidden through a restart, reads go on, and appends do as soon as the disk does.
func TestI3FailedSyncStaysHidden(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWriteAt, errorfs.OpFileSyncData} {
		for _, stateToo := range []bool{false, true} {
			t.Run(fmt.Sprintf("kind=%d,state=%v", kind, stateToo), func(t *testing.T) {
				var on atomic.Bool
				mem := vfs.NewMem()
				fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
					isLog := path.Ext(op.Path) == segmentSuffix
					if on.Load() && (isLog && op.Kind == kind || stateToo && !isLog && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose) {
						return errors.New("no space left")
					}
					return nil
				}))
				s := openStore(t, fs, 0)
				l := openPart(t, s)
				want := []string{}
				add := func(k int) {
					t.Helper()
					if _, err := l.Append(bg, []store.Record{rec(k)}); err != nil {
						t.Fatal(err)
					}
					want = append(want, string(rec(k).Key))
				}
				add(0)
				add(1)
				on.Store(true)
				for range 3 {
					if _, err := l.Append(bg, []store.Record{rec(99), rec(100)}); err == nil {
						t.Fatal("an append was acknowledged that the disk refused")
					}
				}
				if d := cmp.Diff(want, values(t, l)); d != "" {
					t.Fatalf("visible after a refused append (-want +got):\n%s", d)
				}
				if m, err := s.Manifest(part, nil); err != nil || m.LEO != 2 || m.HWM != 2 {
					t.Fatalf("manifest %+v, %v; want LEO and HWM 2: nothing else is synced", m, err)
				}
				on.Store(false)
				if !stateToo {
					// A restart without a chance to cut: the state file hides the tail.
					crashed := openStore(t, mem, 0)
					if err := crashed.Open(part, 1); err != nil {
						t.Fatal(err)
					}
					c, _ := crashed.Log(part)
					if d := cmp.Diff(want, values(t, c)); d != "" {
						t.Fatalf("visible after a restart (-want +got):\n%s", d)
					}
					return
				}
				add(2)
				add(3)
				if d := cmp.Diff(want, values(t, l)); d != "" {
					t.Fatalf("visible after the disk was back (-want +got):\n%s", d)
				}
				if err := s.Close(part); err != nil {
					t.Fatal(err)
				}
				if err := s.Open(part, 2); err != nil {
					t.Fatal(err)
				}
				l, _ = s.Log(part)
				if d := cmp.Diff(want, values(t, l)); d != "" {
					t.Fatalf("visible after a restart (-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestC29TornTailChangesIdentity: bytes that a reopening cuts are another file afterwards.
func TestC29TornTailChangesIdentity(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs, 0)
	l := openPart(t, s)
	if _, err := l.Append(bg, []store.Record{rec(0)}); err != nil {
		t.Fatal(err)
	}
	before, _ := s.Manifest(part, nil)
	if err := s.Close(part); err != nil {
		t.Fatal(err)
	}
	name := before.Files[0].Name
	f, err := fs.OpenReadWrite(fs.PathJoin(s.activeDir(part), name), writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	torn := appendFrame(nil, 1, &store.Record{Value: []byte("torn")})
	if _, err := f.WriteAt(torn[:len(torn)-1], int64(before.Files[0].Size)); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := s.Open(part, 2); err != nil {
		t.Fatal(err)
	}
	after, err := s.Manifest(part, nil)
	if err != nil {
		t.Fatal(err)
	}
	if after.Files[0].Size != before.Files[0].Size || after.Files[0].Identity == before.Files[0].Identity {
		t.Fatalf("file before the torn tail %+v, after it was cut %+v", before.Files[0], after.Files[0])
	}
	// Damage below what is known to be synced is no torn tail.
	if err := s.Close(part); err != nil {
		t.Fatal(err)
	}
	flip(t, fs, fs.PathJoin(s.activeDir(part), name), 20)
	err = s.Open(part, 3)
	if cluster.ReasonOf(err) != cluster.ReasonCorrupt {
		t.Fatalf("opening a log with damage in what was synced: %v, want CORRUPT", err)
	}
}

// TestC71RecoveredBytesAreSynced: what a restart found in memory only is synced before it is shown, so that a
// power cut does not take back what was copied or read.
func TestC71RecoveredBytesAreSynced(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openStore(t, fs, 0)
	l := openPart(t, s)
	if _, err := l.Append(bg, []store.Record{rec(0)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(part); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenReadWrite(l.path(segmentName(0)), writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	r := rec(1)
	if _, err := f.WriteAt(appendFrame(nil, 1, &r), int64(l.Size())); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := s.Open(part, 2); err != nil {
		t.Fatal(err)
	}
	l, err = s.Log(part)
	if err != nil {
		t.Fatal(err)
	}
	shown := values(t, l)
	s = openStore(t, fs.CrashClone(vfs.CrashCloneCfg{}), 0)
	if d := cmp.Diff(shown, values(t, openPart(t, s))); d != "" || len(shown) != 2 {
		t.Fatalf("shown after a restart, and gone after a power cut (-shown +left):\n%s", d)
	}
}
