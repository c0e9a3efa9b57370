// Package logstoretest is the suite that every etcdraft.LogStore passes: what was synced is found again after a
// crash, replaced entries are not, compaction and snapshots leave a log that continues, and a log that is
// shorter than what was acknowledged is refused.
package logstoretest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
)

// Fixture is one log under test. It begins at the bootstrap record: index 1, term 1.
type Fixture struct {
	Store etcdraft.LogStore
	// Crash returns the log as a restarted process finds it, for a state machine that durably applied
	// everything up to applied.
	Crash func(applied uint64) (etcdraft.LogStore, error)
}

// Conf is the configuration that the log begins with.
func Conf() *raftpb.ConfState { return &raftpb.ConfState{Voters: []uint64{1, 2, 3}} }

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) *Fixture) {
	cases := []struct {
		name string
		run  func(*testing.T, *Fixture)
	}{
		{"Bootstrap", testBootstrap},
		{"SyncedEntriesSurvive", testSurvive},
		{"ReplacedEntriesStayReplaced", testReplace},
		{"CompactionKeepsTheRest", testCompact},
		{"SnapshotReplacesTheLog", testSnapshot},
		{"SnapshotNotCompleted", testSnapshotNotCompleted},
		{"SnapshotCompletedButNotNoted", testSnapshotNotNoted},
		{"ShorterThanStateIsRefused", testShorter},
		{"StateOlderThanLogIsRefused", testOlder},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// Entries makes entries first to last of term.
func Entries(first, last, term uint64) []*raftpb.Entry {
	var out []*raftpb.Entry
	for i := first; i <= last; i++ {
		out = append(out, &raftpb.Entry{Index: new(i), Term: new(term), Data: fmt.Appendf(nil, "%d/%d", term, i)})
	}
	return out
}

// State makes a hard state.
func State(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

// Meta makes snapshot metadata.
func Meta(index, term uint64) *raftpb.SnapshotMetadata {
	return &raftpb.SnapshotMetadata{Index: new(index), Term: new(term), ConfState: Conf()}
}

// Dump writes out what a log holds.
func Dump(t testing.TB, s etcdraft.LogStore) string {
	t.Helper()
	first, err := s.FirstIndex()
	check(t, err)
	last, err := s.LastIndex()
	check(t, err)
	hs := s.HardState()
	out := fmt.Sprintf("snapshot %d/%d state %d/%d/%d\n", s.SnapshotMeta().GetTerm(), s.SnapshotMeta().GetIndex(), hs.GetTerm(), hs.GetVote(), hs.GetCommit())
	if last < first {
		return out
	}
	entries, err := s.Entries(first, last+1, ^uint64(0))
	check(t, err)
	for _, e := range entries {
		out += fmt.Sprintf("%d/%d %s\n", e.GetTerm(), e.GetIndex(), e.GetData())
	}
	return out
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *Fixture) reopen(t *testing.T, applied uint64) {
	t.Helper()
	s, err := f.Crash(applied)
	check(t, err)
	f.Store = s
}

func (f *Fixture) want(t *testing.T, want string) {
	t.Helper()
	if diff := cmp.Diff(want, Dump(t, f.Store)); diff != "" {
		t.Fatalf("the log differs (-want +got):\n%s", diff)
	}
}

func testBootstrap(t *testing.T, f *Fixture) {
	f.want(t, "snapshot 1/1 state 1/0/1\n")
	f.reopen(t, 1)
	f.want(t, "snapshot 1/1 state 1/0/1\n")
	if _, err := f.Store.Term(2); !errors.Is(err, raft.ErrUnavailable) {
		t.Fatalf("term beyond the end: %v", err)
	}
}

func testSurvive(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 1), Entries(2, 3, 2)))
	check(t, f.Store.Save(nil, Entries(4, 4, 2)))
	check(t, f.Store.Save(State(3, 2, 1), nil))
	want := "snapshot 1/1 state 3/2/1\n2/2 2/2\n2/3 2/3\n2/4 2/4\n"
	f.want(t, want)
	f.reopen(t, 1)
	f.want(t, want)
	// What the state machine applied was committed, even if that was not synced.
	f.reopen(t, 3)
	f.want(t, "snapshot 1/1 state 3/2/3\n2/2 2/2\n2/3 2/3\n2/4 2/4\n")
	check(t, f.Store.Save(State(3, 2, 4), Entries(5, 5, 3)))
	f.reopen(t, 3)
	f.want(t, "snapshot 1/1 state 3/2/4\n2/2 2/2\n2/3 2/3\n2/4 2/4\n3/5 3/5\n")
}

