package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// drawChange draws one change over a few keys, so that they meet.
func drawChange(t *rapid.T) cluster.Change {
	p := pid(cluster.TopicID(rapid.Uint64Range(1, 3).Draw(t, "topic")), rapid.Uint32Range(0, 2).Draw(t, "index"))
	node := cluster.NodeID(rapid.SampledFrom([]string{"me", "other"}).Draw(t, "node"))
	move := cluster.MoveID(rapid.Uint64Range(1, 3).Draw(t, "move"))
	switch rapid.IntRange(0, 7).Draw(t, "kind") {
	case 0:
		return cluster.Change{Node: &cluster.Node{ID: node, Incarnation: cluster.Incarnation(move)}}
	case 1:
		return cluster.Change{NodeRemoved: node}
	case 2:
		return cluster.Change{Topic: &cluster.Topic{ID: p.Topic, Name: fmt.Sprint(move)}}
	case 3:
		return cluster.Change{TopicRemoved: p.Topic}
	case 4:
		return cluster.Change{Assignment: &cluster.Assignment{Partition: p, Owner: node, MoveID: move}}
	case 5:
		return cluster.Change{AssignmentRemoved: &p}
	case 6:
		return cluster.Change{Outcome: &cluster.Outcome{Partition: p, MoveID: move, Source: node}}
	default:
		return cluster.Change{OutcomeRemoved: &cluster.OutcomeKey{Partition: p, MoveID: move}}
	}
}

// asSnapshot lists a view as the changes of a snapshot.
func asSnapshot(v *View) []cluster.Change {
	var out []cluster.Change
	for _, n := range v.Nodes {
		out = append(out, cluster.Change{Node: &n})
	}
	for _, x := range v.Topics {
		out = append(out, cluster.Change{Topic: &x})
	}
	for _, a := range v.Assignments {
		out = append(out, cluster.Change{Assignment: &a})
	}
	for _, of := range v.Outcomes {
		for _, o := range of {
			out = append(out, cluster.Change{Outcome: &o})
		}
	}
	return out
}

// A view that joins by a snapshot at any revision and goes on from there equals one that saw everything,
// whatever is sent twice.
func TestC55FoldedViewEqualsASnapshot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(t, "revisions")
		join := rapid.IntRange(1, n).Draw(t, "join")
		whole, late := NewView(), NewView()
		for rev := 1; rev <= n; rev++ {
			changes := rapid.SliceOfN(rapid.Custom(drawChange), 1, 4).Draw(t, "changes")
			whole.Fold(false, cluster.Revision(rev), changes)
			if rev == join {
				late.Fold(true, cluster.Revision(rev), asSnapshot(whole))
			}
			if rev > join {
				late.Fold(false, cluster.Revision(rev), changes)
			}
			if rapid.Bool().Draw(t, "again") {
				whole.Fold(false, cluster.Revision(rev), changes)
			}
		}
		if diff := cmp.Diff(whole, late); diff != "" {
			t.Fatalf("views differ after joining at %d of %d: %s", join, n, diff)
		}
	})
}

func TestViewNeverGoesBack(t *testing.T) {
	v := NewView()
	v.Fold(true, 10, []cluster.Change{{Assignment: mine(4, true)}})
	if got := v.Fold(true, 9, nil); got.All || len(v.Assignments) != 1 || v.Revision != 10 {
		t.Fatalf("a lagging controller's snapshot was taken: %v", v)
	}
	if v.Fold(false, 10, []cluster.Change{{AssignmentRemoved: &cluster.PartitionID{Topic: 7}}}); len(v.Assignments) != 1 {
		t.Fatal("a revision was folded twice")
	}
}

// scriptStream plays events, then blocks or ends.
type scriptStream struct {
	ctx    context.Context
	events []watchEvent
	end    error // nil blocks
}

func (s *scriptStream) Receive() (watchEvent, error) {
	if len(s.events) > 0 {
		e := s.events[0]
		s.events = s.events[1:]
		return e, nil
	}
	if s.end != nil {
		return watchEvent{}, s.end
	}
	<-s.ctx.Done()
	return watchEvent{}, s.ctx.Err()
}

func (s *scriptStream) Close() error { return nil }

// watchRig records what a watcher asks for and folds.
type watchRig struct {
	*watcher
	mu    sync.Mutex
	opens []string
	folds []string
}

func newWatchRig(streams ...scriptStream) *watchRig {
	r := &watchRig{}
	var next atomic.Int64
	r.watcher = &watcher{name: "test", idle: 10 * time.Second, log: zap.NewNop()}
	r.sink = folderFunc(func(reset bool, rev cluster.Revision, changes []cluster.Change) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.folds = append(r.folds, fmt.Sprintf("%v@%d:%d", reset, rev, len(changes)))
	})
	r.open = func(ctx context.Context, after cluster.Revision) (watchStream, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.opens = append(r.opens, fmt.Sprint(after))
		i := int(next.Add(1)) - 1
		if i >= len(streams) {
			return &scriptStream{ctx: ctx}, nil
		}
		s := streams[i]
		s.ctx = ctx
		return &s, nil
	}
	return r
}

func (r *watchRig) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

func (r *watchRig) expect(t *testing.T, opens, folds string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.opens, " "); got != opens {
		t.Errorf("streams opened after revisions %q, want %q", got, opens)
	}
	if got := strings.Join(r.folds, " "); got != folds {
		t.Errorf("folded %q, want %q", got, folds)
	}
}

