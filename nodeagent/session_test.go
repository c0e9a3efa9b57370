package nodeagent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// sessionRig is a session whose controllers are two functions, and a log of what happened in which order.
type sessionRig struct {
	*session
	events []string
}

func newSessionRig(t *testing.T) *sessionRig {
	t.Helper()
	db, err := OpenDB(DBOptions{Dir: "/data", NodeID: "n1", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDB(t, db) })
	if _, err := db.NextIncarnation(); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.NodeID = "n1"
	r := &sessionRig{}
	r.session = newSession(cfg, db, control{}, sessionHooks{
		report:     func(bool) *planev1.HeartbeatRequest { return &planev1.HeartbeatRequest{} },
		accepted:   func(*planev1.HeartbeatRequest) {},
		superseded: func(context.Context) error { r.events = append(r.events, "fence"); return nil },
		registered: func(cluster.Incarnation) { r.events = append(r.events, "registered") },
		unknown:    func() error { return ErrRemoved },
		suspect:    func() { r.events = append(r.events, "suspect") },
		claim: func(_ context.Context, inc cluster.Incarnation) error {
			r.events = append(r.events, "claim "+string('0'+rune(inc)))
			return nil
		},
		orders: func([]*planev1.MoveOrder) {},
	}, zap.NewNop())
	r.enroll = func(context.Context, cluster.Incarnation) (enrolment, error) { return enrolment{cluster: "c"}, nil }
	r.send = granted(10 * time.Second)
	return r
}

func granted(ttl time.Duration) func(context.Context, time.Duration, *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
	return func(context.Context, time.Duration, *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
		return &planev1.HeartbeatResponse{LeaseTtl: durationpb.New(ttl)}, nil
	}
}

// start runs the session; the result is on the channel when it has ended.
func (r *sessionRig) start(t *testing.T) <-chan error {
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan error, 1)
	go func() { out <- r.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-out
	})
	synctest.Wait()
	return out
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// inBubble makes the rig inside the bubble, so that its goroutines and timers are virtual, and closes what
// belongs to it before the bubble ends.
func inBubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, fn)
}

func TestI10LeaseCountsFromWhenTheRequestWasSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		answered := 0
		r.send = func(ctx context.Context, _ time.Duration, _ *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
			if answered > 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			answered++
			<-time.After(4 * time.Second)
			return &planev1.HeartbeatResponse{LeaseTtl: durationpb.New(10 * time.Second)}, nil
		}
		r.start(t)
		if r.LeaseValid() {
			t.Fatal("a lease before the first answer")
		}
		pass(4 * time.Second)
		if !r.LeaseValid() {
			t.Fatal("no lease after the answer")
		}
		pass(6*time.Second - time.Millisecond)
		if !r.LeaseValid() {
			t.Fatal("the lease ended before its time")
		}
		pass(time.Millisecond)
		if r.LeaseValid() {
			t.Fatal("the lease counts from the answer's arrival, 4 s late: the leader may have declared this node dead")
		}
	})
}

func TestI10LeaseEndsWhenNobodyAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		var silent atomic.Bool
		answer := r.send
		r.send = func(ctx context.Context, timeout time.Duration, req *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
			if !silent.Load() {
				return answer(ctx, timeout, req)
			}
			<-time.After(timeout)
			return nil, context.DeadlineExceeded
		}
		r.start(t)
		pass(time.Second)
		silent.Store(true)
		pass(8 * time.Second)
		if !r.LeaseValid() {
			t.Fatal("the lease of the heartbeat at 0 s ended before 10 s")
		}
		pass(time.Second + time.Millisecond)
		if r.LeaseValid() || r.Problem() == "" {
			t.Fatalf("a lease 10 s after its heartbeat, problem %q", r.Problem())
		}
	})
}

// A late answer to an earlier heartbeat never shortens a lease.
func TestI10LeaseIsNeverShortened(t *testing.T) {
	var l lease
	now := time.Now()
	l.renew(now, 10*time.Second)
	l.renew(now.Add(-5*time.Second), 10*time.Second)
	if !l.valid(now.Add(9 * time.Second)) {
		t.Fatal("shortened")
	}
	l.end()
	if l.valid(now) {
		t.Fatal("ended and valid")
	}
}

