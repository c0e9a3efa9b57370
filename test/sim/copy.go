package sim

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// adopt makes m the manifest that the next pull works on, with the rules of package transfer: staged bytes that
// can't be a prefix of what m lists are cut off, and the rest is measured.
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
	for _, f := range r.work.staging.Files() {
		if listed[f.Name] {
			continue
		}
		if err := r.work.staging.Remove(f.Name); err != nil {
			return out, err
		}
		delete(r.work.confirmed, f.Name)
		delete(r.work.identities, f.Name)
	}
	r.work.manifest, r.work.incarnation = m, inc
	meta := m
	meta.Files = nil
	for _, f := range m.Files {
		f.Blocks = nil
		meta.Files = append(meta.Files, f)
	}
	var err error
	out.Meta, err = json.Marshal(meta)
	return out, err
}

func (r *run) adoptFile(want, have store.File, inc cluster.Incarnation) (cluster.Bytes, error) {
	keep := min(have.Size, want.Size)
	own := inc == r.work.incarnation && r.work.identities[want.Name] == want.Identity
	if want.Blocks != nil {
		keep = min(keep, samePrefix(want, have, own))
	} else if !own {
		keep = 0
	}
	if keep < have.Size {
		if err := r.work.staging.Truncate(want.Name, int64(keep)); err != nil {
			return 0, err
		}
		delete(r.work.confirmed, want.Name)
	}
	r.work.identities[want.Name] = want.Identity
	return keep, nil
}

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

// finalManifest is the adopted manifest with the digests that the source left out.
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

var errGone = errors.New("the source does not list it any more")

// pull stages what is missing of the adopted manifest. Sometimes a bit is flipped on the way.
func (r *run) pull(p *proc, compare bool) (cluster.Bytes, error) {
	var total cluster.Bytes
	for range 4 {
		damaged, n, err := r.pullRound(p, compare)
		total += n
		if errors.Is(err, errGone) && compare {
			return total, nil
		}
		if err != nil || damaged == nil {
			return total, err
		}
	}
	return total, errors.New("damaged again and again")
}

func (r *run) pullRound(p *proc, compare bool) (damaged error, n cluster.Bytes, err error) {
	for _, f := range r.work.manifest.Files {
		got, err := r.pullFile(p, f, compare)
		n += got
		switch {
		case cluster.ReasonOf(err) == cluster.ReasonCorrupt:
			delete(r.work.confirmed, f.Name)
			damaged = err
		case err != nil:
			return damaged, n, err
		}
	}
	return damaged, n, nil
}

func (r *run) staged(name string) store.File {
	for _, f := range r.work.staging.Files() {
		if f.Name == name {
			return f
		}
	}
	return store.File{}
}

func (r *run) pullFile(p *proc, f store.File, compare bool) (n cluster.Bytes, err error) {
	w := p.w
	for at := r.staged(f.Name).Size; at < f.Size; at = r.staged(f.Name).Size {
		size := int(min(cluster.Bytes(200+w.rng.IntN(4000)), f.Size-at))
		inc := r.work.incarnation
		a, ok := call(p, r.n.host, host(r.source), callTimeout, func(reply func(bytesRead)) {
			r.atSource(func(s *node) { reply(s.serveBytes(r.k(), inc, f.Name, f.Identity, int64(at), size)) })
		})
		switch {
		case !ok:
			return n, errUnknown
		case a.gone:
			return n, errGone
		case a.err != nil:
			return n, a.err
		case len(a.data) == 0:
			return n, errors.New("no bytes")
		}
		if w.permille(3) {
			a.data[w.rng.IntN(len(a.data))] ^= 1 << w.rng.IntN(8)
		}
		if err := r.work.staging.Write(f.Name, int64(at), a.data); err != nil {
			return n, err
		}
		n += cluster.Bytes(len(a.data))
	}
	if f.Blocks == nil || !compare || r.work.confirmed[f.Name] == f.Size {
		return n, nil
	}
	if err := r.work.staging.SyncAndCompare(bg, f); err != nil {
		if cluster.ReasonOf(err) == cluster.ReasonCorrupt {
			have := r.staged(f.Name)
			if keep := samePrefix(f, have, false); keep < have.Size {
				if terr := r.work.staging.Truncate(f.Name, int64(keep)); terr != nil {
					return n, terr
				}
			}
		}
		return n, fmt.Errorf("compare %s: %w", f.Name, err)
	}
	r.work.confirmed[f.Name] = f.Size
	return n, nil
}