func one() []cluster.Change { return []cluster.Change{{NodeRemoved: "x"}} }

func part(rev cluster.Revision, first, last bool) watchEvent {
	return watchEvent{revision: rev, snapshot: true, first: first, last: last, changes: one()}
}

func delta(rev cluster.Revision) watchEvent {
	return watchEvent{revision: rev, delta: true, changes: one()}
}

func TestC55WatchResumesByRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWatchRig(
			scriptStream{events: []watchEvent{part(5, true, false), part(5, false, true), delta(6), {revision: 9}}, end: io.EOF},
			scriptStream{events: []watchEvent{delta(9), delta(12)}, end: errors.New("reset")},
		)
		r.start(t)
		pass(time.Second)
		r.expect(t, "0 9 12", "true@5:2 false@6:1 false@9:0 false@12:1")
	})
}

func TestC55WatchThatFellBehindStartsFromASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWatchRig(
			scriptStream{events: []watchEvent{part(5, true, true)}, end: cluster.Errorf(cluster.ReasonRevisionCompacted, "gone")},
			scriptStream{events: []watchEvent{part(50, true, true)}},
		)
		r.start(t)
		pass(time.Second)
		r.expect(t, "0 0", "true@5:1 true@50:1")
	})
}

// Half a snapshot never replaces a view: its absent half would read as deleted.
func TestC55HalfASnapshotIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWatchRig(
			scriptStream{events: []watchEvent{part(5, true, false)}, end: io.ErrUnexpectedEOF},
			scriptStream{events: []watchEvent{part(5, false, true)}},
			scriptStream{events: []watchEvent{part(5, true, false), delta(6)}},
			scriptStream{events: []watchEvent{part(7, true, true)}},
		)
		r.start(t)
		pass(2 * time.Second)
		r.expect(t, "0 0 0 0", "true@7:1")
	})
}

// A stream whose packets are dropped reports no error; silence ends it, at the latest after the idle time,
// at once when the leader is silent too.
func TestC60SilentWatchIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWatchRig(scriptStream{events: []watchEvent{part(5, true, true)}})
		r.start(t)
		pass(9 * time.Second)
		r.expect(t, "0", "true@5:1")
		pass(2 * time.Second)
		r.expect(t, "0 5", "true@5:1")
		r.kick(2 * time.Second)
		pass(time.Second)
		r.expect(t, "0 5", "true@5:1")
		pass(2 * time.Second)
		r.kick(2 * time.Second)
		pass(time.Second)
		r.expect(t, "0 5 5", "true@5:1")
	})
}

func TestC66UnspecifiedAdvertiseAddressIsRefused(t *testing.T) {
	for address, ok := range map[string]bool{
		"0.0.0.0:7500": false, "[::]:7500": false, ":7500": false, "host": false, "host:0": false, "host:x": false,
		"10.0.0.1:7500": true, "node-1.example:7500": true, "[fe80::1]:7500": true,
	} {
		cfg := DefaultConfig()
		cfg.NodeID, cfg.Advertise = "n1", address
		err := cfg.Validate()
		if (err == nil) != ok {
			t.Errorf("advertise %q: %v", address, err)
		}
	}
	cfg := DefaultConfig()
	cfg.NodeID, cfg.Listen = "n1", "0.0.0.0:7500"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "advertise") {
		t.Errorf("listening on 0.0.0.0 without an advertised address: %v", err)
	}
}

func TestConfigNamesAllFaultsAtOnce(t *testing.T) {
	cfg := DefaultConfig()
	cfg.NodeID, cfg.Voter, cfg.DataDir, cfg.Controllers, cfg.HeartbeatInterval, cfg.Workers = "N", "V", "", nil, 0, 0
	err := cfg.Validate()
	for _, key := range []string{"node_id", "voter", "data_dir", "controllers", "heartbeat_interval", "workers"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named in: %v", key, err)
		}
	}
}

// What the leader is told in differences equals what is on disk.
func TestReportedSizesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r reporter
		leader := map[cluster.PartitionID]cluster.Bytes{}
		var now map[cluster.PartitionID]cluster.Bytes
		for range rapid.IntRange(1, 10).Draw(t, "rounds") {
			now = map[cluster.PartitionID]cluster.Bytes{}
			for range rapid.IntRange(0, 4).Draw(t, "partitions") {
				now[pid(1, rapid.Uint32Range(0, 3).Draw(t, "index"))] = cluster.Bytes(rapid.Uint64Range(0, 2).Draw(t, "bytes"))
			}
			r.set(measured{at: time.Unix(1, 0), sizes: now})
			req := &planev1.HeartbeatRequest{}
			all := rapid.Bool().Draw(t, "all")
			r.fill(req, all)
			if rapid.Bool().Draw(t, "lost") {
				continue
			}
			if req.GetSizesComplete() {
				clear(leader)
			}
			for _, s := range req.GetSizes() {
				leader[pid(1, s.GetPartition().GetIndex())] = cluster.Bytes(s.GetBytes())
			}
			r.accepted(req)
			maps.DeleteFunc(leader, func(_ cluster.PartitionID, b cluster.Bytes) bool { return b == 0 })
			maps.DeleteFunc(now, func(_ cluster.PartitionID, b cluster.Bytes) bool { return b == 0 })
			if diff := cmp.Diff(now, leader); diff != "" {
				t.Fatalf("the leader has other sizes: %s", diff)
			}
		}
	})
}
