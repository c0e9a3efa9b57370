package nodeagent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func pid(topic cluster.TopicID, index uint32) cluster.PartitionID {
	return cluster.PartitionID{Topic: topic, Index: index}
}

// mine and theirs are assignments of partition 7/0 to this node and to another one.
func mine(epoch cluster.Epoch, opened bool) *cluster.Assignment {
	return &cluster.Assignment{Partition: pid(7, 0), Owner: "me", Epoch: epoch, OwnerEpoch: epoch, Opened: opened}
}

func theirs(epoch cluster.Epoch) *cluster.Assignment {
	return &cluster.Assignment{Partition: pid(7, 0), Owner: "other", Epoch: epoch, OwnerEpoch: epoch, Opened: true}
}

// leaving is mine with a move away that was set later.
func leaving(owner, epoch cluster.Epoch) *cluster.Assignment {
	a := mine(owner, true)
	a.Epoch, a.Target, a.MoveID = epoch, "other", 9
	return a
}

func activeCopy(id store.Identity, open bool) store.Copy {
	return store.Copy{Partition: pid(7, 0), Place: store.Active, Identity: id, Open: open}
}

func pendingCopy(move cluster.MoveID) store.Copy {
	return store.Copy{
		Partition: pid(7, 0), Place: store.Active, Identity: store.Identity(move),
		Pending: &store.Pending{MoveID: move, Handoff: 1},
	}
}

func ids(id ...store.Identity) []store.Identity { return id }

func aside(place store.Place, id store.Identity) store.Copy {
	return store.Copy{Partition: pid(7, 0), Place: place, Identity: id}
}

