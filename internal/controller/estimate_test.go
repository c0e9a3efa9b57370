package controller

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

const mib = 1 << 20

// TestEstimates: the slowest destination counts, at the best known rate.
func TestEstimates(t *testing.T) {
	now := time.Unix(1000, 0)
	ended := func(to cluster.NodeID, bytes cluster.Bytes, from, until int) cluster.MoveRecord {
		return cluster.MoveRecord{Destination: to, EndedAt: now.Add(time.Duration(until) * time.Second),
			Stats: cluster.MoveStats{Bytes: bytes, Duration: time.Duration(until-from) * time.Second}}
	}
	load := newWorkload()
	load.add("a", "b", 300*mib)
	load.add("a", "c", 100*mib)
	load.inFlight = 2
	spread := newWorkload()
	spread.spread, spread.receivers, spread.waiting = work{400 * mib, 4}, []cluster.NodeID{"b", "c"}, 4
	// Two moves at once are one destination's rate together: 40 MiB in 4 s.
	history := []cluster.MoveRecord{ended("b", 20*mib, -10, -6), ended("b", 20*mib, -10, -6)}
	copying := map[cluster.NodeID]*session{"b": {rate: 30 * mib, rateAt: now}, "c": {rate: 5 * mib, rateAt: now.Add(-time.Minute)}}
	for name, tc := range map[string]struct {
		load     workload
		ended    []cluster.MoveRecord
		sessions map[cluster.NodeID]*session
		rate     cluster.Bytes
		known    bool
		eta      time.Duration
		basis    string
	}{
		"nothing to go by":     {load, nil, nil, 0, false, 0, "no move of size has been measured"},
		"nothing to do":        {newWorkload(), nil, nil, 0, true, 0, "nothing is left"},
		"the setting":          {load, nil, nil, 10 * mib, true, 30 * time.Second, "copy_rate_per_node=10 MiB"},
		"the past":             {load, history, nil, 0, true, 30 * time.Second, "2 moves that ended lately, 10 MiB/s"},
		"the past, but slowed": {load, history, nil, 5 * mib, true, 60 * time.Second, "copy_rate_per_node=5.0 MiB"},
		// c is not copying now: what b does is the best guess for it.
		"the present":        {load, history, copying, 0, true, 10 * time.Second, "1 destinations copy now, 30 MiB/s each"},
		"spread":             {spread, history, nil, 0, true, 20 * time.Second, "ended lately"},
		"only small ones":    {spread, []cluster.MoveRecord{ended("b", 10, -4, -2)}, nil, 100 * mib, true, 3 * time.Second, "2s for each move"},
		"nothing but moves":  {func() workload { l := newWorkload(); l.add("a", "b", 0); return l }(), nil, nil, 0, true, 25 * time.Millisecond, "100ms for each move"},
		"the limit bounds b": {load, nil, copying, 10 * mib, true, 30 * time.Second, "copy now"},
		// Two destinations, but one move at a time.
		"one at a time": {load, nil, nil, 10 * mib, true, 40 * time.Second, "copy_rate_per_node"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &soft{sessions: tc.sessions}
			set := cluster.DefaultSettings()
			set.CopyRatePerNode = tc.rate
			if name == "one at a time" {
				set.MaxInFlightMoves = 1
			}
			e := s.estimate(tc.load, set, judgePast(tc.ended), now)
			// Beside the copy each move costs a little.
			if e.Known != tc.known || !strings.Contains(e.Basis, tc.basis) || math.Abs((e.ETA-tc.eta).Seconds()) > 0.1 {
				t.Errorf("got %+v, want %t, %s, %q", e, tc.known, tc.eta, tc.basis)
			}
		})
	}
}

// TestDestinationsRateFollows: two reports show it; what ended in between was copied; an interval in which nothing copied before
// says nothing.
func TestDestinationsRateFollows(t *testing.T) {
	m := func(id cluster.MoveID, done cluster.Bytes) cluster.MoveProgress {
		return cluster.MoveProgress{MoveID: id, Done: done * mib, Total: 100 * mib, Phase: cluster.PhaseCatchingUp}
	}
	e := &session{}
	now := time.Unix(1000, 0)
	step := func(before, after []cluster.MoveProgress) float64 {
		now = now.Add(2 * time.Second)
		e.observeRate(before, after, now, 2*time.Second)
		return e.rateNow(now) / mib
	}
	if r := step(nil, []cluster.MoveProgress{m(1, 10)}); r != 0 {
		t.Errorf("after the first report of a move: %g", r)
	}
	if r := step([]cluster.MoveProgress{m(1, 10)}, []cluster.MoveProgress{m(1, 30)}); r != 10 {
		t.Errorf("20 MiB in 2 s: %g MiB/s", r)
	}
	// The first ended with 70 left, the second one began.
	if r := step([]cluster.MoveProgress{m(1, 30)}, []cluster.MoveProgress{m(2, 10)}); r <= 10 || r >= 40 {
		t.Errorf("80 MiB in 2 s after 10 MiB/s, smoothed: %g MiB/s", r)
	}
	for range 30 {
		step([]cluster.MoveProgress{m(2, 10)}, []cluster.MoveProgress{m(2, 14)})
	}
	if r := e.rateNow(now) / mib; math.Abs(r-2) > 0.1 {
		t.Errorf("after a minute at 2 MiB/s: %g", r)
	}
	if r := e.rateNow(now.Add(rateAge + time.Second)); r != 0 {
		t.Errorf("a rate of long ago counts: %g", r)
	}
}
