package dataplane

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestI4CommittedOffsetNeverSkips runs random consumers against a plain model: for every offset the set of
// what happened to it. The committed offset must be the end of the contiguous acknowledged prefix, no record
// may be handed out while it is reserved or after it was acknowledged, and none may be forgotten.
func TestI4CommittedOffsetNeverSkips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 12
		start := cluster.Offset(rapid.Uint64Range(0, 3).Draw(t, "start"))
		r := newReservations(start, limit)
		now := time.Unix(1000, 0)
		type state struct {
			nonce    uint64
			deadline time.Time
			acked    bool
		}
		model := map[cluster.Offset]*state{}
		next, logStart, nonce := start, start, uint64(0)
		committed := func() cluster.Offset {
			c := max(start, logStart)
			for o := c; ; o++ {
				if s := model[o]; s == nil || !s.acked {
					return o
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "seconds")) * time.Second)
			},
			"consume": func(t *rapid.T) {
				n := rapid.IntRange(1, 6).Draw(t, "n")
				due := r.expired(now, n)
				var want []cluster.Offset
				for o := committed(); o < next && len(want) < n; o++ {
					if s := model[o]; !s.acked && !s.deadline.After(now) {
						want = append(want, o)
					}
				}
				if !slices.Equal(due, want) {
					t.Fatalf("expired: got %v, want %v", due, want)
				}
				from, room := r.fresh()
				if from != next || room != max(0, limit-int(next-committed())) {
					t.Fatalf("fresh: got %d with room %d, want %d with room %d", from, room, next, limit-int(next-committed()))
				}
				for o := from; len(due) < n && room > 0; room-- {
					due = append(due, o)
					o++
				}
				for _, o := range due {
					nonce++
					deadline := now.Add(time.Duration(rapid.IntRange(1, 4).Draw(t, "visibility")) * time.Second)
					if !r.reserve(o, nonce, now, deadline) {
						t.Fatalf("offset %d was offered and then refused", o)
					}
					model[o] = &state{nonce: nonce, deadline: deadline}
					next = max(next, o+1)
				}
			},
			"steal": func(t *rapid.T) {
				o := cluster.Offset(rapid.Uint64Range(0, uint64(next)+2).Draw(t, "offset"))
				s := model[o]
				if o == next || (s != nil && !s.acked && o >= committed() && !s.deadline.After(now)) {
					return // these may be reserved
				}
				if r.reserve(o, 1<<40, now, now.Add(time.Hour)) {
					t.Fatalf("offset %d was handed out although it is reserved, acknowledged or not yet due", o)
				}
			},
			"settle": func(t *rapid.T) {
				o := cluster.Offset(rapid.Uint64Range(0, uint64(next)+1).Draw(t, "offset"))
				s := model[o]
				guess := nonce + 7
				if s != nil && rapid.IntRange(0, 4).Draw(t, "wrong") > 0 {
					guess = s.nonce
				}
				want := settleStale
				switch {
				case o < committed() || (s != nil && s.acked):
					want = settledBefore
				case s != nil && s.nonce == guess:
					want = settled
				}
				if rapid.Bool().Draw(t, "extend") {
					deadline := now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "by")) * time.Second)
					if got := r.extend(o, guess, deadline); got != want {
						t.Fatalf("extend %d: got %d, want %d", o, got, want)
					}
					if want == settled {
						s.deadline = deadline
					}
					return
				}
				if got := r.ack(o, guess); got != want {
					t.Fatalf("ack %d: got %d, want %d", o, got, want)
				}
				if want == settled {
					s.acked = true
				}
			},
			"retention": func(t *rapid.T) {
				logStart = max(logStart, cluster.Offset(rapid.Uint64Range(0, uint64(next)+1).Draw(t, "start")))
				r.advance(logStart)
				for o := range model {
					if o < logStart {
						delete(model, o)
					}
				}
				next = max(next, logStart)
			},
			"": func(t *rapid.T) {
				if r.committed != committed() {
					t.Fatalf("committed offset: got %d, want %d, the end of the acknowledged prefix", r.committed, committed())
				}
				if at, ok := r.nextExpiry(now); ok {
					for o := committed(); o < next; o++ {
						if s := model[o]; !s.acked && s.deadline.Before(at) && at.After(now) {
							t.Fatalf("nextExpiry: got %s, offset %d expires at %s", at, o, s.deadline)
						}
					}
				} else if len(r.held) > 0 {
					t.Fatal("reservations exist but none will ever expire")
				}
			},
		})
	})
}

// TestExtensionsAreBounded extends one reservation many times: what is remembered must not grow.
func TestExtensionsAreBounded(t *testing.T) {
	r := newReservations(0, 10)
	now := time.Unix(0, 0)
	r.reserve(0, 1, now, now.Add(time.Second))
	for i := range 10_000 {
		r.extend(0, 1, now.Add(time.Duration(i)*time.Second))
	}
	if n := len(r.expiries); n > 100 {
		t.Fatalf("%d entries after 10000 extensions of one reservation", n)
	}
}
