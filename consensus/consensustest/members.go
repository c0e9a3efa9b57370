package consensustest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/consensus"
)

// atLeader repeats fn at whoever leads until it is taken.
func atLeader(t *testing.T, c Cluster, among []int, fn func(consensus.Backend) error) error {
	t.Helper()
	for {
		err := fn(c.Backend(Leader(t, c, among...)))
		if !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, consensus.ErrBusy) {
			return err
		}
	}
}

func promote(t *testing.T, c Cluster, i int) {
	t.Helper()
	id := c.Backend(i).Status().Self
	Eventually(t, fmt.Sprintf("member %d is promoted", i), func() bool {
		err := atLeader(t, c, nil, func(b consensus.Backend) error { return b.Promote(Context(t), id) })
		if err != nil && !errors.Is(err, consensus.ErrNotReady) {
			t.Fatalf("promote: %v", err)
		}
		return err == nil
	})
}

func members(b consensus.Backend) map[consensus.ID]consensus.Role {
	out := map[consensus.ID]consensus.Role{}
	for _, m := range b.Status().Members {
		out[m.ID] = m.Role
	}
	return out
}

func wantMembers(t *testing.T, c Cluster, want map[consensus.ID]consensus.Role, among ...int) {
	t.Helper()
	for _, i := range among {
		Eventually(t, fmt.Sprintf("member %d reports %v, now %v", i, want, members(c.Backend(i))), func() bool {
			return cmp.Equal(want, members(c.Backend(i)))
		})
	}
}

func wantRemoved(t *testing.T, b consensus.Backend) {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(Patience):
		t.Fatal("a removed member goes on")
	}
	if err := b.Err(); !errors.Is(err, consensus.ErrRemoved) {
		t.Fatalf("a removed member stopped because of %v, want ErrRemoved", err)
	}
	if _, _, err := b.Propose(Context(t), []byte("x")); !errors.Is(err, consensus.ErrRemoved) {
		t.Fatalf("propose at a removed member: %v, want ErrRemoved", err)
	}
}

