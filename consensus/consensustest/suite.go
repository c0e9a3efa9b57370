package consensustest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/consensus"
)

// Patience bounds every wait of the suite.
const Patience = 30 * time.Second

// Cluster is what the cases drive: members by place, from 0.
type Cluster interface {
	// Len counts all members that were ever started.
	Len() int
	// Backend returns a member's present backend, running or stopped.
	Backend(i int) consensus.Backend
	Machine(i int) *Machine
	// Isolate cuts a member off from all others, or heals that.
	Isolate(i int, cut bool)
	// Restart stops a member and starts it again on its disk.
	Restart(i int)
	// Crash ends a member at once and starts it again with what was durable.
	Crash(i int)
	// Join admits a new member as a learner, starts it, and returns its place.
	Join() int
}

// Factory makes a running cluster of n voters that ends with the test. compactEvery is a small number of
// entries after which logs are cut, so that a member which lags further needs a snapshot.
type Factory func(t *testing.T, n int, compactEvery uint64) Cluster

// Run runs the suite.
func Run(t *testing.T, f Factory) {
	cases := []struct {
		name string
		run  func(*testing.T, Factory)
	}{
		{"OrderAlikeEverywhere", testOrder},
		{"SingleMember", testSingle},
		{"BarrierOnFollowerSeesCommitted", testBarrier},
		{"BarrierWaitsForLeader", testBarrierWithoutLeader},
		{"LeaderBarrierTellsTerm", testLeaderBarrier},
		{"FollowerRefusesProposals", testNotLeader},
		{"IsolatedLeaderOutcomeUnknown", testUnknownOutcome},
		{"LeadershipChange", testLeadershipChange},
		{"DurableOverRestart", testRestart},
		{"DurableOverCrashOfAll", testCrash},
		{"StateMachineErrorStops", testStateMachineError},
		{"StopAnswersEveryone", testStop},
		{"LearnerAddPromoteRemove", testMembers},
		{"LaggingLearnerIsNotPromoted", testNotReady},
		{"RemovedIDNeverReturns", testRemovedID},
		{"RemoveLeader", testRemoveLeader},
		{"RemovedWhileCutOffLearnsIt", testRemovedWhileCutOff},
		{"TransferLeadership", testTransfer},
		{"SnapshotCatchUp", testSnapshotCatchUp},
		{"C53SnapshotWhileMembersChange", testSnapshotMembers},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, f) })
	}
}

// Eventually waits for cond, which is asked again and again.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("after %v still not: %s", Patience, what)
		}
	}
}

// Context bounds one call.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Leader waits until one member of among (all when empty) leads and is followed by them, and returns its place.
func Leader(t testing.TB, c Cluster, among ...int) int {
	t.Helper()
	if len(among) == 0 {
		for i := range c.Len() {
			among = append(among, i)
		}
	}
	leader := -1
	Eventually(t, fmt.Sprintf("a leader among %v", among), func() bool {
		leader = -1
		var ids []consensus.ID
		for _, i := range among {
			s := c.Backend(i).Status()
			if s.IsLeader() {
				leader = i
			}
			ids = append(ids, s.Leader)
		}
		if leader < 0 {
			return false
		}
		for _, id := range ids {
			if id != c.Backend(leader).Status().Self {
				return false
			}
		}
		return true
	})
	return leader
}

// Propose proposes at whoever leads among the members, until it is surely applied once.
func Propose(t testing.TB, c Cluster, command string, among ...int) uint64 {
	t.Helper()
	for {
		l := Leader(t, c, among...)
		_, index, err := c.Backend(l).Propose(Context(t), []byte(command))
		switch {
		case err == nil:
			return index
		case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrBusy):
		default:
			t.Fatalf("propose %q at member %d: %v", command, l, err)
		}
	}
}

// Alike waits until the members have applied everything that is committed and have equal records.
func Alike(t testing.TB, c Cluster, among ...int) []Record {
	t.Helper()
	if len(among) == 0 {
		for i := range c.Len() {
			among = append(among, i)
		}
	}
	for _, i := range among {
		if err := c.Backend(i).Barrier(Context(t)); err != nil {
			t.Fatalf("barrier on member %d: %v", i, err)
		}
	}
	Eventually(t, fmt.Sprintf("members %v have equal applied indexes", among), func() bool {
		for _, i := range among {
			if c.Machine(i).AppliedIndex() != c.Machine(among[0]).AppliedIndex() {
				return false
			}
		}
		return true
	})
	want := c.Machine(among[0]).Records()
	for _, i := range among[1:] {
		if diff := cmp.Diff(want, c.Machine(i).Records()); diff != "" {
			t.Fatalf("members %d and %d differ (-%d +%d):\n%s", among[0], i, among[0], i, diff)
		}
	}
	return want
}

// others returns all places but some.
func others(c Cluster, not ...int) []int {
	var out []int
	for i := range c.Len() {
		skip := false
		for _, n := range not {
			skip = skip || n == i
		}
		if !skip {
			out = append(out, i)
		}
	}
	return out
}
