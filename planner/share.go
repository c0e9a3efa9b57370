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
		case s.smallest == 0:
			s.capac[n] = math.MaxInt32
		default:
			more := min(s.room[n]/s.smallest, math.MaxInt32-1-int64(s.cnt[n]))
			s.capac[n] = s.cnt[n] + int32(more)
		}
	}
}

// shares fixes how many partitions each receiver should hold: low, and one more for extra of those
// at level. Nodes above their share get excess.
func (s *state) shares() {
	for i := range s.nodes {
		s.low[i], s.excess[i] = none, 0
	}
	s.level, s.extra, s.surplus = s.waterLevel()
	var above []int32
	s.open = s.open[:0]
	for _, n := range s.recv {
		if s.cnt[n] > s.level {
			above = append(above, n)
			continue
		}
		s.low[n] = min(s.capac[n], s.level)
		if s.low[n] > s.cnt[n] || s.capac[n] > s.level {
			s.open = append(s.open, n)
		}
	}
	s.keepCeil(above)
	for _, n := range above {
		s.excess[n] = s.cnt[n] - s.share[n]
		s.surplus += int(s.excess[n])
	}
}

// waterLevel shares the movable partitions out evenly below each receiver's bound: everyone gets
// min(bound, level), and extra of those with a higher bound get one more.
func (s *state) waterLevel() (level, extra int32, surplus int) {
	bounds := make([]int32, 0, len(s.recv))
	for _, n := range s.recv {
		bounds = append(bounds, s.capac[n])
	}
	slices.Sort(bounds)
	left := s.total
	for i, b := range bounds {
		rest := len(bounds) - i
		if int64(b)*int64(rest) > int64(left) {
			return int32(left / rest), int32(left % rest), 0
		}
		left -= int(b)
	}
	// Nothing is unbounded and everything is full: what is left can't be placed.
	if len(bounds) > 0 {
		level = bounds[len(bounds)-1]
	}
	return level, 0, 0
}

// keepCeil lets those of the nodes above the level that hold the most keep the ceil slots, as far as
// there are any. Among equals a node keeps less often when it holds a related pair, then when it holds
// more bytes: shedding does more good there.
func (s *state) keepCeil(above []int32) {
	if int(s.extra) >= len(above) {
		for _, n := range above {
			s.share[n] = s.level + 1
		}
		s.extra -= int32(len(above))
		return
	}
	pairs := s.relatedPairs()
	slices.SortFunc(above, func(a, b int32) int {
		return cmp.Or(
			cmp.Compare(s.cnt[b], s.cnt[a]),
			cmp.Compare(pairs[a], pairs[b]),
			cmp.Compare(s.load[a], s.load[b]),
			cmp.Compare(a, b),
		)
	})
	for i, n := range above {
		s.share[n] = s.level
		if i < int(s.extra) {
			s.share[n]++
		}
	}
	s.extra = 0
}

// relatedPairs counts by node the partitions that may be picked and sit beside a related one.
func (s *state) relatedPairs() []int32 {
	pairs := make([]int32, len(s.nodes))
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
	return c < s.low[n] || s.extra > 0 && c == s.level && s.low[n] == s.level && s.capac[n] > s.level
}
