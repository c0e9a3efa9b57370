package transfer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/move"
)

// ---- the destination of modelWorld ----

func (w *modelWorld) dest(e move.Event) {
	before := w.b.s.Phase
	var effects []move.Effect
	w.b.s, effects = move.Step(w.b.s, move.Input{Now: w.now, Jitter: 512, Settings: w.set, Event: e})
	w.log("b move %d: %s %+v: %s -> %s", w.b.s.MoveID, move.Name(e), e, before, w.b.s.Phase)
	for _, x := range effects {
		switch x := x.(type) {
		case move.Save:
			b, err := w.b.s.Encode()
			if err != nil {
				w.violated("encode: %v", err)
			}
			w.b.saved[w.b.s.MoveID] = b
		case move.Forget:
			delete(w.b.saved, w.b.s.MoveID)
			w.b.active = false
		case move.Wait:
		case move.Interrupt:
			if w.b.waiting {
				w.b.waiting = false
				w.dest(move.Failed{Message: "interrupted"})
			}
		default:
			if w.b.flying != nil {
				w.violated("two effects of the destination in flight: %s and %s", move.EffectName(w.b.flying), move.EffectName(x))
			}
			w.b.flying = x
		}
	}
}

// reach says whether b can talk to a about a move.
func (w *modelWorld) reach() bool { return w.a.up && w.a.registered }

func (w *modelWorld) finishDest(fate int) {
	x := w.b.flying
	if !w.b.active || x == nil || w.b.waiting {
		return
	}
	w.b.flying = nil
	m := w.b.s.MoveID
	failed := move.Failed{Message: "no luck"}
	command := func(apply func() move.Event) {
		w.sent = append(w.sent, func() { apply() })
		switch fate {
		case 0:
			w.dest(apply())
		case 1:
			apply()
			w.dest(move.OutcomeUnknown{Message: "lost"})
		default:
			w.dest(move.OutcomeUnknown{Message: "not yet"})
		}
	}
	switch x := x.(type) {
	case move.CompleteMove:
		c := w.b.installed
		if c == nil || c.m != m || c.h != x.Handoff || !c.pending {
			w.violated("I5: CompleteMove of move %d handoff %d without that copy installed", m, x.Handoff)
		}
		command(func() move.Event { return w.plane.complete(m, x.Handoff, x.Nonce) })
	case move.ForceComplete:
		if w.b.installed == nil || len(w.b.installed.log) != int(x.LEO) {
			w.violated("I5: ForceCompleteMove to %d without that copy installed", x.LEO)
		}
		command(func() move.Event { return w.plane.force(m, x.Incarnation, x.LEO, x.ReadHWM) })
	case move.RevokeHandoff:
		command(func() move.Event {
			k, ok := w.plane.revoke(m, x.Handoff)
			if ok && k != 0 && k != cluster.OutcomeCancelled {
				return move.FlipAnswered{Epoch: w.plane.epoch, Forced: k == cluster.OutcomeForced}
			}
			return move.Revoked{Ended: k != 0 || !ok}
		})
	default:
		if fate == 2 {
			w.dest(failed)
			return
		}
		w.local(m, x, failed)
	}
}

