package planner

import (
	"cmp"
	"slices"
)

// The stages place partitions one after the other, so the last ones may find only poor places left.
// repair improves single moves by exchanges that keep every node's count: another destination of the
// same rank, another partition from the same source, or two moves that swap destinations.

const (
	// repairBudget bounds the steps of all repairs; each looks at one partition. When it is used up the
	// plan is kept as it is.
	repairBudget = 2_000_000
	// stepsPerExchange is what weighing an exchange costs apart from counting its topics.
	stepsPerExchange = 16
	// maxCandidates bounds the exchanges tried for one move.
	maxCandidates = 256
	// maxHomes bounds the candidates of all sources together.
	maxHomes = 100_000
)

// exchange is a pair of new positions. With j none, only i changes.
type exchange struct {
	i, j       int32
	posI, posJ int32
	// How much better it makes things, by falling importance: nearness to related partitions, spread of
	// topics, difference in bytes between the two nodes, bytes that move.
	near, spread, bytes, moved int64
}

// better reports whether e improves more than f.
func (e *exchange) better(f *exchange) bool {
	return cmp.Or(cmp.Compare(e.near, f.near), cmp.Compare(e.spread, f.spread),
		cmp.Compare(e.bytes, f.bytes), cmp.Compare(e.moved, f.moved)) > 0
}

func (s *state) repair() {
	s.budget = repairBudget
	moved := s.moved()
	if len(moved) == 0 {
		return
	}
	homes := s.homesOfSources()
	for _, i := range s.byNeed(moved) {
		if s.budget <= 0 {
			return
		}
		if s.dest[i] != none {
			s.improve(i, moved, homes)
		}
	}
}

func (s *state) moved() []int32 {
	var out []int32
	for i, d := range s.dest {
		if d != none {
			out = append(out, int32(i))
		}
	}
	return out
}

// homesOfSources lists, for each node that sheds something, some of the partitions that it keeps and might shed instead.
func (s *state) homesOfSources() [][]int32 {
	out := make([][]int32, len(s.nodes))
	sheds := make([]bool, len(s.nodes))
	sources := 0
	for _, n := range s.recv {
		if sheds[n] = s.low[n] == none && s.cnt[n] < s.start.cnt[n]; sheds[n] {
			sources++
		}
	}
	if sources == 0 {
		return out
	}
	most := min(maxCandidates, maxHomes/sources)
	for i, k := range s.kinds {
		if k != home || !sheds[s.pos[i]] || s.dest[i] != none {
			continue
		}
		if n := s.pos[i]; len(out[n]) < most {
			out[n] = append(out[n], int32(i))
		}
	}
	return out
}

// byNeed lists the moves: those that end beside a related partition, then those that end where their
// topic is crowded, then the others, which may only even out bytes.
func (s *state) byNeed(moved []int32) []int32 {
	var near, crowd, rest []int32
	for at := 0; at < len(moved); {
		ti := s.topicOf(moved[at])
		t := &s.topics[ti]
		s.enter(t)
		for ; at < len(moved) && moved[at] < t.end; at++ {
			i := moved[at]
			s.relate(ti, i)
			if s.beside(s.dest[i]) != apart {
				near = append(near, i)
			} else if s.isAbove(s.dest[i], t, aboveCeil) {
				crowd = append(crowd, i)
			} else {
				rest = append(rest, i)
			}
		}
		s.leave(t)
	}
	return slices.Concat(near, crowd, rest)
}

// improve makes the best exchange for move i that is better than none.
func (s *state) improve(i int32, moved []int32, homes [][]int32) {
	var best exchange
	consider := func(e exchange) {
		if !s.roomFor(e) {
			return
		}
		s.weigh(&e)
		if e.better(&best) {
			best = e
		}
	}
	d, from := s.dest[i], s.owner[i]
	if s.plus[d] && s.cnt[d] == s.low[d]+1 {
		for _, n := range s.recv {
			if s.plus[n] && s.cnt[n] == s.low[n] {
				consider(exchange{i: i, j: none, posI: n})
			}
		}
	}
	if s.kinds[i] == home && !s.unsettled[i] {
		for _, j := range homes[from] {
			if s.dest[j] == none {
				consider(exchange{i: i, j: j, posI: from, posJ: d})
			}
		}
	}
	// Neighbours in the order of moves first: moves far away are as good as any.
	mid, _ := slices.BinarySearch(moved, i)
	for k := max(0, mid-maxCandidates); k < min(len(moved), mid+maxCandidates); k++ {
		if j := moved[k]; j != i && s.dest[j] != none && s.dest[j] != d && s.dest[j] != from && s.owner[j] != d {
			consider(exchange{i: i, j: j, posI: s.dest[j], posJ: d})
		}
	}
	if best.better(&exchange{}) {
		s.commit(best, homes)
	}
}

