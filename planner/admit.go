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

// holds reports whether the current move of partition i holds a slot, and at which target.
func (s *state) holds(i int) (target int32, ok bool) {
	p := &s.parts[i]
	if p.Target == "" || p.Stuck || s.owner[i] == none || !s.nodes[s.owner[i]].Alive {
		return none, false
	}
	target = s.find(p.Target)
	return target, target != none && s.nodes[target].Alive
}

func (s *state) slotsInFlight() slots {
	sl := slots{src: make([]int32, len(s.nodes)), dst: make([]int32, len(s.nodes))}
	for _, i := range s.moving {
		if t, ok := s.holds(int(i)); ok {
			sl.add(s.owner[i], t, 1)
		}
	}
	return sl
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
)

func (s *state) classOf(i int) class {
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

// admit turns the desired placement into the plan that fits the limits.
func (s *state) admit() Result {
	var r Result
	sl := s.slotsInFlight()
	var sizes [rebalancing + 1]int
	for i := range s.dest {
		sizes[s.classOf(i)]++
	}
	var classes [rebalancing + 1][]int32
	for c := cancelled; c <= rebalancing; c++ {
		classes[c] = make([]int32, 0, sizes[c])
	}
	for i := range s.dest {
		if c := s.classOf(i); c != staying {
			classes[c] = append(classes[c], int32(i))
		}
	}
	if n := len(s.dest) - sizes[staying]; s.lim.MaxInFlight == 0 && !s.lim.Paused {
		r.Moves = make([]Move, 0, n)
	}
	for _, i := range classes[cancelled] {
		s.cancel(&r, &sl, int(i))
	}
	reasons := make([]string, len(s.nodes))
	for _, class := range classes[retargeted:] {
		for _, i := range class {
			if !s.lim.Paused && s.fits(&sl, int(i)) {
				r.Moves = append(r.Moves, s.move(int(i), reasons))
				continue
			}
			r.Waiting++
			r.WaitingBytes += s.parts[i].Bytes
		}
	}
	r.Blocked = s.blocked()
	return r
}

// fits takes the slots for the planned move of partition i when they are free. A retarget gives back
// those of the move that it replaces, and may use them even when limits were lowered meanwhile.
func (s *state) fits(sl *slots, i int) bool {
	from, to := s.owner[i], s.dest[i]
	all, per := s.lim.MaxInFlight, int32(min(s.lim.MaxPerNode, len(s.parts)))
	old, held := s.holds(i)
	if !held {
		if all > 0 && sl.all >= all || per > 0 && sl.src[from] >= per {
			return false
		}
	}
	if per > 0 && sl.dst[to] >= per {
		return false
	}
	if held {
		sl.add(from, old, -1)
	}
	sl.add(from, to, 1)
	return true
}

func (s *state) cancel(r *Result, sl *slots, i int) {
	p := &s.parts[i]
	if s.lim.Paused {
		r.Waiting++
		return
	}
	if old, held := s.holds(i); held {
		sl.add(s.owner[i], old, -1)
	}
	r.Moves = append(r.Moves, Move{
		Partition: p.ID, From: p.Owner, OldTarget: p.Target, Epoch: p.Epoch, Bytes: p.Bytes,
		Reason: "cancel: target " + s.plight(p.Target),
	})
}

func (s *state) move(i int, reasons []string) Move {
	p, from := &s.parts[i], s.owner[i]
	m := Move{
		Partition: p.ID, From: p.Owner, To: s.nodes[s.dest[i]].ID, Retarget: p.Target != "",
		OldTarget: p.Target, Epoch: p.Epoch, Bytes: p.Bytes,
	}
	switch {
	case m.Retarget:
		m.Reason = "retarget: " + s.plight(p.Target)
	case reasons[from] != "":
		m.Reason = reasons[from]
	case s.kinds[i] == leaving:
		m.Reason = "drain " + string(p.Owner)
	default:
		m.Reason = "rebalance: " + string(p.Owner) + " has " + strconv.Itoa(int(s.start.cnt[from])) +
			", share is " + strconv.Itoa(int(s.share[from]))
	}
	if !m.Retarget {
		reasons[from] = m.Reason
	}
	return m
}

// plight says why a target is no good.
func (s *state) plight(target cluster.NodeID) string {
	n := s.find(target)
	switch {
	case n == none:
		return string(target) + " is not a member"
	case !s.nodes[n].Alive:
		return string(target) + " is dead"
	}
	return string(target) + " is draining"
}

// blocked lists what should move and can't.
func (s *state) blocked() []Blocked {
	var out []Blocked
	for i := range s.parts {
		p, reason := &s.parts[i], ""
		switch {
		case s.kinds[i] == leaving && s.dest[i] == none:
			reason = s.whyUnplaced(p, func(int32) bool { return true })
		case s.kinds[i] == fixed && s.ownerDeadBlocks(i):
			reason = BlockedOwnerDead
		case s.kinds[i] == home && s.dest[i] == none && s.surplus > 0 && s.excess[s.pos[i]] > 0:
			// Rounds ran out before the shares fitted the rooms. Which of the node's partitions is
			// reported is arbitrary; the number is not.
			s.excess[s.pos[i]]--
			s.surplus--
			reason = s.whyUnplaced(p, s.accepts)
		}
		if reason != "" {
			out = append(out, Blocked{Partition: p.ID, Owner: p.Owner, Target: p.Target, Bytes: p.Bytes, Reason: reason})
		}
	}
	return out
}

// ownerDeadBlocks reports whether partition i, which is left where it is, should move: its owner is
// dead and drains or is no member, or its owner and its target are both dead.
func (s *state) ownerDeadBlocks(i int) bool {
	o := s.owner[i]
	if o != none && s.nodes[o].Alive || s.target[i] != none {
		return false
	}
	return s.parts[i].Target != "" || o == none || s.nodes[o].Draining
}

// whyUnplaced names the roomiest of the receivers that would take one more partition.
func (s *state) whyUnplaced(p *Partition, takes func(n int32) bool) string {
	best := none
	for _, n := range s.recv {
		if takes(n) && (best == none || s.room[n] > s.room[best]) {
			best = n
		}
	}
	if best == none {
		return BlockedNoReceivers
	}
	return fmt.Sprintf("%s: needs %s, %s has %s", BlockedNoSpace, formatBytes(p.Bytes), s.nodes[best].ID,
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
