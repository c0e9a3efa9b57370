package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Request asks for the owners of a new topic's partitions.
type Request struct {
	// Count is the number of partitions.
	Count int
	// Parent is the parent topic; zero when there is none.
	Parent cluster.TopicID
	// OnSettling lets settling nodes receive as well: a new topic moves nothing.
	OnSettling bool
}

// Place returns the owners of a new topic's partitions; see the function of this name.
func (b *Board) Place(lim Limits, req Request) ([]cluster.NodeID, error) {
	if req.Count < 0 {
		return nil, cluster.Invalid("partitions", "must not be negative, is %d", req.Count)
	}
	b.link()
	s := newState(b.with(func(n *Node) { n.Settling = n.Settling && !req.OnSettling }), lim)
	s.recv = slices.DeleteFunc(s.recv, func(n int32) bool { return s.room[n] <= 0 })
	if len(s.recv) == 0 {
		return nil, s.noReceivers()
	}
	s.raise(req.Count)
	owners := s.placeTopic(req)
	out := make([]cluster.NodeID, len(owners))
	for k, n := range owners {
		out[k] = s.nodes[n].ID
	}
	return out, nil
}

// maxBlockers bounds the nodes that an error names.
const maxBlockers = 20

func (s *state) noReceivers() *cluster.Error {
	err := cluster.Errorf(cluster.ReasonBlocked, "%s: none of %d nodes may receive partitions", BlockedNoReceivers, s.members)
	for i := range s.nodes[:s.members] {
		if i == maxBlockers {
			err.Blockers = append(err.Blockers, fmt.Sprintf("and %d more nodes", s.members-i))
			break
		}
		nd, why := &s.nodes[i], "disk full"
		switch {
		case !nd.Alive:
			why = "dead"
		case nd.Draining:
			why = "draining"
		case nd.Maintenance:
			why = "in maintenance"
		case !s.isRecv[i] && nd.Silent:
			why = "silent"
		case !s.isRecv[i]:
			why = "joined too recently"
		}
		err.Blockers = append(err.Blockers, fmt.Sprintf("%s: %s", nd.ID, why))
	}
	return err
}

// raise sets the shares up to which count new partitions fill the receivers: those with the least in proportion
// to their weight first, and none beyond what it would have to give away again.
func (s *state) raise(count int) {
	for i := range s.nodes {
		s.low[i], s.plus[i], s.capac[i] = none, false, math.MaxInt32
	}
	s.weighs = 0
	for _, n := range s.recv {
		s.weighs += s.weight[n]
	}
	held := int64(count + s.leaving) // what drains will come as well
	for _, n := range s.recv {
		held += int64(s.cnt[n])
	}
	// What each will have to hold at the least when all is balanced is filled first.
	missing := int64(0)
	for _, n := range s.recv {
		missing += max(0, held*s.weight[n]/s.weighs-int64(s.cnt[n]))
	}
	level := line{held, s.weighs}
	most := func(n int32) int32 { return math.MaxInt32 }
	if missing > int64(count) {
		level = s.waterline(int64(count))
		most = func(n int32) int32 { return int32(held * s.weight[n] / s.weighs) }
	}
	rest := int64(count)
	for _, n := range s.recv {
		s.low[n] = max(s.cnt[n], min(most(n), int32(level.height*s.weight[n]/level.width)))
		rest -= int64(s.low[n] - s.cnt[n])
	}
	// What is left over goes to some of those that are below the line, or else of those below the most.
	below := func(n int32) bool {
		return s.low[n] < most(n) && int64(s.low[n])*level.width < level.height*s.weight[n]
	}
	for rest > 0 {
		more := int64(0)
		for _, n := range s.recv {
			if s.plus[n] = below(n); s.plus[n] {
				more++
			}
		}
		if more >= rest {
			break
		}
		for _, n := range s.recv {
			if s.plus[n] {
				s.low[n]++
				rest--
			}
		}
		if more == 0 {
			below = func(n int32) bool { return s.low[n] < most(n) }
		}
	}
	s.extra = int(rest)
	s.open = append(s.open[:0], s.recv...)
}

// line is a height in partitions for each unit of weight, as a fraction.
type line struct{ height, width int64 }

// waterline is the line up to which count partitions more fill the receivers that are below it.
func (s *state) waterline(count int64) line {
	slices.SortFunc(s.recv, func(a, b int32) int {
		return cmp.Or(cmp.Compare(int64(s.cnt[a])*s.weight[b], int64(s.cnt[b])*s.weight[a]), cmp.Compare(a, b))
	})
	l := line{height: count}
	for k, n := range s.recv {
		l.height += int64(s.cnt[n])
		l.width += s.weight[n]
		if k+1 < len(s.recv) {
			if next := s.recv[k+1]; int64(s.cnt[next])*l.width < l.height*s.weight[next] {
				continue
			}
		}
		break
	}
	return l
}

// placeTopic chooses the owners of the new topic by index.
func (s *state) placeTopic(req Request) []int32 {
	parent := s.findTopic(req.Parent)
	owners := make([]int32, req.Count)
	relate := func(k int) {
		s.rel = s.rel[:0]
		if parent != none {
			if j := s.at(parent, uint32(k)); j != none {
				s.rel = append(s.rel, j)
			}
		}
	}
	for k := range owners {
		relate(k)
		n, _ := s.choose(wish{near: together})
		if s.cnt[n] >= s.low[n] {
			s.extra--
		}
		owners[k] = n
		s.cnt[n]++
		s.tcnt[n]++
		s.zcnt[s.zone[n]]++
	}
	// A swap within the topic changes neither counts nor spread, so it may still part a partition from
	// its parent's when the last nodes left were the wrong ones.
	budget := repairBudget
	for k := range owners {
		relate(k)
		near := s.beside(owners[k])
		for o := 0; near != apart && o < len(owners) && budget > 0; o++ {
			budget--
			relate(k)
			mine := s.beside(owners[o])
			if owners[o] == owners[k] || mine >= near {
				continue
			}
			relate(o)
			if s.beside(owners[k])+mine < s.beside(owners[o])+near {
				owners[k], owners[o] = owners[o], owners[k]
				near = mine
			}
		}
	}
	return owners
}
