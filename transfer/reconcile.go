package transfer

import (
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// adopt makes m the manifest that the next pull works on: staged bytes that can't be a prefix of what m lists
// are cut off, and the rest is measured.
func (r *run) adopt(m store.Manifest, inc cluster.Incarnation) (move.Measured, error) {
	staged := map[string]store.File{}
	for _, f := range r.work.staging.Files() {
		staged[f.Name] = f
	}
	listed := map[string]bool{}
	out := move.Measured{Total: m.Bytes(), HWM: m.HWM}
	for _, f := range m.Files {
		listed[f.Name] = true
		size, err := r.adoptFile(f, staged[f.Name], inc)
		if err != nil {
			return out, err
		}
		out.Missing += f.Size - size
		if f.Sealed && (size < f.Size || r.work.confirmed[f.Name] != f.Size) {
			out.Unconfirmed++
		}
	}
	for name := range staged {
		if listed[name] {
			continue
		}
		// Retention removed it at the source, or it was never part of this log.
		if err := r.work.staging.Remove(name); err != nil {
			return out, fmt.Errorf("remove staged %s: %w", name, err)
		}
		delete(r.work.confirmed, name)
		delete(r.work.identities, name)
	}
	r.work.manifest, r.work.incarnation = m, inc
	var err error
	out.Meta, err = encodeMeta(m)
	return out, err
}

// adoptFile returns how many staged bytes of a file count.
//
// Bytes from this incarnation and this very file are a prefix: what was once synced does not change. All others
// count up to the last whole block whose digest equals the source's, or whole when the lengths agree too.
func (r *run) adoptFile(want, have store.File, inc cluster.Incarnation) (cluster.Bytes, error) {
	keep := min(have.Size, want.Size)
	own := inc == r.work.incarnation && r.work.identities[want.Name] == want.Identity
	if want.Blocks != nil {
		keep = min(keep, samePrefix(want, have, own))
	} else if !own {
		// The source left digests out for a file that it was told is here; then it is not this one.
		keep = 0
	}
	if keep < have.Size {
		if err := r.work.staging.Truncate(want.Name, int64(keep)); err != nil {
			return 0, fmt.Errorf("cut staged %s: %w", want.Name, err)
		}
		delete(r.work.confirmed, want.Name)
	}
	r.work.identities[want.Name] = want.Identity
	return keep, nil
}

// samePrefix returns the length of the prefix that equals the source's by digests. The last block is part
// of it when it can be compared, or when own says that it needn't be.
func samePrefix(want, have store.File, own bool) cluster.Bytes {
	whole := min(have.Size, want.Size) / store.BlockSize
	for i := range whole {
		if have.Blocks[i] != want.Blocks[i] {
			return i * store.BlockSize
		}
	}
	switch {
	case own:
		return min(have.Size, want.Size)
	case have.Size == want.Size && len(have.Blocks) == len(want.Blocks) &&
		(len(have.Blocks) == int(whole) || have.Blocks[whole] == want.Blocks[whole]):
		return have.Size
	}
	return whole * store.BlockSize
}

// known lists the files whose digests the source need not send again.
func (r *run) known() []store.File {
	var out []store.File
	for _, f := range r.work.manifest.Files {
		if size, ok := r.work.confirmed[f.Name]; ok && size == f.Size && f.Sealed {
			out = append(out, store.File{Name: f.Name, Identity: f.Identity, Size: f.Size})
		}
	}
	return out
}

// finalManifest is the adopted manifest with the digests that the source left out: of files that were
// compared with the source's digests before.
func (r *run) finalManifest() store.Manifest {
	m := r.work.manifest
	m.Files = append([]store.File(nil), m.Files...)
	staged := map[string]store.File{}
	for _, f := range r.work.staging.Files() {
		staged[f.Name] = f
	}
	for i, f := range m.Files {
		if f.Blocks == nil && r.work.confirmed[f.Name] == f.Size {
			m.Files[i].Blocks = staged[f.Name].Blocks
		}
	}
	return m
}
