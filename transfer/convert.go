package transfer

import (
	"encoding/json"
	"math"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func moveRef(p cluster.PartitionID, move cluster.MoveID) *nodev1.MoveRef {
	return &nodev1.MoveRef{TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(move)}
}

func refOf(r *nodev1.MoveRef) (cluster.PartitionID, cluster.MoveID, error) {
	p := cluster.PartitionID{Topic: cluster.TopicID(r.GetTopicId()), Index: r.GetIndex()}
	if r.GetTopicId() == 0 || r.GetMoveId() == 0 {
		return p, 0, cluster.Invalid("move", "topic and move id must be set")
	}
	return p, cluster.MoveID(r.GetMoveId()), nil
}

func fileToProto(f store.File) *nodev1.ManifestFile {
	return &nodev1.ManifestFile{
		Name: f.Name, Identity: f.Identity, Size: uint64(f.Size), BaseOffset: uint64(f.BaseOffset),
		Sealed: f.Sealed, BlockDigests: f.Blocks, LastRecordTime: f.LastRecordTime,
	}
}

func fileFromProto(f *nodev1.ManifestFile) store.File {
	return store.File{
		Name: f.GetName(), Identity: f.GetIdentity(), Size: cluster.Bytes(f.GetSize()),
		BaseOffset: cluster.Offset(f.GetBaseOffset()), Sealed: f.GetSealed(), Blocks: f.GetBlockDigests(),
		LastRecordTime: f.GetLastRecordTime(),
	}
}

func filesToProto(files []store.File) []*nodev1.ManifestFile {
	out := make([]*nodev1.ManifestFile, len(files))
	for i, f := range files {
		out[i] = fileToProto(f)
	}
	return out
}

func filesFromProto(files []*nodev1.ManifestFile) []store.File {
	out := make([]store.File, len(files))
	for i, f := range files {
		out[i] = fileFromProto(f)
	}
	return out
}

func manifestToProto(m store.Manifest) *nodev1.PartitionManifest {
	out := &nodev1.PartitionManifest{
		Files: filesToProto(m.Files), LogEndOffset: uint64(m.LEO), HighWatermark: uint64(m.HWM),
		LogStartOffset: uint64(m.LogStart),
	}
	for _, g := range m.Groups {
		out.Groups = append(out.Groups, &nodev1.GroupOffset{Group: g.Group, Offset: uint64(g.Offset)})
	}
	return out
}

// manifestFromProto checks what later code relies on: names that are no paths, plausible offsets.
func manifestFromProto(m *nodev1.PartitionManifest) (store.Manifest, error) {
	out := store.Manifest{
		Files: filesFromProto(m.GetFiles()), LEO: cluster.Offset(m.GetLogEndOffset()),
		HWM: cluster.Offset(m.GetHighWatermark()), LogStart: cluster.Offset(m.GetLogStartOffset()),
	}
	if m == nil || out.HWM > out.LEO || out.LogStart > out.LEO {
		return out, cluster.Errorf(cluster.ReasonCorrupt, "manifest: log start %d, high watermark %d, end %d",
			out.LogStart, out.HWM, out.LEO)
	}
	seen := make(map[string]bool, len(out.Files))
	for _, f := range out.Files {
		blocks := int((f.Size + store.BlockSize - 1) / store.BlockSize)
		switch {
		case !plainName(f.Name) || seen[f.Name]:
			return out, cluster.Errorf(cluster.ReasonCorrupt, "manifest: file name %q", f.Name)
		case f.Size > math.MaxInt64:
			return out, cluster.Errorf(cluster.ReasonCorrupt, "manifest: %s has %d bytes, more than a file can have", f.Name, uint64(f.Size))
		case f.Blocks != nil && len(f.Blocks) != blocks:
			return out, cluster.Errorf(cluster.ReasonCorrupt, "manifest: %s has %d digests for %d bytes",
				f.Name, len(f.Blocks), f.Size)
		}
		seen[f.Name] = true
	}
	for _, g := range m.GetGroups() {
		out.Groups = append(out.Groups, store.GroupOffset{Group: g.GetGroup(), Offset: cluster.Offset(g.GetOffset())})
	}
	return out, nil
}

// plainName reports whether a file name can't leave its directory.
func plainName(name string) bool {
	if name == "" || len(name) > 255 || name[0] == '.' {
		return false
	}
	for _, r := range name {
		if r == '/' || r == '\\' || r < ' ' {
			return false
		}
	}
	return true
}

// meta is what a promotion without the source needs of its latest manifest. Format version 1 is JSON.
type meta struct {
	LEO      cluster.Offset      `json:"leo"`
	HWM      cluster.Offset      `json:"hwm"`
	LogStart cluster.Offset      `json:"log_start"`
	Groups   []store.GroupOffset `json:"groups,omitempty"`
	// Files have no digests here.
	Files []store.File `json:"files,omitempty"`
}

const metaVersion = 1

func encodeMeta(m store.Manifest) ([]byte, error) {
	files := make([]store.File, len(m.Files))
	for i, f := range m.Files {
		f.Blocks = nil
		files[i] = f
	}
	b, err := json.Marshal(meta{LEO: m.LEO, HWM: m.HWM, LogStart: m.LogStart, Groups: m.Groups, Files: files})
	return append([]byte{metaVersion}, b...), err
}

func decodeMeta(b []byte) (store.Manifest, error) {
	var m meta
	if len(b) == 0 || b[0] != metaVersion {
		return store.Manifest{}, cluster.Errorf(cluster.ReasonCorrupt, "manifest record: unknown format")
	}
	if err := json.Unmarshal(b[1:], &m); err != nil {
		return store.Manifest{}, cluster.Errorf(cluster.ReasonCorrupt, "manifest record: %v", err)
	}
	return store.Manifest{LEO: m.LEO, HWM: m.HWM, LogStart: m.LogStart, Groups: m.Groups, Files: m.Files}, nil
}
