package nodeagent

import (
	"fmt"
	"slices"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// situation is everything that a decision about one partition looks at.
type situation struct {
	self      cluster.NodeID
	partition cluster.PartitionID
	// synced says that the view came from the control plane in this process, not from the cache.
	synced bool
	// assignment is nil when the view has none.
	assignment *cluster.Assignment
	// topic says that the view has the partition's topic.
	topic bool
	// unknown says that the controllers were restored from a backup that is older than the topic.
	unknown bool
	// adopted is the move by which an operator, or a restore, asks for the records of a copy that has no marker here; zero for none.
	adopted cluster.MoveID
	// arrived says that the view has an outcome by which this node became the owner.
	arrived bool
	// cancelled are moves away that the view has as cancelled, and that have no marker here.
	cancelled []cluster.MoveID
	// marked are the identities of copies with an outbound marker: the source side owns them.
	marked []store.Identity
	// busy says that the destination side owns the active place.
	busy bool
	// openEpoch is the epoch at which the active copy was opened last in this process; zero when never.
	// A view whose assignment has a lower one is behind.
	openEpoch cluster.Epoch
	// copies are the partition's directories.
	copies []store.Copy
}

// actionKind says what to do.
type actionKind uint8

const (
	// actCreate makes an initial, empty copy.
	actCreate actionKind = iota + 1
	// actOpen serves the active copy at an epoch, or re-stamps an open one.
	actOpen
	// actReport tells the cluster that the partition is open.
	actReport
	// actClose stops serving and keeps the data.
	actClose
	// actRetire asks (linearizable) whether the topic is gone, and then sets the copy aside.
	actRetire
	// actRemove asks whether a copy that lies aside may go, and removes it after the grace.
	actRemove
	// actStaging asks whether staging that no move claims may go.
	actStaging
	// actUnbegun reports that nothing is left of a cancelled move: it never began here.
	actUnbegun
	// actAside sets a copy aside that lies where a new, empty one has to begin.
	actAside
	// actAdopt has the records of a copy put into the topic again.
	actAdopt
	// actProblem reports what nobody here can resolve.
	actProblem
)

func (k actionKind) String() string {
	return [...]string{"none", "create", "open", "report", "close", "retire", "remove", "staging", "unbegun", "aside", "adopt", "problem"}[k]
}

// action is one thing to do about a partition. They are idempotent.
type action struct {
	kind     actionKind
	epoch    cluster.Epoch
	identity store.Identity
	place    store.Place
	move     cluster.MoveID
	problem  string
}

func (a action) String() string {
	s := a.kind.String()
	switch a.kind {
	case actOpen, actReport:
		s += fmt.Sprintf(" epoch=%d", a.epoch)
	case actCreate, actRetire, actStaging, actAside:
		s += fmt.Sprintf(" identity=%d", a.identity)
	case actRemove:
		s += fmt.Sprintf(" %s identity=%d", a.place, a.identity)
	case actAdopt:
		s += fmt.Sprintf(" move=%d identity=%d", a.move, a.identity)
	case actUnbegun:
		s += fmt.Sprintf(" move=%d", a.move)
	case actProblem:
		s += ": " + a.problem
	}
	return s
}

// decide says what this agent does about a partition that is in a situation. Pure. What belongs to a move
// is left to the move's two sides: a marked copy to the source, a busy partition to the destination.
func decide(s situation) []action {
	if s.unknown || (s.assignment != nil && s.assignment.Unconfirmed) {
		// Restored controllers don't know who owns it. What is open was never given away and stays so; nothing else happens.
		return nil
	}
	adopt := decideAdopted(s)
	var active *store.Copy
	aside := adopt
	for i := range s.copies {
		c := &s.copies[i]
		switch c.Place {
		case store.Active:
			active = c
		case store.Staged:
			if !s.busy && s.synced {
				aside = append(aside, action{kind: actStaging, identity: c.Identity})
			}
		case store.Quarantined:
			if !slices.Contains(s.marked, c.Identity) && s.synced && s.adopted == 0 {
				aside = append(aside, action{kind: actRemove, place: store.Quarantined, identity: c.Identity})
			}
		}
	}
	if s.synced {
		for _, m := range s.cancelled {
			aside = append(aside, action{kind: actUnbegun, move: m})
		}
	}
	// Serving comes first: what lies aside, and can't be removed, must not be in its way.
	switch {
	case s.busy || (s.assignment != nil && s.assignment.Epoch < s.openEpoch):
		return aside
	case s.assignment != nil && s.assignment.Owner == s.self:
		return append(decideOwned(s, active), aside...)
	}
	if s.adopted != 0 && active != nil && !slices.Contains(s.marked, active.Identity) {
		return aside // its copy is about to be salvaged
	}
	return append(decideForeign(s, active), aside...)
}

// decideAdopted begins what an outcome asks for that no marker of this node is of. Pure.
func decideAdopted(s situation) []action {
	if s.adopted == 0 || !s.synced || s.busy {
		return nil
	}
	own := s.assignment != nil && s.assignment.Owner == s.self
	for _, c := range s.copies {
		served := c.Place == store.Active && own
		if c.Place == store.Staged || served || c.Pending != nil || slices.Contains(s.marked, c.Identity) {
			continue
		}
		return []action{{kind: actAdopt, move: s.adopted, identity: c.Identity}}
	}
	// Nothing is here that another move does not speak for.
	return []action{{kind: actAdopt, move: s.adopted}}
}

// decideOwned is decide for a partition that the view says is this node's.
func decideOwned(s situation, active *store.Copy) []action {
	a := s.assignment
	identity := store.Identity(s.partition.Topic)
	if a.Fresh != 0 && !a.Opened {
		identity = store.Identity(a.Fresh)
		if active != nil && active.Identity != identity && s.synced {
			return []action{{kind: actAside, identity: active.Identity}}
		}
	}
	if active == nil {
		switch {
		case !s.synced:
			return nil
		case a.Fresh != 0 && !a.Opened:
			// What was there is given up for lost, by an operator's word or since no node has it.
		case a.Opened || s.arrived || len(s.marked) > 0 || a.OwnerEpoch > 1:
			// Invariant I9: an empty log in place of a lost copy would hide the loss.
			return []action{{kind: actProblem, problem: "this node owns the partition and has no copy of it: restore the data directory, or delete the topic"}}
		}
		return []action{
			{kind: actCreate, identity: identity},
			{kind: actOpen, epoch: a.OwnerEpoch},
			{kind: actReport, epoch: a.OwnerEpoch},
		}
	}
	if slices.Contains(s.marked, active.Identity) {
		return decideMarked(s, active)
	}
	if active.Pending != nil {
		return []action{{kind: actProblem, problem: fmt.Sprintf("the copy of move %d waits for its flip and no move claims it", active.Pending.MoveID)}}
	}
	var out []action
	if !active.Open || a.OwnerEpoch != s.openEpoch {
		out = append(out, action{kind: actOpen, epoch: a.OwnerEpoch})
	}
	if !a.Opened && s.synced {
		out = append(out, action{kind: actReport, epoch: a.OwnerEpoch})
	}
	return out
}

// decideMarked is decideOwned for a copy with an outbound marker. Invariant I7: the source side alone knows
// when it may accept writes. It is asked to open one that it could not open when it fenced, and refuses
// for as long as it must.
func decideMarked(s situation, active *store.Copy) []action {
	switch {
	case !s.synced:
		return nil
	case !active.Open:
		return []action{{kind: actOpen, epoch: s.assignment.OwnerEpoch}}
	case !s.assignment.Opened:
		return []action{{kind: actReport, epoch: s.assignment.OwnerEpoch}}
	}
	return nil
}

// decideForeign is decide for a partition that the view does not say is this node's.
func decideForeign(s situation, active *store.Copy) []action {
	if active == nil || !s.synced {
		return nil
	}
	if !s.topic {
		return []action{{kind: actRetire, identity: active.Identity}}
	}
	switch {
	case slices.Contains(s.marked, active.Identity):
		return nil
	case active.Pending != nil:
		return []action{{kind: actProblem, problem: fmt.Sprintf("the copy of move %d waits for its flip and no move claims it", active.Pending.MoveID)}}
	case active.Open:
		return []action{{kind: actClose, identity: active.Identity}}
	}
	return []action{{kind: actProblem, problem: "a copy of a partition that another node owns, and no record of how that came about; " +
		"it is kept: when the owner serves the whole partition, remove the copy's directory while this agent is stopped"}}
}

// mayDropStaging says whether the staging of a move that no one here works on may go, after a
// linearizable read of that move; why not, otherwise.
func mayDropStaging(v transfer.MoveView) (ok bool, why string) {
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

// mayRemove says the same of a copy that was set aside because its topic was deleted.
func mayRemove(v transfer.MoveView) (ok bool, why string) {
	if v.Assignment != nil {
		return false, fmt.Sprintf("its topic exists, owner is %s, and there is no record of how this copy came to lie aside; "+
			"when the owner serves the whole partition, remove the copy's directory while this agent is stopped", v.Assignment.Owner)
	}
	return true, ""
}