// local performs the effects that are no commands.
func (w *modelWorld) local(m cluster.MoveID, x move.Effect, failed move.Event) {
	b := &w.b
	switch x := x.(type) {
	case move.Begin:
		if !w.reach() || !w.a.open || w.plane.move != m || w.plane.owner != "a" {
			w.dest(failed)
			return
		}
		if w.a.moves[m] == nil {
			w.a.moves[m] = &modelOut{s: handoff.New()}
		} else if p := w.a.moves[m].s.Phase; p == handoff.Fenced || p >= handoff.Redirecting {
			w.dest(failed)
			return
		}
		if len(b.staged[m]) > len(w.a.log) || !slices.Equal(b.staged[m], w.a.log[:len(b.staged[m])]) {
			b.staged[m] = nil
		}
		b.staged[m] = slices.Clone(b.staged[m])
		w.dest(move.Begun{Incarnation: w.a.inc, Measured: w.measured(m)})
	case move.Measure:
		if !w.reach() || w.a.inc != b.s.SourceIncarnation {
			w.dest(failed)
			return
		}
		w.dest(w.measured(m))
	case move.CopyPass:
		if !w.reach() || w.a.inc != b.s.SourceIncarnation {
			w.dest(failed)
			return
		}
		n := len(w.a.log) - len(b.staged[m])
		b.staged[m] = slices.Clone(w.a.log)
		w.dest(move.Copied{Bytes: cluster.Bytes(n), Elapsed: time.Second})
	case move.PrepareHandoff:
		if !w.reach() || w.a.moves[m] == nil {
			w.dest(failed)
			return
		}
		w.nonce++
		b.waiting = true
		w.out(m, handoff.Prepared{Nonce: cluster.Nonce{w.nonce, 7}, Incarnation: w.a.inc, TTL: x.TTL})
	case move.Drain:
		if !w.reach() || w.a.inc != b.s.SourceIncarnation {
			w.dest(failed)
			return
		}
		b.staged[m] = slices.Clone(b.manifest)
		w.dest(move.Drained{})
	case move.Verify:
		if !slices.Equal(b.staged[m], b.manifest) {
			w.dest(failed)
			return
		}
		w.dest(move.Verified{})
	case move.Install:
		if b.installed != nil {
			w.violated("the place is taken by move %d", b.installed.m)
		}
		b.installed = &modelCopy{m: m, h: x.Handoff, pending: true, log: b.staged[m]}
		delete(b.staged, m)
		w.dest(move.Installed{})
	case move.Rollback:
		if b.installed != nil {
			if w.plane.owner == "b" {
				w.violated("I8: the copy that owns is rolled back")
			}
			b.staged[m] = b.installed.log
			b.installed = nil
		}
		w.dest(move.RolledBack{})
	case move.Promote:
		w.dest(move.Promotable{LEO: cluster.Offset(len(b.staged[m]))})
	case move.ConfirmFlip:
		if b.installed == nil || w.plane.owner != "b" {
			w.violated("I8: a flip is confirmed that is not committed")
			return
		}
		b.installed.pending = false
		w.dest(move.Confirmed{})
	case move.Open:
		b.open = true
		if w.plane.owner != "b" {
			w.violated("I1: b opens, the owner is %s", w.plane.owner)
		}
		w.dest(move.Opened{})
	case move.Report:
		for _, o := range w.sourceMoves() {
			w.out(o, handoff.Hinted{})
		}
		w.dest(move.Reported{})
	case move.ReadMove:
		k := w.plane.outcomes[m]
		w.mayDrop = w.plane.move != m && !(w.plane.dead && w.plane.owner == "a")
		w.dest(move.MoveRead{
			Current: w.plane.move == m, Mine: k != 0 && k != cluster.OutcomeCancelled, Epoch: w.plane.epoch,
			Forced: k == cluster.OutcomeForced, OwnerDead: w.plane.dead && w.plane.owner == "a",
		})
	case move.DropStaging:
		if !w.mayDrop {
			w.violated("I9: staging of move %d goes, but no read said that it is over and its owner alive", m)
		}
		delete(b.staged, m)
		w.dest(move.Dropped{})
	}
}

func (w *modelWorld) measured(m cluster.MoveID) move.Measured {
	return move.Measured{
		Total: cluster.Bytes(len(w.a.log)), Missing: cluster.Bytes(len(w.a.log) - len(w.b.staged[m])),
		HWM: cluster.Offset(len(w.a.log)),
	}
}

func (w *modelWorld) crashDest() {
	w.b.active, w.b.flying, w.b.waiting, w.b.manifest, w.b.open = false, nil, false, nil, false
}

