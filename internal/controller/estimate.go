package controller

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/planner"
)

// Estimate says how long moves will take, until the last of them has flipped.
type Estimate struct {
	// Known is false when there is nothing to estimate by; ETA is zero then.
	Known bool
	ETA   time.Duration
	// Basis says how, or why not, in a sentence.
	Basis string
	// Remaining is what is left to copy; Rate is what all destinations copy together at present.
	Remaining, Rate   cluster.Bytes
	InFlight, Waiting int
}

const (
	// rateWindow is the time constant with which a destination's rate follows what it does.
	rateWindow = 10 * time.Second
	// rateAge is how long a rate counts after the destination last copied.
	rateAge = 30 * time.Second
	// recentMoves is from how many ended moves the past is judged.
	recentMoves = 100
	// smallMove is the size below which a move's time is all overhead, and above which it tells a rate.
	smallMove = 1 << 20
	// assumedOverhead is what a move takes beside its copy, until one was measured.
	assumedOverhead = 100 * time.Millisecond
)

// work is what is left for one node.
type work struct {
	bytes cluster.Bytes
	moves int
}

// workload is what an estimate is about. Waiting moves without a known destination are spread evenly over the
// receivers, as the planner spreads them.
type workload struct {
	in, out           map[cluster.NodeID]work
	inFlight, waiting int
	spread            work
	receivers         []cluster.NodeID
}

func newWorkload() workload {
	return workload{in: map[cluster.NodeID]work{}, out: map[cluster.NodeID]work{}}
}

func (l *workload) add(from, to cluster.NodeID, bytes cluster.Bytes) {
	for _, side := range []struct {
		m  map[cluster.NodeID]work
		id cluster.NodeID
	}{{l.out, from}, {l.in, to}} {
		w := side.m[side.id]
		side.m[side.id] = work{w.bytes + bytes, w.moves + 1}
	}
}

// past is what ended moves tell.
type past struct {
	// rate is what one destination copied, in bytes per second, all its moves together; zero when no move of size
	// was measured. overhead is what a move takes beside its copy.
	rate     float64
	moves    int // that rate is from
	overhead time.Duration
}

// judge looks at ended moves, the oldest first.
func judgePast(ended []cluster.MoveRecord) past {
	p := past{overhead: assumedOverhead}
	type span struct{ from, to time.Time }
	spans := map[cluster.NodeID][]span{}
	var bytes cluster.Bytes
	var small []time.Duration
	for _, m := range ended {
		switch {
		case m.Stats.Duration <= 0:
		case m.Stats.Bytes < smallMove:
			small = append(small, m.Stats.Duration)
		default:
			bytes += m.Stats.Bytes
			p.moves++
			spans[m.Destination] = append(spans[m.Destination], span{m.EndedAt.Add(-m.Stats.Duration), m.EndedAt})
		}
	}
	var busy time.Duration
	for _, list := range spans {
		slices.SortFunc(list, func(a, b span) int { return a.from.Compare(b.from) })
		end := time.Time{}
		for _, s := range list {
			if s.from.Before(end) {
				s.from = end
			}
			if s.to.After(s.from) {
				busy += s.to.Sub(s.from)
				end = s.to
			}
		}
	}
	if busy > 0 {
		p.rate = float64(bytes) / busy.Seconds()
	}
	if len(small) > 0 {
		slices.Sort(small)
		p.overhead = small[len(small)/2]
	}
	return p
}

// estimate predicts a workload's end. The caller holds the soft state's lock.
func (s *soft) estimate(l workload, set cluster.Settings, p past, now time.Time) Estimate {
	e := Estimate{InFlight: l.inFlight, Waiting: l.waiting}
	left := map[cluster.NodeID]work{}
	for id, w := range l.in {
		left[id] = w
		e.Remaining += w.bytes
	}
	e.Remaining += l.spread.bytes
	for _, id := range l.receivers {
		n := len(l.receivers)
		w := left[id]
		left[id] = work{w.bytes + l.spread.bytes/cluster.Bytes(n), w.moves + (l.spread.moves+n-1)/n}
	}
	var live float64
	copying := 0
	for _, x := range s.sessions {
		if r := x.rateNow(now); r > 0 {
			live += r
			copying++
		}
	}
	e.Rate = cluster.Bytes(live)
	if len(left) == 0 {
		e.Known, e.Basis = true, "nothing is left to move"
		return e
	}
	limit, common := float64(set.CopyRatePerNode), p.rate
	limited := fmt.Sprintf("copy_rate_per_node=%s", humanize.IBytes(uint64(set.CopyRatePerNode)))
	switch {
	case copying > 0:
		common = live / float64(copying)
		e.Basis = fmt.Sprintf("the rate at which %d destinations copy now, %s each", copying, perSecond(common))
	case p.rate > 0 && (limit == 0 || p.rate < limit):
		e.Basis = fmt.Sprintf("%d moves that ended lately, %s for each destination", p.moves, perSecond(common))
	case limit > 0:
		common = limit
		e.Basis = limited
	case e.Remaining > 0:
		e.Basis = "unknown: no move of size has been measured yet, and copy_rate_per_node is unlimited"
		return e
	}
	e.Basis += fmt.Sprintf(", and %s for each move beside its copy", p.overhead.Round(time.Millisecond))
	e.Basis = trimComma(e.Basis)
	per := max(1, float64(set.MaxMovesPerNode))
	var longest, sum float64
	for id, w := range left {
		rate := common
		if x := s.sessions[id]; x != nil {
			if r := x.rateNow(now); r > 0 {
				rate = r
			}
		}
		if limit > 0 {
			rate = min(rate, limit)
		}
		t := p.overhead.Seconds() * float64(w.moves) / per
		if w.bytes > 0 {
			t += float64(w.bytes) / rate
		}
		longest, sum = max(longest, t), sum+t
	}
	// Not more destinations copy at once than moves are in flight.
	longest = max(longest, sum/float64(min(len(left), max(1, int(set.MaxInFlightMoves)))))
	for _, w := range l.out {
		longest = max(longest, p.overhead.Seconds()*float64(w.moves)/per)
	}
	e.Known, e.ETA = true, time.Duration(min(longest, math.MaxInt32)*float64(time.Second))
	return e
}

