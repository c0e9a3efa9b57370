package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/test/memgroup"
)

// lab is a group of controllers, with agents that only send heartbeats. It lives in a bubble: its time
// passes when everything waits.
type lab struct {
	t    *testing.T
	ctx  context.Context
	g    *memgroup.Group
	ctls []*Controller

	mu     sync.Mutex
	agents map[cluster.NodeID]*agent
}

type agent struct {
	incarnation cluster.Incarnation
	address     string
	report      Report
	silent      bool
}

// inLab runs fn with n controllers, of which the first one leads.
func inLab(t *testing.T, n int, fn func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &lab{t: t, ctx: ctx, g: memgroup.New(t, n, nil, fsm.Options{}), agents: map[cluster.NodeID]*agent{}}
		var wg sync.WaitGroup
		for i := 1; i <= n; i++ {
			cfg := DefaultConfig()
			cfg.Name, cfg.ClusterID = cluster.ControllerName(fmt.Sprintf("ctl-%d", i)), "cluster-1"
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			c := New(cfg, l.g.Member(i), l.g.Member(i).Machine, nil)
			l.ctls = append(l.ctls, c)
			wg.Go(func() {
				if err := c.Run(ctx); err != nil {
					t.Errorf("run: %v", err)
				}
			})
		}
		wg.Go(l.beats)
		defer wg.Wait()
		defer cancel()
		l.g.Lead(1)
		synctest.Wait()
		fn(l)
	})
}

// pass lets d go by.
func (l *lab) pass(d time.Duration) {
	l.t.Helper()
	<-time.After(d)
	synctest.Wait()
	l.compare()
}

// compare fails when a leader's board is not what its state and reports say.
func (l *lab) compare() {
	l.t.Helper()
	for i, c := range l.ctls {
		if !l.g.Member(i+1).Status().IsLeader() || c.board.planner == nil || c.lock(l.ctx) != nil {
			continue
		}
		w, now := c.readWorld(), time.Now()
		want := c.view(w, now, false)
		c.soft.Lock()
		stale := c.board.term != c.soft.term
		c.soft.Unlock()
		if err := c.follow(w, now); err != nil && !stale {
			l.t.Errorf("follow: %v", err)
		}
		got := c.board.planner.View()
		c.unlock()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" && !stale {
			l.t.Errorf("%s: the board differs from the state (-state +board):\n%s", c.cfg.Name, diff)
		}
	}
}

// leader is the controller that leads.
func (l *lab) leader() *Controller {
	l.t.Helper()
	for i, c := range l.ctls {
		if l.g.Member(i + 1).Status().IsLeader() {
			return c
		}
	}
	l.t.Fatal("no leader")
	return nil
}

// beats sends all agents' heartbeats.
func (l *lab) beats() {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
			l.beat()
		}
	}
}

func (l *lab) beat() {
	type call struct {
		id cluster.NodeID
		a  agent
	}
	var calls []call
	l.mu.Lock()
	for id, a := range l.agents {
		if !a.silent {
			calls = append(calls, call{id, *a})
		}
	}
	l.mu.Unlock()
	for _, k := range calls {
		for i, c := range l.ctls {
			if l.g.Member(i + 1).Status().IsLeader() {
				// Refusals are the business of the test that provokes them.
				_, _ = c.Heartbeat(l.ctx, k.id, k.a.incarnation, k.a.address, k.a.report)
			}
		}
	}
}

func (l *lab) agent(id cluster.NodeID, change func(a *agent)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l.agents[id])
}

func (l *lab) put(id cluster.NodeID, a *agent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agents[id] = a
}

const disk = 1 << 40

// join registers agents and lets them send heartbeats with half-full disks.
func (l *lab) join(ids ...cluster.NodeID) {
	l.t.Helper()
	for _, id := range ids {
		l.register(id, 1, "")
		l.put(id, &agent{incarnation: 1, address: address(id), report: Report{DiskTotal: disk, DiskFree: disk / 2, SizesComplete: true}})
	}
	l.beat()
	synctest.Wait()
}