func testMembers(t *testing.T, f Factory) {
	c := f(t, 3, 20)
	for i := range 50 {
		Propose(t, c, fmt.Sprint("a", i))
	}
	n := c.Join()
	Leader(t, c)
	if got := len(Alike(t, c)); got != 50 {
		t.Fatalf("the learner has %d records, want 50", got)
	}
	id := c.Backend(n).Status().Self
	if role := members(c.Backend(n))[id]; role != consensus.Learner {
		t.Fatalf("the new member is a %v", role)
	}
	// The same record again is no change.
	var self consensus.Member
	for _, m := range c.Backend(n).Status().Members {
		if m.ID == id {
			self = m.Member
		}
	}
	if err := atLeader(t, c, nil, func(b consensus.Backend) error { return b.AddLearner(Context(t), self) }); err != nil {
		t.Fatalf("add a present member again: %v", err)
	}
	promote(t, c, n)
	promote(t, c, n)
	Propose(t, c, "four voters")
	Alike(t, c)
	leader := Leader(t, c)
	s := c.Backend(leader).Status()
	Eventually(t, "the leader hears of all members, none lags", func() bool {
		for _, m := range c.Backend(leader).Status().Members {
			if !m.Active || m.Lag != 0 {
				return false
			}
		}
		return true
	})
	if len(s.Members) != 4 {
		t.Fatalf("the leader reports %d members", len(s.Members))
	}
	// Remove a follower.
	gone := others(c, leader)[0]
	goneID := c.Backend(gone).Status().Self
	rest := others(c, gone)
	for range 2 {
		if err := atLeader(t, c, rest, func(b consensus.Backend) error { return b.Remove(Context(t), goneID) }); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	wantRemoved(t, c.Backend(gone))
	want := map[consensus.ID]consensus.Role{}
	for _, i := range rest {
		want[c.Backend(i).Status().Self] = consensus.Voter
	}
	wantMembers(t, c, want, rest...)
	Propose(t, c, "three voters", rest...)
	Alike(t, c, rest...)
}

func testNotReady(t *testing.T, f Factory) {
	c := f(t, 3, never)
	n := c.Join()
	Leader(t, c)
	id := c.Backend(n).Status().Self
	c.Isolate(n, true)
	for i := range 300 {
		Propose(t, c, fmt.Sprint(i), others(c, n)...)
	}
	err := atLeader(t, c, others(c, n), func(b consensus.Backend) error { return b.Promote(Context(t), id) })
	if !errors.Is(err, consensus.ErrNotReady) {
		t.Fatalf("promote a learner that lags: %v, want ErrNotReady", err)
	}
	c.Isolate(n, false)
	Leader(t, c)
	promote(t, c, n)
	Alike(t, c)
}

func testRemovedID(t *testing.T, f Factory) {
	c := f(t, 3, never)
	l := Leader(t, c)
	gone := others(c, l)[0]
	rest := others(c, gone)
	id := c.Backend(gone).Status().Self
	if err := atLeader(t, c, rest, func(b consensus.Backend) error { return b.Remove(Context(t), id) }); err != nil {
		t.Fatalf("remove: %v", err)
	}
	m := consensus.Member{ID: id, Name: "again", Address: "127.0.0.1:1", StoreID: "another"}
	if err := atLeader(t, c, rest, func(b consensus.Backend) error { return b.AddLearner(Context(t), m) }); err == nil {
		t.Fatal("a removed id came back")
	}
	wantRemoved(t, c.Backend(gone))
	// The last voter can't be removed.
	second := others(c, gone, l)[0]
	if err := atLeader(t, c, rest, func(b consensus.Backend) error {
		return b.Remove(Context(t), c.Backend(second).Status().Self)
	}); err != nil {
		t.Fatalf("remove: %v", err)
	}
	last := l
	if c.Backend(l).Err() != nil {
		last = second
	}
	self := c.Backend(last).Status().Self
	if err := atLeader(t, c, []int{last}, func(b consensus.Backend) error { return b.Remove(Context(t), self) }); err == nil {
		t.Fatal("the last voter was removed")
	}
	Propose(t, c, "alone", last)
}

func testRemoveLeader(t *testing.T, f Factory) {
	c := f(t, 3, never)
	Propose(t, c, "before")
	alive := others(c)
	for len(alive) > 1 {
		l := Leader(t, c, alive...)
		id := c.Backend(l).Status().Self
		err := c.Backend(l).Remove(Context(t), id)
		if errors.Is(err, consensus.ErrNotLeader) {
			continue
		}
		if err != nil {
			t.Fatalf("remove the leader: %v", err)
		}
		var rest []int
		for _, i := range alive {
			if i != l {
				rest = append(rest, i)
			}
		}
		alive = rest
		wantRemoved(t, c.Backend(l))
		Propose(t, c, fmt.Sprint("without ", l), alive...)
		Alike(t, c, alive...)
	}
}

func testRemovedWhileCutOff(t *testing.T, f Factory) {
	c := f(t, 3, never)
	gone := others(c, Leader(t, c))[0]
	rest := others(c, gone)
	id := c.Backend(gone).Status().Self
	c.Isolate(gone, true)
	if err := atLeader(t, c, rest, func(b consensus.Backend) error { return b.Remove(Context(t), id) }); err != nil {
		t.Fatalf("remove: %v", err)
	}
	for i := range 10 {
		Propose(t, c, fmt.Sprint(i), rest...)
	}
	term := c.Backend(rest[0]).Status().Term
	c.Isolate(gone, false)
	wantRemoved(t, c.Backend(gone))
	if got := c.Backend(rest[0]).Status().Term; got != term {
		t.Fatalf("a removed member that came back moved the term from %d to %d", term, got)
	}
	Alike(t, c, rest...)
}

func testTransfer(t *testing.T, f Factory) {
	c := f(t, 3, never)
	for i := range c.Len() {
		l := Leader(t, c)
		id := c.Backend(i).Status().Self
		if err := c.Backend(l).TransferLeadership(Context(t), id); err != nil {
			t.Fatalf("transfer from %d to %d: %v", l, i, err)
		}
		if got := Leader(t, c); got != i {
			t.Fatalf("after a transfer to %d, %d leads", i, got)
		}
		Propose(t, c, fmt.Sprint(i))
	}
	l := Leader(t, c)
	if err := c.Backend(l).TransferLeadership(Context(t), 0); err != nil {
		t.Fatalf("transfer to any: %v", err)
	}
	next := Leader(t, c)
	if next == l {
		t.Fatalf("after a transfer to any, %d still leads", l)
	}
	if err := c.Backend(l).TransferLeadership(Context(t), 0); !errors.Is(err, consensus.ErrNotLeader) {
		t.Fatalf("transfer by a follower: %v, want ErrNotLeader", err)
	}
	Alike(t, c)
}

func testSnapshotCatchUp(t *testing.T, f Factory) {
	c := f(t, 3, 20)
	l := Leader(t, c)
	lag := others(c, l)[0]
	rest := others(c, lag)
	Propose(t, c, "before")
	c.Isolate(lag, true)
	for i := range 200 {
		Propose(t, c, fmt.Sprint(i), rest...)
	}
	before := c.Machine(lag).Restores()
	c.Isolate(lag, false)
	Leader(t, c)
	if got := len(Alike(t, c)); got != 201 {
		t.Fatalf("%d records, want 201", got)
	}
	if c.Machine(lag).Restores() == before {
		t.Fatal("the member caught up without a snapshot; the test shows nothing")
	}
	Propose(t, c, "after")
	c.Crash(lag)
	Leader(t, c)
	Alike(t, c)
}

func testSnapshotMembers(t *testing.T, f Factory) {
	c := f(t, 3, 20)
	lag := others(c, Leader(t, c))[0]
	c.Isolate(lag, true)
	rest := others(c, lag)
	for i := range 60 {
		Propose(t, c, fmt.Sprint("a", i), rest...)
	}
	n := c.Join()
	rest = others(c, lag)
	Leader(t, c, rest...)
	id := c.Backend(n).Status().Self
	Eventually(t, "the learner is promoted", func() bool {
		return atLeader(t, c, rest, func(b consensus.Backend) error { return b.Promote(Context(t), id) }) == nil
	})
	for i := range 60 {
		Propose(t, c, fmt.Sprint("b", i), rest...)
	}
	before := c.Machine(lag).Restores()
	c.Isolate(lag, false)
	// And another change while the snapshot is on its way.
	m := c.Join()
	Leader(t, c)
	Alike(t, c)
	if c.Machine(lag).Restores() == before {
		t.Fatal("the member caught up without a snapshot; the test shows nothing")
	}
	want := members(c.Backend(Leader(t, c)))
	if len(want) != 5 || want[c.Backend(m).Status().Self] != consensus.Learner {
		t.Fatalf("members are %v, want four voters and a learner", want)
	}
	wantMembers(t, c, want, others(c)...)
	c.Crash(lag)
	Leader(t, c)
	wantMembers(t, c, want, others(c)...)
}
