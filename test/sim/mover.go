package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

var bg = context.Background()

// run is the shell around the destination's step function for one move.
type run struct {
	n      *node
	p      cluster.PartitionID
	move   cluster.MoveID
	source cluster.NodeID
	st     move.State
	timer  uint64
	busy   *proc
	work   work
}

// work is what an attempt knows of the source and of the staged copy.
type work struct {
	staging     store.Staging
	incarnation cluster.Incarnation
	manifest    store.Manifest
	identities  map[string]string
	confirmed   map[string]cluster.Bytes
}

// journaledMove is a move that was loaded and not yet taken up.
type journaledMove struct{ st move.State }

func (r *run) k() pm { return pm{r.p, r.move} }

func (n *node) loadMoves() {
	for _, b := range n.load("move/") {
		st, err := move.Decode(b)
		if err != nil {
			n.w.violated("I7", "%s: move journal: %v", n.id, err)
			return
		}
		list := append(n.journaled[st.Partition], journaledMove{st})
		slices.SortFunc(list, func(a, b journaledMove) int { return int(a.st.MoveID) - int(b.st.MoveID) })
		n.journaled[st.Partition] = list
	}
}

// resumeMoves takes up what journal and disk hold, once the node is registered (I7).
func (n *node) resumeMoves() {
	if n.resumed {
		return
	}
	n.resumed = true
	copies, err := n.store.Copies()
	if err != nil {
		n.w.violated("I7", "%s: list copies: %v", n.id, err)
	}
	for _, c := range copies {
		if c.Place != store.Active || c.Pending == nil {
			continue
		}
		known := n.runs[c.Partition] != nil && n.runs[c.Partition].move == c.Pending.MoveID
		for _, j := range n.journaled[c.Partition] {
			known = known || j.st.MoveID == c.Pending.MoveID
		}
		if !known {
			first := journaledMove{move.New(c.Partition, c.Pending.MoveID, "")}
			n.journaled[c.Partition] = append([]journaledMove{first}, n.journaled[c.Partition]...)
		}
	}
	for _, p := range sortedKeys(n.journaled, cluster.PartitionID.Compare) {
		n.startNext(p)
	}
}

// busyWith reports whether a move works on p here, or is journaled.
func (n *node) busyWith(p cluster.PartitionID) bool {
	return n.runs[p] != nil || len(n.journaled[p]) > 0
}

func (n *node) startNext(p cluster.PartitionID) {
	if n.runs[p] != nil {
		return
	}
	var st move.State
	if list := n.journaled[p]; len(list) > 0 {
		st = list[0].st
		n.journaled[p] = list[1:]
	} else if a, ok := n.next[p]; ok {
		delete(n.next, p)
		st = move.New(p, a.MoveID, a.Owner)
	} else {
		return
	}
	r := &run{n: n, p: p, move: st.MoveID, source: st.Source, st: st}
	r.forgetStaged()
	n.runs[p] = r
	started := move.Started{}
	if c, ok := n.activeCopy(p); ok && c.Identity == store.Identity(r.move) {
		started.Confirmed = c.Pending == nil
		if c.Pending != nil {
			started = move.Started{Installed: true, Handoff: c.Pending.Handoff}
		}
	}
	r.input(started)
	if v, ok := n.view.Nodes[r.source]; ok {
		r.observed(v)
	}
}

// observeMove is told of an assignment when the watch shows it.
func (n *node) observeMove(a cluster.Assignment) {
	p := a.Partition
	r := n.runs[p]
	if r != nil && (r.move == a.MoveID || a.Moving() && a.MoveID < r.move) {
		return
	}
	if a.Moving() && a.Target == n.id && a.Owner != n.id {
		known := slices.ContainsFunc(n.journaled[p], func(j journaledMove) bool { return j.st.MoveID == a.MoveID })
		if !known {
			n.next[p] = a
		}
		n.startNext(p)
		if now := n.runs[p]; now != nil && now.move != a.MoveID {
			r = now
		}
	} else {
		delete(n.next, p)
	}
	if r != nil {
		r.input(move.Hinted{})
	}
}

// observeGone is told that a partition does not exist any more.
func (n *node) observeGone(p cluster.PartitionID) {
	delete(n.next, p)
	if r := n.runs[p]; r != nil {
		r.input(move.Hinted{})
	}
	for _, o := range n.outsOf(p) {
		o.input(handoff.Hinted{})
	}
}

func (n *node) observeNode(v cluster.Node) {
	for _, p := range sortedKeys(n.runs, cluster.PartitionID.Compare) {
		if r := n.runs[p]; r != nil && r.source == v.ID {
			r.observed(v)
		}
	}
}

func (r *run) observed(v cluster.Node) {
	e := move.SourceSeen{Dead: v.Status == cluster.NodeDead, Incarnation: v.Incarnation}
	for _, h := range v.DeadHWMs {
		if h.Partition == r.p {
			e.HWM = h.Offset
		}
	}
	r.input(e)
}

func (r *run) forgetStaged() {
	r.work = work{identities: map[string]string{}, confirmed: map[string]cluster.Bytes{}}
}

