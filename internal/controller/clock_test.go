package controller

import (
	"testing"
	"time"
	"unsafe"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// stepped returns t as it would read if the wall clock had been set meanwhile: another date, the same monotonic reading.
func stepped(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	out := at
	// The first word of a time with a monotonic reading holds the wall's seconds above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&out)) += uint64(by/time.Second) << 30
	if out.Sub(at) != 0 || out.Round(0).Sub(at.Round(0)) != by {
		t.Fatalf("%s stepped by %s is %s", at, by, out)
	}
	return out
}

// TestC54VerdictIgnoresTheWallClock: the leader's clock is set by an hour, either way. Nobody who sends heartbeats is declared
// dead, and who is silent still is, in time.
func TestC54VerdictIgnoresTheWallClock(t *testing.T) {
	now := time.Now()
	for _, step := range []time.Duration{-time.Hour, 0, time.Hour} {
		for _, silence := range []time.Duration{0, DefaultConfig().DeadAfter - time.Millisecond, DefaultConfig().DeadAfter} {
			c := &Controller{cfg: DefaultConfig()}
			c.soft.sessions = map[cluster.NodeID]*session{"a": {incarnation: 3, last: now}}
			v := c.silent([]cluster.Node{{ID: "a", Incarnation: 3, Status: cluster.NodeAlive}}, stepped(t, now.Add(silence), step))
			if dead := len(v) == 1; dead != (silence >= c.cfg.DeadAfter) {
				t.Errorf("silent for %s, the clock stepped by %s: verdicts %v", silence, step, v)
			}
		}
	}
}
