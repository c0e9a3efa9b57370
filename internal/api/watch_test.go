package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// message is what both watches stream.
type message interface {
	GetRevision() uint64
	GetSnapshot() *planev1.Snapshot
	GetDelta() *planev1.Delta
	GetProgress() *planev1.Progress
}

// fold is a watcher's state, with the rules of the stream checked on the way.
type fold struct {
	t           *testing.T
	rev         uint64 // everything up to it is folded
	inSnapshot  bool
	parts       int
	snapshots   int
	deltas      int
	progress    int
	nodes       map[cluster.NodeID]cluster.Node
	topics      map[cluster.TopicID]cluster.Topic
	assignments map[cluster.PartitionID]cluster.Assignment
	outcomes    map[cluster.MoveID]cluster.Outcome
	settings    cluster.Settings
}

func newFold(t *testing.T) *fold {
	f := &fold{t: t}
	f.clear()
	return f
}

func (f *fold) clear() {
	f.nodes, f.topics = map[cluster.NodeID]cluster.Node{}, map[cluster.TopicID]cluster.Topic{}
	f.assignments, f.outcomes = map[cluster.PartitionID]cluster.Assignment{}, map[cluster.MoveID]cluster.Outcome{}
	f.settings = cluster.Settings{}
}

func (f *fold) take(m message) {
	f.t.Helper()
	rev := m.GetRevision()
	switch {
	case m.GetSnapshot() != nil:
		s := m.GetSnapshot()
		if s.GetFirst() == f.inSnapshot {
			f.t.Fatalf("snapshot parts are out of order at revision %d", rev)
		}
		if s.GetFirst() {
			f.clear()
			f.parts, f.rev = 0, rev
			f.snapshots++
		} else if rev != f.rev {
			f.t.Fatalf("atomic: a snapshot at revisions %d and %d", f.rev, rev)
		}
		f.parts++
		f.inSnapshot = !s.GetLast()
		f.apply(s.GetChanges())
	case f.inSnapshot:
		f.t.Fatalf("revision %d amid a snapshot", rev)
	case m.GetDelta() != nil:
		if rev <= f.rev {
			f.t.Fatalf("ordered, unique: revision %d after %d", rev, f.rev)
		}
		if len(m.GetDelta().GetChanges()) == 0 {
			f.t.Fatalf("revision %d is empty", rev)
		}
		f.rev = rev
		f.deltas++
		f.apply(m.GetDelta().GetChanges())
	case m.GetProgress() != nil:
		if rev < f.rev {
			f.t.Fatalf("progress goes back from %d to %d", f.rev, rev)
		}
		f.rev = rev
		f.progress++
	default:
		f.t.Fatalf("message of no kind: %v", m)
	}
}

func (f *fold) apply(in []*planev1.Change) {
	f.t.Helper()
	changes, err := wire.ChangesFromProto(in)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, c := range changes {
		switch {
		case c.Node != nil:
			f.nodes[c.Node.ID] = *c.Node
		case c.NodeRemoved != "":
			delete(f.nodes, c.NodeRemoved)
		case c.Topic != nil:
			f.topics[c.Topic.ID] = *c.Topic
		case c.TopicRemoved != 0:
			delete(f.topics, c.TopicRemoved)
		case c.Assignment != nil:
			f.assignments[c.Assignment.Partition] = *c.Assignment
		case c.AssignmentRemoved != nil:
			delete(f.assignments, *c.AssignmentRemoved)
		case c.Outcome != nil:
			f.outcomes[c.Outcome.MoveID] = *c.Outcome
		case c.OutcomeRemoved != nil:
			delete(f.outcomes, c.OutcomeRemoved.MoveID)
		case c.Settings != nil:
			f.settings = *c.Settings
		}
	}
}

// mine is what an agent keeps of what it was told: the partitions that it owns or is to own.
func (f *fold) mine(id cluster.NodeID) map[cluster.PartitionID]cluster.Assignment {
	out := map[cluster.PartitionID]cluster.Assignment{}
	for p, a := range f.assignments {
		if a.Owner == id || a.Target == id {
			out[p] = a
		}
	}
	return out
}

// watchNode feeds f from controller i until the fold has reached a revision.
func (l *lab) watchNode(f *fold, i int, id string, after, until uint64) error {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, 20*time.Second)
	defer cancel()
	s, err := l.nodes(i).WatchNode(ctx, &planev1.WatchNodeRequest{NodeId: id, AfterRevision: after})
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		f.take(m)
		if !f.inSnapshot && f.rev >= until {
			return nil
		}
	}
}

func (l *lab) watchRoutes(f *fold, i int, topics []string, after, until uint64) error {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, 20*time.Second)
	defer cancel()
	s, err := l.nodes(i).WatchRoutes(ctx, &planev1.WatchRoutesRequest{Topics: topics, AfterRevision: after})
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		f.take(m)
		if !f.inSnapshot && f.rev >= until {
			return nil
		}
	}
}

func (l *lab) revision() uint64 {
	var rev cluster.Revision
	l.g.Member(1).Machine.Read(func(r fsm.Reader) { rev = r.Revision() })
	return uint64(rev)
}

