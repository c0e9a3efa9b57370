package transfer_test

import (
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// opened starts the nodes and waits until partitions of a, with 10 records of 1000 bytes each but for the first, with 100, are open.
func opened(t *testing.T, p *plane, a, b *node, n int) (ids []cluster.PartitionID, want [][]string) {
	t.Helper()
	a.start()
	b.start()
	owners := make([]string, n)
	for i := range owners {
		owners[i] = "a"
	}
	topic := p.createTopic("t", owners...)
	for i := range n {
		id := cluster.PartitionID{Topic: topic, Index: uint32(i)}
		eventually(t, "open", func() bool { return p.assignment(id).Opened })
		count := 10
		if i == 0 {
			count = 100
		}
		ids, want = append(ids, id), append(want, fill(t, a, id, "r", count, 1000))
	}
	return ids, want
}

func progressOf(n *node, id cluster.PartitionID) (m cluster.MoveProgress) {
	for _, m := range n.mover.Progress() {
		if m.Partition == id {
			return m
		}
	}
	return m
}

// C25: the destination's disk gets full in the middle of a copy. The move is blocked and says what it needs and what there is; also when it
// looks before it begins again. Others go on meanwhile, and it completes by itself when there is room.
func TestC25DiskFullInTheMiddle(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.segment = 8 << 10
	var full, begun atomic.Bool
	var free, writes atomic.Int64
	free.Store(1 << 30)
	b.freeDisk = func() (cluster.Bytes, error) { return cluster.Bytes(free.Load()), nil }
	b.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			first := strings.Contains(op.Path, "/0/") && strings.Contains(op.Path, "staging")
			if full.Load() && first && op.Kind == errorfs.OpFileWriteAt && writes.Add(1) > 3 {
				free.Store(3 << 10)
				begun.Store(true)
				return syscall.ENOSPC
			}
			return nil
		}))
	}
	ids, want := opened(t, p, a, b, 4)
	full.Store(true)
	p.setTarget(ids[0], "b")
	eventually(t, "the move is blocked and says what it needs", func() bool {
		m := progressOf(b, ids[0])
		return begun.Load() && m.Phase == cluster.PhaseBlocked && strings.Contains(m.LastError, "not enough room: needs ") &&
			strings.Contains(m.LastError, "has 3.0 KiB")
	})
	// What does not fit in 3 KiB is blocked, too; what fits goes on.
	free.Store(50 << 10)
	for _, id := range ids[1:] {
		p.setTarget(id, "b")
	}
	for i, id := range ids[1:] {
		moved(t, p, id, "b")
		exactly(t, b, id, want[i+1])
	}
	m := progressOf(b, ids[0])
	if m.Phase != cluster.PhaseBlocked || m.Done >= m.Total {
		t.Errorf("the blocked move: %+v", m)
	}
	if got := p.assignment(ids[0]); got.Owner != "a" || got.Granted {
		t.Errorf("nothing was frozen, and the assignment is %+v", got)
	}
	full.Store(false)
	free.Store(1 << 30)
	moved(t, p, ids[0], "b")
	exactly(t, b, ids[0], want[0])
}

// C25: two copies that fit one by one and not together: the second waits until the first is done.
func TestC25CopiesUnderWayCount(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	var free atomic.Int64
	free.Store(120 << 10)
	b.freeDisk = func() (cluster.Bytes, error) { return cluster.Bytes(free.Load()), nil }
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	b.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileWriteAt && strings.Contains(op.Path, "staging") && strings.Contains(op.Path, "/0/") {
				held <- struct{}{}
				<-hold
			}
			return nil
		}))
	}
	ids, want := opened(t, p, a, b, 2)
	more := fill(t, a, ids[1], "more", 50, 1000)
	p.setTarget(ids[0], "b")
	<-held
	p.setTarget(ids[1], "b")
	eventually(t, "the second is blocked by the first", func() bool {
		m := progressOf(b, ids[1])
		return m.Phase == cluster.PhaseBlocked && strings.Contains(m.LastError, "other copies need ")
	})
	close(hold)
	moved(t, p, ids[0], "b")
	moved(t, p, ids[1], "b")
	exactly(t, b, ids[1], append(want[1], more...))
}

// C26: one partition's segment can't be read at the source. Its move backs off and says so, and what is staged does not grow; the others complete;
// it completes, too, when the disk can be read again.
func TestC26FailingReadsAtTheSource(t *testing.T) {
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.segment = 8 << 10
	var broken atomic.Bool
	var failed atomic.Int64
	var which atomic.Value
	a.wrapFS = func(fs vfs.FS) vfs.FS {
		return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			reads := op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpFileReadAt
			if !broken.Load() || !reads || !strings.Contains(op.Path, "/0/") {
				return nil
			}
			which.CompareAndSwap(nil, path.Base(op.Path))
			if which.Load() != path.Base(op.Path) {
				return nil
			}
			failed.Add(1)
			return syscall.EIO
		}))
	}
	ids, want := opened(t, p, a, b, 8)
	broken.Store(true)
	for _, id := range ids {
		p.setTarget(id, "b")
	}
	for i, id := range ids[1:] {
		moved(t, p, id, "b")
		exactly(t, b, id, want[i+1])
	}
	var before cluster.MoveProgress
	eventually(t, "the move says that it failed", func() bool {
		before = progressOf(b, ids[0])
		return before.Phase == cluster.PhaseWaiting && before.LastError != "" && before.Attempt >= 3
	})
	eventually(t, "it is tried again", func() bool { return progressOf(b, ids[0]).Attempt >= before.Attempt+2 })
	if now := progressOf(b, ids[0]); now.Done > now.Total || now.Done > before.Done && before.Done == before.Total || failed.Load() == 0 {
		t.Errorf("%d reads failed; staged %d of %d, before %d", failed.Load(), now.Done, now.Total, before.Done)
	}
	if got := p.assignment(ids[0]); got.Owner != "a" {
		t.Errorf("the assignment is %+v", got)
	}
	broken.Store(false)
	moved(t, p, ids[0], "b")
	exactly(t, b, ids[0], want[0])
}