// runDest takes up the oldest move that b has something of, or the present one.
func (w *modelWorld) runDest() {
	if w.b.active {
		return
	}
	var ids []cluster.MoveID
	for m := range w.b.saved {
		ids = append(ids, m)
	}
	slices.Sort(ids)
	switch {
	case len(ids) > 0:
		s, err := move.Decode(w.b.saved[ids[0]])
		if err != nil {
			w.violated("decode: %v", err)
			return
		}
		w.b.s = s
	case w.plane.move != 0:
		w.b.s = move.New(cluster.PartitionID{Topic: 3}, w.plane.move, "a")
	default:
		if c := w.b.installed; c != nil && !c.pending && w.plane.owner == "b" {
			w.b.open = true
		}
		return
	}
	w.b.active = true
	e := move.Started{}
	if c := w.b.installed; c != nil && c.m == w.b.s.MoveID {
		e = move.Started{Installed: c.pending, Confirmed: !c.pending, Handoff: c.h}
	}
	w.dest(e)
	w.seeSource()
}

// check is what holds after every action.
func (w *modelWorld) check() {
	if w.bad == "" {
		w.checkRecords()
	}
	if w.bad != "" {
		w.t.Fatalf("%s\n%s", w.bad, strings.Join(w.trace[max(0, len(w.trace)-60):], "\n"))
	}
}

// Invariant I2: every acknowledged record is in the owner's copy, or, after a promotion, in the copy that the
// source keeps for salvage.
func (w *modelWorld) checkRecords() {
	have := map[int]bool{}
	forced := false
	for _, k := range w.plane.outcomes {
		forced = forced || k == cluster.OutcomeForced
	}
	if w.plane.owner == "a" || forced {
		for _, n := range w.a.log {
			have[n] = true
		}
	}
	if w.plane.owner == "b" {
		if w.b.installed == nil {
			w.violated("I5, I8: b owns and has no installed copy")
			return
		}
		for _, n := range w.b.installed.log {
			have[n] = true
		}
	}
	for _, n := range w.acked {
		if !have[n] {
			w.violated("I2: record %d was acknowledged and is not at the owner %s", n, w.plane.owner)
		}
	}
}

func (w *modelWorld) setTarget() {
	if w.plane.owner != "a" || w.plane.move != 0 || w.plane.dead || w.plane.next > 14 {
		return
	}
	w.plane.move, w.plane.target = w.plane.next, "b"
	w.plane.next++
	w.plane.epoch++
	w.log("ctl: move %d", w.plane.move)
}

// actions are what may happen at any time.
func (w *modelWorld) actions() map[string]func(*rapid.T) {
	fate := func(t *rapid.T) int { return rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "fate") }
	finish := func(t *rapid.T) {
		for _, m := range w.sourceMoves() {
			w.finishSource(m, fate(t))
		}
	}
	return map[string]func(*rapid.T){
		"":           func(*rapid.T) { w.check() },
		"append":     func(*rapid.T) { w.append() },
		"source":     finish,
		"source too": finish,
		"dest":       func(t *rapid.T) { w.runDest(); w.finishDest(fate(t)) },
		"dest too":   func(t *rapid.T) { w.runDest(); w.finishDest(fate(t)) },
		"rush":       w.rush,
		"rush too":   w.rush,
		"set target": func(*rapid.T) { w.setTarget() },
		"cancel": func(t *rapid.T) {
			if w.plane.move != 0 && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
				w.log("ctl: cancel %d", w.plane.move)
				w.plane.end(cluster.OutcomeCancelled)
			}
		},
		"delayed": func(t *rapid.T) {
			if len(w.sent) > 0 {
				i := rapid.IntRange(0, len(w.sent)-1).Draw(t, "which")
				w.log("a delayed request is applied")
				w.sent[i]()
			}
		},
		"time": func(t *rapid.T) {
			w.tick(rapid.SampledFrom([]time.Duration{time.Second, 11 * time.Second, 30 * time.Second}).Draw(t, "by"))
		},
		"progress": func(*rapid.T) {
			if w.b.active && w.b.s.Handoff != 0 {
				w.out(w.b.s.MoveID, handoff.BytesRead{})
			}
		},
		"watch a": func(*rapid.T) { w.watchSource() },
		"watch b": func(*rapid.T) { w.watchDest() },
		"crash a": func(t *rapid.T) {
			if w.a.up && rapid.IntRange(0, 2).Draw(t, "really") == 0 {
				w.log("a crashes")
				w.crashSource()
			}
		},
		"boot a":     func(*rapid.T) { w.bootIfDown() },
		"register a": func(*rapid.T) { w.registerIfDue() },
		"crash b": func(t *rapid.T) {
			if rapid.IntRange(0, 2).Draw(t, "really") == 0 {
				w.log("b crashes")
				w.crashDest()
			}
		},
		"lease ends": func(*rapid.T) { w.a.lease = false },
		"heartbeat":  func(*rapid.T) { w.heartbeat() },
		"verdict": func(*rapid.T) {
			if !w.a.lease && !w.plane.dead && w.plane.inc <= w.a.inc {
				w.log("verdict on a")
				w.plane.dead, w.plane.deadHWM = true, w.told
				w.seeSource()
			}
		},
	}
}

