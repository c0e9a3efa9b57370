package move

import (
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// attempt handles the results of the phases from Begin to Install.
func (c *stepper) attempt() {
	s := &c.s
	if message, blocked, ok := failed(c.in.Event); ok {
		if f, is := c.in.Event.(Failed); is && f.Hint {
			s.Hinted = true
		}
		if s.Phase == Installing {
			// The rename may have happened and its sync not. CompleteMove was not sent, so this is
			// no guess (I8).
			s.LastError = message
			c.enter(RollingBack)
			return
		}
		c.retryAttempt(message, blocked)
		return
	}
	switch e := c.in.Event.(type) {
	case Begun:
		s.Reached, s.SourceIncarnation = true, e.Incarnation
		s.Handoff, s.Nonce = 0, cluster.Nonce{}
		c.measured(e.Measured, true)
	case Measured:
		c.measured(e, false)
	case Copied:
		c.copied(e)
	case FreezeGranted:
		c.frozen(e)
	case Drained:
		s.Stats.Bytes += e.Read
		s.Stats.FrozenReadBytes += e.Read
		c.next(Verifying)
	case Verified:
		s.Stats.FrozenReadBytes += e.Read
		c.next(Installing)
	case Installed:
		s.Placed = true
		c.enter(Flipping)
	}
}

// measured decides whether another pass is worth it. The freeze must not depend on the partition's size: what
// is left has to be small, quick to copy, and everything else confirmed.
func (c *stepper) measured(m Measured, save bool) {
	s, set := &c.s, c.in.Settings
	if s.Passes > 0 {
		if m.Missing >= s.Missing {
			s.Stalls++
		} else {
			s.Stalls = 0
		}
	}
	s.Total, s.Missing = m.Total, m.Missing
	s.ReadHWM = max(s.ReadHWM, m.HWM)
	s.Meta = m.Meta
	if save {
		c.emit(Save{})
	}
	small := m.Missing == 0 || (m.Missing <= set.LagBytes && s.Bandwidth > 0 &&
		drainTime(m.Missing, s.Bandwidth) <= set.FreezeBudget)
	switch {
	case s.Reaching && (m.Missing == 0 || s.Stalls >= set.StallPasses || s.Passes >= set.MaxPasses):
		c.start()
	case s.Reaching:
		c.next(Copying)
	case small && m.Unconfirmed == 0:
		s.Stats.Converged, s.NonConverged = true, false
		c.next(Preparing)
	case s.Passes >= set.MaxPasses || s.Stalls >= set.StallPasses:
		s.Stats.Converged, s.NonConverged = false, true
		c.next(Preparing)
	default:
		c.next(Copying)
	}
}

// drainTime predicts how long n bytes take at a bandwidth in bytes per second.
func drainTime(n, bandwidth cluster.Bytes) time.Duration {
	return time.Duration(float64(n) / float64(bandwidth) * float64(time.Second))
}

func (c *stepper) copied(e Copied) {
	s := &c.s
	s.Passes++
	s.Stats.Passes++
	s.Stats.Bytes += e.Bytes
	if e.Bytes > 0 {
		s.Failures, s.LastError, s.Blocked = 0, "", false
		if e.Elapsed > 0 {
			bw := cluster.Bytes(float64(e.Bytes) / e.Elapsed.Seconds())
			if s.Bandwidth > 0 {
				bw = (bw + s.Bandwidth) / 2
			}
			s.Bandwidth = max(bw, 1)
		}
		// What a promotion needs must survive a restart while the source is dead.
		c.emit(Save{})
	}
	c.next(Measuring)
}

func (c *stepper) frozen(e FreezeGranted) {
	s := &c.s
	s.SourceIncarnation, s.Handoff, s.Nonce = e.Incarnation, e.Handoff, e.Nonce
	s.ReadHWM = max(s.ReadHWM, e.HWM)
	s.Meta = e.Meta
	s.FrozenAt, s.FrozenFor = c.in.Now, e.FrozenFor
	s.Stats.FrozenReadBytes = 0
	// Invariant I7: the token is durable before the copy that waits for it can be installed.
	c.emit(Save{})
	c.next(Draining)
}
