package partitionlog

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
	"github.com/naradctl/naradctl-plane/transfer/store/storetest"
)

// instance adapts a Store on fs to the conformance suite.
func instance(t *testing.T, fs vfs.FS, dir string, o storetest.Options) *storetest.Instance {
	t.Helper()
	s, err := Open(Options{
		Dir: dir, FS: fs, Lease: o.Lease, Clock: o.Clock, SegmentBytes: o.SegmentBytes, RetentionInterval: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	in := &storetest.Instance{
		Store: s,
		Append: func(ctx context.Context, p cluster.PartitionID, recs []store.Record) (cluster.Offset, error) {
			l, err := s.Log(p)
			if err != nil {
				return 0, err
			}
			return l.Append(ctx, recs)
		},
		Read: func(p cluster.PartitionID, from cluster.Offset) ([]store.Record, error) {
			l, err := s.Log(p)
			if err != nil {
				return nil, err
			}
			return l.Read(from, 7, 1<<20)
		},
		Commit: func(p cluster.PartitionID, group string, off cluster.Offset) error {
			l, err := s.Log(p)
			if err != nil {
				return err
			}
			return l.CommitOffset(group, off)
		},
		Committed: func(p cluster.PartitionID, group string) (cluster.Offset, bool) {
			l, err := s.Log(p)
			if err != nil {
				return 0, false
			}
			return l.CommittedOffset(group)
		},
		Expire: func(p cluster.PartitionID, d time.Duration) error {
			l, err := s.Log(p)
			if err != nil {
				return err
			}
			l.SetRetention(d)
			return s.EnforceRetention()
		},
		Restart: func(t *testing.T) *storetest.Instance {
			t.Helper()
			if err := s.Shutdown(); err != nil {
				t.Fatal(err)
			}
			return instance(t, fs, dir, o)
		},
		Damage: func(t *testing.T, p cluster.PartitionID, place store.Place, id store.Identity, name string, off int64) {
			t.Helper()
			d := s.activeDir(p)
			switch place {
			case store.Staged:
				d = s.stagingDir(p, cluster.MoveID(id))
			case store.Quarantined:
				d = s.quarantineDir(p, id)
			}
			flip(t, fs, fs.PathJoin(d, name), off)
		},
	}
	if m, ok := fs.(*vfs.MemFS); ok {
		in.Crash = func(t *testing.T) *storetest.Instance {
			t.Helper()
			clone := m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(1, 2))})
			return instance(t, clone, dir, o)
		}
	}
	return in
}

// flip inverts a byte.
func flip(t *testing.T, fs vfs.FS, path string, off int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestConformanceOnCrashableMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T, o storetest.Options) *storetest.Instance {
		return instance(t, vfs.NewCrashableMem(), "/data", o)
	})
}

func TestConformanceOnDisk(t *testing.T) {
	storetest.Run(t, func(t *testing.T, o storetest.Options) *storetest.Instance {
		return instance(t, vfs.Default, t.TempDir(), o)
	})
}