// rush goes some way without a fault, so that the late phases are reached often; the last command's answer may
// be lost.
func (w *modelWorld) rush(t *rapid.T) {
	w.bootIfDown()
	w.registerIfDue()
	for range rapid.IntRange(1, 14).Draw(t, "steps") {
		w.runDest()
		for _, m := range w.sourceMoves() {
			w.finishSource(m, 0)
		}
		_, flip := w.b.flying.(move.CompleteMove)
		if flip && rapid.Bool().Draw(t, "lost") {
			w.finishDest(2)
			return
		}
		w.finishDest(0)
	}
}

// heartbeat renews the lease and tells the high watermark. Invariant I10: not with a verdict.
func (w *modelWorld) heartbeat() {
	if w.a.up && w.a.registered && !w.plane.dead && w.plane.inc == w.a.inc {
		w.a.lease = true
		w.told = cluster.Offset(len(w.a.log))
	}
}

func (w *modelWorld) tick(by time.Duration) {
	w.now += by
	for _, m := range w.sourceMoves() {
		if w.a.up {
			w.out(m, handoff.Ticked{})
		}
	}
	if w.b.active {
		w.dest(move.Ticked{})
	}
}

func (w *modelWorld) watchDest() {
	if !w.b.active {
		return
	}
	w.seeSource()
	if w.plane.move != w.b.s.MoveID {
		w.dest(move.Hinted{})
	}
}

func (w *modelWorld) bootIfDown() {
	if !w.a.up {
		w.log("a boots")
		w.bootSource()
	}
}

func (w *modelWorld) registerIfDue() {
	switch {
	case !w.a.up:
	case w.a.registered && w.plane.dead && w.plane.inc == w.a.inc:
		w.log("a is told that it is dead")
		w.toldDead()
	case !w.a.registered && w.a.inc > w.plane.inc:
		w.log("a registers as %d", w.a.inc)
		w.registerSource()
	}
}

// settle stops the faults and lets everything run; then exactly one node must serve.
func (w *modelWorld) settle() {
	for range 1500 {
		w.bootIfDown()
		w.registerIfDue()
		w.heartbeat()
		w.runDest()
		for _, m := range w.sourceMoves() {
			w.finishSource(m, 0)
		}
		w.finishDest(0)
		w.watchSource()
		w.watchDest()
		w.tick(200 * time.Millisecond)
		w.check()
	}
	serves := w.a.up && w.a.open && w.a.frozen == nil && w.plane.owner == "a"
	if w.plane.owner == "b" {
		serves = w.b.open && !w.a.open
	}
	if !serves || w.plane.move != 0 {
		w.t.Fatalf("not settled: owner %s, move %d, a %+v, b %s %+v\n%s", w.plane.owner, w.plane.move, w.a, w.b.s.Phase, w.b,
			strings.Join(w.trace[max(0, len(w.trace)-60):], "\n"))
	}
}

// No order of inputs, lost, delayed and repeated requests, crashes and verdicts breaks I1, I2, I5, I6, I8 or I9;
// and when the faults stop, one node serves.
func TestI1I2I5I6I8I9MoveAndHandoff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newModelWorld(t)
		w.setTarget()
		t.Repeat(w.actions())
		w.settle()
	})
}
