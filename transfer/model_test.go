package transfer_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/move"
)

// modelPlane is the replicated state machine of one partition, moved from a to b and no further.
type modelPlane struct {
	owner, target string
	epoch         cluster.Epoch
	move          cluster.MoveID
	next          cluster.MoveID
	handoff       cluster.Handoff
	granted       bool
	hash          cluster.NonceHash
	inc           cluster.Incarnation // registered incarnation of a
	dead          bool
	deadHWM       cluster.Offset
	outcomes      map[cluster.MoveID]cluster.OutcomeKind
}

func (p *modelPlane) end(kind cluster.OutcomeKind) {
	p.outcomes[p.move] = kind
	if kind != cluster.OutcomeCancelled {
		p.owner = "b"
	}
	p.target, p.move, p.handoff, p.granted = "", 0, 0, false
	p.epoch++
}

func (p *modelPlane) grant(m cluster.MoveID, inc cluster.Incarnation, hash cluster.NonceHash) handoff.Event {
	switch {
	case m != p.move || p.owner != "a" || p.dead || inc != p.inc:
		return handoff.GrantRefused{Message: "stale"}
	case p.granted && p.hash == hash:
	case p.granted:
		return handoff.GrantRefused{Message: "live"}
	default:
		p.handoff++
		p.granted, p.hash = true, hash
	}
	return handoff.Granted{Handoff: p.handoff}
}

// revoke returns the outcome; zero means revoked.
func (p *modelPlane) revoke(m cluster.MoveID, h cluster.Handoff) (cluster.OutcomeKind, bool) {
	if m != p.move {
		k, ok := p.outcomes[m]
		return k, ok
	}
	if h == p.handoff {
		p.granted = false
	}
	return 0, true
}

func (p *modelPlane) complete(m cluster.MoveID, h cluster.Handoff, n cluster.Nonce) move.Event {
	if m != p.move {
		if p.outcomes[m] == cluster.OutcomeFlipped {
			return move.FlipAnswered{Epoch: p.epoch}
		}
		return move.FlipRefused{Message: "over", Ended: true}
	}
	if !p.granted || h != p.handoff || n.Hash() != p.hash {
		return move.FlipRefused{Message: "revoked"}
	}
	p.end(cluster.OutcomeFlipped)
	return move.FlipAnswered{Epoch: p.epoch}
}

func (p *modelPlane) force(m cluster.MoveID, inc cluster.Incarnation, leo, hwm cluster.Offset) move.Event {
	if m != p.move {
		if p.outcomes[m] == cluster.OutcomeForced {
			return move.FlipAnswered{Epoch: p.epoch, Forced: true}
		}
		return move.FlipRefused{Message: "over", Ended: true}
	}
	if !p.dead || inc != p.inc || leo < max(hwm, p.deadHWM) {
		return move.FlipRefused{Message: "gate"}
	}
	p.end(cluster.OutcomeForced)
	return move.FlipAnswered{Epoch: p.epoch, Forced: true}
}

// modelSource is node a: a log of record numbers, all synced, and its outbound moves.
type modelSource struct {
	up, registered, lease bool
	inc                   cluster.Incarnation
	log                   []int
	open                  bool
	frozen                *token
	moves                 map[cluster.MoveID]*modelOut // durable as far as their keys go
}

type token struct {
	m cluster.MoveID
	h cluster.Handoff
}

type modelOut struct {
	s        handoff.State
	flying   handoff.Effect
	manifest []int
}

// modelDest is node b: its journal, staged and installed copies, and one move at a time.
type modelDest struct {
	s        move.State
	active   bool // a move runs
	flying   move.Effect
	saved    map[cluster.MoveID][]byte
	staged   map[cluster.MoveID][]int
	manifest []int
	waiting  bool // PrepareHandoff was sent, not answered
	// installed is the active place.
	installed *modelCopy
	open      bool
}

type modelCopy struct {
	m       cluster.MoveID
	h       cluster.Handoff
	pending bool
	log     []int
}