func (r *run) release() error {
	if r.work.staging == nil {
		return nil
	}
	err := r.work.staging.Close()
	r.work.staging = nil
	return err
}

// input is one call of the step function.
func (r *run) input(e move.Event) {
	n := r.n
	before := r.st.Phase
	var effects []move.Effect
	r.st, effects = move.Step(r.st, move.Input{Now: n.clk.now(), Jitter: uint32(n.w.rng.IntN(1024)), Settings: n.view.Settings, Event: e})
	if before != r.st.Phase {
		n.w.log("%s in  %s move %d: %s: %s -> %s h=%d %s", n.id, r.p, r.move, move.Name(e), before, r.st.Phase, r.st.Handoff, r.st.LastError)
	}
	for _, x := range effects {
		r.perform(x)
	}
	if r.st.Phase == move.Done && n.runs[r.p] == r {
		if err := r.release(); err != nil {
			n.w.violated("I8", "%s: %v", n.id, err)
		}
		delete(n.runs, r.p)
		n.startNext(r.p)
	}
}

func (r *run) perform(x move.Effect) {
	n := r.n
	switch x := x.(type) {
	case move.Save:
		b, err := r.st.Encode()
		if err != nil {
			n.w.violated("I7", "%s: %v", n.id, err)
		}
		n.save(key("move", r.k()), b)
	case move.Forget:
		n.remove(key("move", r.k()))
	case move.Wait:
		r.timer++
		id, l := r.timer, n.life
		n.w.after(max(n.clk.until(x.Until), time.Millisecond), func() {
			if l.alive && r.timer == id && n.runs[r.p] == r {
				r.input(move.Ticked{})
			}
		})
	case move.Interrupt:
		if b := r.busy; b != nil && !b.running {
			r.busy = nil
			b.kill()
			l := n.life
			n.w.after(0, func() {
				if l.alive {
					r.input(move.Failed{Message: "interrupted"})
				}
			})
		}
	default:
		r.busy = n.life.spawn(func(p *proc) {
			if n.w.permille(40) {
				p.sleep(n.w.between(0, 6*time.Second)) // a stalled disk or process
			}
			n.w.ops.mayStrike(n, r.source, x)
			e := r.effect(p, x)
			r.busy = nil
			r.input(e)
		})
	}
}

func (r *run) effect(p *proc, x move.Effect) move.Event {
	n := r.n
	switch x := x.(type) {
	case move.Begin:
		return orFailed(r.begin(p))
	case move.Measure:
		a, ok := call(p, n.host, host(r.source), callTimeout, func(reply func(begun)) {
			r.atSource(func(s *node) { reply(s.serveManifest(r.k(), r.known())) })
		})
		return orFailed(r.measured(a, ok))
	case move.CopyPass:
		start := n.clk.now()
		b, err := r.pull(p, true)
		return orFailed(move.Copied{Bytes: b, Elapsed: n.clk.now() - start}, err)
	case move.PrepareHandoff:
		return orFailed(r.prepare(p, x.TTL))
	case move.Drain:
		b, err := r.pull(p, false)
		return orFailed(move.Drained{Read: b}, err)
	case move.Verify:
		b, err := r.work.staging.Finalize(bg, r.finalManifest())
		if err != nil {
			_ = r.release() // what differs was cut off; nothing that was believed of it counts
		}
		return orFailed(move.Verified{Read: b}, err)
	case move.Install:
		err := r.work.staging.Install(store.Pending{MoveID: r.move, Handoff: x.Handoff})
		if err == nil {
			r.work.staging = nil
		}
		return orFailed(move.Installed{}, err)
	case move.CompleteMove:
		return r.resolver().Complete(p.ctx(), x)
	case move.ForceComplete:
		return r.resolver().Force(p.ctx(), x)
	case move.RevokeHandoff:
		return r.resolver().Revoke(p.ctx(), x)
	case move.Rollback:
		n.w.checkRollback(n, r.k())
		err := r.release()
		if err == nil {
			err = n.store.Rollback(r.p, r.move)
		}
		if err == nil {
			r.forgetStaged()
		}
		return orFailed(move.RolledBack{}, err)
	case move.Promote:
		return orFailed(r.promote(x))
	case move.ConfirmFlip:
		n.w.checkConfirm(n, r.k())
		return orFailed(move.Confirmed{}, n.store.ConfirmFlip(r.p, r.move))
	case move.Open:
		if n.held(r.p) {
			return move.Opened{}
		}
		err := n.store.Open(r.p, x.Epoch)
		if err == nil {
			n.epochs[r.p] = max(n.epochs[r.p], x.Epoch)
			n.w.checkArrived(n, r.k(), r.st.Forced)
		}
		return orFailed(move.Opened{}, err)
	case move.Report:
		if err := (control{n}).ReportOpened(p.ctx(), r.p, x.Epoch, r.move, nil); err != nil && !transfer.Definite(err) {
			return orFailed(nil, err)
		}
		n.w.net.send(n.host, host(r.source), func() { r.atSource(func(s *node) { s.notified(r.k()) }) })
		return move.Reported{}
	case move.ReadMove:
		return orFailed(r.resolver().Read(p.ctx()))
	case move.DropStaging:
		n.w.checkDrop(n, r.k())
		err := r.release()
		if err == nil {
			err = n.store.DropStaging(r.p, r.move)
		}
		if err == nil {
			n.remove(key("promoted", r.k()))
		}
		return orFailed(move.Dropped{}, err)
	}
	return move.Failed{Message: "unknown effect"}
}