// Declared dead without a restart: no lease, marked partitions fenced, a higher incarnation, and only
// then a registration.
func TestC74SupersededSessionFencesBeforeItRegisters(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		dead := true
		r.enroll = func(_ context.Context, inc cluster.Incarnation) (enrolment, error) {
			if r.LeaseValid() {
				t.Error("a lease while registering")
			}
			r.events = append(r.events, "register "+string('0'+rune(inc)))
			return enrolment{cluster: "c"}, nil
		}
		r.send = func(_ context.Context, _ time.Duration, req *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
			if dead && req.GetIncarnation() == 1 {
				if len(r.events) > 2 {
					t.Error("a heartbeat of a dead incarnation")
				}
				return nil, cluster.Errorf(cluster.ReasonStaleIncarnation, "declared dead")
			}
			return &planev1.HeartbeatResponse{LeaseTtl: durationpb.New(10 * time.Second)}, nil
		}
		r.hooks.superseded = func(context.Context) error {
			if inc, ok := r.Incarnation(); ok || r.LeaseValid() {
				t.Errorf("fencing while incarnation %d answers handoffs (%v) or has a lease", inc, ok)
			}
			r.events = append(r.events, "fence")
			return nil
		}
		r.start(t)
		pass(time.Second)
		want := []string{"register 1", "registered", "fence", "register 2", "registered"}
		if !slices.Equal(r.events, want) {
			t.Fatalf("got %v, want %v", r.events, want)
		}
		if inc, ok := r.Incarnation(); inc != 2 || !ok || !r.LeaseValid() {
			t.Fatalf("incarnation %d, registered %v, lease %v", inc, ok, r.LeaseValid())
		}
	})
}

// Between its start and its registration a node answers no handoff.
func TestC73NotRegisteredUntilTheClusterSaidSo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		var up atomic.Bool
		r.enroll = func(context.Context, cluster.Incarnation) (enrolment, error) {
			if !up.Load() {
				return enrolment{}, cluster.Errorf(cluster.ReasonNoLeader, "no leader")
			}
			return enrolment{cluster: "c"}, nil
		}
		r.start(t)
		pass(time.Minute)
		if _, ok := r.Incarnation(); ok || r.LeaseValid() || !strings.Contains(r.Problem(), "no leader") {
			t.Fatalf("registered %v, problem %q", ok, r.Problem())
		}
		up.Store(true)
		pass(10 * time.Second)
		if _, ok := r.Incarnation(); !ok {
			t.Fatal("not registered although the leader is back")
		}
	})
}

func TestC37ForeignStoreStopsTheAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		r.enroll = func(context.Context, cluster.Incarnation) (enrolment, error) {
			return enrolment{}, cluster.Errorf(cluster.ReasonForeignStore, "known with another store: decommission it first")
		}
		err := r.run(t.Context())
		wantRefusal(t, err, cluster.ReasonForeignStore, "decommission it first")
	})
}

// A data directory restored from an older copy never gets a session, however often it tries.
func TestC79OlderIncarnationStopsTheAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		r.enroll = func(context.Context, cluster.Incarnation) (enrolment, error) {
			return enrolment{}, cluster.Errorf(cluster.ReasonStaleIncarnation, "a later one is known")
		}
		err := r.run(t.Context())
		wantRefusal(t, err, cluster.ReasonStaleIncarnation, "clone")
	})
}

func TestAnotherClusterIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		if err := r.db.SetClusterID("other"); err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r.run(t.Context()), cluster.ReasonForeignStore, "belongs to cluster other")
	})
}

// A decommissioned node does not join again by itself.
func TestC40RemovedNodeStops(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		r.send = func(context.Context, time.Duration, *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
			return nil, cluster.NotFound("no node n1")
		}
		if err := r.run(t.Context()); !errors.Is(err, ErrRemoved) {
			t.Fatalf("got %v", err)
		}
	})
}

// Without answers another controller is asked within half a lease.
func TestC60AnotherControllerWithinHalfALease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newSessionRig(t)
		var silent atomic.Bool
		var attempts []time.Duration
		start := time.Now()
		r.send = func(_ context.Context, timeout time.Duration, _ *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
			if silent.Load() {
				attempts = append(attempts, time.Since(start))
				<-time.After(timeout)
				return nil, context.DeadlineExceeded
			}
			return &planev1.HeartbeatResponse{LeaseTtl: durationpb.New(10 * time.Second)}, nil
		}
		r.start(t)
		pass(3 * time.Second)
		silent.Store(true)
		pass(7 * time.Second)
		// The last answer was to the heartbeat at 2 s.
		if len(attempts) < 2 || attempts[1]-2*time.Second > 5*time.Second || !slices.Contains(r.events, "suspect") {
			t.Fatalf("attempts at %v, events %v", attempts, r.events)
		}
	})
}
