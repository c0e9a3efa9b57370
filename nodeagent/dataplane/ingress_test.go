package dataplane

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

var testPrefix = []byte("i/")

func openDB(t testing.TB, fs vfs.FS) *pebble.DB {
	t.Helper()
	return openDBAt(t, fs, "db")
}

func openDBAt(t testing.TB, fs vfs.FS, dir string) *pebble.DB {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, MemTableSize: 16 << 20,
		Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

type quiet struct{}

func (quiet) Infof(string, ...any)      {}
func (quiet) Errorf(string, ...any)     {}
func (quiet) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func open(t testing.TB, db *pebble.DB, cfg Config) *ingress {
	t.Helper()
	in, err := openIngress(db, testPrefix, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// drain takes everything of a topic's partitions and returns the values, by partition, in order.
func drain(t testing.TB, in *ingress, topic cluster.TopicID, partitions uint32, batch uint64) [][]string {
	t.Helper()
	out := make([][]string, partitions)
	for i := range partitions {
		p := cluster.PartitionID{Topic: topic, Index: i}
		for {
			chunks, err := in.take(p, batch)
			if err != nil {
				t.Fatal(err)
			}
			if len(chunks) == 0 {
				break
			}
			for _, c := range chunks {
				for _, r := range c.records {
					out[i] = append(out[i], string(r.Value))
				}
			}
			if err := in.done(p, chunks); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// TestI2AcceptedSurvivesACrash accepts from several goroutines, crashes with any subset of unsynced writes
// kept, and wants every acknowledged record back, in its producer's order, at least once.
func TestI2AcceptedSurvivesACrash(t *testing.T) {
	for seed := range uint64(5) {
		fs := vfs.NewCrashableMem()
		in := open(t, openDB(t, fs), DefaultConfig())
		const producers, each = 4, 50
		var wg sync.WaitGroup
		for w := range producers {
			wg.Go(func() {
				for i := range each {
					records := []store.Record{{Value: fmt.Appendf(nil, "%d-%03d", w, i)}}
					if err := in.accept(chunksOf(3, records, []uint32{uint32(w % 2)})); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		// Deliver a part: what is removed may come back, but nothing else may go.
		p := cluster.PartitionID{Topic: 3}
		chunks, err := in.take(p, 2000)
		if err != nil || len(chunks) == 0 {
			t.Fatalf("take: %d chunks, %v", len(chunks), err)
		}
		delivered := map[string]bool{}
		for _, c := range chunks {
			for _, r := range c.records {
				delivered[string(r.Value)] = true
			}
		}
		if err := in.done(p, chunks); err != nil {
			t.Fatal(err)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed) * 25, RNG: rand.New(rand.NewPCG(seed, 1))})
		again := open(t, openDB(t, crashed), DefaultConfig())
		records, _ := again.depth()
		if want := uint64(producers*each - len(delivered)); records < want {
			t.Fatalf("seed %d: %d records recovered, at least %d were accepted and not delivered", seed, records, want)
		}
		got := map[string]bool{}
		for _, values := range drain(t, again, 3, 2, 500) {
			last := map[byte]string{}
			for _, v := range values {
				if v <= last[v[0]] {
					t.Errorf("seed %d: %s comes after %s", seed, v, last[v[0]])
				}
				last[v[0]] = v
				got[v] = true
			}
		}
		for w := range producers {
			for i := range each {
				if v := fmt.Sprintf("%d-%03d", w, i); !got[v] && !delivered[v] {
					t.Errorf("seed %d: accepted record %s is lost", seed, v)
				}
			}
		}
		if records, bytes := again.depth(); records != 0 || bytes != 0 {
			t.Errorf("seed %d: depth %d records, %d bytes after everything is delivered", seed, records, bytes)
		}
	}
}

// TestQueueBeyondMemory: what does not fit in memory is read back in windows, in order, and nothing is
// counted wrongly, also when a waiting partition sheds.
func TestQueueBeyondMemory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.DispatchMemory = 1 << 20
	in := open(t, openDB(t, vfs.NewMem()), cfg)
	value := make([]byte, 10_000)
	push := func(i int) {
		v := append(fmt.Appendf(nil, "%05d", i), value...)
		if err := in.accept(chunksOf(3, []store.Record{{Value: v}}, []uint32{0})); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for ; n < 300; n++ {
		push(n)
	}
	if m := in.mu.inMemory; m > uint64(cfg.DispatchMemory) {
		t.Errorf("%d bytes in memory, more than dispatch_memory", m)
	}
	p := cluster.PartitionID{Topic: 3}
	next := 0
	for step := 0; ; step++ {
		chunks, err := in.take(p, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		if len(chunks) == 0 {
			break
		}
		if step%3 == 0 {
			in.shed(p)
		}
		if step%6 == 0 {
			again, err := in.take(p, 64<<10)
			if err != nil || len(again) == 0 || again[0].seq != chunks[0].seq {
				t.Fatalf("step %d: after shedding %d chunks came, %v; want the same from %d on", step, len(again), err, chunks[0].seq)
			}
			chunks = again
		}
		if step%2 == 0 && n < 400 {
			push(n)
			n++
		}
		for _, c := range chunks {
			if got, want := string(c.records[0].Value[:5]), fmt.Sprintf("%05d", next); got != want {
				t.Fatalf("step %d: record %s, want %s", step, got, want)
			}
			next++
		}
		if err := in.done(p, chunks); err != nil {
			t.Fatal(err)
		}
	}
	if records, bytes := in.depth(); next != n || records != 0 || bytes != 0 || in.mu.inMemory != 0 {
		t.Errorf("%d of %d records taken; left: %d records, %d bytes, %d in memory", next, n, records, bytes, in.mu.inMemory)
	}
}

// TestAcceptedBeforeRunIsDelivered: handlers may be served before the dispatcher starts.
func TestAcceptedBeforeRunIsDelivered(t *testing.T) {
	in := open(t, openDB(t, vfs.NewMem()), DefaultConfig())
	if err := in.accept(chunksOf(3, []store.Record{{Value: []byte("x")}}, []uint32{0})); err != nil {
		t.Fatal(err)
	}
	woken := 0
	in.attach(func(cluster.PartitionID) { woken++ })
	if err := in.accept(chunksOf(3, []store.Record{{Value: []byte("y")}}, []uint32{0})); err != nil {
		t.Fatal(err)
	}
	if woken != 1 {
		t.Errorf("the partition was woken %d times, want once for its one worker", woken)
	}
}

func TestFullQueueIsLimit(t *testing.T) {
	cfg := DefaultConfig()
	cfg.IngressMaxBytes = 8 << 20
	in := open(t, openDB(t, vfs.NewMem()), cfg)
	push := func() error {
		return in.accept(chunksOf(3, []store.Record{{Value: make([]byte, 1<<20)}}, []uint32{0}))
	}
	accepted := 0
	var err error
	for err = push(); err == nil && accepted < 100; err = push() {
		accepted++
	}
	e := cluster.AsError(err)
	if e == nil || e.Reason != cluster.ReasonLimit || e.Field != "ingress_bytes" || e.RetryAfter <= 0 || accepted != 7 {
		t.Fatalf("after %d MiB: %v (%+v); want LIMIT with retry-after at 8 MiB", accepted, err, e)
	}
	// The bound holds over a restart too.
	if again := open(t, in.db, cfg); again.mu.total != in.mu.total {
		t.Errorf("recovered %+v, want %+v", again.mu.total, in.mu.total)
	}
	drain(t, in, 3, 1, 1<<20)
	if err := push(); err != nil {
		t.Errorf("after delivery: %v, want room", err)
	}
}

func BenchmarkAcceptSmall(b *testing.B) {
	in := open(b, openDB(b, vfs.NewMem()), DefaultConfig())
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := in.accept(chunksOf(3, []store.Record{{Value: make([]byte, 100)}}, []uint32{0})); err != nil {
				b.Error(err)
			}
		}
	})
}
