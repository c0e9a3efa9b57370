package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// outbound is the shell around the source's step function for one marker.
type outbound struct {
	n     *node
	k     pm
	mark  transfer.Marker
	st    handoff.State
	timer uint64

	waiters  []func(final)
	known    []store.File
	manifest store.Manifest
	files    map[string]store.File
	lastRead time.Duration
	epoch    cluster.Epoch
}

// final is the answer to PrepareHandoff.
type final struct {
	inc      cluster.Incarnation
	handoff  cluster.Handoff
	nonce    cluster.Nonce
	manifest store.Manifest
	frozen   time.Duration
	err      error
}

func key(kind string, k pm) string {
	return fmt.Sprintf("%s/%d/%d/%d", kind, k.p.Topic, k.p.Index, k.m)
}

func (n *node) saveMarker(m transfer.Marker) {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // plain fields
	}
	n.save(key("outbound", pm{m.Partition, m.MoveID}), b)
}

// loadMarkers begins every marked copy fenced (I7).
func (n *node) loadMarkers() {
	for _, b := range n.load("outbound/") {
		var m transfer.Marker
		if err := json.Unmarshal(b, &m); err != nil {
			panic(err)
		}
		n.addOut(m, handoff.Restored(), 0)
	}
}

func (n *node) addOut(m transfer.Marker, st handoff.State, epoch cluster.Epoch) *outbound {
	o := &outbound{n: n, k: pm{m.Partition, m.MoveID}, mark: m, st: st, epoch: epoch, files: map[string]store.File{}}
	n.outs[o.k] = o
	n.store.SetOutbound(m.Partition, true)
	return o
}

func (n *node) outsOf(p cluster.PartitionID) []*outbound {
	var out []*outbound
	for _, k := range sortedKeys(n.outs, comparePM) {
		if k.p == p {
			out = append(out, n.outs[k])
		}
	}
	return out
}

// fence freezes every marked copy, before the next incarnation is taken.
func (n *node) fence() {
	latest := map[cluster.PartitionID]cluster.MoveID{}
	for _, k := range sortedKeys(n.outs, comparePM) {
		if c, ok := n.activeCopy(k.p); ok && c.Pending == nil && n.outs[k].mark.Identity == c.Identity {
			latest[k.p] = max(latest[k.p], k.m)
		}
	}
	for _, p := range sortedKeys(latest, cluster.PartitionID.Compare) {
		token := store.FreezeToken{MoveID: latest[p], Handoff: handoff.FenceHandoff}
		c, _ := n.activeCopy(p)
		var err error
		if c.Open {
			err = n.store.Freeze(context.Background(), p, token)
		} else if a, ok := n.view.Assignments[p]; ok && a.Owner == n.id {
			if err = n.store.OpenFrozen(p, a.OwnerEpoch, token); n.fs.full {
				err = nil // it stays closed
			}
		}
		if err != nil {
			n.w.violated("I7", "%s: fence %s: %v", n.id, p, err)
		}
	}
	for _, k := range sortedKeys(n.outs, comparePM) {
		n.outs[k].input(handoff.Fence{})
	}
}

func (n *node) broadcastRegistered() {
	for _, k := range sortedKeys(n.outs, comparePM) {
		if o := n.outs[k]; o != nil {
			o.input(handoff.Registered{})
		}
	}
}

// observeOut is told of an assignment when the watch shows it.
func (n *node) observeOut(a cluster.Assignment) {
	if a.Epoch < n.seenEpoch[a.Partition] {
		return
	}
	n.seenEpoch[a.Partition] = a.Epoch
	for _, o := range n.outsOf(a.Partition) {
		switch {
		case a.Owner != n.id && o.epoch != 0 && a.Epoch > o.epoch:
			o.input(handoff.MovedAway{})
		case a.Owner != n.id || a.MoveID != o.k.m:
			o.input(handoff.Hinted{})
		}
	}
}

func (o *outbound) usable() error {
	switch o.st.Phase {
	case handoff.Redirecting, handoff.Flipped, handoff.Unmarking, handoff.Gone:
		return cluster.Errorf(cluster.ReasonMoveMismatch, "move %d is over", o.k.m)
	case handoff.Fenced:
		return cluster.Errorf(cluster.ReasonNoLeader, "fenced")
	default:
		return nil
	}
}

func (n *node) notRegistered() error {
	if n.registered {
		return nil
	}
	// Invariant I7: before its registration the node neither begins nor freezes.
	return cluster.Errorf(cluster.ReasonNoLeader, "%s is not registered", n.id)
}

type begun struct {
	inc      cluster.Incarnation
	manifest store.Manifest
	err      error
}