func TestDecide(t *testing.T) {
	copies := func(c ...store.Copy) []store.Copy { return c }
	tests := []struct {
		name string
		in   Situation
		want string
		gone bool
	}{
		{"initial placement", Situation{Assignment: mine(1, false)}, "create identity=7; open epoch=1; report epoch=1", false},
		{"initial placement, crashed before opening", Situation{Assignment: mine(1, false), Copies: copies(activeCopy(7, false))}, "open epoch=1; report epoch=1", false},
		{"initial placement, report lost", Situation{Assignment: mine(1, false), Copies: copies(activeCopy(7, true)), OpenEpoch: 1}, "report epoch=1", false},
		{"served already", Situation{Assignment: mine(3, true), Copies: copies(activeCopy(7, true)), OpenEpoch: 3}, "", false},
		{"a target was set, receipts stay good", Situation{Assignment: leaving(3, 4), Copies: copies(activeCopy(7, true)), OpenEpoch: 3}, "", false},
		{"restart with a target set", Situation{Assignment: leaving(3, 4), Copies: copies(activeCopy(7, false))}, "open epoch=3", false},
		{"lost and won again", Situation{Assignment: mine(4, true), Copies: copies(activeCopy(7, true)), OpenEpoch: 3}, "open epoch=4", false},
		{"restart", Situation{Assignment: mine(4, true), Copies: copies(activeCopy(9, false))}, "open epoch=4", false},
		{"I9 a lost copy is not replaced by an empty one", Situation{Assignment: mine(4, true)}, "problem", false},
		{"I9 a copy that a move brought and that is gone", Situation{Assignment: mine(4, false), Arrived: true}, "problem", false},
		{"I7 a marked copy is opened by the source alone", Situation{Assignment: mine(4, true), Marked: ids(7), Copies: copies(activeCopy(7, false))}, "open epoch=4", false},
		{"I7 a marked, open copy is the source's", Situation{Assignment: leaving(3, 4), Marked: ids(7), Copies: copies(activeCopy(7, true)), OpenEpoch: 2}, "", false},
		{"a marked copy, opened and not reported", Situation{Assignment: mine(4, false), Marked: ids(7), Copies: copies(activeCopy(7, true))}, "report epoch=4", false},
		{"the destination is at work", Situation{Assignment: theirs(4), Busy: true, Copies: copies(pendingCopy(9), aside(store.Staged, 9))}, "", false},
		{"opened by a move, view behind", Situation{Assignment: theirs(4), OpenEpoch: 5, Copies: copies(activeCopy(9, true))}, "", false},
		{"pending copy without a move", Situation{Assignment: mine(4, true), Copies: copies(pendingCopy(9))}, "problem", false},
		{"moved away, marked", Situation{Assignment: theirs(5), Marked: ids(7), Copies: copies(activeCopy(7, true))}, "", false},
		{"another node's, still open here", Situation{Assignment: theirs(5), Copies: copies(activeCopy(7, true)), OpenEpoch: 4}, "close", false},
		{"C44 a stale copy is not served", Situation{Assignment: theirs(5), Copies: copies(activeCopy(7, false))}, "problem", false},
		{"cancelled before it began", Situation{Assignment: mine(4, true), OpenEpoch: 4, Copies: copies(activeCopy(7, true)), Cancelled: []cluster.MoveID{9}}, "unbegun move=9", false},
		{"what lies aside is not in the way of serving", Situation{Assignment: mine(4, true), Copies: copies(activeCopy(12, false), aside(store.Quarantined, 7), aside(store.Staged, 9))}, "open epoch=4; remove quarantined identity=7; staging identity=9", false},
		{"orphaned staging", Situation{Assignment: theirs(5), Copies: copies(aside(store.Staged, 9))}, "staging identity=9", false},
		{"staging of a deleted topic", Situation{Copies: copies(aside(store.Staged, 9))}, "staging identity=9", true},
		{"C38 topic deleted", Situation{Copies: copies(activeCopy(7, true))}, "retire identity=7", true},
		{"C38 topic deleted, set aside", Situation{Copies: copies(aside(store.Quarantined, 7))}, "remove quarantined identity=7", true},
		{"C76 quarantine of a move is the reclaimer's", Situation{Assignment: theirs(5), Marked: ids(7), Copies: copies(aside(store.Quarantined, 7))}, "", false},
		{"C44 returned home and restarted, older copy aside", Situation{Assignment: mine(8, true), Marked: ids(7), Copies: copies(activeCopy(12, false), aside(store.Quarantined, 7))}, "open epoch=8", false},
		{"returned home, older copy aside", Situation{Assignment: mine(8, true), OpenEpoch: 8, Marked: ids(7), Copies: copies(activeCopy(12, true), aside(store.Quarantined, 7))}, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.in
			s.Self, s.Partition, s.Synced, s.Topic = "me", pid(7, 0), true, !tt.gone
			got := render(Decide(s))
			if got != tt.want && !(tt.want == "problem" && strings.HasPrefix(got, "problem: ")) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func render(actions []Action) string {
	var out []string
	for _, a := range actions {
		out = append(out, a.String())
	}
	return strings.Join(out, "; ")
}

// Before the control plane was heard, a node serves what it owned and had not marked, and touches nothing
// else: its view may be as old as its last run.
func TestI9NothingButOpeningOnACachedView(t *testing.T) {
	for _, assignment := range []*cluster.Assignment{nil, mine(3, true), mine(3, false), theirs(4)} {
		for _, marked := range [][]store.Identity{nil, ids(7, 9)} {
			for _, c := range [][]store.Copy{
				nil, {activeCopy(7, false)}, {activeCopy(7, true)}, {pendingCopy(9)},
				{aside(store.Staged, 9)}, {aside(store.Quarantined, 7)},
			} {
				s := Situation{Self: "me", Partition: pid(7, 0), Assignment: assignment, Marked: marked, Copies: c, Topic: assignment != nil}
				for _, a := range Decide(s) {
					if a.Kind != ActOpen && a.Kind != ActProblem {
						t.Errorf("%s: %s", describe(s), a)
					}
					if a.Kind == ActOpen && (marked != nil || assignment == nil || assignment.Owner != "me" || c[0].Pending != nil) {
						t.Errorf("%s: %s", describe(s), a)
					}
				}
			}
		}
	}
}

// No situation of a marked or busy partition lets the reconciler close, create or retire its active copy: two
// writers of one place would race (I7). Opening goes through the source side, which refuses.
func TestI7MarkedAndBusyCopiesAreLeftAlone(t *testing.T) {
	for _, assignment := range []*cluster.Assignment{nil, mine(3, true), mine(3, false), theirs(4)} {
		for _, busy := range []bool{false, true} {
			for _, c := range []store.Copy{activeCopy(7, false), activeCopy(7, true), pendingCopy(9)} {
				s := Situation{
					Self: "me", Partition: pid(7, 0), Synced: true, Topic: true, Assignment: assignment,
					Marked: ids(7, 9), Busy: busy, Copies: []store.Copy{c},
				}
				for _, a := range Decide(s) {
					if a.Kind != ActReport && (a.Kind != ActOpen || c.Open || busy) {
						t.Errorf("%s: %s", describe(s), a)
					}
				}
			}
		}
	}
}

func describe(s Situation) string {
	return fmt.Sprintf("assignment=%v marked=%v busy=%v copies=%v", s.Assignment, s.Marked, s.Busy, s.Copies)
}

func TestI9StagingIsKeptWhileItMayBeTheLastCopy(t *testing.T) {
	alive := &cluster.Node{ID: "other", Status: cluster.NodeAlive}
	dead := &cluster.Node{ID: "other", Status: cluster.NodeDead}
	unopened := theirs(4)
	unopened.Opened = false
	tests := []struct {
		name string
		in   transfer.MoveView
		want bool
	}{
		{"topic deleted", transfer.MoveView{}, true},
		{"move current", transfer.MoveView{Assignment: theirs(4), State: transfer.MoveCurrent, Owner: alive}, false},
		{"ended, owner dead", transfer.MoveView{Assignment: theirs(4), State: transfer.MoveEnded, Owner: dead}, false},
		{"ended, owner unknown", transfer.MoveView{Assignment: theirs(4), State: transfer.MoveEnded}, false},
		{"C80 ended, not opened by its owner", transfer.MoveView{Assignment: unopened, State: transfer.MoveEnded, Owner: alive}, false},
		{"ended, served elsewhere", transfer.MoveView{Assignment: theirs(4), State: transfer.MoveEnded, Owner: alive}, true},
		{"forgotten, served elsewhere", transfer.MoveView{Assignment: theirs(4), State: transfer.MoveForgotten, Owner: alive}, true},
	}
	for _, tt := range tests {
		if got, why := MayDropStaging(tt.in); got != tt.want || got == (why != "") {
			t.Errorf("%s: got %v %q, want %v", tt.name, got, why, tt.want)
		}
	}
}

func TestC38QuarantineGoesOnlyWithItsTopic(t *testing.T) {
	if ok, _ := MayRemove(transfer.MoveView{}); !ok {
		t.Error("the copy of a deleted topic is kept for ever")
	}
	if ok, why := MayRemove(transfer.MoveView{Assignment: theirs(3)}); ok || why == "" {
		t.Errorf("a copy of a topic that exists may be removed: %v %q", ok, why)
	}
}
