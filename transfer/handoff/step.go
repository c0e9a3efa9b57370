package handoff

import (
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Back-off between failures: doubled from MinBackoff to MaxBackoff, then spread over its upper half.
const (
	MinBackoff = 20 * time.Millisecond
	MaxBackoff = 2 * time.Second
)

// stepper is one call of Step.
type stepper struct {
	s   State
	in  Input
	out []Effect
}

// Step returns what follows from an input. Events that do not belong to the effect in flight change nothing.
func Step(s State, in Input) (State, []Effect) {
	c := &stepper{s: s, in: in}
	switch e := in.Event.(type) {
	case Prepared:
		c.prepared(e)
	case Progressed:
		if s.Phase == Frozen && e.Handoff == s.Handoff && e.Step > s.Step {
			c.s.Step, c.s.LastProgress = e.Step, in.Now
		}
	case BytesRead:
		if s.Phase == Frozen {
			c.s.LastProgress = max(s.LastProgress, in.Now)
		}
	case Ticked:
		c.idle()
	case Hinted:
		c.s.Hinted = true
		c.idle()
	case MovedAway:
		c.s.Away = true
		c.idle()
	case Fence:
		c.fence()
	case Registered:
		c.s.Registered = true
		c.s.RetryAt = in.Now
		c.idle()
	default:
		c.result(e)
	}
	return c.s, c.out
}

func (c *stepper) emit(e Effect) { c.out = append(c.out, e) }

// perform emits the effect of a phase and goes there.
func (c *stepper) perform(p Phase, e Effect) {
	c.s.Phase, c.s.InFlight = p, true
	c.emit(e)
}

func (c *stepper) refuse(message string) {
	if c.s.Wanted {
		c.s.Wanted = false
		c.emit(Refuse{Message: message})
	}
}

// prepared handles a PrepareHandoff; one that comes while another is dealt with shares its answer.
func (c *stepper) prepared(e Prepared) {
	s := &c.s
	s.Wanted, s.TTL = true, e.TTL
	switch s.Phase {
	case Marked:
		if s.Nonce == (cluster.Nonce{}) || s.Incarnation != e.Incarnation {
			// An earlier nonce is kept while its grant's outcome is unknown, so that the repetition is
			// answered like the first request.
			s.Nonce, s.Incarnation = e.Nonce, e.Incarnation
		}
		c.idle()
	case Granting, Freezing:
	case Frozen:
		if c.expired() {
			c.refuse("the freeze has expired")
			c.idle()
			return
		}
		// The answer was lost, or the destination restarted: the same freeze serves it.
		s.LastProgress, s.Step, s.Wanted = c.in.Now, 0, false
		c.emit(Answer{Handoff: s.Handoff, Nonce: s.Nonce, FrozenFor: c.in.Now - s.FrozenAt})
		c.idle()
	case Revoking, Thawing, Fenced, Redirecting, Flipped, Unmarking, Gone:
		c.refuse("no handoff while " + s.Phase.String())
	}
}

func (c *stepper) expired() bool { return c.in.Now >= c.s.LastProgress+c.s.TTL }

// fence forgets what the last incarnation was about. Its grants are revoked by the registration to come.
func (c *stepper) fence() {
	s := &c.s
	switch s.Phase {
	case Redirecting, Flipped, Gone:
		return
	case Unmarking:
		// The move is over and its marker may be gone already, so nothing would end this fence but the
		// unmarking itself.
		s.Refenced = true
		return
	case Marked, Granting, Freezing, Frozen, Revoking, Thawing, Fenced:
	}
	s.Stale = s.InFlight
	s.Phase, s.Registered, s.Handoff, s.Nonce = Fenced, false, 0, cluster.Nonce{}
	s.Over, s.Hinted = false, false
	c.refuse("the node takes a new incarnation")
}

// idle does what is due when no effect is in flight.
func (c *stepper) idle() {
	s := &c.s
	if s.InFlight {
		return
	}
	if s.Away && s.Phase < Redirecting && s.Phase != Gone {
		c.refuse("the partition has moved")
		c.perform(Redirecting, Redirect{})
		return
	}
	if c.in.Now < s.RetryAt {
		c.emit(Wait{Until: s.RetryAt})
		return
	}
	switch s.Phase {
	case Marked:
		switch {
		case s.Hinted:
			c.perform(Marked, ReadMove{})
		case s.Wanted:
			c.perform(Granting, Grant{Incarnation: s.Incarnation, Nonce: s.Nonce})
		}
	case Frozen:
		c.frozenIdle()
	case Revoking:
		c.perform(Revoking, Revoke{Handoff: s.Handoff})
	case Thawing:
		c.perform(Thawing, Thaw{Handoff: s.Handoff})
	case Fenced:
		// Invariant I7: the read comes after the registration.
		if s.Registered {
			c.perform(Fenced, ReadMove{})
		}
	case Redirecting:
		c.perform(Redirecting, Redirect{})
	case Unmarking:
		c.perform(Unmarking, Unmark{})
	case Granting, Freezing, Flipped, Gone:
	}
}

func (c *stepper) frozenIdle() {
	s := &c.s
	switch {
	case c.expired():
		// Invariant I6: the timer asks for a revocation; it does not thaw.
		c.perform(Revoking, Revoke{Handoff: s.Handoff})
	case s.Hinted:
		c.perform(Frozen, ReadMove{})
	default:
		c.emit(Wait{Until: s.LastProgress + s.TTL})
	}
}

// result handles what ends an effect.
func (c *stepper) result(e Event) {
	s := &c.s
	if !s.InFlight {
		return
	}
	if s.Stale {
		// It belongs to what was before a fence.
		s.InFlight, s.Stale = false, false
		c.idle()
		return
	}
	if !expected(s.Phase, e) {
		return
	}
	if r, ok := e.(Revoked); ok && r.Handoff != s.Handoff {
		// Invariant I6: only the latest grant's revocation counts; the answer to that one is to come.
		return
	}
	s.InFlight = false
	if f, ok := e.(Failed); ok {
		c.failed(f.Message)
		return
	}
	s.Failures, s.LastError = 0, ""
	switch e := e.(type) {
	case Granted:
		s.Handoff = e.Handoff
		c.perform(Freezing, Freeze{Handoff: e.Handoff})
	case GrantRefused:
		s.Phase, s.Nonce, s.LastError, s.Hinted = Marked, cluster.Nonce{}, e.Message, true
		c.refuse(e.Message)
		c.idle()
	case Froze:
		s.Phase, s.FrozenAt, s.LastProgress, s.Step = Frozen, e.Since, c.in.Now, 0
		if s.Wanted {
			s.Wanted = false
			c.emit(Answer{Handoff: s.Handoff, Nonce: s.Nonce, FrozenFor: c.in.Now - s.FrozenAt})
		}
		c.idle()
	case Revoked:
		c.thaw()
	case Ended:
		if e.Flipped {
			c.perform(Redirecting, Redirect{})
			return
		}
		s.Over = true
		c.thaw()
	case Thawed:
		c.thawed()
	case MoveRead:
		c.moveRead(e)
	case Closed:
		s.Phase = Flipped
	case Unmarked:
		s.Phase = Gone
		if s.Refenced {
			s.Refenced, s.Handoff = false, FenceHandoff
			c.thaw()
		}
	}
}

// thaw accepts appends again, unless another node owns the partition meanwhile.
func (c *stepper) thaw() {
	if c.s.Away {
		c.refuse("the partition has moved")
		c.perform(Redirecting, Redirect{})
		return
	}
	c.perform(Thawing, Thaw{Handoff: c.s.Handoff})
}

func (c *stepper) thawed() {
	s := &c.s
	s.Phase, s.Handoff, s.Nonce = Marked, 0, cluster.Nonce{}
	if s.Over && !s.Away {
		c.perform(Unmarking, Unmark{})
		return
	}
	c.idle()
}

func (c *stepper) moveRead(e MoveRead) {
	s := &c.s
	s.Hinted = false
	fenced := s.Phase == Fenced
	switch e.View {
	case ViewAway:
		c.refuse("the partition has moved")
		c.perform(Redirecting, Redirect{})
	case ViewCancelled:
		c.refuse("the move is over")
		s.Over = true
		switch {
		case fenced:
			s.Handoff = FenceHandoff
			c.thaw()
		case s.Phase == Frozen:
			c.thaw()
		default:
			c.perform(Unmarking, Unmark{})
		}
	case ViewGranted:
		if s.Phase != Frozen {
			// Nothing is frozen for this grant: it is a delayed request of this node. No flip can come of
			// it, since its nonce is not out, but it stands in the way of the next one.
			s.Handoff = e.Handoff
			c.perform(Revoking, Revoke{Handoff: e.Handoff})
			return
		}
		c.idle()
	case ViewCurrent:
		if fenced {
			s.Handoff = FenceHandoff
			c.thaw()
			return
		}
		c.idle()
	}
}

// failed retries. What can be given up without harm is given up; what ends a freeze never is.
func (c *stepper) failed(message string) {
	s := &c.s
	s.Failures++
	s.LastError = message
	s.RetryAt = c.in.Now + c.backoff()
	switch s.Phase {
	case Granting:
		// The grant may be committed later. Nobody but this node knows the nonce, so nothing can come
		// of it; the nonce is kept for the repetition.
		s.Phase = Marked
		c.refuse(message)
		s.RetryAt = 0
	case Freezing:
		c.refuse(message)
		s.RetryAt = 0
		c.perform(Revoking, Revoke{Handoff: s.Handoff})
		return
	case Marked, Frozen, Revoking, Thawing, Fenced, Redirecting, Unmarking, Flipped, Gone:
	}
	c.idle()
}

func (c *stepper) backoff() time.Duration {
	d := MaxBackoff
	if n := c.s.Failures; n < 8 {
		d = min(MinBackoff<<(max(n, 1)-1), MaxBackoff)
	}
	return d/2 + d/2*time.Duration(c.in.Jitter%1024)/1023
}

// expected says whether e can be the result of the effect in flight in a phase.
func expected(p Phase, e Event) bool {
	for _, t := range Transitions {
		if t.From == p && t.Event == Name(e) {
			return true
		}
	}
	return false
}
