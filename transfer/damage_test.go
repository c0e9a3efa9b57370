package transfer_test

import (
	"errors"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// copiedUntilFreeze is a move of 40 records from a to b that stays in front of its freeze until release: all
// that a has synced is staged at b, more than once compared.
func copiedUntilFreeze(t *testing.T, wrapA, wrapB func(vfs.FS) vfs.FS) (p *plane, a, b *node, id cluster.PartitionID, want []string, release func()) {
	t.Helper()
	p = newPlane(t)
	a, b = newNode(t, p, "a"), newNode(t, p, "b")
	a.wrapFS, b.wrapFS = wrapA, wrapB
	a.segment = 8 << 10 // sealed segments and an active one
	a.start()
	b.start()
	id = cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want = fill(t, a, id, "r", 40, 1000)
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n == "a" && method == "GrantHandoff" && !after {
			return errUnreachable
		}
		return nil
	})
	p.setTarget(id, "b")
	staged(t, b)
	return p, a, b, id, want, func() { p.setFault(nil) }
}

// staged waits until everything was staged and the freeze was asked for in vain.
func staged(t *testing.T, b *node) {
	t.Helper()
	eventually(t, "everything is staged", func() bool {
		for _, m := range b.mover.Progress() {
			if m.Total > 0 && m.Done == m.Total && m.Attempt > 1 {
				return true
			}
		}
		return false
	})
}

// exactly wants just these values, in this order.
func exactly(t *testing.T, n *node, id cluster.PartitionID, want []string) {
	t.Helper()
	checkHolds(t, n, id, want)
	if got, err := n.read(id); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d records at %s, want %d and no others: %v", len(got), n.id, len(want), err)
	}
}

// segmentsIn lists the log files below a directory, in order.
func segmentsIn(t *testing.T, fs vfs.FS, dir string) (out []string) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, n := range names {
		full := fs.PathJoin(dir, n)
		info, err := fs.Stat(full)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			out = append(out, segmentsIn(t, fs, full)...)
		} else if path.Ext(n) == ".log" && info.Size() > 0 {
			out = append(out, full)
		}
	}
	return out
}

// change rewrites bytes of a file, durably.
func change(t *testing.T, fs vfs.FS, name string, do func(b []byte) []byte) {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	out, err2 := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err := errors.Join(f.Close(), err2); err != nil {
		t.Fatal(err)
	}
	_, err = out.Write(do(b))
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		t.Fatal(err)
	}
}

func records(name string, n int) []store.Record {
	out := make([]store.Record, n)
	for i := range out {
		out[i] = store.Record{Time: 1, Value: []byte(name + itoa(uint64(i)))}
	}
	return out
}

// C28: a bit of a staged file flips on the destination's disk, in each of its files in turn, sealed and active. It is
// found before the flip of the ownership, and that range is fetched again.
func TestC28BitFlipOnDisk(t *testing.T) {
	for k := 0; ; k++ {
		p, a, b, id, want, release := copiedUntilFreeze(t, nil, nil)
		b.kill()
		files := segmentsIn(t, b.fs, "store")
		if len(files) < 2 {
			t.Fatalf("staged files: %v", files)
		}
		change(t, b.fs, files[k], func(c []byte) []byte { c[len(c)/2] ^= 4; return c })
		release()
		b.start()
		moved(t, p, id, "b")
		exactly(t, b, id, want)
		a.kill()
		b.kill()
		if k == len(files)-1 {
			return
		}
	}
}

// lyingFS inverts a bit of the n-th write to a staged log file and says that all went well.
type lyingFS struct {
	vfs.FS
	left atomic.Int64
}

func (l *lyingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := l.FS.OpenReadWrite(name, c, opts...)
	if err == nil && strings.Contains(name, "staging") && path.Ext(name) == ".log" {
		f = &lyingFile{f, l}
	}
	return f, err
}

type lyingFile struct {
	vfs.File
	fs *lyingFS
}