func address(id cluster.NodeID) string { return string(id) + ".example:7000" }

func (l *lab) register(id cluster.NodeID, inc cluster.Incarnation, voter cluster.ControllerName) {
	l.t.Helper()
	_, _, err := l.leader().Register(l.ctx, Registration{
		Node: id, StoreID: cluster.StoreID("store-" + id), Incarnation: inc, Address: address(id), Voter: voter,
	})
	if err != nil {
		l.t.Fatalf("register %s: %v", id, err)
	}
}

// topic creates a topic.
func (l *lab) topic(name string, partitions uint32) cluster.Topic {
	l.t.Helper()
	_, t, err := l.leader().CreateTopic(l.ctx, name, partitions, "", 0, "")
	if err != nil {
		l.t.Fatalf("create topic: %v", err)
	}
	return t
}

// state reads the leader's state.
func (l *lab) state() world { l.t.Helper(); return l.leader().readWorld() }

func (l *lab) node(id cluster.NodeID) cluster.Node {
	l.t.Helper()
	n, ok := l.state().node(id)
	if !ok {
		l.t.Fatalf("node %s is no member", id)
	}
	return n
}

// moving lists the partitions in a move.
func (l *lab) moving() []cluster.Assignment {
	l.t.Helper()
	var out []cluster.Assignment
	for _, a := range l.state().assignments {
		if a.Moving() {
			out = append(out, a)
		}
	}
	return out
}

func (l *lab) propose(cmd *storagev1.Command) fsm.Result {
	l.t.Helper()
	r, err := l.leader().do(l.ctx, cmd)
	if err != nil {
		l.t.Fatalf("propose %T: %v", cmd.GetCommand(), err)
	}
	return r
}

// flip carries a move through: grant, flip, and open unless told otherwise.
func (l *lab) flip(a cluster.Assignment, open bool) {
	l.t.Helper()
	nonce := cluster.Nonce{byte(a.MoveID), 1}
	hash := nonce.Hash()
	ref := partitionRef(a.Partition)
	r := l.propose(&storagev1.Command{Command: &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{
		Partition: ref, MoveId: uint64(a.MoveID), NodeId: string(a.Owner), Incarnation: uint64(l.node(a.Owner).Incarnation), NonceHash: hash[:],
	}}})
	r = l.propose(&storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
		Partition: ref, MoveId: uint64(a.MoveID), Handoff: uint32(r.Value), Nonce: nonce[:],
	}}})
	if open {
		l.open(*r.Assignment, a.MoveID)
	}
}

func (l *lab) open(a cluster.Assignment, move cluster.MoveID) {
	l.t.Helper()
	l.propose(&storagev1.Command{Command: &storagev1.Command_ReportOpened{ReportOpened: &storagev1.ReportOpened{
		Partition: partitionRef(a.Partition), NodeId: string(a.Owner), Epoch: uint64(a.OwnerEpoch), MoveId: uint64(move),
		Stats: &storagev1.MoveStatsRecord{Bytes: 100, Freeze: int64(20 * time.Millisecond), Attempts: 3, Passes: 2},
	}}})
}

// settings changes the live settings.
func (l *lab) settings(change func(s *cluster.Settings)) {
	l.t.Helper()
	_, _, err := l.leader().UpdateSettings(l.ctx, func(s cluster.Settings) cluster.Settings { change(&s); return s }, "")
	if err != nil {
		l.t.Fatalf("settings: %v", err)
	}
	synctest.Wait()
}

// wants fails unless err has reason r.
func (l *lab) wants(r cluster.Reason, err error) *cluster.Error {
	l.t.Helper()
	if cluster.ReasonOf(err) != r {
		l.t.Fatalf("got %v, want %s", err, r)
	}
	return cluster.AsError(err)
}