// churn makes revisions of all kinds: topics come and go, moves begin, are cancelled and flip.
func (l *lab) churn(rounds int) {
	l.t.Helper()
	for i := range rounds {
		name := fmt.Sprintf("t%d", i%5)
		if _, err := l.topics(1).CreateTopic(l.ctx, &planev1.CreateTopicRequest{Name: name, Partitions: 3}); err != nil {
			l.refused(cluster.ReasonAlreadyExists, err)
			if _, err := l.topics(1).DeleteTopic(l.ctx, &planev1.DeleteTopicRequest{Name: name}); err != nil {
				l.t.Fatal(err)
			}
			continue
		}
		d, err := l.topics(1).DescribeTopic(l.ctx, &planev1.DescribeTopicRequest{Name: name})
		if err != nil {
			l.t.Fatal(err)
		}
		a := d.GetAssignments()[i%3]
		to := map[string]string{"a": "b", "b": "a"}[a.GetOwner()]
		start, err := l.cluster(1).StartMove(l.ctx, &planev1.StartMoveRequest{Topic: name, Index: a.GetPartition().GetIndex(), To: to})
		if err != nil {
			// The planner may have set that target already.
			continue
		}
		if i%2 == 0 {
			l.carry(start.GetAssignment())
		} else if _, err := l.cluster(1).CancelMove(l.ctx, &planev1.CancelMoveRequest{Topic: name, Index: a.GetPartition().GetIndex()}); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lab) carry(a *planev1.Assignment) {
	l.t.Helper()
	p := a.GetPartition()
	nonce := cluster.Nonce{9}
	hash := nonce.Hash()
	g, err := l.nodes(1).GrantHandoff(l.ctx, &planev1.GrantHandoffRequest{
		TopicId: p.GetTopicId(), Index: p.GetIndex(), MoveId: a.GetMoveId(), NodeId: a.GetOwner(), Incarnation: 1, NonceHash: hash[:]})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.nodes(1).CompleteMove(l.ctx, &planev1.CompleteMoveRequest{
		TopicId: p.GetTopicId(), Index: p.GetIndex(), MoveId: a.GetMoveId(), Handoff: g.GetHandoff(), Nonce: nonce[:]}); err != nil {
		l.t.Fatal(err)
	}
}

// equal compares what was folded with the state at the same revision.
func (l *lab) equal(f *fold, id cluster.NodeID) {
	l.t.Helper()
	if f.rev != l.revision() {
		l.t.Fatalf("folded up to %d, the state is at %d", f.rev, l.revision())
	}
	want := newFold(l.t)
	l.g.Member(1).Machine.Read(func(r fsm.Reader) {
		for _, n := range r.Nodes() {
			want.nodes[n.ID] = n
		}
		for _, t := range r.Topics() {
			want.topics[t.ID] = t
		}
		for _, a := range r.Assignments() {
			// What the API keeps to itself.
			a.NonceHash, a.GrantIncarnation = cluster.NonceHash{}, 0
			want.assignments[a.Partition] = a
		}
		for _, o := range r.Outcomes() {
			if o.Source == id || o.Destination == id {
				want.outcomes[o.MoveID] = o
			}
		}
		want.settings = r.Settings()
	})
	got, wanted := f.assignments, want.assignments
	if id != "" {
		got, wanted = f.mine(id), want.mine(id)
		if d := cmp.Diff(want.outcomes, f.outcomes); d != "" {
			l.t.Errorf("outcomes (-state +folded):\n%s", d)
		}
		if d := cmp.Diff(want.settings, f.settings); d != "" {
			l.t.Errorf("settings (-state +folded):\n%s", d)
		}
	}
	for what, d := range map[string]string{
		"nodes": cmp.Diff(want.nodes, f.nodes), "topics": cmp.Diff(want.topics, f.topics), "assignments": cmp.Diff(wanted, got),
	} {
		if d != "" {
			l.t.Errorf("%s (-state +folded):\n%s", what, d)
		}
	}
}

func (l *lab) pause() {
	l.t.Helper()
	paused := true
	if _, err := l.cluster(1).UpdateSettings(l.ctx, &planev1.UpdateSettingsRequest{Settings: &planev1.Settings{RebalancePaused: &paused}}); err != nil {
		l.t.Fatal(err)
	}
}

// TestC55FoldedStateEqualsTheState: watchers that are cut off and resume, at both controllers, deletions
// included.
func TestC55FoldedStateEqualsTheState(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, func(d *Deps) { d.SnapshotPart = 2 })
	l.join(1, "a", "b")
	l.pause()
	l.churn(12)
	node, routes := newFold(t), newFold(t)
	for i := range 6 {
		at := i%2 + 1 // resuming at the other controller
		if err := l.watchNode(node, at, "a", node.rev, l.revision()); err != nil {
			t.Fatal(err)
		}
		if err := l.watchRoutes(routes, at, nil, routes.rev, l.revision()); err != nil {
			t.Fatal(err)
		}
		l.equal(node, "a")
		l.equal(routes, "")
		l.churn(7)
	}
	if node.snapshots != 1 || routes.snapshots != 1 || node.parts < 2 || node.deltas == 0 {
		t.Fatalf("resumable: %d and %d snapshots, %d parts, %d deltas", node.snapshots, routes.snapshots, node.parts, node.deltas)
	}
}

