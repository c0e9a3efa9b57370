package consensustest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
)

const never = uint64(1) << 40

func testOrder(t *testing.T, f Factory) {
	c := f(t, 3, never)
	const clients, each = 8, 40
	l := Leader(t, c)
	var wg sync.WaitGroup
	errs := make(chan error, clients*each)
	for k := range clients {
		wg.Go(func() {
			for i := range each {
				if _, _, err := c.Backend(l).Propose(Context(t), fmt.Appendf(nil, "%d/%d", k, i)); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatalf("propose: %v", err)
	}
	records := Alike(t, c)
	if len(records) != clients*each {
		t.Fatalf("%d records were applied, want %d", len(records), clients*each)
	}
	next := map[int]int{}
	for _, r := range records {
		var k, i int
		if _, err := fmt.Sscanf(r.Command, "%d/%d", &k, &i); err != nil || next[k] != i {
			t.Fatalf("command %q of client %d came when %d was due", r.Command, k, next[k])
		}
		next[k]++
	}
}

func testSingle(t *testing.T, f Factory) {
	c := f(t, 1, 20)
	Leader(t, c)
	for i := range 100 {
		res, index, err := c.Backend(0).Propose(Context(t), fmt.Appendf(nil, "%d", i))
		if err != nil || res != i+1 {
			t.Fatalf("propose: result %v, index %d, error %v; want result %d", res, index, err, i+1)
		}
	}
	c.Crash(0)
	if err := c.Backend(0).Barrier(Context(t)); err != nil {
		t.Fatal(err)
	}
	if got := len(c.Machine(0).Records()); got != 100 {
		t.Fatalf("after a crash %d records are applied behind a barrier, want 100", got)
	}
}

func testBarrier(t *testing.T, f Factory) {
	c := f(t, 3, never)
	for i := range 30 {
		command := fmt.Sprint("b", i)
		index := Propose(t, c, command)
		var wg sync.WaitGroup
		for k := range c.Len() {
			for range 3 {
				wg.Go(func() {
					if err := c.Backend(k).Barrier(Context(t)); err != nil {
						t.Errorf("barrier on member %d: %v", k, err)
					}
					if c.Machine(k).Count(command) != 1 || c.Machine(k).AppliedIndex() < index {
						t.Errorf("member %d passed the barrier without %q", k, command)
					}
				})
			}
		}
		wg.Wait()
	}
}

func testBarrierWithoutLeader(t *testing.T, f Factory) {
	c := f(t, 3, never)
	Propose(t, c, "before")
	c.Isolate(0, true)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := c.Backend(0).Barrier(ctx); err == nil {
		t.Fatal("a member that is cut off passed a barrier")
	}
	done := make(chan error, 1)
	go func() { done <- c.Backend(0).Barrier(Context(t)) }()
	Propose(t, c, "meanwhile", 1, 2)
	c.Isolate(0, false)
	if err := <-done; err != nil {
		t.Fatalf("a barrier that waits for a leader: %v", err)
	}
	if c.Machine(0).Count("meanwhile") != 1 {
		t.Fatal("the barrier passed without what was committed before it could pass")
	}
}

func testLeaderBarrier(t *testing.T, f Factory) {
	c := f(t, 3, never)
	l := Leader(t, c)
	Propose(t, c, "x")
	term, err := c.Backend(l).LeaderBarrier(Context(t))
	if err != nil || term != c.Backend(l).Status().Term || term == 0 {
		t.Fatalf("leader barrier: term %d, error %v; status says %+v", term, err, c.Backend(l).Status())
	}
	for _, i := range others(c, l) {
		if _, err := c.Backend(i).LeaderBarrier(Context(t)); !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatalf("leader barrier on a follower: %v, want ErrNotLeader", err)
		}
	}
	c.Isolate(l, true)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if term, err := c.Backend(l).LeaderBarrier(ctx); err == nil {
		t.Fatalf("a leader that is cut off passed its barrier in term %d", term)
	}
	next := Leader(t, c, others(c, l)...)
	got, err := c.Backend(next).LeaderBarrier(Context(t))
	if err != nil || got <= term {
		t.Fatalf("leader barrier of the next leader: term %d after %d, error %v", got, term, err)
	}
}

func testNotLeader(t *testing.T, f Factory) {
	c := f(t, 3, never)
	l := Leader(t, c)
	for _, i := range others(c, l) {
		if _, _, err := c.Backend(i).Propose(Context(t), []byte("refused")); !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatalf("propose on a follower: %v, want ErrNotLeader", err)
		}
		if err := c.Backend(i).Remove(Context(t), c.Backend(l).Status().Self); !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatalf("remove on a follower: %v, want ErrNotLeader", err)
		}
	}
	Propose(t, c, "last")
	if records := Alike(t, c); len(records) != 1 {
		t.Fatalf("a refused proposal was applied: %v", records)
	}
}

