package partitionlog

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// brimFS takes the first half of each write and no new file while it is full, so that a file can't be cut either.
type brimFS struct {
	vfs.FS
	full bool
}

func (f *brimFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if f.full {
		return nil, syscall.ENOSPC
	}
	return f.FS.Create(name, c)
}

func (f *brimFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	if err != nil {
		return nil, err
	}
	return &brimFile{file, f}, nil
}

type brimFile struct {
	vfs.File
	fs *brimFS
}

func (f *brimFile) WriteAt(b []byte, at int64) (int, error) {
	if !f.fs.full {
		return f.File.WriteAt(b, at)
	}
	n, err := f.File.WriteAt(b[:len(b)/2], at)
	return n, errors.Join(err, syscall.ENOSPC)
}

// TestStagingGoesOnAfterAFullDisk: a write that failed, and a cut that failed after it, leave nothing that is believed: when
// there is room again the file is measured, and the rest is staged and found whole.
func TestStagingGoesOnAfterAFullDisk(t *testing.T) {
	ctx, p := context.Background(), cluster.PartitionID{Topic: 7}
	fs := &brimFS{FS: vfs.NewMem()}
	s, err := Open(Options{Dir: "/data", FS: fs, RetentionInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown() }()
	var frames []byte
	for i := range 20 {
		frames = appendFrame(frames, cluster.Offset(i), &store.Record{Time: 1, Key: []byte("k"), Value: make([]byte, 50)})
	}
	st, err := s.Stage(ctx, p, 9)
	if err != nil {
		t.Fatal(err)
	}
	name, cut := segmentName(0), len(frames)/2
	if err := st.Write(name, 0, frames[:cut]); err != nil {
		t.Fatal(err)
	}
	fs.full = true
	if err := st.Write(name, int64(cut), frames[cut:]); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a write to a full disk: %v", err)
	}
	// The bytes come again, in another portion.
	if err := st.Write(name, int64(cut), slices.Clip(frames[cut:cut+len(frames)/20])); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a write to a full disk: %v", err)
	}
	fs.full = false
	if err := st.Truncate(name, 0); err != nil {
		t.Fatal(err)
	}
	if err := st.Write(name, 0, frames); err != nil {
		t.Fatal(err)
	}
	file := st.Files()[0]
	m := store.Manifest{LEO: 20, HWM: 20, Files: []store.File{{Name: name, Size: cluster.Bytes(len(frames)), Blocks: file.Blocks}}}
	if _, err := st.Finalize(ctx, m); err != nil {
		t.Errorf("the staged copy is not whole: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}
