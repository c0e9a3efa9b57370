package move

import (
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Back-off between failures: doubled from MinBackoff to MaxBackoff, then spread over its upper half.
// What waits for something else to change (room, a dead owner) waits MaxBackoff.
const (
	MinBackoff = 100 * time.Millisecond
	MaxBackoff = 10 * time.Second
)

// queryEvery is after how many failed attempts in a row the move is read again: a lost hint must not
// keep a move going that is over.
const queryEvery = 4

// stepper is one call of Step.
type stepper struct {
	s   State
	in  Input
	out []Effect
}

// Step returns what follows from an input. Events that do not belong to the effect in flight change
// nothing.
func Step(s State, in Input) (State, []Effect) {
	c := &stepper{s: s, in: in}
	if s.Phase == Done {
		return s, nil
	}
	switch e := in.Event.(type) {
	case Started:
		c.started(e)
	case Ticked:
		c.ticked()
	case SourceSeen:
		c.sourceSeen(e)
	case Hinted:
		c.hinted()
	case Retried:
		if !s.InFlight {
			c.s.RetryAt = in.Now
			c.ticked()
		}
	case PromoteAsked:
		c.promoteAsked(e)
	default:
		if s.InFlight && expected(s.Phase, in.Event) {
			c.s.InFlight = false
			c.result()
		}
	}
	return c.s, c.out
}

// expected says whether e can be the result of the phase's effect.
func expected(p Phase, e Event) bool {
	for _, t := range Transitions {
		if t.From == p && t.Event == Name(e) {
			return true
		}
	}
	return false
}

func (c *stepper) result() {
	switch c.s.Phase {
	case Beginning, Measuring, Copying, Preparing, Draining, Verifying, Installing:
		c.attempt()
	default:
		c.outcome()
	}
}

func (c *stepper) emit(e Effect) { c.out = append(c.out, e) }

// enter goes to a phase and performs its effect.
func (c *stepper) enter(p Phase) {
	c.s.Phase = p
	c.perform()
}

// perform emits the phase's effect.
func (c *stepper) perform() {
	s := &c.s
	s.InFlight = true
	switch s.Phase {
	case Beginning:
		c.emit(Begin{})
	case Measuring:
		c.emit(Measure{})
	case Copying:
		c.emit(CopyPass{})
	case Preparing:
		c.emit(PrepareHandoff{TTL: c.in.Settings.HandoffTTL})
	case Draining:
		c.emit(Drain{Handoff: s.Handoff})
	case Verifying:
		c.emit(Verify{Handoff: s.Handoff})
	case Installing:
		c.emit(Install{Handoff: s.Handoff})
	case Flipping:
		// Invariant I5: only here, after Installed or with the installed copy found on disk.
		c.emit(CompleteMove{Handoff: s.Handoff, Nonce: s.Nonce})
	case Revoking:
		c.emit(RevokeHandoff{Handoff: s.Handoff})
	case RollingBack:
		c.emit(Rollback{})
	case Promoting:
		c.emit(Promote{Meta: s.Meta})
	case PromoteInstalling:
		c.emit(Install{})
	case ForceFlipping:
		c.emit(ForceComplete{Incarnation: s.SourceIncarnation, LEO: s.ForcedLEO, ReadHWM: s.ReadHWM, AcceptLoss: s.AcceptLoss})
	case Confirming:
		c.emit(ConfirmFlip{})
	case Opening:
		c.emit(Open{Epoch: s.Epoch})
	case Reporting:
		c.emit(Report{Epoch: s.Epoch, Stats: s.Stats})
	case Querying:
		c.emit(ReadMove{})
	case Dropping:
		c.emit(DropStaging{})
	case Done:
		s.InFlight = false
		c.emit(Forget{})
	case Waiting:
		s.InFlight = false
		c.emit(Wait{Until: s.RetryAt})
	}
}

// started takes up a new or decoded state; e says what the disk holds.
func (c *stepper) started(e Started) {
	s := &c.s
	s.InFlight, s.StartedAt, s.Placed = false, c.in.Now, e.Installed || e.Confirmed
	s.Confirmed = e.Confirmed
	flipped := s.Phase == Confirming || s.Phase == Opening || s.Phase == Reporting
	switch {
	case flipped && s.Placed:
		c.enter(Confirming)
	case e.Installed && e.Handoff == 0 && s.Phase == PromoteInstalling:
		// Invariant I8: the request may have been sent; it is repeated unchanged.
		c.enter(ForceFlipping)
	case e.Installed && e.Handoff != 0 && e.Handoff == s.Handoff && s.Nonce != (cluster.Nonce{}):
		// Invariant I8: CompleteMove may have been sent; it is repeated unchanged.
		c.enter(Flipping)
	case e.Installed && e.Handoff != 0:
		s.Handoff, s.Nonce = e.Handoff, cluster.Nonce{}
		c.enter(Revoking)
	case s.Placed || flipped:
		c.enter(Querying)
	default:
		// A token without an installed copy was never sent: the install comes first.
		s.Handoff, s.Nonce = 0, cluster.Nonce{}
		c.start()
	}
}

func (c *stepper) ticked() {
	switch {
	case c.s.InFlight:
	case c.in.Now < c.s.RetryAt:
		c.emit(Wait{Until: c.s.RetryAt})
	case c.s.Phase == Waiting:
		c.start()
	default:
		c.perform()
	}
}

// interruptible phases wait for the network or copy; nothing is lost by ending them early.
func interruptible(p Phase) bool { return p >= Beginning && p <= Draining }

func (c *stepper) hinted() {
	c.s.Hinted = true
	switch {
	case c.s.Phase == Waiting:
		c.start()
	case c.s.InFlight && interruptible(c.s.Phase):
		c.emit(Interrupt{})
	}
}

func (c *stepper) sourceSeen(e SourceSeen) {
	s := &c.s
	wasDead, was := s.SourceDead, s.DeadIncarnation
	s.SourceDead, s.DeadIncarnation, s.DeadHWM = e.Dead, 0, 0
	if e.Dead {
		s.DeadIncarnation, s.DeadHWM = e.Incarnation, e.HWM
		if !wasDead || was != e.Incarnation {
			s.DeadSince, s.ReachTried = c.in.Now, false
		}
	}
	if !e.Dead && s.PromoteAsked && s.Phase != PromoteInstalling && s.Phase != ForceFlipping {
		// The word was about the death that it knew.
		s.PromoteAsked, s.AcceptLoss = false, false
		c.emit(Save{})
	}
	news := wasDead != e.Dead || (e.Dead && was != e.Incarnation) ||
		(!e.Dead && s.Reached && e.Incarnation != s.SourceIncarnation)
	switch {
	case !news:
	case s.Phase == Waiting:
		c.start()
	case e.Dead && s.InFlight && interruptible(s.Phase):
		c.emit(Interrupt{})
	}
}

// promoteAsked takes an operator's word. It opens the gates of time and, with AcceptLoss, of completeness; a request that may
// have been sent is repeated unchanged first (I8).
func (c *stepper) promoteAsked(e PromoteAsked) {
	s := &c.s
	if s.Phase == PromoteInstalling || s.Phase == ForceFlipping || (s.PromoteAsked && s.AcceptLoss == e.AcceptLoss && s.ForceRefused == 0) {
		return
	}
	s.PromoteAsked, s.AcceptLoss, s.ForceRefused = true, e.AcceptLoss, 0
	c.emit(Save{})
	if s.Phase == Waiting && s.SourceDead {
		c.start()
	}
}

// start begins an attempt, or what stands in for one.
func (c *stepper) start() {
	s := &c.s
	s.Reaching = false
	switch {
	case s.Hinted || s.Ended:
		c.enter(Querying)
	case s.SourceDead:
		c.sourceIsDead()
	default:
		s.Passes, s.Stalls, s.Missing, s.NonConverged = 0, 0, 0, false
		s.Stats.Attempts++
		c.enter(Beginning)
	}
}

// next goes on inside an attempt, unless the move may be over or the source has died.
func (c *stepper) next(p Phase) {
	reaching := c.s.Reaching && (p == Measuring || p == Copying)
	if c.s.Hinted || (c.s.SourceDead && interruptible(p) && !reaching) {
		c.start()
		return
	}
	c.enter(p)
}

// sourceIsDead waits for the source, or promotes when every gate that is known here is open.
func (c *stepper) sourceIsDead() {
	s, after := &c.s, c.in.Settings.ForcePromoteAfter
	gate := ""
	switch {
	case after == 0 && !s.PromoteAsked:
		gate = "force_promote_after is 0"
	case !s.Reached:
		gate = "gate reached: the source never answered in this move"
	case s.SourceIncarnation != s.DeadIncarnation:
		gate = fmt.Sprintf("gate incarnation: the copy is from incarnation %d, dead is %d",
			s.SourceIncarnation, s.DeadIncarnation)
	case s.ForceRefused == s.SourceIncarnation:
		gate = s.LastError
	}
	switch {
	case gate != "":
		s.Blocked, s.LastError = true, gate
		c.waitUntil(c.in.Now + MaxBackoff)
	case !s.ReachTried:
		// A source that is only cut off from the controllers may still serve its bytes. Its lease has run
		// out, so that it acknowledges nothing more: what is copied now is complete.
		s.Reaching, s.ReachTried = true, true
		s.Passes, s.Stalls, s.Missing = 0, 0, 0
		c.enter(Measuring)
	case c.in.Now < s.DeadSince+after && !s.PromoteAsked:
		s.Blocked = false
		s.LastError = fmt.Sprintf("source %s is dead; promotion after %s", s.Source, after)
		c.waitUntil(s.DeadSince + after)
	default:
		c.enter(Promoting)
	}
}

func (c *stepper) waitUntil(at time.Duration) {
	c.s.RetryAt = at
	c.enter(Waiting)
}

// retryAttempt gives the attempt up and begins another one later.
func (c *stepper) retryAttempt(message string, blocked bool) {
	s := &c.s
	s.Failures++
	s.LastError, s.Blocked = message, blocked
	if s.Failures%queryEvery == 0 {
		s.Hinted = true
	}
	if s.Hinted || s.Ended || s.SourceDead {
		c.start()
		return
	}
	c.waitUntil(c.in.Now + c.backoff(blocked))
}

// retryInPlace repeats the phase's effect later.
func (c *stepper) retryInPlace(message string, slow bool) {
	c.s.Failures++
	c.s.LastError = message
	c.s.RetryAt = c.in.Now + c.backoff(slow)
	c.emit(Wait{Until: c.s.RetryAt})
}

func (c *stepper) backoff(slow bool) time.Duration {
	d := MaxBackoff
	if n := c.s.Failures; !slow && n < 8 {
		d = min(MinBackoff<<(max(n, 1)-1), MaxBackoff)
	}
	return d/2 + d/2*time.Duration(c.in.Jitter%1024)/1023
}

// failed reports the message of an event that says that the effect failed.
func failed(e Event) (message string, blocked, ok bool) {
	switch e := e.(type) {
	case Failed:
		return e.Message, e.Blocked, true
	case OutcomeUnknown:
		return e.Message, false, true
	}
	return "", false, false
}