// modelWorld composes the two step functions with a network that delays and repeats, and with crashes.
type modelWorld struct {
	t     *rapid.T
	now   time.Duration
	set   cluster.Settings
	plane modelPlane
	a     modelSource
	b     modelDest
	// sent are commands that were sent and may be applied at any later time, any number of times.
	sent  []func()
	acked []int
	next  int
	nonce byte
	trace []string
	// told is the high watermark of a's last heartbeat.
	told cluster.Offset
	// mayDrop is what the latest read of b said.
	mayDrop bool
	bad     string
}

func newModelWorld(t *rapid.T) *modelWorld {
	w := &modelWorld{t: t, now: time.Second, set: cluster.DefaultSettings(), next: 1}
	w.set.ForcePromoteAfter = 20 * time.Second
	w.plane = modelPlane{owner: "a", next: 10, inc: 1, epoch: 1, outcomes: map[cluster.MoveID]cluster.OutcomeKind{}}
	w.a = modelSource{up: true, registered: true, lease: true, inc: 1, open: true, moves: map[cluster.MoveID]*modelOut{}}
	w.b = modelDest{saved: map[cluster.MoveID][]byte{}, staged: map[cluster.MoveID][]int{}}
	return w
}

func (w *modelWorld) log(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *modelWorld) violated(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, args...)
	}
}

// ---- the source ----

func (w *modelWorld) out(m cluster.MoveID, e handoff.Event) {
	o := w.a.moves[m]
	if o == nil {
		return
	}
	before := o.s.Phase
	var effects []handoff.Effect
	o.s, effects = handoff.Step(o.s, handoff.Input{Now: w.now, Jitter: 512, Event: e})
	w.log("a move %d: %s %+v: %s -> %s", m, handoff.Name(e), e, before, o.s.Phase)
	for _, x := range effects {
		switch x := x.(type) {
		case handoff.Answer:
			if w.b.waiting && w.b.active && w.b.s.MoveID == m {
				w.b.waiting = false
				w.b.manifest = slices.Clone(o.manifest)
				w.dest(move.FreezeGranted{
					Incarnation: o.s.Incarnation, Handoff: x.Handoff, Nonce: x.Nonce, HWM: cluster.Offset(len(o.manifest)),
				})
			}
		case handoff.Refuse:
			if w.b.waiting && w.b.active && w.b.s.MoveID == m {
				w.b.waiting = false
				w.dest(move.Failed{Message: x.Message})
			}
		case handoff.Wait:
		default:
			if o.flying != nil {
				w.violated("two effects of the source in flight: %s and %s", handoff.EffectName(o.flying), handoff.EffectName(x))
			}
			o.flying = x
		}
	}
}

// finishSource ends the effect in flight. fate: 0 done, 1 done and its answer lost, 2 sent and not applied yet.
func (w *modelWorld) finishSource(m cluster.MoveID, fate int) {
	o := w.a.moves[m]
	if o == nil || o.flying == nil || !w.a.up {
		return
	}
	x := o.flying
	o.flying = nil
	lost := func(apply func()) bool {
		w.sent = append(w.sent, apply)
		if fate == 1 {
			apply()
		}
		if fate != 0 {
			w.out(m, handoff.Failed{Message: "unknown"})
		}
		return fate != 0
	}
	switch x := x.(type) {
	case handoff.Grant:
		if !lost(func() { w.plane.grant(m, x.Incarnation, x.Nonce.Hash()) }) {
			w.out(m, w.plane.grant(m, x.Incarnation, x.Nonce.Hash()))
		}
	case handoff.Freeze:
		if !w.a.open || (w.a.frozen != nil && (w.a.frozen.m > m || w.a.frozen.m == m && w.a.frozen.h > x.Handoff)) {
			w.out(m, handoff.Failed{Message: "later freeze"})
			return
		}
		w.a.frozen = &token{m, x.Handoff}
		o.manifest = slices.Clone(w.a.log)
		w.out(m, handoff.Froze{Since: w.now})
	case handoff.Revoke:
		if lost(func() { w.plane.revoke(m, x.Handoff) }) {
			return
		}
		k, ok := w.plane.revoke(m, x.Handoff)
		switch {
		case !ok:
			w.out(m, handoff.Failed{Message: "forgotten"})
		case k == 0:
			w.out(m, handoff.Revoked{Handoff: x.Handoff})
		default:
			w.out(m, handoff.Ended{Flipped: k != cluster.OutcomeCancelled})
		}
	case handoff.Thaw:
		if w.a.frozen != nil && *w.a.frozen == (token{m, x.Handoff}) {
			w.a.frozen = nil
		}
		w.out(m, handoff.Thawed{})
	case handoff.Redirect:
		w.a.open = false
		w.out(m, handoff.Closed{})
	case handoff.ReadMove:
		if fate != 0 {
			w.out(m, handoff.Failed{Message: "unreachable"})
			return
		}
		v := handoff.MoveRead{View: handoff.ViewCancelled, Handoff: w.plane.handoff}
		switch {
		case w.plane.owner != "a":
			v.View = handoff.ViewAway
		case w.plane.move == m && w.plane.granted:
			v.View = handoff.ViewGranted
		case w.plane.move == m:
			v.View = handoff.ViewCurrent
		}
		w.out(m, v)
	case handoff.Unmark:
		// Invariant I9: a marker goes only with a cancelled move.
		if w.plane.outcomes[m] != cluster.OutcomeCancelled {
			w.violated("I9: the marker of move %d is removed, which was not cancelled", m)
		}
		w.out(m, handoff.Unmarked{})
		if o.s.Phase == handoff.Gone {
			delete(w.a.moves, m)
		}
	}
}