// TestC55FollowingWhileItChanges: one stream, open all the time.
func TestC55FollowingWhileItChanges(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	l.join(1, "a", "b")
	l.pause()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	s, err := l.nodes(2).WatchNode(ctx, &planev1.WatchNodeRequest{NodeId: "b"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	churned := make(chan struct{})
	go func() {
		defer close(churned)
		l.churn(40)
	}()
	f := newFold(t)
	for done := false; !done || f.inSnapshot || f.rev < l.revision(); {
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		f.take(m)
		select {
		case <-churned:
			done = true
		default:
		}
	}
	l.equal(f, "b")
}

// TestC55WatcherThatWasAwayTooLong is told so, and starts from a snapshot.
func TestC55WatcherThatWasAwayTooLong(t *testing.T) {
	l := newLab(t, 1, fsm.Options{HistoryLimit: 10}, nil)
	l.join(1, "a", "b")
	l.pause()
	f := newFold(t)
	if err := l.watchNode(f, 1, "a", 0, l.revision()); err != nil {
		t.Fatal(err)
	}
	l.churn(30)
	err := l.watchNode(f, 1, "a", f.rev, l.revision())
	if e := l.refused(cluster.ReasonRevisionCompacted, err); e.Oldest == 0 {
		t.Fatal("it does not say what is kept")
	}
	if err := l.watchNode(f, 1, "a", 0, l.revision()); err != nil {
		t.Fatal(err)
	}
	l.equal(f, "a")
	// One that claims to be ahead has seen another history.
	l.refused(cluster.ReasonRevisionCompacted, l.watchNode(f, 1, "a", l.revision()+1000, l.revision()))
}

// TestC55SnapshotOfALaggingFollowerWaits: it never takes back what the watcher has seen elsewhere.
func TestC55SnapshotOfALaggingFollowerWaits(t *testing.T) {
	l := newLab(t, 2, fsm.Options{}, nil)
	l.join(1, "a", "b")
	l.g.Lag(2)
	l.topic(1, "t", 3)
	rev := l.revision()
	f := newFold(t)
	done := make(chan error, 1)
	go func() { done <- l.watchNode(f, 2, "a", 0, rev) }()
	select {
	case err := <-done:
		t.Fatalf("a follower that is behind answered (%v) at revision %d of %d", err, f.rev, rev)
	case <-time.After(300 * time.Millisecond):
	}
	l.g.Catch(2)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if f.deltas != 0 || f.rev < rev {
		t.Fatalf("the snapshot was of revision %d, not %d", f.rev, rev)
	}
}

func TestWatchKeepsAliveAndTellsProgress(t *testing.T) {
	l := newLab(t, 1, fsm.Options{}, nil)
	l.join(1, "a", "b")
	l.pause()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	s, err := l.nodes(1).WatchRoutes(ctx, &planev1.WatchRoutesRequest{Topics: []string{"wanted"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f := newFold(t)
	next := func() {
		t.Helper()
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		f.take(m)
	}
	for f.progress < 3 {
		next()
	}
	// What does not concern the watcher moves its progress on.
	l.topic(1, "other", 2)
	rev := l.revision()
	for f.rev < rev {
		next()
	}
	if f.deltas != 0 || len(f.topics) != 0 {
		t.Fatalf("saw %d deltas and topics %v", f.deltas, f.topics)
	}
	l.topic(1, "wanted", 2)
	for len(f.assignments) < 2 {
		next()
	}
	// A stopping controller says so instead of hanging.
	l.srv[0].Close()
	for {
		m, err := s.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) || cluster.ReasonOf(apierr.FromConnect(err)) != cluster.ReasonNoLeader {
				t.Fatalf("ended with %v", err)
			}
			return
		}
		f.take(m)
	}
}

func TestWatchLimitsAndRefusals(t *testing.T) {
	l := newLab(t, 1, fsm.Options{}, func(d *Deps) { d.MaxWatchers = 1 })
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	first, err := l.nodes(1).WatchNode(ctx, &planev1.WatchNodeRequest{NodeId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Receive(); err != nil {
		t.Fatal(err)
	}
	f := newFold(t)
	l.refused(cluster.ReasonLimit, l.watchNode(f, 1, "b", 0, 0))
	if err := first.Close(); err != nil && connect.CodeOf(err) != connect.CodeCanceled {
		t.Logf("close: %v", err)
	}
	cancel()
	l.until("the place is free again", func() bool { return l.srv[0].watchers.Load() == 0 })
	l.refused(cluster.ReasonInvalid, l.watchNode(f, 1, "A/B", 0, 0))
	l.refused(cluster.ReasonInvalid, l.watchRoutes(f, 1, []string{"a/b"}, 0, 0))
	l.g.Lead(0)
	l.refused(cluster.ReasonNoLeader, l.watchNode(f, 1, "a", 0, 0))
}

var _ planev1connect.NodeServiceHandler = nodeService{}
