package planner

import (
	"fmt"
	"strconv"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// slots counts the moves in flight. Stuck moves, moves whose target is dead and moves whose owner is
// dead hold no slot: they may take for ever, and must not hold up the others.
type slots struct {
	all      int
	src, dst []int32
}

// holds reports whether the current move of partition i holds a slot.
func (f *facts) holds(i int32) bool {
	t := f.target[i]
	return t != none && f.marks[i]&stuck == 0 && f.nodes[f.owner[i]].Alive && f.nodes[t].Alive
}

func (sl *slots) add(src, dst int32, by int) {
	sl.all += by
	sl.src[src] += int32(by)
	sl.dst[dst] += int32(by)
}

// class is the urgency of a planned change; plans list them in this order.
type class uint8

const (
	staying class = iota
	cancelled
	retargeted
	draining
	rebalancing
	classes
)

func (s *state) classOf(i int32) class {
	switch {
	case s.dest[i] == none && (!s.unsettled[i] || s.kinds[i] == leaving):
		return staying
	case s.dest[i] == none:
		return cancelled
	case s.unsettled[i]:
		return retargeted
	case s.kinds[i] == leaving:
		return draining
	}
	return rebalancing
}

// round is the admission of one plan: what is taken up, and what is left of slots and room.
type round struct {
	*state
	Result
	lim     Limits
	slots   slots
	room    []int64
	reasons []string
}

// admit takes up of the plan what the limits allow now. ok is false when something does not fit where it was
// planned to go, since disks have changed: then the plan has to be made anew.
func (m *memo) admit(lim Limits) (r Result, ok bool) {
	a := round{state: &m.state, lim: lim, reasons: make([]string, len(m.nodes))}
	a.Result = Result{Blocked: m.blocked, Cooling: m.cooling}
	a.count(lim)
	if lim.MaxInFlight == 0 && !lim.Paused {
		a.Moves = make([]Move, 0, m.planned)
	}
	for _, i := range m.todo[cancelled] {
		switch {
		case m.classOf(i) != cancelled:
		case lim.Paused:
			a.Waiting++
			a.hold(i, "")
		default:
			a.cancel(i)
		}
	}
	for c := retargeted; c < classes; c++ {
		for _, i := range m.todo[c] {
			// What was taken up since the plan was made has another class now.
			if m.classOf(i) != c {
				continue
			}
			if lim.HoldRebalancing && m.kinds[i] != leaving {
				a.OnHold++
				a.hold(i, heldOnHold)
				continue
			}
			if lim.Paused || !a.fits(lim, i) {
				a.Waiting++
				a.WaitingBytes += m.bytes[i]
				a.hold(i, "")
				continue
			}
			if size, d := m.size(i), m.dest[i]; a.room[d] != unlimited {
				if a.room[d] < size {
					return Result{}, false
				}
				a.room[d] -= size
			}
			a.Moves = append(a.Moves, a.move(i))
		}
	}
	return a.Result, true
}

// count takes the slots and the room of what is in a move already.
func (a *round) count(lim Limits) {
	n := len(a.nodes)
	a.slots = slots{src: make([]int32, n), dst: make([]int32, n)}
	a.room = make([]int64, n)
	for i := range a.nodes {
		a.room[i] = roomOf(&a.nodes[i], lim.HighDiskPercent)
	}
	kept := a.moving[:0]
	for _, i := range a.moving {
		t := a.target[i]
		if t == none {
			a.marks[i] &^= listed
			continue
		}
		kept = append(kept, i)
		if more := a.coming(i); a.nodes[t].Alive && a.room[t] != unlimited && more > 0 {
			a.room[t] = saturatingSub(a.room[t], more)
		}
		if a.holds(i) {
			a.slots.add(a.owner[i], t, 1)
		}
	}
	a.moving = kept
}

// fits takes the slots for the planned move of partition i when they are free. A retarget gives back
// those of the move that it replaces, and may use them even when limits were lowered meanwhile.
func (a *round) fits(lim Limits, i int32) bool {
	sl, from, to := &a.slots, a.owner[i], a.dest[i]
	all, per := lim.MaxInFlight, int32(min(lim.MaxPerNode, len(a.owner)))
	held := a.holds(i)
	if !held {
		if all > 0 && sl.all >= all || per > 0 && sl.src[from] >= per {
			return false
		}
	}
	if per > 0 && sl.dst[to] >= per {
		return false
	}
	if held {
		sl.add(from, a.target[i], -1)
	}
	sl.add(from, to, 1)
	return true
}

func (a *round) cancel(i int32) {
	if a.holds(i) {
		a.slots.add(a.owner[i], a.target[i], -1)
	}
	a.Moves = append(a.Moves, a.cancellation(i))
}

func (a *round) cancellation(i int32) Move {
	return Move{
		Partition: a.id(i), From: a.name(a.owner[i]), OldTarget: a.name(a.target[i]), Epoch: a.epoch[i], Bytes: a.bytes[i],
		Reason: "cancel: target " + a.plight(a.target[i]),
	}
}

func (a *round) move(i int32) Move {
	from, target := a.owner[i], a.target[i]
	m := Move{
		Partition: a.id(i), From: a.name(from), To: a.name(a.dest[i]), Retarget: target != none,
		OldTarget: a.name(target), Epoch: a.epoch[i], Bytes: a.bytes[i],
	}
	switch {
	case m.Retarget:
		m.Reason = "retarget: " + a.plight(target)
	case a.reasons[from] != "":
		m.Reason = a.reasons[from]
	case a.kinds[i] == leaving:
		m.Reason = "drain " + string(m.From)
	default:
		m.Reason = "rebalance: " + string(m.From) + " has " + strconv.Itoa(int(a.start.cnt[from])) +
			", share is " + strconv.Itoa(int(a.share[from]))
	}
	if !m.Retarget {
		a.reasons[from] = m.Reason
	}
	return m
}

// plight says why a target is no good.
func (s *state) plight(n int32) string {
	name := string(s.nodes[n].ID)
	switch {
	case int(n) >= s.members:
		return name + " is not a member"
	case !s.nodes[n].Alive:
		return name + " is dead"
	}
	return name + " is draining"
}

// hindered lists what should move and can't.
func (s *state) hindered() []Blocked {
	if s.leaving == 0 && s.surplus == 0 && !s.stranded {
		return nil
	}
	var out []Blocked
	for k := range s.kinds {
		i, reason := int32(k), ""
		switch kind := s.kinds[i]; {
		case kind == leaving && s.dest[i] == none:
			reason = s.whyUnplaced(i, func(int32) bool { return true })
		case kind == fixed && s.stranded && s.ownerDeadBlocks(i):
			reason = BlockedOwnerDead
		case kind == home && s.dest[i] == none && s.surplus > 0 && s.excess[s.pos[i]] > 0:
			// Rounds ran out before the shares fitted the rooms. Which of the node's partitions is
			// reported is arbitrary; the number is not.
			s.excess[s.pos[i]]--
			s.surplus--
			reason = s.whyUnplaced(i, s.accepts)
		}
		if reason != "" {
			out = append(out, Blocked{
				Partition: s.id(i), Owner: s.name(s.owner[i]), Target: s.name(s.target[i]), Bytes: s.bytes[i], Reason: reason})
		}
	}
	return out
}

// ownerDeadBlocks reports whether partition i, which is left where it is, should move: its owner is
// dead and drains or is no member, or its owner and its target are both dead.
func (s *state) ownerDeadBlocks(i int32) bool {
	o, t := s.owner[i], s.target[i]
	if s.nodes[o].Alive || t != none && s.nodes[t].Alive {
		return false
	}
	return t != none || int(o) >= s.members || s.nodes[o].Draining
}

// whyUnplaced names the roomiest of the receivers that would take one more partition.
func (s *state) whyUnplaced(i int32, takes func(n int32) bool) string {
	best := none
	for _, n := range s.recv {
		if takes(n) && (best == none || s.room[n] > s.room[best]) {
			best = n
		}
	}
	if best == none {
		return BlockedNoReceivers
	}
	return fmt.Sprintf("%s: needs %s, %s has %s", BlockedNoSpace, formatBytes(s.bytes[i]), s.nodes[best].ID,
		formatBytes(cluster.Bytes(max(s.room[best], 0))))
}

// formatBytes renders b in binary units with at most one decimal, rounded down.
func formatBytes(b cluster.Bytes) string {
	const units = "KMGTPE"
	if b < 1024 {
		return strconv.FormatUint(uint64(b), 10) + " B"
	}
	unit, size := 0, cluster.Bytes(1024)
	for b/size >= 1024 && unit < len(units)-1 {
		unit, size = unit+1, size*1024
	}
	out := strconv.FormatUint(uint64(b/size), 10)
	if tenth := b % size / (size / 64) * 10 / 64; tenth > 0 {
		out += "." + strconv.FormatUint(uint64(tenth), 10)
	}
	return out + " " + units[unit:unit+1] + "iB"
}
