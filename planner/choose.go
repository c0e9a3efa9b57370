package planner

// How near a related partition is, by how much it matters.
const (
	// apart: no related partition is or will be there.
	apart int32 = iota
	// passing: a related partition is there, but is on its way to another node.
	passing
	// together: a related partition is there to stay, or will be there.
	together
)

// exactScan is the number of open receivers up to which every one is looked at; beyond it a moving
// window of probeScan is, which bounds the cost of a plan.
const (
	exactScan = 128
	probeScan = 40
)

// relate fills rel with the partitions related to partition i of topic t.
func (s *state) relate(t, i int32) {
	s.rel = s.rel[:0]
	tp := &s.topics[t]
	if !tp.related {
		return
	}
	index := s.index[i]
	if tp.parent != none {
		if j := s.at(tp.parent, index); j != none {
			s.rel = append(s.rel, j)
		}
	}
	for _, c := range s.children[tp.kids[0]:tp.kids[1]] {
		if j := s.at(c, index); j != none {
			s.rel = append(s.rel, j)
		}
	}
}

// beside says how near the nearest of rel is to node n.
func (s *state) beside(n int32) int32 {
	near := apart
	for _, j := range s.rel {
		if s.pos[j] == n {
			return together
		}
		if s.owner[j] == n {
			near = passing
		}
	}
	return near
}

// enter loads the spread of topic t over nodes and zones; leave unloads it.
func (s *state) enter(t *topic) {
	for _, n := range s.pos[t.begin:t.end] {
		if n != none {
			s.tcnt[n]++
			s.zcnt[s.zone[n]]++
		}
	}
}

func (s *state) leave(t *topic) {
	for _, n := range s.pos[t.begin:t.end] {
		if n != none {
			s.tcnt[n] = 0
			s.zcnt[s.zone[n]] = 0
		}
	}
}

// wish narrows the destinations of one choice.
type wish struct {
	size int64
	// below: only nodes with fewer partitions of the topic than their part of it.
	below part
	// near: only nodes where related partitions are no nearer than this.
	near int32
}

// found is what a choice came to.
type found uint8

const (
	chosen  found = iota
	crowded       // no open receiver is below the wish's count
	unfit         // some are, but near a related partition or without room
)

// choose returns the best open receiver for the partition whose relations are in rel, among those the
// wish allows.
func (s *state) choose(w wish) (int32, found) {
	n := len(s.open)
	if n <= exactScan {
		return s.scan(w, 0, n)
	}
	if s.cursor >= n {
		s.cursor = 0
	}
	from := s.cursor
	s.cursor += probeScan
	best, res := s.scan(w, from, min(from+probeScan, n))
	if res == chosen || w.below.bounded() || w.size >= s.noRoom {
		return best, res
	}
	if best, res = s.scan(w, 0, len(s.open)); res == unfit && w.near == together {
		s.noRoom = w.size
	}
	return best, res
}

// scan looks at open[from:to], and closes those that are full by count on its way.
func (s *state) scan(w wish, from, to int) (int32, found) {
	best, bestNear, res := none, together, crowded
	for k := from; k < to && k < len(s.open); {
		n := s.open[k]
		if !s.accepts(n) {
			last := len(s.open) - 1
			s.open[k] = s.open[last]
			s.open = s.open[:last]
			continue
		}
		k++
		if !s.isBelow(n, w.below) {
			continue
		}
		if res == crowded {
			res = unfit
		}
		if s.room[n] < w.size {
			s.tight = true
			continue
		}
		near := apart
		if len(s.rel) > 0 {
			if near = s.beside(n); near > w.near {
				continue
			}
		}
		if best == none || near < bestNear || near == bestNear && s.prefer(n, best) {
			best, bestNear, res = n, near, chosen
		}
	}
	return best, res
}

// part is how many of a topic's partitions a node should have: its weight's part of count, rounded down or up. The
// zero value bounds nothing.
type part struct {
	count int64
	round int64 // weight of all receivers to round down, 1 to round up, 0 for no bound
}

func (p part) bounded() bool { return p.round != 0 }

// isBelow reports whether node n has fewer partitions of the topic than p allows.
func (s *state) isBelow(n int32, p part) bool {
	return p.round == 0 || int64(s.tcnt[n])*s.weighs+p.round <= p.count*s.weight[n]
}

// prefer orders two destinations that are equal in anti-affinity: topic spread, zone spread, bytes,
// count, key. What counts is each in proportion to the node's weight.
func (s *state) prefer(a, b int32) bool {
	wa, wb := s.weight[a], s.weight[b]
	if x, y := int64(s.tcnt[a])*wb, int64(s.tcnt[b])*wa; x != y {
		return x < y
	}
	if x, y := s.zcnt[s.zone[a]], s.zcnt[s.zone[b]]; x != y {
		return x < y
	}
	if x, y := s.load[a], s.load[b]; wa == wb && x != y {
		return x < y
	} else if x, y = x/wa, y/wb; x != y {
		return x < y
	}
	if s.lighter(a, b) {
		return true
	}
	return a < b && !s.lighter(b, a)
}

// place plans partition i onto node n. The partition's topic must be entered.
func (s *state) place(i, n int32) {
	size := s.size(i)
	if old := s.pos[i]; old != none {
		s.cnt[old]--
		s.load[old] -= size
		s.tcnt[old]--
		s.zcnt[s.zone[old]]--
		if s.excess[old] > 0 {
			s.excess[old]--
			s.surplus--
		}
		if s.unsettled[i] {
			s.unsettles--
		}
	} else {
		s.leaving--
	}
	if s.plus[n] && s.cnt[n] == s.low[n] && s.extra > 0 {
		s.extra--
	}
	s.pos[i], s.dest[i] = n, n
	s.cnt[n]++
	s.tcnt[n]++
	s.zcnt[s.zone[n]]++
	s.load[n] = saturatingAdd(s.load[n], size)
	if s.room[n] != unlimited {
		s.room[n] = saturatingSub(s.room[n], size)
	}
}