func orFailed(e move.Event, err error) move.Event {
	if err == nil {
		return e
	}
	return move.Failed{
		Message: err.Error(), Hint: cluster.ReasonOf(err) == cluster.ReasonMoveMismatch, Blocked: errors.Is(err, syscall.ENOSPC),
	}
}

// atSource runs fn at the source, if that lives.
func (r *run) atSource(fn func(s *node)) {
	if s := r.n.w.node(r.source); s != nil && s.up() {
		fn(s)
	}
}

func (r *run) begin(p *proc) (move.Event, error) {
	n := r.n
	a, ok := call(p, n.host, host(r.source), 2*callTimeout, func(reply func(begun)) {
		r.atSource(func(s *node) { s.life.spawn(func(p *proc) { reply(s.serveBegin(p, r.k(), n.id)) }) })
	})
	switch {
	case !ok:
		return nil, errUnknown
	case a.err != nil:
		return nil, a.err
	}
	if err := r.stage(p); err != nil {
		return nil, err
	}
	e, err := r.adopt(a.manifest, a.inc)
	return move.Begun{Incarnation: a.inc, Measured: e}, err
}

func (r *run) measured(a begun, ok bool) (move.Event, error) {
	switch {
	case !ok:
		return nil, errUnknown
	case a.err != nil:
		return nil, a.err
	case a.inc != r.work.incarnation:
		return nil, fmt.Errorf("source is in incarnation %d now", a.inc)
	}
	return r.adopt(a.manifest, a.inc)
}

func (r *run) prepare(p *proc, ttl time.Duration) (move.Event, error) {
	f, ok := call(p, r.n.host, host(r.source), 3*callTimeout, func(reply func(final)) {
		r.atSource(func(s *node) { s.servePrepare(r.k(), ttl, r.known(), reply) })
	})
	switch {
	case !ok:
		return nil, errUnknown
	case f.err != nil:
		return nil, f.err
	case f.inc != r.work.incarnation:
		return nil, fmt.Errorf("source is in incarnation %d now", f.inc)
	}
	m, err := r.adopt(f.manifest, f.inc)
	return move.FreezeGranted{Incarnation: f.inc, Handoff: f.handoff, Nonce: f.nonce, HWM: f.manifest.HWM, FrozenFor: f.frozen, Meta: m.Meta}, err
}

// stage opens the staging directory, and sets a stale copy of an earlier ownership aside.
func (r *run) stage(p *proc) error {
	n := r.n
	if r.work.staging != nil {
		return nil
	}
	if c, ok := n.activeCopy(r.p); ok && c.Identity != store.Identity(r.move) {
		if c.Pending != nil {
			return fmt.Errorf("the copy of move %d waits for its flip", c.Pending.MoveID)
		}
		v, err := control{n}.ReadMove(p.ctx(), r.p, r.move)
		if err != nil {
			return err
		}
		if v.State != transfer.MoveCurrent || v.Assignment == nil || v.Assignment.Owner == n.id {
			return cluster.Errorf(cluster.ReasonMoveMismatch, "move %d is not current", r.move)
		}
		if err := n.store.Quarantine(r.p, c.Identity); err != nil {
			return err
		}
	}
	s, err := n.store.Stage(bg, r.p, r.move)
	if err != nil {
		return err
	}
	r.forgetStaged()
	r.work.staging = s
	return nil
}

// promoted says what a promoted copy is made of.
type promoted struct {
	LEO   cluster.Offset
	Files []store.File
}

func (r *run) promote(x move.Promote) (move.Event, error) {
	n := r.n
	m := r.work.manifest
	if r.work.staging == nil || r.work.incarnation == 0 {
		m = store.Manifest{}
		if err := json.Unmarshal(x.Meta, &m); err != nil {
			return nil, err
		}
	}
	if r.work.staging == nil {
		if c, ok := n.activeCopy(r.p); ok && c.Identity != store.Identity(r.move) {
			return nil, fmt.Errorf("a stale copy is in the way")
		}
		s, err := n.store.Stage(bg, r.p, r.move)
		if err != nil {
			return nil, err
		}
		r.forgetStaged()
		r.work.staging = s
	}
	leo, err := r.work.staging.FinalizeForced(bg, m)
	if err != nil {
		return nil, err
	}
	rec := promoted{LEO: leo}
	for _, f := range m.Files {
		if slices.ContainsFunc(r.work.staging.Files(), func(s store.File) bool { return s.Name == f.Name }) {
			f.Blocks = nil
			rec.Files = append(rec.Files, f)
		}
	}
	b, err := json.Marshal(rec)
	if err == nil {
		n.save(key("promoted", r.k()), b)
	}
	return move.Promotable{LEO: leo}, err
}
