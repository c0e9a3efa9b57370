package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestRatesAreKnownDuringTheFirstPass: two heartbeats of one attempt are enough; another attempt or phase says
// nothing, and a heartbeat without progress keeps the last figure.
func TestRatesAreKnownDuringTheFirstPass(t *testing.T) {
	m := func(done, rate cluster.Bytes, attempt uint32, phase cluster.MovePhase) []cluster.MoveProgress {
		return []cluster.MoveProgress{{MoveID: 7, Done: done, Total: 100, BytesPerSecond: rate, Attempt: attempt, Phase: phase}}
	}
	for name, tc := range map[string]struct {
		now, before []cluster.MoveProgress
		want        cluster.Bytes
	}{
		"measured":          {m(50, 0, 1, cluster.PhaseCatchingUp), m(10, 0, 1, cluster.PhaseCatchingUp), 20},
		"over its own":      {m(50, 3, 1, cluster.PhaseCatchingUp), m(10, 3, 1, cluster.PhaseCatchingUp), 20},
		"no progress":       {m(50, 0, 1, cluster.PhaseCatchingUp), m(50, 20, 1, cluster.PhaseCatchingUp), 20},
		"first heartbeat":   {m(50, 0, 1, cluster.PhaseCatchingUp), nil, 0},
		"another attempt":   {m(50, 0, 2, cluster.PhaseCatchingUp), m(10, 5, 1, cluster.PhaseCatchingUp), 0},
		"another phase":     {m(50, 4, 1, cluster.PhaseFrozen), m(10, 5, 1, cluster.PhaseCatchingUp), 4},
		"resumed from less": {m(5, 0, 1, cluster.PhaseCatchingUp), m(10, 5, 1, cluster.PhaseCatchingUp), 5},
	} {
		t.Run(name, func(t *testing.T) {
			given := append([]cluster.MoveProgress(nil), tc.now...)
			got := withRates(tc.now, tc.before, 2*time.Second)
			if got[0].BytesPerSecond != tc.want {
				t.Errorf("got %d, want %d", got[0].BytesPerSecond, tc.want)
			}
			if d := cmp.Diff(given, tc.now); d != "" {
				t.Errorf("the report was changed: %s", d)
			}
		})
	}
}
