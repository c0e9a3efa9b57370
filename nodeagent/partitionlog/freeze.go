package partitionlog

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// SetOutbound implements store.PartitionStore.
func (s *Store) SetOutbound(p cluster.PartitionID, outbound bool) { s.slot(p).outbound.Store(outbound) }

// Freeze implements store.PartitionStore. When ctx ends first, the freeze that was before is back.
func (s *Store) Freeze(ctx context.Context, p cluster.PartitionID, token store.FreezeToken) error {
	l, err := s.Log(p)
	if err != nil {
		return err
	}
	return l.freeze(ctx, token)
}

// Thaw implements store.PartitionStore. What is not open is not frozen.
func (s *Store) Thaw(p cluster.PartitionID, token store.FreezeToken) error {
	l := s.slot(p).open()
	if l == nil {
		return nil
	}
	l.queue.Lock()
	defer l.queue.Unlock()
	if t := l.queue.frozen; t != nil && *t == token {
		l.queue.frozen = nil
	}
	return nil
}

// Frozen implements store.PartitionStore.
func (s *Store) Frozen(p cluster.PartitionID) *store.FreezeToken {
	l := s.slot(p).open()
	if l == nil {
		return nil
	}
	return l.Frozen()
}

// earlier says that a freeze named t is over when one named u has begun.
func earlier(t, u store.FreezeToken) bool {
	return t.MoveID < u.MoveID || t.MoveID == u.MoveID && t.Handoff < u.Handoff
}

func (l *Log) freeze(ctx context.Context, token store.FreezeToken) error {
	l.queue.Lock()
	if err := l.usableLocked(); err != nil {
		l.queue.Unlock()
		return err
	}
	before := l.queue.frozen
	if before != nil && earlier(token, *before) {
		l.queue.Unlock()
		e := cluster.Errorf(cluster.ReasonHandoffRevoked, "partition %s is frozen for move %d, handoff %d already", l.p, before.MoveID, before.Handoff)
		e.MoveID, e.Handoff = before.MoveID, before.Handoff
		return e
	}
	mine := &token
	l.queue.frozen = mine
	reqs := l.refuseLocked()
	l.queue.Unlock()
	finish(reqs, 0, frozenError(l.p, token))

	// The queue is empty and stays so. What holds the write lock was accepted before, and its offsets are in
	// the manifest, because it is waited for. It syncs before it lets go.
	select {
	case l.write <- struct{}{}:
		<-l.write
		return nil
	case <-ctx.Done():
	}
	l.queue.Lock()
	defer l.queue.Unlock()
	if l.queue.frozen == mine {
		l.queue.frozen = before
	}
	return ctx.Err()
}

// Manifest implements store.PartitionStore.
func (s *Store) Manifest(p cluster.PartitionID, known []store.File) (store.Manifest, error) {
	l, err := s.Log(p)
	if err != nil {
		return store.Manifest{}, err
	}
	return l.manifest(known)
}

// manifest describes what is synced. Segments without a byte are not listed: LEO and log start say all.
func (l *Log) manifest(known []store.File) (store.Manifest, error) {
	if err := l.usable(); err != nil {
		return store.Manifest{}, err
	}
	have := make(map[string]store.File, len(known))
	for _, f := range known {
		have[f.Name] = f
	}
	// Segments that were not read yet are read before anything is looked at: inside a freeze the destination
	// knows them, and nothing is left to read.
	type unread struct {
		g   *segment
		end cluster.Offset
	}
	var todo []unread
	l.view.RLock()
	for i, g := range l.view.segs {
		if g.known || i+1 == len(l.view.segs) {
			continue
		}
		if f, ok := have[g.name]; ok && f.Identity == g.identity(l.copyID) && int64(f.Size) == g.size {
			continue
		}
		todo = append(todo, unread{g, l.view.segs[i+1].base})
	}
	l.view.RUnlock()
	for _, u := range todo {
		// Retention may have removed it since.
		if err := l.ensureKnown(context.Background(), u.g, u.end); err != nil && !notExist(err) {
			return store.Manifest{}, err
		}
	}
	l.view.RLock()
	defer l.view.RUnlock()
	m := store.Manifest{LEO: l.view.leo, HWM: l.view.hwm, LogStart: l.view.logStart, Groups: l.groupsLocked()}
	for _, g := range l.view.segs {
		if g.size == 0 {
			continue
		}
		f := store.File{
			Name: g.name, Identity: g.identity(l.copyID), Size: cluster.Bytes(g.size), BaseOffset: g.base,
			Sealed: g.sealed, LastRecordTime: g.last,
		}
		if k, ok := have[g.name]; !ok || k.Identity != f.Identity || k.Size != f.Size {
			f.Blocks = g.digests()
		}
		m.Files = append(m.Files, f)
	}
	return m, nil
}

// SetRetention sets how old records may get; zero keeps them for ever. Whole sealed segments go when their
// newest record is older.
func (l *Log) SetRetention(d time.Duration) {
	l.view.Lock()
	defer l.view.Unlock()
	l.view.retention = d
}