func trimComma(s string) string {
	if len(s) > 6 && s[:6] == ", and " {
		return s[6:]
	}
	return s
}

func perSecond(r float64) string { return humanize.IBytes(uint64(r)) + "/s" }

// rateNow is the session's smoothed rate as destination, or zero when it has not copied lately.
func (e *session) rateNow(now time.Time) float64 {
	if e.rateAt.IsZero() || now.Sub(e.rateAt) > rateAge {
		return 0
	}
	return e.rate
}

// observeRate follows what a destination copied between two reports. A move that is not reported any more has
// copied what it had left.
func (e *session) observeRate(before, after []cluster.MoveProgress, now time.Time, elapsed time.Duration) {
	if elapsed <= 0 {
		return
	}
	var copied cluster.Bytes
	copying := false
	for _, b := range before {
		k := slices.IndexFunc(after, func(m cluster.MoveProgress) bool { return m.Partition == b.Partition && m.MoveID == b.MoveID })
		busy := b.Phase == cluster.PhaseCatchingUp && b.Total > b.Done
		copying = copying || busy
		switch {
		case k < 0 && busy:
			copied += b.Total - b.Done
		case k >= 0 && after[k].Done > b.Done:
			copied += after[k].Done - b.Done
		}
	}
	for _, m := range after {
		if !slices.ContainsFunc(before, func(b cluster.MoveProgress) bool { return m.Partition == b.Partition && m.MoveID == b.MoveID }) && copying {
			copied += m.Done // it began in between
		}
	}
	// An interval in which the first move began tells nothing: it copied for a part of it only.
	if !copying {
		return
	}
	seen := float64(copied) / elapsed.Seconds()
	if e.rateNow(now) == 0 {
		e.rate = seen
	} else {
		e.rate += (seen - e.rate) * (1 - math.Exp(-elapsed.Seconds()/rateWindow.Seconds()))
	}
	e.rateAt = now
}

// remaining is what a move in flight has left, and whether its destination said so.
func (s *soft) remaining(a cluster.Assignment) cluster.Bytes {
	if p, ok := s.progress(a); ok && p.Total > 0 {
		return p.Total - min(p.Done, p.Total)
	}
	return s.sizes[a.Partition]
}

// inFlight is the workload of the moves in flight, and of those that wait as of the last round. With from only what
// leaves those nodes. The caller holds the lock.
func (s *soft) workload(w world, from func(cluster.NodeID) bool) workload {
	l := newWorkload()
	all := from == nil
	for _, a := range w.assignments {
		switch {
		case !all && !from(a.Owner):
		case a.Moving():
			l.add(a.Owner, a.Target, s.remaining(a))
			l.inFlight++
		case !all:
			l.spread = work{l.spread.bytes + s.sizes[a.Partition], l.spread.moves + 1}
			l.waiting++
		}
	}
	if all {
		l.spread = work{s.waitingBytes, s.waiting}
		l.waiting = s.waiting
	}
	if l.spread.moves > 0 {
		l.receivers = w.receivers()
	}
	return l
}

// foreseen is the workload of a plan and of the moves in flight. The caller holds the lock.
func (s *soft) foreseen(w world, f planner.Foresight) workload {
	l := newWorkload()
	replaced := map[cluster.PartitionID]bool{}
	plan := func(m planner.Move) {
		replaced[m.Partition] = true
		if !m.Cancel() {
			l.add(m.From, m.To, m.Bytes)
		}
	}
	for _, m := range f.Moves {
		plan(m)
	}
	for _, h := range f.Held {
		plan(h.Move)
	}
	l.waiting = len(f.Moves) + len(f.Held)
	for _, a := range w.assignments {
		if a.Moving() && !replaced[a.Partition] {
			l.add(a.Owner, a.Target, s.remaining(a))
			l.inFlight++
		}
	}
	return l
}

// receivers are the nodes that may receive partitions.
func (w world) receivers() []cluster.NodeID {
	var out []cluster.NodeID
	for _, n := range w.nodes {
		if n.Status == cluster.NodeAlive && !n.Draining {
			out = append(out, n.ID)
		}
	}
	return out
}
