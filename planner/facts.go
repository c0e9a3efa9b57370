package planner

import (
	"cmp"
	"math"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// none is the index of no node.
const none int32 = -1

// unlimited is the room of a node whose disk size is unknown.
const unlimited int64 = math.MaxInt64

// mark is a set of flags of a partition.
type mark uint8

const (
	// stuck moves hold no slot.
	stuck mark = 1 << iota
	// cooling partitions moved a moment ago.
	cooling
	// listed partitions are in moving.
	listed
)

// facts are a view as arrays. Node and partition indices follow the order of keys, so that ties that are broken by
// index are broken by key. The arrays are apart, so that a pass reads no more than it needs.
type facts struct {
	nodes   []Node // the members by id, then those that are none but own or receive something
	members int
	byID    map[cluster.NodeID]int32 // looked up, never iterated

	// By partition.
	index  []uint32
	owner  []int32
	target []int32 // none when the partition is stable
	epoch  []cluster.Epoch
	bytes  []cluster.Bytes
	marks  []mark
	staged map[cluster.PartitionID]cluster.Bytes // looked up, never iterated
	// moving holds all partitions in a move, and some that were: target decides.
	moving []int32

	topics   []topic
	children []int32 // of topics, indexed by topic.kids
	linked   bool    // children and the topics' relations are up to date
}

// topic is one topic's run of partitions.
type topic struct {
	id         cluster.TopicID
	parentID   cluster.TopicID
	begin, end int32
	parent     int32 // index of the parent topic, or none
	kids       [2]int32
	related    bool
	// Of the plan being made.
	counted int32 // movable partitions
	leaving int32
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

// find returns the index of a node, or none.
func (f *facts) find(id cluster.NodeID) int32 {
	if i, ok := f.byID[id]; ok {
		return i
	}
	return none
}

// id returns the key of partition i.
func (f *facts) id(i int32) cluster.PartitionID {
	return cluster.PartitionID{Topic: f.topics[f.topicOf(i)].id, Index: f.index[i]}
}

// size is the size of partition i, clamped below unlimited.
func (f *facts) size(i int32) int64 { return signed(f.bytes[i]) }

// topicOf returns the index of partition i's topic.
func (f *facts) topicOf(i int32) int32 {
	k, _ := slices.BinarySearchFunc(f.topics, i, func(t topic, i int32) int {
		switch {
		case t.end <= i:
			return -1
		case t.begin > i:
			return 1
		}
		return 0
	})
	return int32(k)
}

func (f *facts) searchTopic(id cluster.TopicID) (int, bool) {
	if n := len(f.topics); n > 0 && f.topics[n-1].id <= id {
		// The newest topic, or a newer one.
		if f.topics[n-1].id == id {
			return n - 1, true
		}
		return n, false
	}
	return slices.BinarySearchFunc(f.topics, id, func(t topic, id cluster.TopicID) int { return cmp.Compare(t.id, id) })
}

func (f *facts) findTopic(id cluster.TopicID) int32 {
	if id == 0 {
		return none
	}
	i, ok := f.searchTopic(id)
	if !ok {
		return none
	}
	return int32(i)
}

// search returns where the partition of t with an index is, or would be.
func (f *facts) search(t *topic, index uint32) (int32, bool) {
	n := uint32(t.end - t.begin)
	if index < n {
		if i := t.begin + int32(index); f.index[i] == index {
			return i, true
		}
	} else if n == 0 || f.index[t.end-1] < index {
		return t.end, false
	}
	i, ok := slices.BinarySearch(f.index[t.begin:t.end], index)
	return t.begin + int32(i), ok
}

// at returns the partition of topic t with an index, or none.
func (f *facts) at(t int32, index uint32) int32 {
	i, ok := f.search(&f.topics[t], index)
	if !ok {
		return none
	}
	return i
}

// link finds parents and children.
func (f *facts) link() {
	if f.linked {
		return
	}
	f.linked = true
	for i := range f.topics {
		t := &f.topics[i]
		t.parent, t.kids, t.related = none, [2]int32{}, false
	}
	for i := range f.topics {
		t := &f.topics[i]
		if p := f.findTopic(t.parentID); p != none && p != int32(i) {
			t.parent, t.related, f.topics[p].related = p, true, true
			f.topics[p].kids[1]++
		}
	}
	// Children lie side by side, in the order of their topics.
	var at int32
	for i := range f.topics {
		t := &f.topics[i]
		n := t.kids[1]
		t.kids = [2]int32{at, at}
		at += n
	}
	f.children = make([]int32, at)
	for i := range f.topics {
		if p := f.topics[i].parent; p != none {
			k := &f.topics[p].kids
			f.children[k[1]] = int32(i)
			k[1]++
		}
	}
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
