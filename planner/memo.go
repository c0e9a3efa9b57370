package planner

// memo is the plan that a board remembers.
type memo struct {
	state
	valid bool
	// todo lists what was planned by class, in order; planned is how many that are. An entry that was taken up
	// has another class since.
	todo    [classes][]int32
	planned int
	blocked []Blocked
	cooling int
	// short says that some node keeps more than its share, since none of it may be picked now.
	short bool
}

// forget makes the next plan a new one.
func (b *Board) forget() { b.memo.valid = false }

// remake plans.
func (b *Board) remake(lim Limits) {
	m := &b.memo
	m.reset(&b.facts, lim)
	m.desire()
	m.planned = 0
	for c := range m.todo {
		m.todo[c] = m.todo[c][:0]
	}
	for i := range m.dest {
		if c := m.classOf(int32(i)); c != staying {
			m.todo[c] = append(m.todo[c], int32(i))
			m.planned++
		}
	}
	m.short = m.surplus > 0
	m.blocked = m.hindered()
	m.cooling = m.kept()
	m.valid = true
}

// kept counts what should move and rests.
func (s *state) kept() int {
	n := 0
	for i := 0; s.surplus > 0 && i < len(s.kinds); i++ {
		if at := s.pos[i]; s.kinds[i] == resting && s.excess[at] > 0 {
			s.excess[at]--
			s.surplus--
			n++
		}
	}
	return n
}

// recall returns what of the plan fits the limits; ok is false when there is no plan, or none that stands.
func (b *Board) recall(lim Limits) (r Result, ok bool) {
	m := &b.memo
	if !m.valid || m.lim.HighDiskPercent != lim.HighDiskPercent {
		return Result{}, false
	}
	if r, ok = m.admit(lim); !ok {
		m.valid = false
	}
	return r, ok
}

// follow carries a change of partition i over to the plan, or forgets it.
func (b *Board) follow(i, owner, target int32, cools bool) {
	m := &b.memo
	was, had := b.owner[i], b.target[i]
	k := m.kinds[i]
	switch {
	case owner == was && target == had:
	case owner == was && target != none && target == m.dest[i]:
		// It was started as planned: from now on it is a move in flight.
		m.kinds[i], m.dest[i], m.unsettled[i] = pinned, none, false
	case owner == was && target == none && m.classOf(i) == cancelled:
		m.unsettled[i] = false
	case owner == had && target == none && k == pinned:
		// It flipped, and counts where it counted. Now it may be picked.
		if m.kinds[i] = home; m.short {
			b.forget()
			return
		}
	default:
		b.forget()
		return
	}
	switch k = m.kinds[i]; {
	case cools && k == home && m.dest[i] == none:
		m.kinds[i] = resting
	case !cools && k == resting:
		if m.kinds[i] = home; m.short {
			b.forget()
		}
	case cools && k == home:
		b.forget()
	}
}
