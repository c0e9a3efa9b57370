package partitionlog

import (
	"sync"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func benchLog(b *testing.B) *Log {
	b.Helper()
	s, err := Open(Options{Dir: b.TempDir(), RetentionInterval: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Shutdown() })
	if err := s.Create(part, 7); err != nil {
		b.Fatal(err)
	}
	if err := s.Open(part, 1); err != nil {
		b.Fatal(err)
	}
	l, err := s.Log(part)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkAppend is one append at a time: a write and a sync each.
func BenchmarkAppend(b *testing.B) {
	l := benchLog(b)
	recs := []store.Record{{Value: make([]byte, 1024)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Append(bg, recs); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendConcurrent is 64 appends at a time, which share syncs.
func BenchmarkAppendConcurrent(b *testing.B) {
	l := benchLog(b)
	b.ReportAllocs()
	var wg sync.WaitGroup
	each := b.N/64 + 1
	b.ResetTimer()
	for range 64 {
		wg.Go(func() {
			recs := []store.Record{{Value: make([]byte, 1024)}}
			for range each {
				if _, err := l.Append(bg, recs); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkRead is reading a log from its beginning, 100 records at a time.
func BenchmarkRead(b *testing.B) {
	l := benchLog(b)
	recs := make([]store.Record, 10_000)
	for i := range recs {
		recs[i].Value = make([]byte, 1024)
	}
	if _, err := l.Append(bg, recs); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100 * 1024)
	from := cluster.Offset(0)
	for b.Loop() {
		got, err := l.Read(from, 100, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		if from += 100; from >= l.HWM() {
			from = 0
		}
		if len(got) != 100 {
			b.Fatalf("%d records", len(got))
		}
	}
}

// BenchmarkCreateOpen is what an empty partition costs.
func BenchmarkCreateOpen(b *testing.B) {
	l := benchLog(b)
	i := uint32(100)
	for b.Loop() {
		p := cluster.PartitionID{Topic: 7, Index: i}
		i++
		if err := l.store.Create(p, 7); err != nil {
			b.Fatal(err)
		}
		if err := l.store.Open(p, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStage is writing, checking and digesting 64 MiB, and proving it.
func BenchmarkStage(b *testing.B) {
	l := benchLog(b)
	recs := make([]store.Record, 30)
	for i := range recs {
		recs[i].Value = make([]byte, 1<<20-100)
	}
	for range 2 {
		if _, err := l.Append(bg, recs); err != nil {
			b.Fatal(err)
		}
	}
	m, err := l.store.Manifest(part, nil)
	if err != nil {
		b.Fatal(err)
	}
	f, err := l.store.OpenFile(part, m.Files[0].Name)
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, f.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		b.Fatal(err)
	}
	_ = f.Close()
	b.SetBytes(int64(len(data)))
	move := cluster.MoveID(100)
	for b.Loop() {
		move++
		st, err := l.store.Stage(bg, part, move)
		if err != nil {
			b.Fatal(err)
		}
		for at := 0; at < len(data); at += 1 << 20 {
			if err := st.Write(m.Files[0].Name, int64(at), data[at:min(at+1<<20, len(data))]); err != nil {
				b.Fatal(err)
			}
		}
		if err := st.SyncAndCompare(bg, m.Files[0]); err != nil {
			b.Fatal(err)
		}
		if _, err := st.Finalize(bg, m); err != nil {
			b.Fatal(err)
		}
		_ = st.Close()
		b.StopTimer()
		if err := l.store.DropStaging(part, move); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
