package dataplane

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

func TestDecide(t *testing.T) {
	const after = 20 * time.Millisecond
	now := time.Unix(100, 0)
	route := Route{Owner: "a", Epoch: 5, Address: "a:1", Alive: true}
	moved := Route{Owner: "b", Epoch: 6, Address: "b:1", Alive: true}
	dead := Route{Owner: "a", Epoch: 5, Address: "a:1"}
	// frozen is the attempt after the partition refused once, at now.
	frozen := attempt{}.after(result{verdict: refused, reason: cluster.ReasonFrozen}, route, now)
	for _, tc := range []struct {
		name string
		a    attempt
		s    situation
		want decision
	}{
		{"a healthy partition gets its batch", attempt{}, situation{known: true, route: route}, decision{action: actSend}},
		{"a deleted topic's records are dropped", attempt{}, situation{gone: true}, decision{action: actDiscard}},
		{"without a route it waits", attempt{}, situation{}, decision{actWait, now.Add(maxWait)}},
		{"refused, it waits its back-off", frozen, situation{known: true, route: route, others: true},
			decision{actWait, now.Add(minBackoff)}},
		{"a new route is tried at once", frozen, situation{known: true, route: moved, others: true}, decision{action: actSend}},
		{"after the back-off it is asked again", frozen,
			situation{now: now.Add(minBackoff), known: true, route: route, others: true}, decision{action: actSend}},
		{"a dead owner's partition waits for reroute_after", attempt{}, situation{known: true, route: dead, others: true},
			decision{actWait, now.Add(after)}},
		{"and is then rerouted", attempt{since: now.Add(-after)}, situation{known: true, route: dead, others: true},
			decision{action: actReroute}},
		{"a topic with one partition waits however long", attempt{since: now.Add(-time.Hour)},
			situation{known: true, route: dead}, decision{actWait, now.Add(maxWait)}},
		{"a silent owner is rerouted around", attempt{since: now.Add(-after)},
			situation{known: true, route: route, others: true, peerRetryAt: now.Add(time.Minute)}, decision{action: actReroute}},
		{"overload is not handed on", attempt{since: now.Add(-after), owner: "a", epoch: 5, failures: 1, retryAt: now.Add(9), overload: true},
			situation{known: true, route: route, others: true}, decision{actWait, now.Add(9)}},
		{"a failed reroute has its own back-off", attempt{since: now.Add(-after), rerouteAt: now.Add(4 * time.Millisecond)},
			situation{known: true, route: dead, others: true}, decision{actWait, now.Add(4 * time.Millisecond)}},
	} {
		if tc.s.now.IsZero() {
			tc.s.now = now
		}
		got, _ := decide(tc.a, tc.s, after)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
			t.Errorf("%s: decision differs (-want +got)\n%s", tc.name, diff)
		}
	}
}

// TestI10LateAcknowledgementIsUnknown: an acknowledgement proves nothing once the owner may have been
// declared dead.
func TestI10LateAcknowledgementIsUnknown(t *testing.T) {
	sent := time.Unix(0, 0)
	ttl := 10 * time.Second
	if r := judge(result{verdict: appended}, sent, sent.Add(ttl), ttl); r.verdict != appended {
		t.Errorf("an acknowledgement within lease_ttl: got %d, want appended", r.verdict)
	}
	if r := judge(result{verdict: appended}, sent, sent.Add(ttl+1), ttl); r.verdict != unknown {
		t.Errorf("an acknowledgement after lease_ttl: got %d, want unknown", r.verdict)
	}
	if r := judge(result{verdict: refused}, sent, sent.Add(2*ttl), ttl); r.verdict != refused {
		t.Errorf("a late refusal: got %d, want refused", r.verdict)
	}
}

func TestAttemptRemembersAndForgets(t *testing.T) {
	now := time.Unix(0, 0)
	route := Route{Owner: "a", Epoch: 5}
	a := attempt{}
	var waits []time.Duration
	for range 12 {
		a = a.after(result{verdict: refused, reason: cluster.ReasonFrozen}, route, now)
		waits = append(waits, a.retryAt.Sub(now))
	}
	for i := 1; i < len(waits); i++ {
		if waits[i] < waits[i-1] || waits[i] > maxBackoff {
			t.Fatalf("back-off must grow up to %s: %v", maxBackoff, waits)
		}
	}
	a = a.after(result{verdict: refused, reason: cluster.ReasonNotOwner, owner: "c", epoch: 9}, Route{Owner: "b", Epoch: 6}, now)
	if a.failures != 1 || a.hintOwner != "c" || a.hintEpoch != 9 || !a.since.Equal(now) {
		t.Errorf("after a refusal by a new route: %+v; want one failure, the hint, and the first trouble's time", a)
	}
	if got := a.after(result{verdict: appended}, route, now); got != (attempt{}) {
		t.Errorf("after success: %+v, want nothing", got)
	}
}
