package planner

import (
	"math"
	"slices"
	"strings"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// none is the index of no node.
const none int32 = -1

// unlimited is the room of a node whose disk size is unknown.
const unlimited int64 = math.MaxInt64

// kind says what the planner may do with a partition.
type kind uint8

const (
	// fixed partitions stay where they are and are not counted: owner dead, or on a settling node.
	fixed kind = iota
	// pinned partitions are in a move; they count at the target and can't be picked.
	pinned
	// home partitions count at their owner and may be picked.
	home
	// leaving partitions are on a draining node and must go.
	leaving
)

// state is the view as index arrays, and the plan being made. Node and partition indices follow the
// sorted order of the view, so that ties broken by index are broken by key.
type state struct {
	lim   Limits
	nodes []Node
	parts []Partition
	byID  map[cluster.NodeID]int32 // looked up, never iterated

	// By node.
	isRecv []bool
	zone   []int32
	cnt    []int32 // movable partitions counted here, planned moves included
	room   []int64 // bytes that may still come; may be negative
	load   []int64 // bytes counted here, planned moves included
	low    []int32 // share without a ceil slot; none for a node that sheds or is no receiver
	capac  []int32 // upper bound of the share, by room
	excess []int32 // partitions still to shed
	share  []int32 // share of a node that sheds, for the reason
	start  counts  // cnt, room and load before planning

	// By partition.
	owner  []int32
	target []int32 // current target if it is to stay, else none
	kinds  []kind
	pos    []int32 // where the partition is or will be; none while a leaving one is not placed
	dest   []int32 // planned destination, or none
	// unsettled marks partitions whose target died or drains: they are retargeted or cancelled.
	unsettled []bool
	moving    []int32 // indices of those in a move
	smallest  int64   // size of the smallest partition that may be picked or must go

	topics   []topic
	children []int32 // of topics, indexed by topic.kids
	recv     []int32 // receivers

	total     int // movable partitions
	level     int32
	extra     int32 // ceil slots not taken yet
	leaving   int   // leaving partitions not placed yet
	surplus   int   // partitions still to shed from nodes above their share
	unsettles int   // unsettled home partitions

	// Of the topic being worked on: its partitions by node and by zone.
	tcnt []int32
	zcnt []int32

	open   []int32 // receivers that may accept, loosely: accepts decides
	cursor int
	// noRoom is the smallest size that no open receiver has room for.
	noRoom int64
	rel    []int32 // scratch: related partitions of the one being placed
	budget int     // steps left for repair
}

type counts struct {
	cnt  []int32
	room []int64
	load []int64
}

// topic is one topic's run of partitions.
type topic struct {
	id         cluster.TopicID
	begin, end int32
	parent     int32 // index of the parent topic, or none
	kids       [2]int32
	counted    int32 // movable partitions
	leaving    int32
	related    bool
}

func newState(v View, lim Limits) *state {
	s := &state{lim: lim, noRoom: unlimited}
	s.nodes = sortedBy(v.Nodes, func(a, b Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	s.parts = sortedBy(v.Partitions, func(a, b Partition) int { return a.ID.Compare(b.ID) })
	s.indexNodes()
	s.indexPartitions()
	s.linkTopics()
	s.start = counts{slices.Clone(s.cnt), slices.Clone(s.room), slices.Clone(s.load)}
	return s
}

// sortedBy returns in when it is sorted already, else a sorted copy.
func sortedBy[T any](in []T, cmp func(a, b T) int) []T {
	if slices.IsSortedFunc(in, cmp) {
		return in
	}
	out := slices.Clone(in)
	slices.SortFunc(out, cmp)
	return out
}

func (s *state) indexNodes() {
	n := len(s.nodes)
	s.isRecv = make([]bool, n)
	s.zone = make([]int32, n)
	s.cnt, s.low, s.capac = make([]int32, n), make([]int32, n), make([]int32, n)
	s.excess, s.share = make([]int32, n), make([]int32, n)
	s.room, s.load = make([]int64, n), make([]int64, n)
	s.tcnt = make([]int32, n)

	s.byID = make(map[cluster.NodeID]int32, n)
	zones := make([]string, 0, n)
	settled := false
	for i := range s.nodes {
		nd := &s.nodes[i]
		s.byID[nd.ID] = int32(i)
		zones = append(zones, nd.Zone)
		settled = settled || nd.Alive && !nd.Draining && !nd.Settling
		s.room[i] = roomOf(nd, s.lim.HighDiskPercent)
	}
	slices.Sort(zones)
	zones = slices.Compact(zones)
	s.zcnt = make([]int32, len(zones))
	for i := range s.nodes {
		nd := &s.nodes[i]
		z, _ := slices.BinarySearch(zones, nd.Zone)
		s.zone[i] = int32(z)
		if nd.Alive && !nd.Draining && (!nd.Settling || !settled) {
			s.isRecv[i] = true
			s.recv = append(s.recv, int32(i))
		}
	}
}

// find returns the index of a node, or none.
func (s *state) find(id cluster.NodeID) int32 {
	if i, ok := s.byID[id]; ok {
		return i
	}
	return none
}

// roomOf returns how many bytes may be added to nd before its disk passes percent.
func roomOf(nd *Node, percent int) int64 {
	if nd.DiskTotal == 0 {
		return unlimited
	}
	p := cluster.Bytes(100)
	if percent > 0 && percent < 100 {
		p = cluster.Bytes(percent)
	}
	// Hundredths first, so that no product overflows.
	high := nd.DiskTotal/100*p + nd.DiskTotal%100*p/100
	used := nd.DiskTotal - min(nd.DiskFree, nd.DiskTotal)
	if used > high {
		return -signed(used - high)
	}
	return signed(high - used)
}

// signed converts b, clamped below unlimited.
func signed(b cluster.Bytes) int64 { return int64(min(b, cluster.Bytes(unlimited-1))) }

// linkTopics finds parents and children.
func (s *state) linkTopics() {
	for i := range s.topics {
		t := &s.topics[i]
		if p := s.findTopic(s.parts[t.begin].Parent); p != none && p != int32(i) {
			t.parent, t.related, s.topics[p].related = p, true, true
			s.topics[p].kids[1]++
		}
	}
	// Children lie side by side, in the order of their topics.
	var at int32
	for i := range s.topics {
		t := &s.topics[i]
		n := t.kids[1]
		t.kids = [2]int32{at, at}
		at += n
	}
	s.children = make([]int32, at)
	for i := range s.topics {
		if p := s.topics[i].parent; p != none {
			k := &s.topics[p].kids
			s.children[k[1]] = int32(i)
			k[1]++
		}
	}
}

func (s *state) findTopic(id cluster.TopicID) int32 {
	if id == 0 {
		return none
	}
	i, ok := slices.BinarySearchFunc(s.topics, id, func(t topic, id cluster.TopicID) int {
		switch {
		case t.id < id:
			return -1
		case t.id > id:
			return 1
		}
		return 0
	})
	if !ok {
		return none
	}
	return int32(i)
}

// at returns the partition of topic t with an index, or none.
func (s *state) at(t int32, index uint32) int32 {
	tp := &s.topics[t]
	if n := uint32(tp.end - tp.begin); index < n {
		if i := tp.begin + int32(index); s.parts[i].ID.Index == index {
			return i
		}
	}
	i, ok := slices.BinarySearchFunc(s.parts[tp.begin:tp.end], index, func(p Partition, index uint32) int {
		return int(int64(p.ID.Index) - int64(index))
	})
	if !ok {
		return none
	}
	return tp.begin + int32(i)
}

func (s *state) indexPartitions() {
	n := len(s.parts)
	s.owner, s.target = make([]int32, n), make([]int32, n)
	s.pos, s.dest = make([]int32, n), make([]int32, n)
	s.kinds, s.unsettled = make([]kind, n), make([]bool, n)
	s.smallest = unlimited
	// One loop for everything: with a million partitions, each pass over them costs.
	var t *topic
	for k := range s.parts {
		p, i := &s.parts[k], int32(k)
		if t == nil || t.id != p.ID.Topic {
			s.topics = append(s.topics, topic{id: p.ID.Topic, begin: i, end: i, parent: none})
			t = &s.topics[len(s.topics)-1]
		}
		t.end++
		s.dest[i], s.target[i] = none, none
		s.owner[i] = s.find(p.Owner)
		target := none
		if p.Target != "" {
			target = s.find(p.Target)
			s.moving = append(s.moving, i)
		}
		s.classify(i, p, target)
		s.count(i, t)
	}
}

// classify sets kind, target, unsettled and pos of partition i.
func (s *state) classify(i int32, p *Partition, target int32) {
	o := s.owner[i]
	ownerAlive := o != none && s.nodes[o].Alive
	s.kinds[i], s.pos[i] = fixed, o
	if p.Target != "" {
		targetAlive := target != none && s.nodes[target].Alive
		if targetAlive {
			s.inbound(p, target)
		}
		if targetAlive && (!s.nodes[target].Draining || !ownerAlive) {
			// A dead owner's move is left alone even when the target drains: the target promotes its copy
			// and sheds it afterwards.
			s.target[i], s.pos[i] = target, target
			if s.isRecv[target] {
				s.kinds[i] = pinned
			}
			return
		}
		s.unsettled[i] = ownerAlive
	}
	switch {
	case !ownerAlive:
	case s.nodes[o].Draining:
		s.kinds[i], s.pos[i] = leaving, none
	case s.isRecv[o]:
		s.kinds[i] = home
	}
}

// inbound takes the room of what is on its way to node n.
func (s *state) inbound(p *Partition, n int32) {
	if s.room[n] != unlimited && p.Bytes > p.Staged {
		s.room[n] = saturatingSub(s.room[n], signed(p.Bytes-p.Staged))
	}
}

// count adds partition i to the totals of its kind.
func (s *state) count(i int32, t *topic) {
	switch s.kinds[i] {
	case leaving:
		s.leaving++
		t.leaving++
	case home, pinned:
		n := s.pos[i]
		s.cnt[n]++
		s.load[n] = saturatingAdd(s.load[n], signed(s.parts[i].Bytes))
		if s.kinds[i] == home && s.unsettled[i] {
			s.unsettles++
		}
	default:
		return
	}
	if s.kinds[i] != pinned {
		s.smallest = min(s.smallest, signed(s.parts[i].Bytes))
	}
	t.counted++
	s.total++
}

func saturatingAdd(a, b int64) int64 {
	if b > 0 && a > unlimited-1-b {
		return unlimited - 1
	}
	return a + b
}

func saturatingSub(a, b int64) int64 {
	if b > 0 && a < math.MinInt64+b {
		return math.MinInt64
	}
	return a - b
}
