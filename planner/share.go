package planner

import (
	"cmp"
	"math"
	"slices"
)

// boundByRoom sets how many partitions each receiver can hold at most, judged by the smallest
// partition that may have to go anywhere. Later rounds lower the bound to what really fitted.
func (s *state) boundByRoom() {
	for _, n := range s.recv {
		switch {
		case s.room[n] == unlimited:
			s.capac[n] = math.MaxInt32
		case s.room[n] < s.smallest:
			s.capac[n] = s.cnt[n]
			s.tight = true
		case s.smallest == 0:
			s.capac[n] = math.MaxInt32
		default:
			more := min(s.room[n]/s.smallest, math.MaxInt32-1-int64(s.cnt[n]))
			s.capac[n] = s.cnt[n] + int32(more)
		}
	}
}

// shares fixes how many partitions each receiver should hold: low, and one more for extra of those
// with plus. Nodes above their share get excess.
func (s *state) shares() {
	for i := range s.nodes {
		s.low[i], s.excess[i], s.plus[i] = none, 0, false
	}
	s.surplus, s.paired = 0, 0
	s.divide()
	var above []int32
	s.open = s.open[:0]
	for _, n := range s.recv {
		if s.cnt[n] > s.low[n] {
			above = append(above, n)
		} else if s.low[n] > s.cnt[n] || s.plus[n] {
			s.open = append(s.open, n)
		}
	}
	s.keepCeil(above)
	for _, n := range above {
		s.low[n] = none
		s.excess[n] = s.cnt[n] - s.share[n]
		s.surplus += int(s.excess[n])
	}
}

// divide shares the movable partitions out by weight below each receiver's bound: everyone gets min(bound,
// floor(quota)), and extra of those whose quota is no whole number get one more.
func (s *state) divide() {
	byBound := slices.Clone(s.recv)
	slices.SortFunc(byBound, func(a, b int32) int {
		return cmp.Or(cmp.Compare(int64(s.capac[a])*s.weight[b], int64(s.capac[b])*s.weight[a]), cmp.Compare(a, b))
	})
	left, weighs := int64(s.total), s.weighs
	s.extra = 0
	for k, n := range byBound {
		if int64(s.capac[n])*weighs <= left*s.weight[n] {
			s.low[n] = s.capac[n]
			left -= int64(s.capac[n])
			weighs -= s.weight[n]
			continue
		}
		// From here on no bound is reached: what is left is shared out by weight.
		rest := left
		for _, n := range byBound[k:] {
			quota := left * s.weight[n]
			s.low[n], s.plus[n] = int32(quota/weighs), quota%weighs != 0
			rest -= int64(s.low[n])
		}
		s.extra = int(rest)
		return
	}
}

// keepCeil lets as many of the nodes above their share keep a ceil slot as there are: first those that could not shed
// what is above, then those that hold the most. Among equals a node keeps less often when it holds a related
// pair, then when it holds more bytes: shedding does more good there.
func (s *state) keepCeil(above []int32) {
	may := 0
	for _, n := range above {
		if s.share[n] = s.low[n]; s.plus[n] {
			may++
		}
	}
	if s.extra >= may {
		for _, n := range above {
			if s.plus[n] {
				s.share[n]++
			}
		}
		s.extra -= may
		return
	}
	if s.extra == 0 {
		return
	}
	pairs := s.relatedPairs()
	held := func(n int32) int { return int(min(0, s.homes[n]-(s.cnt[n]-s.low[n]))) }
	slices.SortFunc(above, func(a, b int32) int {
		return cmp.Or(
			cmp.Compare(held(a), held(b)),
			cmp.Compare(s.cnt[b]-s.low[b], s.cnt[a]-s.low[a]),
			cmp.Compare(pairs[a], pairs[b]),
			cmp.Compare(s.load[a]/s.weight[a], s.load[b]/s.weight[b]),
			cmp.Compare(a, b),
		)
	})
	for _, n := range above {
		if s.plus[n] && s.extra > 0 {
			s.share[n]++
			s.extra--
		}
	}
}

// pairsUpTo is the number of partitions up to which related pairs are counted; beyond it that would cost more than
// all the rest of a plan.
const pairsUpTo = 200_000

// relatedPairs counts by node the partitions that may be picked and sit beside a related one.
func (s *state) relatedPairs() []int32 {
	pairs := make([]int32, len(s.nodes))
	if len(s.owner) > pairsUpTo {
		return pairs
	}
	for ti := range s.topics {
		t := &s.topics[ti]
		if !t.related {
			continue
		}
		for i := t.begin; i < t.end; i++ {
			if s.kinds[i] != home {
				continue
			}
			s.relate(int32(ti), i)
			if s.beside(s.pos[i]) == together {
				pairs[s.pos[i]]++
			}
		}
	}
	return pairs
}

// accepts reports whether receiver n may take one more partition within its share.
func (s *state) accepts(n int32) bool {
	c := s.cnt[n]
	return c < s.low[n] || s.extra > 0 && s.plus[n] && c == s.low[n]
}
