package faultfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// mount mounts a fresh directory. Where nothing can be mounted the test says so and shows nothing.
func mount(t *testing.T) (*FS, string) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "mnt")
	f, err := Mount(t.TempDir(), at)
	if err != nil {
		t.Logf("NOT SHOWN HERE: %v", err)
		return nil, ""
	}
	t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return f, at
}

func write(at, name string) error {
	f, err := os.Create(filepath.Join(at, name))
	if err != nil {
		return err
	}
	_, err = f.Write([]byte("x"))
	return errors.Join(err, f.Sync(), f.Close())
}

// TestFaultsBite: each fault is seen by who writes, and is gone when it is taken back.
func TestFaultsBite(t *testing.T) {
	f, at := mount(t)
	if f == nil {
		return
	}
	if err := write(at, "good"); err != nil {
		t.Fatal(err)
	}
	open, err := os.Create(filepath.Join(at, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()

	f.Set(Faults{Full: true})
	if err := write(at, "new"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new file on a full disk: %v", err)
	}
	if _, err := open.Write([]byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write on a full disk: %v", err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(at, &st); err != nil || st.Bavail != 0 {
		t.Errorf("a full disk says that %d blocks are free, %v", st.Bavail, err)
	}
	if err := os.Remove(filepath.Join(at, "good")); err != nil {
		t.Errorf("a removal on a full disk: %v", err)
	}

	f.Set(Faults{SyncFails: true})
	if err := open.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a sync that fails: %v", err)
	}
	d, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a directory's sync that fails: %v", err)
	}

	f.Set(Faults{SyncDelay: 100 * time.Millisecond})
	began := time.Now()
	if err := open.Sync(); err != nil || time.Since(began) < 100*time.Millisecond {
		t.Errorf("a slow sync took %s, %v", time.Since(began), err)
	}

	f.Set(Faults{})
	if err := write(at, "again"); err != nil {
		t.Errorf("after the faults: %v", err)
	}
}
