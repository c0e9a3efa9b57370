package planner

import (
	"cmp"
	"slices"
)

// maxRounds bounds how often shares are recomputed because a node had room for fewer partitions than
// assumed. After the last one the plan is what it is, and the rest is reported as blocked.
const maxRounds = 4

// maxMisses bounds the crowded choices after which a topic is given up for a stage.
const maxMisses = 8

// packBudget bounds the destinations looked at when leaving partitions are packed by size.
const packBudget = 50_000_000

// source says which partitions a stage considers.
type source uint8

const (
	// anyOf: every partition that may be picked at a node above its share.
	anyOf source = iota
	// besideRelated: those that sit beside a related partition.
	besideRelated
	// strayed: those whose target died or drains; they are being copied anyway.
	strayed
	// aboveCeil and aboveFloor: those of topics with more than a fair share on the node.
	aboveCeil
	aboveFloor
)

// sink says how many partitions of the topic a destination may hold before it takes another.
type sink uint8

const (
	anywhere sink = iota
	belowCeil
	belowFloor
)

// stage is one sweep over all topics. The sweeps go from the most to the least wanted choice; each
// takes what it can and leaves the rest to the next, so that preferences shape the plan and never
// its size.
type stage struct {
	from source
	to   sink
	near int32
}

var leavingStages = []stage{
	{to: belowFloor, near: apart},
	{to: belowCeil, near: apart},
	{to: anywhere, near: apart},
	{to: anywhere, near: together},
}

var surplusStages = []stage{
	{from: strayed, to: anywhere, near: apart},
	{from: strayed, to: anywhere, near: together},
	{from: besideRelated, to: belowFloor, near: apart},
	{from: besideRelated, to: anywhere, near: apart},
	{from: aboveCeil, to: belowFloor, near: apart},
	{from: aboveFloor, to: belowFloor, near: apart},
	{from: aboveCeil, to: belowCeil, near: apart},
	{from: aboveFloor, to: belowCeil, near: apart},
	{from: anyOf, to: anywhere, near: apart},
	{from: anyOf, to: anywhere, near: together},
}

// desire computes the whole desired placement: dest of every partition that should move.
func (s *state) desire() {
	if len(s.recv) == 0 {
		return
	}
	s.attempt(false)
	if s.leaving > 0 && s.leaving*len(s.recv) <= packBudget {
		// Something could not leave for lack of room: large ones first may fit better.
		blocked := s.leaving
		s.rewind()
		if s.attempt(true); s.leaving >= blocked {
			s.rewind()
			s.attempt(false)
		}
	}
	s.repair()
}

// attempt makes a plan from scratch. To pack is to place leaving partitions by size and room alone.
func (s *state) attempt(pack bool) {
	s.boundByRoom()
	for round := 1; ; round++ {
		s.shares()
		if pack {
			s.pack()
		}
		for _, st := range leavingStages {
			s.sweepLeaving(st)
		}
		for _, st := range surplusStages {
			s.sweepSurplus(st)
		}
		if pack || round == maxRounds || !s.learnBounds() {
			break
		}
		s.rewind()
	}
	s.overflow()
}

// sweepLeaving places partitions of draining nodes.
func (s *state) sweepLeaving(st stage) {
	for ti := range s.topics {
		if s.leaving == 0 || len(s.open) == 0 {
			return
		}
		t := &s.topics[ti]
		if t.leaving == 0 {
			continue
		}
		s.enter(t)
		below, misses := s.ceiling(t, st.to), 0
		for i := t.begin; i < t.end; i++ {
			if s.kinds[i] != leaving || s.dest[i] != none {
				continue
			}
			if s.try(int32(ti), i, below, st.near) != crowded {
				misses = 0
			} else if misses++; s.pointless(misses) {
				break
			}
		}
		s.leave(t)
	}
}

// pointless reports whether so many choices in a row were crowded that the topic is given up for this
// stage: all open receivers were looked at, or a good sample of them.
func (s *state) pointless(misses int) bool {
	return misses >= maxMisses || len(s.open) <= exactScan || misses*probeScan >= len(s.open)
}

// sweepSurplus takes partitions from nodes above their share.
func (s *state) sweepSurplus(st stage) {
	for ti := range s.topics {
		if s.surplus == 0 || len(s.open) == 0 || st.from == strayed && s.unsettles == 0 {
			return
		}
		t := &s.topics[ti]
		if st.from == besideRelated && (!t.related || st.to != belowFloor && s.paired == 0) {
			continue
		}
		s.enter(t)
		below, misses := s.ceiling(t, st.to), 0
		for i := t.begin; i < t.end; i++ {
			if s.kinds[i] != home || s.dest[i] != none {
				continue
			}
			n := s.pos[i]
			if s.excess[n] == 0 || !s.isAbove(n, t, st.from) || st.from == strayed && !s.unsettled[i] {
				continue
			}
			if st.from == besideRelated {
				if s.relate(int32(ti), i); s.beside(n) != together {
					continue
				}
				s.paired++
			}
			if s.try(int32(ti), i, below, st.near) != crowded {
				misses = 0
			} else if misses++; s.pointless(misses) {
				break
			}
		}
		s.leave(t)
	}
}

