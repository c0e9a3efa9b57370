package transfer

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// promotedPrefix keys the record of a promotion without the source: which of the source's files, by their
// identities, the promoted copy is made of. The same identity never names other bytes, so the source finds
// with it the first offset from which its own copy may differ. It stays until that source has salvaged.
const promotedPrefix = "promoted/"

// promotedRecord has format version 1: a byte, then JSON.
type promotedRecord struct {
	LEO   cluster.Offset `json:"leo"`
	Files []store.File   `json:"files"`
}

func encodePromoted(leo cluster.Offset, files []store.File) ([]byte, error) {
	r := promotedRecord{LEO: leo}
	for _, f := range files {
		r.Files = append(r.Files, store.File{Name: f.Name, Identity: f.Identity, Size: f.Size, BaseOffset: f.BaseOffset})
	}
	b, err := json.Marshal(r)
	return append([]byte{metaVersion}, b...), err
}

func decodePromoted(b []byte) (promotedRecord, error) {
	var r promotedRecord
	if len(b) == 0 || b[0] != metaVersion {
		return r, cluster.Errorf(cluster.ReasonCorrupt, "promotion record: unknown format")
	}
	if err := json.Unmarshal(b[1:], &r); err != nil {
		return r, cluster.Errorf(cluster.ReasonCorrupt, "promotion record: %v", err)
	}
	return r, nil
}

// Promoted reports whether this node's copy of a partition came by a promotion whose source has not salvaged yet.
func Promoted(j Journal, p cluster.PartitionID, move cluster.MoveID) (bool, error) {
	key := journalKey(promotedPrefix, p, move)
	records, err := j.Load(key)
	if err != nil {
		return false, fmt.Errorf("load %s: %w", key, err)
	}
	_, ok := records[key]
	return ok, nil
}

// PrunePromotions removes the records of promotions that nobody will ask about any more: their outcome is gone, since
// the source has salvaged, or the topic is. Safe for concurrent use.
func (m *Mover) PrunePromotions(ctx context.Context) error {
	records, err := m.cfg.Journal.Load(promotedPrefix)
	if err != nil {
		return fmt.Errorf("load records of promotions: %w", err)
	}
	for key := range records {
		var p cluster.PartitionID
		var move cluster.MoveID
		if _, err := fmt.Sscanf(key, promotedPrefix+"%d/%d/%d", &p.Topic, &p.Index, &move); err != nil {
			return fmt.Errorf("record of a promotion %q: %w", key, err)
		}
		call, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
		v, err := m.cfg.Control.ReadMove(call, p, move)
		cancel()
		if err != nil {
			return fmt.Errorf("read move %d of %s: %w", move, p, err)
		}
		if v.Assignment != nil && v.State != MoveForgotten {
			continue
		}
		if err := m.cfg.Journal.Delete(key); err != nil {
			return fmt.Errorf("remove %s: %w", key, err)
		}
	}
	return nil
}

// promoted answers a Manifest request about a move that this node was promoted by.
func (s *Source) promoted(ref *nodev1.MoveRef) (*nodev1.ManifestResponse, bool, error) {
	p, move, err := refOf(ref)
	if err != nil {
		return nil, false, err
	}
	if s.outbound(p, move) != nil {
		return nil, false, nil
	}
	key := journalKey(promotedPrefix, p, move)
	records, err := s.cfg.Journal.Load(key)
	if err != nil {
		return nil, false, fmt.Errorf("load %s: %w", key, err)
	}
	b, ok := records[key]
	if !ok {
		return nil, false, nil
	}
	r, err := decodePromoted(b)
	if err != nil {
		return nil, false, err
	}
	m := store.Manifest{Files: r.Files, LEO: r.LEO, HWM: r.LEO}
	return &nodev1.ManifestResponse{Manifest: manifestToProto(m)}, true, nil
}

// firstDifference returns the first offset from which the source's copy may hold other records than the
// promoted one: where that ends, or where the first file begins that is not the same.
func firstDifference(mine store.Manifest, r promotedRecord) cluster.Offset {
	from := r.LEO
	have := make(map[string]store.File, len(mine.Files))
	for _, f := range mine.Files {
		have[f.Name] = f
	}
	for _, f := range r.Files {
		h, ok := have[f.Name]
		if !ok && f.BaseOffset < mine.LogStart {
			continue // retention removed it here
		}
		if !ok || h.Identity != f.Identity || h.BaseOffset != f.BaseOffset {
			from = min(from, f.BaseOffset)
		}
	}
	return from
}