func testUnknownOutcome(t *testing.T, f Factory) {
	c := f(t, 3, never)
	l := Leader(t, c)
	Propose(t, c, "before")
	c.Isolate(l, true)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, _, err := c.Backend(l).Propose(ctx, []byte("maybe"))
	if !errors.Is(err, consensus.ErrOutcomeUnknown) && !errors.Is(err, consensus.ErrNotLeader) {
		t.Fatalf("propose at a leader that is cut off: %v, want ErrOutcomeUnknown", err)
	}
	// This one is overwritten: once its member has seen the next term, it knows that it never comes.
	lost := make(chan error, 1)
	go func() {
		_, _, err := c.Backend(l).Propose(Context(t), []byte("lost"))
		lost <- err
	}()
	Propose(t, c, "after", others(c, l)...)
	c.Isolate(l, false)
	if err := <-lost; err == nil {
		t.Fatal("a proposal without a quorum was answered")
	}
	Propose(t, c, "end")
	Alike(t, c)
	for i := range c.Len() {
		if n := c.Machine(i).Count("maybe"); n > 1 {
			t.Fatalf("member %d applied the unknown proposal %d times", i, n)
		}
	}
}

func testLeadershipChange(t *testing.T, f Factory) {
	c := f(t, 3, never)
	for round := range 3 {
		l := Leader(t, c)
		rest := others(c, l)
		old := c.Backend(rest[0]).Status()
		changed := c.Backend(rest[0]).Changed()
		c.Isolate(l, true)
		Propose(t, c, fmt.Sprint("round ", round), rest...)
		<-changed
		if s := c.Backend(rest[0]).Status(); s.Term <= old.Term {
			t.Fatalf("the term went from %d to %d over a change of leader", old.Term, s.Term)
		}
		c.Isolate(l, false)
		Leader(t, c)
		if got := len(Alike(t, c)); got != round+1 {
			t.Fatalf("%d records after round %d", got, round)
		}
	}
}

func testRestart(t *testing.T, f Factory) {
	c := f(t, 3, 50)
	for round := range 3 {
		for i := range 40 {
			Propose(t, c, fmt.Sprintf("%d/%d", round, i))
		}
		for i := range c.Len() {
			c.Restart(i)
		}
		Leader(t, c)
		if got := len(Alike(t, c)); got != (round+1)*40 {
			t.Fatalf("%d records after restart %d, want %d", got, round, (round+1)*40)
		}
	}
}

func testCrash(t *testing.T, f Factory) {
	c := f(t, 3, 30)
	total := 0
	for round := range 4 {
		for i := range 25 {
			Propose(t, c, fmt.Sprintf("%d/%d", round, i))
			total++
		}
		for i := range c.Len() {
			c.Crash(i)
		}
		Leader(t, c)
		if got := len(Alike(t, c)); got != total {
			t.Fatalf("%d records after all crashed, want %d", got, total)
		}
	}
}

func testStateMachineError(t *testing.T, f Factory) {
	c := f(t, 3, never)
	l := Leader(t, c)
	bad := others(c, l)[0]
	errDisk := errors.New("disk on fire")
	c.Machine(bad).FailNext(errDisk)
	Propose(t, c, "x", others(c, bad)...)
	select {
	case <-c.Backend(bad).Done():
	case <-time.After(Patience):
		t.Fatal("a member whose state machine failed goes on")
	}
	if err := c.Backend(bad).Err(); !errors.Is(err, errDisk) {
		t.Fatalf("it stopped because of %v, want %v", err, errDisk)
	}
	if c.Machine(bad).Count("x") != 0 {
		t.Fatal("the entry was skipped")
	}
	Propose(t, c, "y", others(c, bad)...)
	c.Crash(bad)
	Leader(t, c)
	Alike(t, c)
}

func testStop(t *testing.T, f Factory) {
	c := f(t, 3, never)
	l := Leader(t, c)
	release := c.Machine(l).Hold()
	defer release()
	errs := make(chan error, 2)
	go func() {
		_, _, err := c.Backend(l).Propose(Context(t), []byte("x"))
		errs <- err
	}()
	Eventually(t, "the others applied it", func() bool { return c.Machine(others(c, l)[0]).Count("x") == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- c.Backend(l).Stop() }()
	release()
	if err := <-stopped; err != nil {
		t.Fatalf("stop: %v", err)
	}
	if err := <-errs; err != nil && !errors.Is(err, consensus.ErrOutcomeUnknown) {
		t.Fatalf("a proposal in flight at the stop: %v, want nil or ErrOutcomeUnknown", err)
	}
	<-c.Backend(l).Done()
	if err := c.Backend(l).Err(); err != nil {
		t.Fatalf("error after Stop: %v", err)
	}
	if _, _, err := c.Backend(l).Propose(Context(t), []byte("y")); !errors.Is(err, consensus.ErrStopped) {
		t.Fatalf("propose after Stop: %v, want ErrStopped", err)
	}
	if err := c.Backend(l).Barrier(Context(t)); !errors.Is(err, consensus.ErrStopped) {
		t.Fatalf("barrier after Stop: %v, want ErrStopped", err)
	}
	if err := c.Backend(l).Stop(); err != nil {
		t.Fatalf("second stop: %v", err)
	}
}
