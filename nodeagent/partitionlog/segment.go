package partitionlog

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// segment is one file of an open log. Fields are under the log's view lock, but for what a sealed segment
// holds once it was read.
type segment struct {
	base   cluster.Offset
	name   string
	cut    uint32
	sealed bool
	size   int64 // synced bytes of complete frames
	last   int64 // newest record time
	idx    index
	run    *blockHasher // digests of [0, size); the active segment has it
	blocks []uint64     // the same, of a sealed segment

	reading sync.Mutex // held while a sealed segment is being read
	known   bool       // idx and digests are right
}

// identity names the file's content: a cut makes it another file.
func (g *segment) identity(copy store.Identity) string {
	return fmt.Sprintf("%d.%d", uint64(copy), g.cut)
}

// learn takes over what a scan told.
func (g *segment) learn(s *scanned) {
	g.idx, g.last, g.known = s.chk.idx, s.chk.last, true
	if g.sealed {
		g.blocks = s.blocks
	} else {
		g.run = &s.hash
	}
}

// digests returns the digests of [0, size) in a slice of the caller's.
func (g *segment) digests() []uint64 {
	if g.sealed {
		return slices.Clone(g.blocks)
	}
	return g.run.blocks()
}

// seal ends the segment: it never changes again.
func (g *segment) seal() {
	g.blocks, g.run, g.sealed = g.run.blocks(), nil, true
}

// ensureKnown reads a sealed segment that nobody has read since the log was opened: its frames, digests
// and index. end is the offset that it must end at. Damage makes the log corrupt.
func (l *Log) ensureKnown(ctx context.Context, g *segment, end cluster.Offset) error {
	g.reading.Lock()
	defer g.reading.Unlock()
	l.view.RLock()
	known, size := g.known, g.size
	l.view.RUnlock()
	if known {
		return nil
	}
	s, err := scan(ctx, l.store.fs, l.path(g.name), g.base, size, true)
	if err != nil {
		return err
	}
	if s.chk.good != size || s.chk.next != end {
		return l.damage(corrupt(l.p, g.name, s.chk.good, "sealed segment of %d bytes ends at record %d, want %d", size, s.chk.next, end))
	}
	l.view.Lock()
	g.learn(s)
	l.view.Unlock()
	return nil
}

func (l *Log) path(name string) string { return l.store.fs.PathJoin(l.dir, name) }

// carried is what Finalize proved of a copy: the next opening need not read it again.
type carried struct {
	identity store.Identity
	files    map[string]*scanned
}