// roomFor reports whether both partitions of e fit where they would go.
func (s *state) roomFor(e exchange) bool {
	i := s.size(e.i)
	if e.j == none {
		return s.room[e.posI] >= i
	}
	j := s.size(e.j)
	// What goes home needs no room; what leaves a destination makes some.
	return (e.posI == s.owner[e.i] || s.room[e.posI] == unlimited || s.room[e.posI] >= i-j) &&
		(s.room[e.posJ] == unlimited || s.room[e.posJ] >= j-i)
}

// weigh computes what e improves.
func (s *state) weigh(e *exchange) {
	oldI, oldJ := s.pos[e.i], none
	ti, tj := s.topicOf(e.i), none
	if e.j != none {
		oldJ, tj = s.pos[e.j], s.topicOf(e.j)
	}
	s.budget -= stepsPerExchange
	before, spread := s.cost(e, ti, tj), s.squares(e, ti, tj, oldI, oldJ)
	s.set(e.i, e.j, e.posI, e.posJ)
	after := s.cost(e, ti, tj)
	if after <= before {
		spread -= s.squares(e, ti, tj, oldI, oldJ)
	}
	s.set(e.i, e.j, oldI, oldJ)
	e.near, e.spread = before-after, spread
	if ti == tj || s.zone[oldI] == s.zone[e.posI] {
		// Otherwise the spread over zones might suffer, which matters more than bytes.
		s.weighBytes(e, oldI)
	}
}

func (s *state) weighBytes(e *exchange, oldI int32) {
	shift := s.size(e.i)
	if e.j != none {
		shift -= s.size(e.j)
	}
	diff := s.load[oldI] - s.load[e.posI]
	e.bytes = abs(diff) - abs(diff-2*shift)
	if e.posI == s.owner[e.i] {
		e.moved = shift
	}
}

func abs(x int64) int64 { return max(x, -x) }

func (s *state) set(i, j, posI, posJ int32) {
	s.pos[i] = posI
	if j != none {
		s.pos[j] = posJ
	}
}

// cost is how near the partitions of e are to related ones.
func (s *state) cost(e *exchange, ti, tj int32) int64 {
	s.relate(ti, e.i)
	c := int64(s.beside(s.pos[e.i]))
	if e.j != none {
		s.relate(tj, e.j)
		c += int64(s.beside(s.pos[e.j]))
	}
	return c
}

// squares sums the squared counts of e's topics at the nodes that e touches: less is a better spread.
func (s *state) squares(e *exchange, ti, tj, oldI, oldJ int32) int64 {
	if ti == tj {
		return 0 // the counts are the same before and after
	}
	sum := s.topicSquares(ti, oldI, e.posI)
	if e.j != none {
		sum += s.topicSquares(tj, oldJ, e.posJ)
	}
	return sum
}

func (s *state) topicSquares(t, a, b int32) int64 {
	tp := &s.topics[t]
	s.budget -= int(tp.end - tp.begin)
	var na, nb int64
	for _, n := range s.pos[tp.begin:tp.end] {
		switch n {
		case a:
			na++
		case b:
			nb++
		}
	}
	return na*na + nb*nb
}

// commit carries e out.
func (s *state) commit(e exchange, homes [][]int32) {
	shift := func(i, to int32) {
		size := s.size(i)
		from := s.pos[i]
		s.cnt[from]--
		s.load[from] -= size
		if s.room[from] != unlimited && s.dest[i] != none {
			s.room[from] += size
		}
		s.pos[i], s.dest[i] = to, to
		if s.kinds[i] == home && to == s.owner[i] {
			s.dest[i] = none
			homes[to] = append(homes[to], i)
		} else if s.room[to] != unlimited {
			s.room[to] = saturatingSub(s.room[to], size)
		}
		s.cnt[to]++
		s.load[to] = saturatingAdd(s.load[to], size)
	}
	shift(e.i, e.posI)
	if e.j != none {
		shift(e.j, e.posJ)
	}
}
