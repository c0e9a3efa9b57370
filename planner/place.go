package planner

import (
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
}

// Place returns the owners of a new topic's partitions by index, by the rules of planning: no dead,
// draining, settling or full node (settling ones when there is no other), the emptiest nodes first so
// that the cluster stays as balanced as can be without moving anything, then the preferences. The
// error is nil or a *cluster.Error: ReasonInvalid for a negative count, ReasonBlocked with one blocker
// for each node when no node may receive.
func Place(v View, lim Limits, req Request) ([]cluster.NodeID, error) {
	if req.Count < 0 {
		return nil, cluster.Invalid("partitions", "must not be negative, is %d", req.Count)
	}
	s := newState(v, lim)
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
	err := cluster.Errorf(cluster.ReasonBlocked, "%s: none of %d nodes may receive partitions", BlockedNoReceivers, len(s.nodes))
	for i := range s.nodes {
		if i == maxBlockers {
			err.Blockers = append(err.Blockers, fmt.Sprintf("and %d more nodes", len(s.nodes)-i))
			break
		}
		nd, why := &s.nodes[i], "disk full"
		switch {
		case !nd.Alive:
			why = "dead"
		case nd.Draining:
			why = "draining"
		case !s.isRecv[i]:
			why = "joined too recently"
		}
		err.Blockers = append(err.Blockers, fmt.Sprintf("%s: %s", nd.ID, why))
	}
	return err
}

// raise sets the level up to which count new partitions fill the emptiest receivers.
func (s *state) raise(count int) {
	slices.SortFunc(s.recv, func(a, b int32) int {
		if c := int(s.cnt[a]) - int(s.cnt[b]); c != 0 {
			return c
		}
		return int(a - b)
	})
	sum := 0
	for k, n := range s.recv {
		sum += int(s.cnt[n])
		if k+1 < len(s.recv) && int(s.cnt[s.recv[k+1]])*(k+1)-sum < count {
			continue
		}
		s.level, s.extra = int32((sum+count)/(k+1)), int32((sum+count)%(k+1))
		break
	}
	for i := range s.nodes {
		s.low[i], s.capac[i] = none, math.MaxInt32
	}
	for _, n := range s.recv {
		s.low[n] = s.level
	}
	s.open = append(s.open[:0], s.recv...)
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
		n, _ := s.choose(wish{below: math.MaxInt32, near: together})
		if s.cnt[n] == s.level {
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
