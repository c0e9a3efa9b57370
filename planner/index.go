package planner

import (
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// kind says what the planner may do with a partition.
type kind uint8

const (
	// fixed partitions stay where they are and are not counted: owner dead, or on a settling node.
	fixed kind = iota
	// pinned partitions are in a move; they count at the target and can't be picked.
	pinned
	// resting partitions moved a moment ago; they count at their owner and can't be picked.
	resting
	// home partitions count at their owner and may be picked.
	home
	// leaving partitions are on a draining node and must go.
	leaving
)

// state is the facts and the plan being made of them.
type state struct {
	*facts
	lim Limits

	// By node.
	isRecv []bool
	kindAt []kind // of a partition that is here and in no move
	zone   []int32
	weight []int64
	cnt    []int32 // movable partitions counted here, planned moves included
	homes  []int32 // partitions here that may be picked, before planning
	room   []int64 // bytes that may still come; may be negative
	load   []int64 // bytes counted here, planned moves included
	low    []int32 // share without a ceil slot; none for a node that sheds or is no receiver
	plus   []bool  // the share may have a ceil slot beyond low
	capac  []int32 // upper bound of the share, by room
	excess []int32 // partitions still to shed
	share  []int32 // share of a node that sheds, for the reason
	start  counts  // cnt, room and load before planning

	// By partition.
	kinds []kind
	pos   []int32 // where the partition is or will be; none while a leaving one is not placed
	dest  []int32 // planned destination, or none
	// unsettled marks partitions whose target died or drains: they are retargeted or cancelled.
	unsettled []bool
	smallest  int64 // size of the smallest partition that must go, or may be picked now or when it has cooled down
	// stranded says that a partition may be where it can't stay and can't leave.
	stranded bool
	// tight says that room kept something from a place.
	tight bool

	recv   []int32 // receivers
	weighs int64   // weight of all receivers

	total     int // movable partitions
	extra     int // ceil slots not taken yet
	leaving   int // leaving partitions not placed yet
	surplus   int // partitions still to shed from nodes above their share
	unsettles int // unsettled home partitions
	paired    int // partitions that were found beside a related one; the first sweep for them looks at all

	// Of the topic being worked on: its partitions by node and by zone.
	tcnt []int32
	zcnt []int32

	open   []int32 // receivers that may accept, loosely: accepts decides
	cursor int
	// noRoom is the smallest size that no open receiver has room for.
	noRoom int64
	rel    []int32 // scratch: related partitions of the one being placed
	budget int     // steps left for repair

	explain bool // list what the limits hold back, and why
}

type counts struct {
	cnt  []int32
	room []int64
	load []int64
}

func newState(f *facts, lim Limits) *state {
	s := &state{}
	s.reset(f, lim)
	return s
}

// reset begins a plan of f, in the arrays of the plan before.
func (s *state) reset(f *facts, lim Limits) {
	f.link()
	s.facts, s.lim, s.noRoom, s.cursor, s.tight = f, lim, unlimited, 0, false
	s.indexNodes()
	s.indexPartitions()
	s.start = counts{slices.Clone(s.cnt), slices.Clone(s.room), slices.Clone(s.load)}
}

// room returns an array of n anythings, in the memory of old where that is large enough.
func room[T any](old []T, n int) []T {
	if cap(old) < n {
		return make([]T, n, n+n/8)
	}
	return old[:n]
}

// sized returns an array of n zeros, in the memory of old where that is large enough.
func sized[T any](old []T, n int) []T {
	old = room(old, n)
	clear(old)
	return old
}

func (s *state) indexNodes() {
	n := len(s.nodes)
	s.isRecv, s.kindAt, s.plus = sized(s.isRecv, n), sized(s.kindAt, n), sized(s.plus, n)
	s.zone, s.weight = sized(s.zone, n), sized(s.weight, n)
	s.cnt, s.homes, s.low, s.capac = sized(s.cnt, n), sized(s.homes, n), sized(s.low, n), sized(s.capac, n)
	s.excess, s.share, s.tcnt = sized(s.excess, n), sized(s.share, n), sized(s.tcnt, n)
	s.room, s.load = sized(s.room, n), sized(s.load, n)
	zones := make([]string, 0, n)
	settled := false
	for i := range s.nodes {
		nd := &s.nodes[i]
		zones = append(zones, nd.Zone)
		settled = settled || nd.Alive && !nd.Draining && !nd.Maintenance && !nd.Settling && !nd.Silent
		s.room[i] = roomOf(nd, s.lim.HighDiskPercent)
		s.weight[i] = int64(min(max(nd.Weight, 1), MaxWeight))
	}
	slices.Sort(zones)
	zones = slices.Compact(zones)
	s.zcnt = sized(s.zcnt, len(zones))
	s.recv, s.weighs = s.recv[:0], 0
	for i := range s.nodes {
		nd := &s.nodes[i]
		z, _ := slices.BinarySearch(zones, nd.Zone)
		s.zone[i] = int32(z)
		switch {
		case !nd.Alive, nd.Maintenance:
		case nd.Draining:
			s.kindAt[i] = leaving
		case !nd.Settling && !nd.Silent || !settled:
			s.kindAt[i], s.isRecv[i] = home, true
			s.recv = append(s.recv, int32(i))
			s.weighs += s.weight[i]
		}
	}
}

// indexPartitions classifies and counts everything in one pass: with millions of partitions, each pass costs.
func (s *state) indexPartitions() {
	n := len(s.owner)
	s.pos, s.dest, s.kinds = room(s.pos, n), room(s.dest, n), room(s.kinds, n) // all of it is written below
	s.unsettled = sized(s.unsettled, n)
	s.total, s.leaving, s.unsettles, s.smallest, s.stranded = 0, 0, 0, unlimited, s.strandedNodes()
	for ti := range s.topics {
		t := &s.topics[ti]
		t.counted, t.leaving = 0, 0
		for i := t.begin; i < t.end; i++ {
			at := s.owner[i]
			k := s.kindAt[at]
			s.dest[i] = none
			if s.target[i] != none {
				k, at = s.inMove(i, k)
			}
			switch k {
			case fixed:
			case leaving:
				at = none
				t.leaving++
				t.counted++
				s.smallest = min(s.smallest, s.size(i))
			default:
				if k == home {
					s.smallest = min(s.smallest, s.size(i))
					switch {
					case s.marks[i]&cooling != 0:
						k = resting
					case s.unsettled[i]:
						s.unsettles++
						fallthrough
					default:
						s.homes[at]++
					}
				}
				s.cnt[at]++
				s.load[at] = saturatingAdd(s.load[at], s.size(i))
				t.counted++
			}
			s.kinds[i], s.pos[i] = k, at
		}
		s.leaving += int(t.leaving)
		s.total += int(t.counted)
	}
}

// strandedNodes reports whether a node may hold what can neither stay nor leave.
func (s *state) strandedNodes() bool {
	for i := range s.nodes {
		if nd := &s.nodes[i]; !nd.Alive && (nd.Draining || i >= s.members) {
			return true
		}
	}
	return false
}

// inMove returns kind and place of partition i, which is in a move, and takes the room of what is on its way. k is
// the kind of what its owner has.
func (s *state) inMove(i int32, k kind) (kind, int32) {
	o, target := s.owner[i], s.target[i]
	ownerAlive := s.nodes[o].Alive
	if !ownerAlive {
		s.stranded = true
	}
	if s.nodes[target].Alive {
		s.inbound(i, target)
		if !s.nodes[target].Draining || !ownerAlive {
			// A dead owner's move is left alone even when the target drains: the target promotes its copy
			// and sheds it afterwards.
			if s.isRecv[target] {
				return pinned, target
			}
			return fixed, target
		}
	}
	s.unsettled[i] = ownerAlive
	return k, o
}

// inbound takes the room of what is on its way to node n.
func (s *state) inbound(i, n int32) {
	if more := s.coming(i); s.room[n] != unlimited && more > 0 {
		s.room[n] = saturatingSub(s.room[n], more)
	}
}

// coming is how much of partition i is still to be written at its target.
func (f *facts) coming(i int32) int64 {
	size := f.bytes[i]
	if len(f.staged) > 0 && size > 0 {
		if staged := f.staged[f.id(i)]; staged > 0 {
			return signed(size - min(staged, size))
		}
	}
	return signed(size)
}

// name returns the id of a node; empty for none.
func (f *facts) name(n int32) cluster.NodeID {
	if n == none {
		return ""
	}
	return f.nodes[n].ID
}