func testReplace(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 1), Entries(2, 6, 2)))
	check(t, f.Store.Save(State(3, 2, 3), Entries(4, 4, 3)))
	want := "snapshot 1/1 state 3/2/3\n2/2 2/2\n2/3 2/3\n3/4 3/4\n"
	f.want(t, want)
	f.reopen(t, 1)
	f.want(t, want)
}

func testCompact(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 1), Entries(2, 10, 2)))
	check(t, f.Store.Save(State(2, 1, 10), nil))
	check(t, f.Store.Compact(Meta(7, 2)))
	want := "snapshot 2/7 state 2/1/10\n2/8 2/8\n2/9 2/9\n2/10 2/10\n"
	f.want(t, want)
	if term, err := f.Store.Term(7); err != nil || term != 2 {
		t.Fatalf("term of the compacted index: %d, %v", term, err)
	}
	if _, err := f.Store.Entries(7, 9, 1<<20); !errors.Is(err, raft.ErrCompacted) {
		t.Fatalf("entries before the compaction: %v", err)
	}
	check(t, f.Store.Compact(Meta(5, 2)))
	f.want(t, want)
	f.reopen(t, 10)
	f.want(t, want)
	check(t, f.Store.Save(State(2, 1, 11), Entries(11, 12, 2)))
	f.reopen(t, 11)
	f.want(t, "snapshot 2/7 state 2/1/11\n2/8 2/8\n2/9 2/9\n2/10 2/10\n2/11 2/11\n2/12 2/12\n")
}

func testSnapshot(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 1), Entries(2, 30, 2)))
	check(t, f.Store.BeginSnapshot(Meta(20, 4)))
	check(t, f.Store.FinishSnapshot(Meta(20, 4)))
	check(t, f.Store.Save(State(4, 0, 20), nil))
	f.want(t, "snapshot 4/20 state 4/0/20\n")
	// Entries 21 to 30 of term 2 are still in the file, and must not come back.
	f.reopen(t, 20)
	f.want(t, "snapshot 4/20 state 4/0/20\n")
	check(t, f.Store.Save(State(4, 0, 21), Entries(21, 21, 4)))
	f.reopen(t, 20)
	f.want(t, "snapshot 4/20 state 4/0/21\n4/21 4/21\n")
}

func testSnapshotNotCompleted(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 3), Entries(2, 3, 2)))
	check(t, f.Store.BeginSnapshot(Meta(50, 4)))
	// The crash came before the state machine took it.
	f.reopen(t, 3)
	f.want(t, "snapshot 1/1 state 2/1/3\n2/2 2/2\n2/3 2/3\n")
	check(t, f.Store.Save(State(4, 0, 3), Entries(4, 5, 4)))
	f.reopen(t, 3)
	f.want(t, "snapshot 1/1 state 4/0/3\n2/2 2/2\n2/3 2/3\n4/4 4/4\n4/5 4/5\n")
}

func testSnapshotNotNoted(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 3), Entries(2, 3, 2)))
	check(t, f.Store.BeginSnapshot(Meta(50, 4)))
	// The crash came after the state machine took it and before the log was told.
	f.reopen(t, 50)
	f.want(t, "snapshot 4/50 state 4/0/50\n")
	check(t, f.Store.Save(State(4, 0, 51), Entries(51, 51, 4)))
	f.reopen(t, 51)
	f.want(t, "snapshot 4/50 state 4/0/51\n4/51 4/51\n")
}

func testShorter(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 3), Entries(2, 3, 2)))
	if _, err := f.Crash(9); !errors.Is(err, etcdraft.ErrStateMismatch) {
		t.Fatalf("a log that ends before the state's index: %v, want ErrStateMismatch", err)
	}
}

func testOlder(t *testing.T, f *Fixture) {
	check(t, f.Store.Save(State(2, 1, 1), Entries(2, 4000, 2)))
	check(t, f.Store.Save(State(2, 1, 4000), Entries(4001, 8000, 2)))
	check(t, f.Store.Save(State(2, 1, 8000), nil))
	check(t, f.Store.Compact(Meta(4000, 2)))
	check(t, f.Store.Compact(Meta(7000, 2)))
	f.reopen(t, 8000)
	if _, err := f.Crash(1); f.Store.SnapshotMeta().GetIndex() != 7000 || (err != nil && !errors.Is(err, etcdraft.ErrStateMismatch)) {
		t.Fatalf("a state older than the log: %v, want ErrStateMismatch or the whole log", err)
	}
}
