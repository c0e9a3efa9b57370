package move

import (
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// outcome handles the results of the phases from CompleteMove on.
func (c *stepper) outcome() {
	s := &c.s
	if message, blocked, ok := failed(c.in.Event); ok {
		c.outcomeFailed(message, blocked)
		return
	}
	switch e := c.in.Event.(type) {
	case FlipAnswered:
		c.flipped(e.Epoch, e.Forced)
	case FlipRefused:
		s.LastError, s.Ended = e.Message, e.Ended
		if s.Phase == ForceFlipping {
			s.ForceRefused = s.SourceIncarnation
		}
		// Invariant I8: a refusal of this very token is final.
		c.enter(RollingBack)
	case Revoked:
		s.LastError, s.Ended = "the handoff was revoked", e.Ended
		c.enter(RollingBack)
	case RolledBack:
		c.rolledBack()
	case Promotable:
		c.promotable(e)
	case Installed:
		s.Placed = true
		c.enter(ForceFlipping)
	case Confirmed:
		c.enter(Opening)
	case Opened:
		c.enter(Reporting)
	case Reported, Dropped:
		c.enter(Done)
	case MoveRead:
		c.moveRead(e)
	}
}

func (c *stepper) outcomeFailed(message string, blocked bool) {
	switch c.s.Phase {
	case Promoting:
		c.s.LastError = message
		c.waitUntil(c.in.Now + c.backoff(true))
	case PromoteInstalling:
		c.s.LastError = message
		c.enter(RollingBack)
	default:
		// Invariant I8: an unknown outcome repeats the same request.
		c.retryInPlace(message, blocked)
	}
}

func (c *stepper) flipped(epoch cluster.Epoch, forced bool) {
	s := &c.s
	s.Epoch, s.Forced = epoch, forced
	if !forced && s.FrozenAt > 0 {
		s.Stats.Freeze = s.FrozenFor + c.in.Now - s.FrozenAt
	}
	s.Stats.Duration += c.in.Now - s.StartedAt
	s.Failures, s.LastError, s.Blocked, s.Hinted = 0, "", false, false
	s.Phase = Confirming
	c.emit(Save{})
	c.perform()
}

func (c *stepper) rolledBack() {
	s := &c.s
	s.Placed, s.Handoff, s.Nonce, s.ForcedLEO = false, 0, cluster.Nonce{}, 0
	s.Phase = Waiting
	c.emit(Save{})
	c.retryAttempt(s.LastError, s.SourceDead)
}

// promotable evaluates the gate that needs the copy. The state machine evaluates all of them again when it
// applies the request.
func (c *stepper) promotable(e Promotable) {
	s := &c.s
	known := max(s.ReadHWM, s.DeadHWM)
	if e.LEO < known && !s.AcceptLoss {
		s.ForceRefused = s.SourceIncarnation
		s.LastError = fmt.Sprintf("gate completeness: the copy ends at %d, the source had acknowledged up to %d",
			e.LEO, known)
		c.start()
		return
	}
	s.ForcedLEO = e.LEO
	s.Phase = PromoteInstalling
	c.emit(Save{})
	c.perform()
}

func (c *stepper) moveRead(e MoveRead) {
	s := &c.s
	switch {
	case e.Mine && s.Placed:
		c.flipped(e.Epoch, e.Forced)
	case e.Mine:
		// Ruled out by I8; if it happens all the same, what is staged must not be touched.
		s.Blocked = true
		c.retryInPlace("the move is recorded as flipped to this node, whose copy is not installed", true)
	case e.Current && s.Placed:
		s.Blocked = true
		c.retryInPlace("an installed copy without a journal entry waits for its flip", true)
	case e.Current:
		s.Hinted, s.Ended, s.Blocked = false, false, false
		c.again()
	case s.Confirmed:
		// This is a repetition, and another node owns the partition by now. The copy is for the source's side
		// to reclaim; there is nothing to take back.
		c.enter(Done)
	case s.Placed:
		s.Ended = true
		c.enter(RollingBack)
	case e.OwnerDead:
		// Invariant I9: this may be the last copy.
		s.Blocked = true
		c.retryInPlace("the move is over; the staged bytes are kept because the owner is dead", true)
	default:
		c.enter(Dropping)
	}
}

// again begins another attempt of a move that is current, not faster than its back-off.
func (c *stepper) again() {
	if c.s.Failures == 0 || c.s.SourceDead {
		c.start()
		return
	}
	c.waitUntil(c.in.Now + c.backoff(false))
}
