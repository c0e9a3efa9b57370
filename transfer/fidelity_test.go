package transfer_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
)

// C28: bits flip on the wire; the damage is found, that range is fetched again, and the copy is whole.
func TestC28BitFlipOnTheWire(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	var flips atomic.Int64
	a.wrap = func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, transfer.BulkPath) && flips.Add(1) <= 3 {
				w = &flippingWriter{ResponseWriter: w}
			}
			h.ServeHTTP(w, r)
		})
	}
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want := fill(t, a, id, "r", 200, 1000)
	p.setTarget(id, "b")
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	if flips.Load() < 4 {
		t.Errorf("%d bulk requests: the damaged ranges were not fetched again", flips.Load())
	}
}

type flippingWriter struct {
	http.ResponseWriter
	done bool
}

func (w *flippingWriter) Write(b []byte) (int, error) {
	if !w.done && len(b) > 100 {
		b = append([]byte(nil), b...)
		b[len(b)/2] ^= 0x10
		w.done = true
	}
	return w.ResponseWriter.Write(b)
}

// C28, C72: bytes staged before, damaged on disk or with another content of the right length, are recognised by
// digests and fetched again.
func TestC72StagedBytesOfAnotherContent(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "r", 60, 1000)
	// The staging of the coming move is made with valid frames of other records.
	other := newNode(t, p, "c")
	other.start()
	b.mover.Close()
	move := p.setTarget(id, "b")
	st, err := b.store.Stage(t.Context(), id, move)
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.store.Manifest(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign := cluster.PartitionID{Topic: p.createTopic("foreign", "c")}
	eventually(t, "open", func() bool { return p.assignment(foreign).Opened })
	fill(t, other, foreign, "q", 60, 1000)
	fm, err := other.store.Manifest(foreign, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := other.store.OpenFile(foreign, fm.Files[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	buf, err := io.ReadAll(io.NewSectionReader(f, 0, int64(min(fm.Files[0].Size, m.Files[0].Size))))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(st.Write(m.Files[0].Name, 0, buf), st.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	b.restart()
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	if got, _ := b.read(id); len(got) != len(want) {
		t.Errorf("%d records at b, want %d", len(got), len(want))
	}
}

// C13: the install fails because the destination's disk does. The source still owns and accepts, the move shows
// why, and it completes when the disk works again.
func TestC13InstallFails(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	var broken atomic.Bool
	b.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind == errorfs.OpRename && strings.Contains(op.Path, "staging") {
				return syscall.EROFS
			}
			return nil
		}))
	}
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	want := fill(t, a, id, "r", 50, 1000)
	broken.Store(true)
	p.setTarget(id, "b")
	eventually(t, "the move says why it fails", func() bool {
		for _, m := range b.mover.Progress() {
			if m.Attempt > 1 && strings.Contains(m.LastError, syscall.EROFS.Error()) {
				return true
			}
		}
		return false
	})
	if got := p.assignment(id); got.Owner != "a" {
		t.Fatalf("the install failed and the owner is %s", got.Owner)
	}
	eventually(t, "C09: the source accepts", func() bool { return a.append(id, "meanwhile") == nil })
	broken.Store(false)
	moved(t, p, id, "b")
	checkHolds(t, b, id, append(want, "meanwhile"))
}