// serveBegin makes the outbound marker durable and describes the copy.
func (n *node) serveBegin(p *proc, k pm, dest cluster.NodeID) begun {
	if err := n.notRegistered(); err != nil {
		return begun{err: err}
	}
	inc := n.inc
	o := n.outs[k]
	if o == nil {
		v, err := control{n}.ReadMove(p.ctx(), k.p, k.m)
		if err != nil {
			return begun{err: err}
		}
		a := v.Assignment
		if a == nil || v.State != transfer.MoveCurrent || a.Owner != n.id || a.Target != dest {
			return begun{err: cluster.Errorf(cluster.ReasonMoveMismatch, "move %d is not current", k.m)}
		}
		if o = n.outs[k]; o == nil {
			c, ok := n.activeCopy(k.p)
			switch {
			case !ok || c.Pending != nil || !c.Open:
				return begun{err: cluster.Errorf(cluster.ReasonNotOwner, "%s is not open here", k.p)}
			case cluster.MoveID(c.Identity) >= k.m:
				return begun{err: cluster.Errorf(cluster.ReasonMoveMismatch, "older than the copy")}
			}
			m := transfer.Marker{Partition: k.p, MoveID: k.m, Destination: dest, Identity: c.Identity}
			n.saveMarker(m)
			o = n.addOut(m, handoff.New(), a.Epoch)
			n.w.log("%s marks %s for move %d", n.id, k.p, k.m)
		}
	}
	if err := o.usable(); err != nil {
		return begun{err: err}
	}
	m, err := n.store.Manifest(k.p, nil)
	if err == nil && (!n.registered || n.inc != inc) {
		err = n.notRegistered()
	}
	o.remember(m)
	return begun{inc, m, err}
}

func (o *outbound) remember(m store.Manifest) {
	clear(o.files)
	for _, f := range m.Files {
		o.files[f.Name] = f
	}
}

func (n *node) begunOut(k pm) (*outbound, error) {
	if err := n.notRegistered(); err != nil {
		return nil, err
	}
	o := n.outs[k]
	if o == nil {
		return nil, cluster.Errorf(cluster.ReasonMoveMismatch, "move %d was not begun", k.m)
	}
	return o, o.usable()
}

func (n *node) serveManifest(k pm, known []store.File) begun {
	o, err := n.begunOut(k)
	if err != nil {
		return begun{err: err}
	}
	m, err := n.store.Manifest(k.p, known)
	if err == nil {
		o.remember(m)
	}
	return begun{n.inc, m, err}
}

func (n *node) servePrepare(k pm, ttl time.Duration, known []store.File, reply func(final)) {
	o, err := n.begunOut(k)
	if err != nil {
		reply(final{err: err})
		return
	}
	e := handoff.Prepared{Incarnation: n.inc, TTL: ttl}
	for i := range e.Nonce {
		e.Nonce[i] = byte(n.w.rng.Uint32())
	}
	o.waiters, o.known = append(o.waiters, reply), known
	o.input(e)
}

type bytesRead struct {
	data []byte
	gone bool
	err  error
}

// serveBytes is a bulk read: only what the latest manifest lists, of this incarnation and this very file.
func (n *node) serveBytes(k pm, inc cluster.Incarnation, name, identity string, at int64, size int) bytesRead {
	o, err := n.begunOut(k)
	if err == nil && n.inc != inc {
		err = cluster.Errorf(cluster.ReasonStaleIncarnation, "this is incarnation %d", n.inc)
	}
	if err != nil {
		return bytesRead{err: err}
	}
	f, ok := o.files[name]
	switch {
	case !ok:
		return bytesRead{gone: true}
	case f.Identity != identity:
		return bytesRead{err: cluster.Errorf(cluster.ReasonStaleIncarnation, "another file")}
	}
	r, err := n.store.OpenFile(k.p, name)
	if err != nil {
		return bytesRead{gone: cluster.ReasonOf(err) == cluster.ReasonNotFound, err: err}
	}
	buf := make([]byte, min(int64(size), r.Size()-at))
	_, err = r.ReadAt(buf, at)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	o.lastRead = n.clk.now()
	return bytesRead{data: buf, err: err}
}

// input is one call of the step function.
func (o *outbound) input(e handoff.Event) { o.apply(o.n.clk.now(), e) }

func (o *outbound) apply(now time.Duration, e handoff.Event) {
	before := o.st.Phase
	var effects []handoff.Effect
	o.st, effects = handoff.Step(o.st, handoff.Input{Now: now, Jitter: uint32(o.n.w.rng.IntN(1024)), Event: e})
	if before != o.st.Phase {
		o.n.w.log("%s out %s move %d: %s: %s -> %s h=%d %s", o.n.id, o.k.p, o.k.m, handoff.Name(e), before, o.st.Phase, o.st.Handoff, o.st.LastError)
	}
	for _, x := range effects {
		o.perform(x)
	}
	if o.st.Phase == handoff.Gone {
		o.answer(final{err: cluster.Errorf(cluster.ReasonNoLeader, "ended")})
	}
}

func (o *outbound) answer(f final) {
	for _, reply := range o.waiters {
		reply(f)
	}
	o.waiters = nil
}

