package nodeagent

import (
	"testing"
	"time"
	"unsafe"
)

// stepped returns t as it would read if the wall clock had been set meanwhile: another date, the same monotonic reading.
func stepped(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	out := at
	// The first word of a time with a monotonic reading holds the wall's seconds above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&out)) += uint64(by/time.Second) << 30
	if d := out.Sub(at); d != 0 {
		t.Fatalf("the monotonic reading moved by %s", d)
	}
	if d := out.Round(0).Sub(at.Round(0)); d != by {
		t.Fatalf("the wall clock moved by %s, want %s", d, by)
	}
	return out
}

// TestC54LeaseIgnoresTheWallClock: a clock that is set by an hour, either way, ends no lease and prolongs none.
func TestC54LeaseIgnoresTheWallClock(t *testing.T) {
	const ttl = 10 * time.Second
	for _, sentStep := range []time.Duration{-time.Hour, 0, time.Hour} {
		for _, step := range []time.Duration{-time.Hour, 0, time.Hour} {
			sent := time.Now()
			var l lease
			l.renew(stepped(t, sent, sentStep), ttl)
			if !l.valid(stepped(t, sent.Add(ttl-time.Millisecond), step)) {
				t.Errorf("the clock stepped by %s at the renewal and %s now: the lease ended early", sentStep, step)
			}
			if l.valid(stepped(t, sent.Add(ttl+time.Millisecond), step)) {
				t.Errorf("the clock stepped by %s at the renewal and %s now: the lease did not end", sentStep, step)
			}
		}
	}
}
