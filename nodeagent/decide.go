package nodeagent

import (
	"fmt"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Situation is everything that a decision about one partition looks at.
type Situation struct {
	Self      cluster.NodeID
	Partition cluster.PartitionID
	// Synced says that the view came from the control plane in this process, not from the cache.
	Synced bool
	// Assignment is nil when the view has none.
	Assignment *cluster.Assignment
	// Topic says that the view has the partition's topic.
	Topic bool
	// Arrived says that the view has an outcome by which this node became the owner.
	Arrived bool
	// Cancelled are moves away that the view has as cancelled, and that have no marker here.
	Cancelled []cluster.MoveID
	// Marked are the identities of copies with an outbound marker: the source side owns them.
	Marked []store.Identity
	// Busy says that the destination side owns the active place.
	Busy bool
	// OpenEpoch is the epoch at which the active copy was opened last in this process; zero when never.
	// A view whose assignment has a lower one is behind.
	OpenEpoch cluster.Epoch
	// Copies are the partition's directories.
	Copies []store.Copy
}

// ActionKind says what to do.
type ActionKind uint8

const (
	// ActCreate makes an initial, empty copy.
	ActCreate ActionKind = iota + 1
	// ActOpen serves the active copy at an epoch, or re-stamps an open one.
	ActOpen
	// ActReport tells the cluster that the partition is open.
	ActReport
	// ActClose stops serving and keeps the data.
	ActClose
	// ActRetire asks (linearizable) whether the topic is gone, and then sets the copy aside.
	ActRetire
	// ActRemove asks whether a copy that lies aside may go, and removes it after the grace.
	ActRemove
	// ActStaging asks whether staging that no move claims may go.
	ActStaging
	// ActUnbegun reports that nothing is left of a cancelled move: it never began here.
	ActUnbegun
	// ActProblem reports what nobody here can resolve.
	ActProblem
)

func (k ActionKind) String() string {
	return [...]string{"none", "create", "open", "report", "close", "retire", "remove", "staging", "unbegun", "problem"}[k]
}

// Action is one thing to do about a partition. They are idempotent.
type Action struct {
	Kind     ActionKind
	Epoch    cluster.Epoch
	Identity store.Identity
	Place    store.Place
	Move     cluster.MoveID
	Problem  string
}

func (a Action) String() string {
	s := a.Kind.String()
	switch a.Kind {
	case ActOpen, ActReport:
		s += fmt.Sprintf(" epoch=%d", a.Epoch)
	case ActCreate, ActRetire, ActStaging:
		s += fmt.Sprintf(" identity=%d", a.Identity)
	case ActRemove:
		s += fmt.Sprintf(" %s identity=%d", a.Place, a.Identity)
	case ActUnbegun:
		s += fmt.Sprintf(" move=%d", a.Move)
	case ActProblem:
		s += ": " + a.Problem
	}
	return s
}

// Decide says what this agent does about a partition that is in a situation. Pure. What belongs to a move
// is left to the move's two sides: a marked copy to the source, a busy partition to the destination.
func Decide(s Situation) []Action {
	var active *store.Copy
	var aside []Action
	for i := range s.Copies {
		c := &s.Copies[i]
		switch c.Place {
		case store.Active:
			active = c
		case store.Staged:
			if !s.Busy && s.Synced {
				aside = append(aside, Action{Kind: ActStaging, Identity: c.Identity})
			}
		case store.Quarantined:
			if !slices.Contains(s.Marked, c.Identity) && s.Synced {
				aside = append(aside, Action{Kind: ActRemove, Place: store.Quarantined, Identity: c.Identity})
			}
		}
	}
	if s.Synced {
		for _, m := range s.Cancelled {
			aside = append(aside, Action{Kind: ActUnbegun, Move: m})
		}
	}
	// Serving comes first: what lies aside, and can't be removed, must not be in its way.
	switch {
	case s.Busy || (s.Assignment != nil && s.Assignment.Epoch < s.OpenEpoch):
		return aside
	case s.Assignment != nil && s.Assignment.Owner == s.Self:
		return append(decideOwned(s, active), aside...)
	}
	return append(decideForeign(s, active), aside...)
}

// decideOwned is Decide for a partition that the view says is this node's.
func decideOwned(s Situation, active *store.Copy) []Action {
	a := s.Assignment
	if active == nil {
		switch {
		case !s.Synced:
			return nil
		case a.Opened || s.Arrived || len(s.Marked) > 0:
			// Invariant I9: an empty log in place of a lost copy would hide the loss.
			return []Action{{Kind: ActProblem, Problem: "this node owns the partition and has no copy of it: restore the data directory, or delete the topic"}}
		}
		return []Action{
			{Kind: ActCreate, Identity: store.Identity(s.Partition.Topic)},
			{Kind: ActOpen, Epoch: a.OwnerEpoch},
			{Kind: ActReport, Epoch: a.OwnerEpoch},
		}
	}
	if slices.Contains(s.Marked, active.Identity) {
		return decideMarked(s, active)
	}
	if active.Pending != nil {
		return []Action{{Kind: ActProblem, Problem: fmt.Sprintf("the copy of move %d waits for its flip and no move claims it", active.Pending.MoveID)}}
	}
	var out []Action
	if !active.Open || a.OwnerEpoch != s.OpenEpoch {
		out = append(out, Action{Kind: ActOpen, Epoch: a.OwnerEpoch})
	}
	if !a.Opened && s.Synced {
		out = append(out, Action{Kind: ActReport, Epoch: a.OwnerEpoch})
	}
	return out
}

// decideMarked is decideOwned for a copy with an outbound marker. Invariant I7: the source side alone knows
// when it may accept writes. It is asked to open one that it could not open when it fenced, and refuses
// for as long as it must.
func decideMarked(s Situation, active *store.Copy) []Action {
	switch {
	case !s.Synced:
		return nil
	case !active.Open:
		return []Action{{Kind: ActOpen, Epoch: s.Assignment.OwnerEpoch}}
	case !s.Assignment.Opened:
		return []Action{{Kind: ActReport, Epoch: s.Assignment.OwnerEpoch}}
	}
	return nil
}

// decideForeign is Decide for a partition that the view does not say is this node's.
func decideForeign(s Situation, active *store.Copy) []Action {
	if active == nil || !s.Synced {
		return nil
	}
	if !s.Topic {
		return []Action{{Kind: ActRetire, Identity: active.Identity}}
	}
	switch {
	case slices.Contains(s.Marked, active.Identity):
		return nil
	case active.Pending != nil:
		return []Action{{Kind: ActProblem, Problem: fmt.Sprintf("the copy of move %d waits for its flip and no move claims it", active.Pending.MoveID)}}
	case active.Open:
		return []Action{{Kind: ActClose, Identity: active.Identity}}
	}
	return []Action{{Kind: ActProblem, Problem: "a copy of a partition that another node owns, and no record of how that came about; " +
		"it is kept: when the owner serves the whole partition, remove the copy's directory while this agent is stopped"}}
}

// MayDropStaging says whether the staging of a move that no one here works on may go, after a
// linearizable read of that move; why not, otherwise.
func MayDropStaging(v transfer.MoveView) (ok bool, why string) {
	switch {
	case v.Assignment == nil:
		return true, ""
	case v.State == transfer.MoveCurrent:
		return false, "its move is current"
	case v.Owner == nil || v.Owner.Status != cluster.NodeAlive:
		// Invariant I9: it may be the last copy.
		return false, fmt.Sprintf("owner %s is dead", v.Assignment.Owner)
	case !v.Assignment.Opened:
		return false, fmt.Sprintf("owner %s has not opened the partition", v.Assignment.Owner)
	}
	return true, ""
}

// MayRemove says the same of a copy that was set aside because its topic was deleted.
func MayRemove(v transfer.MoveView) (ok bool, why string) {
	if v.Assignment != nil {
		return false, fmt.Sprintf("its topic exists, owner is %s, and there is no record of how this copy came to lie aside; "+
			"when the owner serves the whole partition, remove the copy's directory while this agent is stopped", v.Assignment.Owner)
	}
	return true, ""
}