func (o *outbound) perform(x handoff.Effect) {
	n := o.n
	switch x := x.(type) {
	case handoff.Answer:
		o.answer(final{inc: o.st.Incarnation, handoff: x.Handoff, nonce: x.Nonce, manifest: o.manifest, frozen: x.FrozenFor})
	case handoff.Refuse:
		o.answer(final{err: cluster.Errorf(cluster.ReasonHandoffRevoked, "no handoff: %s", x.Message)})
	case handoff.Wait:
		o.timer++
		id, l := o.timer, n.life
		n.w.after(max(n.clk.until(x.Until), time.Millisecond), func() {
			if l.alive && o.timer == id && n.outs[o.k] == o {
				if o.lastRead > o.st.LastProgress {
					o.apply(o.lastRead, handoff.BytesRead{})
				}
				o.input(handoff.Ticked{})
			}
		})
	default:
		n.life.spawn(func(p *proc) { o.input(o.effect(p, x)) })
	}
}

func (o *outbound) effect(p *proc, x handoff.Effect) handoff.Event {
	n, failed := o.n, func(err error) handoff.Event { return handoff.Failed{Message: err.Error()} }
	switch x := x.(type) {
	case handoff.Grant:
		h, err := control{n}.GrantHandoff(p.ctx(), o.k.p, o.k.m, x.Incarnation, x.Nonce.Hash())
		switch {
		case err == nil:
			return handoff.Granted{Handoff: h}
		case transfer.Definite(err):
			return handoff.GrantRefused{Message: err.Error()}
		}
		return failed(err)
	case handoff.Freeze:
		since := n.clk.now()
		err := n.store.Freeze(context.Background(), o.k.p, store.FreezeToken{MoveID: o.k.m, Handoff: x.Handoff})
		if err == nil {
			o.manifest, err = n.store.Manifest(o.k.p, o.known)
		}
		if err != nil {
			return failed(err)
		}
		o.remember(o.manifest)
		n.w.book.froze(n, o.k, x.Handoff)
		return handoff.Froze{Since: since}
	case handoff.Revoke:
		return o.revoke(p, x)
	case handoff.Thaw:
		n.w.checkThaw(n, o.k, x.Handoff)
		if err := n.store.Thaw(o.k.p, store.FreezeToken{MoveID: o.k.m, Handoff: x.Handoff}); err != nil {
			return failed(err)
		}
		return handoff.Thawed{}
	case handoff.Redirect:
		if c, ok := n.activeCopy(o.k.p); ok && c.Identity == o.mark.Identity {
			if err := n.store.Close(o.k.p); err != nil {
				return failed(err)
			}
		}
		return handoff.Closed{}
	case handoff.ReadMove:
		return o.read(p)
	case handoff.Unmark:
		if err := (control{n}).ReportReclaimed(p.ctx(), o.k.p, o.k.m); err != nil && !transfer.Definite(err) {
			return failed(err)
		}
		n.dropMarker(o.k)
		return handoff.Unmarked{}
	}
	return handoff.Failed{Message: "unknown effect"}
}

// dropMarker removes a marker, with the last one the store's knowledge too.
func (n *node) dropMarker(k pm) {
	n.remove(key("outbound", k))
	delete(n.outs, k)
	if len(n.outsOf(k.p)) == 0 {
		n.store.SetOutbound(k.p, false)
	}
}

func (o *outbound) revoke(p *proc, x handoff.Revoke) handoff.Event {
	r, err := control{o.n}.RevokeHandoff(p.ctx(), o.k.p, o.k.m, x.Handoff, "")
	switch {
	case err != nil && !transfer.Definite(err):
		return handoff.Failed{Message: err.Error()}
	case err != nil:
		view, ok := o.read(p).(handoff.MoveRead)
		if ok && view.View == handoff.ViewAway {
			return handoff.Ended{Flipped: true}
		}
		if ok && view.View == handoff.ViewCancelled {
			return handoff.Ended{}
		}
		return handoff.Failed{Message: err.Error()}
	case r.Outcome != nil:
		return handoff.Ended{Flipped: r.Outcome.Kind != cluster.OutcomeCancelled}
	}
	return handoff.Revoked{Handoff: x.Handoff}
}

func (o *outbound) read(p *proc) handoff.Event {
	v, err := control{o.n}.ReadMove(p.ctx(), o.k.p, o.k.m)
	if err != nil {
		return handoff.Failed{Message: err.Error()}
	}
	a := v.Assignment
	taken := v.Outcome != nil && v.Outcome.Kind != cluster.OutcomeCancelled
	switch {
	case a == nil || taken || a.Owner != o.n.id:
		return handoff.MoveRead{View: handoff.ViewAway}
	case v.State != transfer.MoveCurrent:
		return handoff.MoveRead{View: handoff.ViewCancelled}
	}
	o.epoch = max(o.epoch, a.Epoch)
	if a.Granted {
		return handoff.MoveRead{View: handoff.ViewGranted, Handoff: a.Handoff}
	}
	return handoff.MoveRead{View: handoff.ViewCurrent, Handoff: a.Handoff}
}