func (f *lyingFile) WriteAt(b []byte, off int64) (int, error) {
	if f.fs.left.Add(-1) == 0 {
		b = slices.Clone(b)
		b[len(b)/2] ^= 4
	}
	return f.File.WriteAt(b, off)
}

// C28, I5: the destination's disk keeps another bit than it was given, at any of the writes of the copy, those of the
// tail inside the freeze included.
func TestC28DiskThatLies(t *testing.T) {
	for k := int64(1); ; k++ {
		lying := &lyingFS{}
		lying.left.Store(k)
		p := newPlane(t)
		a, b := newNode(t, p, "a"), newNode(t, p, "b")
		a.segment = 16 << 10
		b.wrapFS = func(fs vfs.FS) vfs.FS { lying.FS = fs; return lying }
		a.start()
		b.start()
		id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
		eventually(t, "open", func() bool { return p.assignment(id).Opened })
		want := fill(t, a, id, "r", 40, 1000)
		var once atomic.Bool
		b.observeStart(func(effect string) {
			if effect == "PrepareHandoff" && once.CompareAndSwap(false, true) {
				want = append(want, fill(t, a, id, "tail", 10, 500)...)
			}
		})
		p.setTarget(id, "b")
		moved(t, p, id, "b")
		exactly(t, b, id, want)
		a.kill()
		b.kill()
		if lying.left.Load() > 0 {
			if k < 4 {
				t.Fatalf("the copy took %d writes only", k-1)
			}
			return // nothing was damaged
		}
	}
}

// C29: the source's disk loses a tail that was staged already. On reopening the source cuts what is torn and
// writes other bytes, shorter, of the same length, and longer than before. The staged tail is recognised as
// another one and fetched again.
func TestC29SourceWroteOtherBytes(t *testing.T) {
	for _, other := range []int{1, 10, 30} {
		p, a, b, id, want, release := copiedUntilFreeze(t, nil, nil)
		a.kill()
		files := segmentsIn(t, a.fs, "store")
		// The last three bytes of the last frame go. It was acknowledged: what a lying disk loses is lost.
		change(t, a.fs, files[len(files)-1], func(c []byte) []byte { return c[:len(c)-3] })
		a.start()
		eventually(t, "the source is open again", func() bool { return a.append(id, "probe") == nil })
		want = append(want[:len(want)-1], "probe")
		want = append(want, fill(t, a, id, "other", other, 1000)...)
		release()
		moved(t, p, id, "b")
		exactly(t, b, id, want)
	}
}

// C71: the source has written bytes that it has not synced. The destination gets none of them; the source crashes,
// loses them, and acknowledges other records at the same offsets.
func TestC71UnsyncedBytesAreNotCopied(t *testing.T) {
	var armed, once atomic.Bool
	stalled, syncs := make(chan struct{}), make(chan struct{})
	wrap := func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileSyncData && path.Ext(op.Path) == ".log" && armed.Load() {
				if once.CompareAndSwap(false, true) {
					close(stalled)
				}
				<-syncs
				return syscall.EIO
			}
			return nil
		}))
	}
	p, a, b, id, want, release := copiedUntilFreeze(t, wrap, nil)
	armed.Store(true)
	lost := make(chan error, 1)
	before := a.store
	go func() {
		l, err := before.Log(id)
		if err == nil {
			_, err = l.Append(t.Context(), records("lost", 5))
		}
		lost <- err
	}()
	<-stalled
	passes := b.mover.Progress()[0].Attempt
	eventually(t, "more attempts while bytes are unsynced", func() bool { return b.mover.Progress()[0].Attempt > passes+2 })
	crashed := a.fs.CrashClone(vfs.CrashCloneCfg{})
	close(syncs)
	if err := <-lost; err == nil {
		t.Fatal("an append was acknowledged whose sync failed")
	}
	a.kill()
	a.fs = crashed
	armed.Store(false)
	a.start()
	eventually(t, "the source is open again", func() bool { return a.append(id, "probe") == nil })
	want = append(append(want, "probe"), fill(t, a, id, "instead", 8, 100)...)
	release()
	moved(t, p, id, "b")
	exactly(t, b, id, want)
}
