package etcdraft_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft/logstoretest"
)

func TestLogStoreInMemory(t *testing.T) {
	logstoretest.Run(t, func(*testing.T) *logstoretest.Fixture {
		m := etcdraft.NewMemLog(logstoretest.Conf())
		f := &logstoretest.Fixture{Store: m}
		f.Crash = func(applied uint64) (etcdraft.LogStore, error) {
			next, err := m.Crash(applied, 0)
			if err != nil {
				return nil, err
			}
			m = next
			return m, nil
		}
		return f
	})
}

// A crash is a copy of the files while they are open.
func TestLogStoreOnDisk(t *testing.T) {
	logstoretest.Run(t, func(t *testing.T) *logstoretest.Fixture {
		dir := filepath.Join(t.TempDir(), "wal")
		f := &logstoretest.Fixture{Store: newWAL(t, dir)}
		f.Crash = func(applied uint64) (etcdraft.LogStore, error) {
			image := filepath.Join(t.TempDir(), "wal")
			if err := os.CopyFS(image, os.DirFS(dir)); err != nil {
				return nil, err
			}
			s, err := etcdraft.OpenWAL(image, applied)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = s.Close() })
			dir = image
			return s, nil
		}
		return f
	})
}

func newWAL(t *testing.T, dir string) etcdraft.LogStore {
	t.Helper()
	if err := etcdraft.CreateWAL(dir, logstoretest.Conf()); err != nil {
		t.Fatal(err)
	}
	s, err := etcdraft.OpenWAL(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// filledWAL makes a log with batches batches of three entries and returns its directory, closed.
func filledWAL(t *testing.T, batches uint64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "wal")
	s := newWAL(t, dir)
	for i := range batches {
		if err := s.Save(logstoretest.State(2, 1, 1+3*i), logstoretest.Entries(2+3*i, 4+3*i, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lastFile returns the newest log file and its content.
func lastFile(t *testing.T, dir string) (string, []byte) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no log files in %s: %v", dir, err)
	}
	raw, err := os.ReadFile(names[len(names)-1])
	if err != nil {
		t.Fatal(err)
	}
	return names[len(names)-1], raw
}

// frames returns the offsets of the records in a log file, and where they end.
func frames(raw []byte) []int {
	offsets := []int{0}
	for off := 0; off+8 <= len(raw); {
		l := binary.LittleEndian.Uint64(raw[off:])
		if l == 0 {
			break
		}
		size := int(l & (1<<56 - 1))
		if int64(l) < 0 {
			size += int(l >> 56 & 7)
		}
		off += 8 + size
		offsets = append(offsets, off)
	}
	return offsets
}

func write(t *testing.T, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever part of the last, never acknowledged batch is missing, the log opens with all batches before it.
func TestC51TornTailStarts(t *testing.T) {
	const batches = 5
	master := filledWAL(t, batches)
	name, raw := lastFile(t, master)
	at := frames(raw)
	end := at[len(at)-1]
	// The last batch is three entries and a state.
	begin := at[len(at)-5]
	for cut := begin; cut < end; cut += 5 {
		for _, how := range []string{"zeros", "short"} {
			dir := filepath.Join(t.TempDir(), "wal")
			if err := os.CopyFS(dir, os.DirFS(master)); err != nil {
				t.Fatal(err)
			}
			torn := append([]byte{}, raw[:cut]...)
			if how == "zeros" {
				torn = append(torn, make([]byte, len(raw)-cut)...)
			}
			write(t, filepath.Join(dir, filepath.Base(name)), torn)
			s, err := etcdraft.OpenWAL(dir, 1)
			var damaged *etcdraft.DamageError
			if how == "zeros" && errors.As(err, &damaged) {
				// A record without a zero sector is damage to the library and to us; a real tear leaves whole
				// sectors of zeros. Refusing is safe.
				continue
			}
			if err != nil {
				t.Fatalf("torn at %d of %d by %s: %v", cut, end, how, err)
			}
			last, err := s.LastIndex()
			if err != nil || last < 1+3*(batches-1) {
				t.Fatalf("torn at %d by %s: the log ends at %d (%v), want at least %d", cut, how, last, err, 1+3*(batches-1))
			}
			if err := s.Save(logstoretest.State(3, 1, last), logstoretest.Entries(last+1, last+1, 3)); err != nil {
				t.Fatalf("append after a torn tail: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = etcdraft.OpenWAL(dir, last+1); err != nil {
				t.Fatalf("open again after a torn tail: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Each record before the last batch is damaged in turn, in several ways: the log never opens, and the error
// names file and offset.
func TestC51DamageInTheMiddleRefused(t *testing.T) {
	master := filledWAL(t, 6)
	name, raw := lastFile(t, master)
	at := frames(raw)
	damages := map[string]func(b []byte){
		"flip":    func(b []byte) { b[len(b)/2] ^= 0x40 },
		"zeros":   func(b []byte) { clear(b) },
		"length":  func(b []byte) { b[2] ^= 0x7f },
		"garbage": func(b []byte) { copy(b, strings.Repeat("garbage!", len(b)/8)) },
	}
	for k := 0; k < len(at)-5; k++ {
		for how, damage := range damages {
			dir := filepath.Join(t.TempDir(), "wal")
			if err := os.CopyFS(dir, os.DirFS(master)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, filepath.Base(name))
			bad := append([]byte{}, raw...)
			damage(bad[at[k]:at[k+1]])
			write(t, path, bad)
			s, err := etcdraft.OpenWAL(dir, 1)
			if err == nil {
				last, _ := s.LastIndex()
				t.Fatalf("record %d damaged by %s: the log opens and ends at %d", k, how, last)
			}
			var damaged *etcdraft.DamageError
			if !errors.As(err, &damaged) || damaged.File != path || damaged.Offset > int64(at[k]) {
				t.Fatalf("record %d at %d damaged by %s: %v; want a DamageError that names file and offset", k, at[k], how, err)
			}
			after, err := os.ReadFile(path)
			if err != nil || string(after) != string(bad) {
				t.Fatalf("record %d damaged by %s: the refused file was changed (%v)", k, how, err)
			}
		}
	}
}

func TestC51MissingFileRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	s := newWAL(t, dir)
	for i := range uint64(40) {
		if err := s.Save(logstoretest.State(2, 1, 1+200*i), logstoretest.Entries(2+200*i, 201+200*i, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) < 3 {
		t.Fatalf("want several log files, got %v, %v", names, err)
	}
	if err := os.Remove(names[1]); err != nil {
		t.Fatal(err)
	}
	_, err = etcdraft.OpenWAL(dir, 1)
	var damaged *etcdraft.DamageError
	if !errors.As(err, &damaged) || damaged.File != names[2] {
		t.Fatalf("a missing file: %v, want a DamageError that names %s", err, names[2])
	}
}

// A log whose synced end is lost without a trace is still refused: the state machine knows better.
func TestC51LostEndRefused(t *testing.T) {
	dir := filledWAL(t, 6)
	name, raw := lastFile(t, dir)
	at := frames(raw)
	clear(raw[at[len(at)-9]:])
	write(t, name, raw)
	if _, err := etcdraft.OpenWAL(dir, 19); !errors.Is(err, etcdraft.ErrStateMismatch) {
		t.Fatalf("a log that lost synced entries: %v, want ErrStateMismatch", err)
	}
}

func TestCompactionDeletesFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	s := newWAL(t, dir)
	next := uint64(2)
	count := func() int {
		names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for round := range 20 {
		for range 100 {
			if err := s.Save(logstoretest.State(2, 1, next-1), logstoretest.Entries(next, next+49, 2)); err != nil {
				t.Fatal(err)
			}
			next += 50
		}
		if err := s.Compact(logstoretest.Meta(next-100, 2)); err != nil {
			t.Fatal(err)
		}
		if n := count(); n > 8 {
			t.Fatalf("round %d: %d log files are left", round, n)
		}
	}
	want := logstoretest.Dump(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := etcdraft.OpenWAL(dir, next-60)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // Only read.
	if got := logstoretest.Dump(t, s); strings.SplitN(got, "\n", 2)[1] != strings.SplitN(want, "\n", 2)[1] {
		t.Fatalf("entries after a restart:\n%s\nwant\n%s", got, want)
	}
}
