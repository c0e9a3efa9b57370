package partitionlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// quarantined returns the directory and segments of a quarantined copy.
func (s *Store) quarantined(p cluster.PartitionID, id store.Identity) (dir string, files []dirFile, err error) {
	sl := s.slot(p)
	sl.view.Lock()
	m := sl.view.quarantined[id]
	sl.view.Unlock()
	if m == nil {
		return "", nil, cluster.NotFound("partition %s has no copy of identity %d in quarantine", p, id)
	}
	dir = s.quarantineDir(p, id)
	files, _, err = readDir(s.fs, dir)
	return dir, files, err
}

// ReadQuarantined implements store.PartitionStore. Damage does not end it: all that can be read is, and then
// CORRUPT names the first damage.
func (s *Store) ReadQuarantined(p cluster.PartitionID, id store.Identity, from cluster.Offset, fn func(store.Record) error) error {
	dir, files, err := s.quarantined(p, id)
	if err != nil {
		return err
	}
	var damage error
	for i, f := range files {
		if i+1 < len(files) && files[i+1].base <= from {
			continue
		}
		var fnErr error
		err := readFrames(s.fs, s.fs.PathJoin(dir, f.name), 0, f.size, scanChunk, func(r store.Record, _, _ int64) bool {
			if r.Offset >= from {
				fnErr = fn(r)
			}
			return fnErr == nil
		})
		if fnErr != nil {
			return fnErr
		}
		if bad := (*badFrame)(nil); errors.As(err, &bad) {
			if i+1 < len(files) && damage == nil { // the last one's torn tail is no damage
				damage = corrupt(p, f.name, bad.pos, "no frame")
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("read quarantined partition %s: %w", p, err)
		}
	}
	return damage
}

// QuarantinedManifest implements store.PartitionStore. Sizes and digests are those of the complete frames.
func (s *Store) QuarantinedManifest(p cluster.PartitionID, id store.Identity) (store.Manifest, error) {
	dir, files, err := s.quarantined(p, id)
	if err != nil {
		return store.Manifest{}, err
	}
	st, err := readState(s.fs, dir)
	if err != nil {
		return store.Manifest{}, corrupt(p, stateName, 0, "%v", err)
	}
	m := store.Manifest{LogStart: st.LogStart, LEO: st.LogStart, Groups: st.Groups}
	cuts := map[cluster.Offset]uint32{}
	for _, g := range st.Segments {
		cuts[g.Base] = g.Cut
	}
	for i, f := range files {
		path := s.fs.PathJoin(dir, f.name)
		sc, err := scan(context.Background(), s.fs, path, f.base, f.size, true)
		if err == nil && sc.chk.good < sc.size {
			sc, err = scan(context.Background(), s.fs, path, f.base, sc.chk.good, true)
		}
		if err != nil {
			return store.Manifest{}, fmt.Errorf("manifest of quarantined partition %s: %w", p, err)
		}
		last := i+1 == len(files)
		if !last && (sc.chk.good != f.size || sc.chk.next != files[i+1].base) {
			return store.Manifest{}, corrupt(p, f.name, sc.chk.good, "ends at record %d, the next segment begins with %d", sc.chk.next, files[i+1].base)
		}
		m.LEO = max(m.LEO, sc.chk.next)
		if sc.chk.good == 0 {
			continue
		}
		g := segment{cut: cuts[f.base]}
		m.Files = append(m.Files, store.File{
			Name: f.name, Identity: g.identity(id), Size: cluster.Bytes(sc.chk.good), BaseOffset: f.base,
			Sealed: !last, Blocks: sc.blocks, LastRecordTime: sc.chk.last,
		})
	}
	m.HWM = m.LEO
	if st.Hidden {
		m.HWM = min(st.HWM, m.LEO)
	}
	return m, nil
}