// append is one record from lock to acknowledgement; the freeze can't come in between.
func (w *modelWorld) append() {
	if !w.a.up || !w.a.open || w.a.frozen != nil {
		return
	}
	n := w.next
	w.next++
	w.a.log = append(w.a.log, n)
	if len(w.a.moves) > 0 && !w.a.lease {
		return // I10: not acknowledged
	}
	if w.plane.owner != "a" {
		w.violated("I1: a acknowledges record %d, the owner is %s", n, w.plane.owner)
	}
	w.acked = append(w.acked, n)
}

func (w *modelWorld) crashSource() {
	w.a.up, w.a.registered, w.a.lease, w.a.open, w.a.frozen = false, false, false, false, nil
	if w.b.waiting {
		w.b.waiting = false
		w.dest(move.Failed{Message: "connection lost"})
	}
}

func (w *modelWorld) bootSource() {
	w.a.up, w.a.inc = true, w.a.inc+1
	w.a.open = w.plane.owner == "a" // what a cached view would say
	var latest cluster.MoveID
	for m := range w.a.moves {
		w.a.moves[m] = &modelOut{s: handoff.Restored()}
		latest = max(latest, m)
	}
	if latest != 0 && w.a.open {
		w.a.frozen = &token{latest, handoff.FenceHandoff}
	}
}

// toldDead is what a heartbeat's answer does after a verdict: fence, new incarnation.
func (w *modelWorld) toldDead() {
	var latest cluster.MoveID
	for m := range w.a.moves {
		latest = max(latest, m)
	}
	if latest != 0 && w.a.open {
		w.a.frozen = &token{latest, handoff.FenceHandoff}
	}
	w.a.registered, w.a.inc, w.a.lease = false, w.a.inc+1, false
	for _, m := range w.sourceMoves() {
		w.out(m, handoff.Fence{})
	}
}

func (w *modelWorld) registerSource() {
	w.plane.inc, w.plane.dead, w.plane.deadHWM = w.a.inc, false, 0
	if w.plane.owner == "a" {
		w.plane.granted = false
	}
	w.a.registered, w.a.lease = true, true
	for _, m := range w.sourceMoves() {
		w.out(m, handoff.Registered{})
	}
	w.seeSource()
}

func (w *modelWorld) sourceMoves() []cluster.MoveID {
	out := make([]cluster.MoveID, 0, len(w.a.moves))
	for m := range w.a.moves {
		out = append(out, m)
	}
	slices.Sort(out)
	return out
}

// watchSource is the watch of a; it may come late or never.
func (w *modelWorld) watchSource() {
	if !w.a.up || !w.a.registered {
		return
	}
	for _, m := range w.sourceMoves() {
		if w.plane.owner != "a" {
			w.out(m, handoff.MovedAway{})
		} else if w.plane.move != m {
			w.out(m, handoff.Hinted{})
		}
	}
}

func (w *modelWorld) seeSource() {
	if w.b.active {
		w.dest(move.SourceSeen{Dead: w.plane.dead, Incarnation: w.plane.inc, HWM: w.plane.deadHWM})
	}
}