// try places partition i of topic t when there is a destination as wished.
func (s *state) try(t, i int32, below part, near int32) found {
	s.relate(t, i)
	n, res := s.choose(wish{size: s.size(i), below: below, near: near})
	if res == chosen {
		s.place(i, n)
	}
	return res
}

// ceiling returns how much of topic t a destination has at the most before it takes another.
func (s *state) ceiling(t *topic, to sink) part {
	switch to {
	case belowFloor:
		return part{int64(t.counted), s.weighs}
	case belowCeil:
		return part{int64(t.counted), 1}
	}
	return part{}
}

// isAbove reports whether node n has more of topic t than a node above its share keeps.
func (s *state) isAbove(n int32, t *topic, from source) bool {
	has, quota := int64(s.tcnt[n]), int64(t.counted)*s.weight[n]
	switch from {
	case aboveCeil:
		return (has-1)*s.weighs >= quota
	case aboveFloor:
		return has*s.weighs > quota
	}
	return has > 0
}

// learnBounds lowers the bound of receivers that stayed below their share although partitions were
// left over, and reports whether there were any: they have no room for what is left.
func (s *state) learnBounds() bool {
	if s.leaving == 0 && (s.surplus == 0 || !s.sheddable()) {
		return false
	}
	learnt := false
	for _, n := range s.recv {
		if s.low[n] != none && s.accepts(n) && s.room[n] != unlimited {
			s.capac[n] = s.cnt[n]
			learnt = true
		}
	}
	return learnt
}

// sheddable reports whether a node above its share still holds a partition that may be picked. If
// not, what is above its share is in a move and is dealt with when that has ended.
func (s *state) sheddable() bool {
	for i, k := range s.kinds {
		if k == home && s.dest[i] == none && s.excess[s.pos[i]] > 0 {
			return true
		}
	}
	return false
}

// rewind forgets the planned moves.
func (s *state) rewind() {
	copy(s.cnt, s.start.cnt)
	copy(s.room, s.start.room)
	copy(s.load, s.start.load)
	s.leaving, s.unsettles, s.noRoom, s.cursor = 0, 0, unlimited, 0
	for i, k := range s.kinds {
		if s.dest[i] != none {
			s.dest[i], s.pos[i] = none, s.owner[i]
		}
		switch {
		case k == leaving:
			s.leaving++
			s.pos[i] = none
		case k == home && s.unsettled[i]:
			s.unsettles++
		}
	}
}

// overflow places what is still leaving on any receiver with room, whatever its share: leaving a
// draining node is worth more than balance.
func (s *state) overflow() {
	noRoom := unlimited
	for ti := range s.topics {
		if s.leaving == 0 {
			return
		}
		t := &s.topics[ti]
		if t.leaving == 0 {
			continue
		}
		s.enter(t)
		for i := t.begin; i < t.end; i++ {
			size := s.size(i)
			if s.kinds[i] != leaving || s.dest[i] != none || size >= noRoom {
				continue
			}
			s.relate(int32(ti), i)
			best, bestNear := none, together
			for _, n := range s.recv {
				if s.room[n] < size {
					s.tight = true
					continue
				}
				near := s.beside(n)
				if best == none || s.lighter(n, best) || !s.lighter(best, n) &&
					(near < bestNear || near == bestNear && s.prefer(n, best)) {
					best, bestNear = n, near
				}
			}
			if best == none {
				noRoom = size
				continue
			}
			s.place(i, best)
		}
		s.leave(t)
	}
}

// lighter reports whether node a holds fewer partitions than b, in proportion to their weights.
func (s *state) lighter(a, b int32) bool {
	return int64(s.cnt[a])*s.weight[b] < int64(s.cnt[b])*s.weight[a]
}

// pack places leaving partitions by falling size, each where it leaves the least room; within the
// shares where possible.
func (s *state) pack() {
	var all []int32
	for i, k := range s.kinds {
		if k == leaving {
			all = append(all, int32(i))
		}
	}
	slices.SortStableFunc(all, func(a, b int32) int { return cmp.Compare(s.bytes[b], s.bytes[a]) })
	for _, i := range all {
		size, best, bestIn := s.size(i), none, false
		for _, n := range s.recv {
			in := s.accepts(n)
			if s.room[n] >= size && (best == none || in && !bestIn || in == bestIn && s.room[n] < s.room[best]) {
				best, bestIn = n, in
			}
		}
		if best == none {
			continue
		}
		// No topic is entered: its spread does not matter here, and its counts stay zero.
		s.place(i, best)
		s.tcnt[best], s.zcnt[s.zone[best]] = 0, 0
	}
}
