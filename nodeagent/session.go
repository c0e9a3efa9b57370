package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// lease is the promise that the leader won't declare this node dead before until. The zero value has
// ended. Times carry the monotonic clock, so that steps of the wall clock move nothing.
type lease struct{ until time.Time }

// renew takes over an answer to a heartbeat that was sent at sent. Invariant I10: it counts from then,
// not from the answer's arrival, since the leader counts its silence from no earlier.
func (l *lease) renew(sent time.Time, ttl time.Duration) {
	if until := sent.Add(ttl); until.After(l.until) {
		l.until = until
	}
}

func (l *lease) end() { l.until = time.Time{} }

func (l lease) valid(now time.Time) bool { return now.Before(l.until) }

// ErrRemoved says that the node was decommissioned: the agent has stopped and its data directory may be
// deleted.
var ErrRemoved = errors.New("this node was removed from the cluster; to let it join again, start it with an empty data_dir")

// errSuperseded ends a session: the node was declared dead, or another incarnation registered.
var errSuperseded = errors.New("the incarnation was superseded")

// maxStaleRegistrations bounds how often a registration may be refused as stale in a row. One is
// ordinary: the node was declared dead between a registration and its repetition.
const maxStaleRegistrations = 5

// enrolment is the answer to a registration.
type enrolment struct {
	cluster cluster.ClusterID
	// predecessors are the clusters that this one was restored from.
	predecessors []cluster.ClusterID
	// claim says that the cluster asks which copies this node holds.
	claim bool
}

// sessionHooks are what a session needs of the agent. All are required. They are called from the
// session's goroutine.
type sessionHooks struct {
	// report makes a heartbeat's soft state; all asks for every size.
	report func(all bool) *planev1.HeartbeatRequest
	// accepted is called when the leader has taken that report.
	accepted func(*planev1.HeartbeatRequest)
	// superseded is called when a session has ended and before the next incarnation registers: after
	// it, no marked partition accepts writes (I7).
	superseded func(ctx context.Context) error
	// claim tells a restored cluster what this node holds. Nothing acts on the cluster's word before it.
	claim func(ctx context.Context, inc cluster.Incarnation) error
	// orders is called with what operators ask of moves towards this node.
	orders func([]*planev1.MoveOrder)
	// registered is called after a registration.
	registered func(cluster.Incarnation)
	// unknown is called when the cluster has no such node. An error ends the session for good.
	unknown func() error
	// suspect is called when the leader gave no sign of life over a connection.
	suspect func()
}

// session is a node's registration: its incarnation, and a lease renewed by heartbeats.
type session struct {
	cfg   Config
	db    *DB
	hooks sessionHooks
	log   *zap.Logger
	// enroll registers an incarnation; send makes one attempt at one heartbeat.
	enroll func(context.Context, cluster.Incarnation) (enrolment, error)
	send   func(context.Context, time.Duration, *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error)

	mu struct {
		sync.Mutex
		incarnation cluster.Incarnation
		registered  bool
		lease       lease
		ttl         time.Duration // of the last answer; zero before
		leader      string
		lastSign    time.Time
		problem     string // why there is no lease; empty when there is
		wantSizes   bool
	}
}

func newSession(cfg Config, db *DB, c control, hooks sessionHooks, log *zap.Logger) *session {
	s := &session{cfg: cfg, db: db, hooks: hooks, log: log, send: c.heartbeat}
	s.enroll = func(ctx context.Context, inc cluster.Incarnation) (enrolment, error) {
		have, err := db.ClusterID()
		if err != nil {
			return enrolment{}, err
		}
		return c.register(ctx, cfg, db.StoreID(), have, inc)
	}
	s.mu.incarnation = db.Incarnation()
	s.mu.wantSizes = true
	s.mu.problem = "not registered yet"
	return s
}

// Incarnation returns the present incarnation and whether it is registered.
func (s *session) Incarnation() (cluster.Incarnation, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.incarnation, s.mu.registered
}

// LeaseValid says whether the lease is valid now. It is called for every append to a partition that is
// being moved away.
func (s *session) LeaseValid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.registered && s.mu.lease.valid(time.Now())
}

// Problem says why the session has no lease; empty when it has one.
func (s *session) Problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.registered && s.mu.lease.valid(time.Now()) {
		return ""
	}
	if s.mu.problem == "" {
		return "the lease has run out"
	}
	return s.mu.problem
}

// usualLeaseTTL is assumed until a leader has said otherwise.
const usualLeaseTTL = 10 * time.Second

func (s *session) leaseTTL() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ttl <= 0 {
		return usualLeaseTTL
	}
	return s.mu.ttl
}

func (s *session) setProblem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.problem = fmt.Sprintf(format, args...)
}

// run keeps a session until ctx ends, or until the cluster refuses this node for good.
func (s *session) run(ctx context.Context) error {
	stale := 0
	for ctx.Err() == nil {
		err := s.register(ctx)
		switch {
		case err == nil:
			stale = 0
			err = s.beat(ctx)
		case errors.Is(err, errSuperseded):
			stale++
			if stale >= maxStaleRegistrations {
				return cluster.Errorf(cluster.ReasonStaleIncarnation,
					"the cluster knows later incarnations of node %s than %s has: the directory was restored from an older copy, or a clone of it runs elsewhere; stop the clone, or remove the node and start with an empty data_dir",
					s.cfg.NodeID, s.cfg.DataDir)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errSuperseded) {
			return err
		}
		if err := s.reincarnate(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// register repeats the registration until it is accepted, superseded, refused for good, or ctx ends.
func (s *session) register(ctx context.Context) error {
	inc, _ := s.Incarnation()
	b := newBackoff(100*time.Millisecond, 3*time.Second)
	for {
		e, err := s.enroll(ctx, inc)
		if err == nil {
			return s.accept(ctx, e, inc)
		}
		switch cluster.ReasonOf(err) {
		case cluster.ReasonStaleIncarnation:
			return errSuperseded
		case cluster.ReasonForeignStore:
			return fmt.Errorf("node %s is refused: %w", s.cfg.NodeID, err)
		case cluster.ReasonInvalid:
			return fmt.Errorf("register node %s: %w", s.cfg.NodeID, err)
		}
		s.setProblem("registration: %v", err)
		s.log.Warn("registration did not succeed, retrying", zap.Error(err))
		if e := cluster.AsError(err); e != nil && e.RetryAfter > 0 && !sleep(ctx, min(e.RetryAfter, 5*time.Second)) {
			return ctx.Err()
		}
		if !b.wait(ctx) {
			return ctx.Err()
		}
	}
}

// accept begins a session that the cluster has registered.
func (s *session) accept(ctx context.Context, e enrolment, inc cluster.Incarnation) error {
	have, err := s.db.ClusterID()
	if err != nil {
		return err
	}
	switch {
	case have == e.cluster:
	case have == "", slices.Contains(e.predecessors, have):
		// The directory goes with the restored cluster and never back: who is left of the old one can't use it any more.
		if err := s.db.SetClusterID(e.cluster); err != nil {
			return err
		}
		if have != "" {
			s.log.Warn("the controllers were restored from a backup: this directory belongs to their cluster from now on",
				zap.String("from", string(have)), zap.String("cluster", string(e.cluster)))
		}
	default:
		return cluster.Errorf(cluster.ReasonForeignStore,
			"data directory %s belongs to cluster %s, the controllers are of cluster %s: correct controllers, or give this node another data_dir",
			s.cfg.DataDir, have, e.cluster)
	}
	if e.claim {
		if err := s.claim(ctx, inc); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.mu.registered = true
	s.mu.wantSizes = true
	s.mu.problem = "waiting for the first heartbeat's answer"
	s.mu.Unlock()
	s.log.Info("registered", zap.Uint64("incarnation", uint64(inc)), zap.String("cluster", string(e.cluster)))
	s.hooks.registered(inc)
	return nil
}

// claim repeats the claims until the cluster has them.
func (s *session) claim(ctx context.Context, inc cluster.Incarnation) error {
	b := newBackoff(100*time.Millisecond, 3*time.Second)
	for {
		err := s.hooks.claim(ctx, inc)
		switch cluster.ReasonOf(err) {
		case cluster.ReasonStaleIncarnation, cluster.ReasonNotFound:
			return errSuperseded
		}
		if err == nil {
			return nil
		}
		s.setProblem("telling the restored controllers what this node holds: %v", err)
		s.log.Warn("copies not claimed yet, retrying", zap.Error(err))
		if !b.wait(ctx) {
			return ctx.Err()
		}
	}
}

// reincarnate ends the session and takes the next incarnation.
func (s *session) reincarnate(ctx context.Context) error {
	s.mu.Lock()
	s.mu.registered = false
	s.mu.lease.end()
	s.mu.problem = "declared dead, or superseded: registering anew"
	old := s.mu.incarnation
	s.mu.Unlock()
	// Invariant I7: closed to handoffs since registered is false, and marked partitions are frozen,
	// before the new incarnation can get a lease.
	b := newBackoff(100*time.Millisecond, 3*time.Second)
	for {
		err := s.hooks.superseded(ctx)
		if err == nil {
			break
		}
		s.setProblem("marked partitions can't be frozen, not registering before they are: %v", err)
		s.log.Error("marked partitions can't be frozen, retrying", zap.Error(err))
		if !b.wait(ctx) {
			return ctx.Err()
		}
	}
	inc, err := s.db.NextIncarnation()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.incarnation = inc
	s.mu.Unlock()
	s.log.Warn("session superseded, registering with a new incarnation",
		zap.Uint64("old", uint64(old)), zap.Uint64("incarnation", uint64(inc)))
	return nil
}

// beat sends heartbeats until the session is superseded or ctx ends.
func (s *session) beat(ctx context.Context) error {
	inc, _ := s.Incarnation()
	b := newBackoff(50*time.Millisecond, s.cfg.HeartbeatInterval)
	for {
		sent := time.Now()
		err := s.heartbeat(ctx, inc, sent)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case cluster.ReasonOf(err) == cluster.ReasonStaleIncarnation:
			return errSuperseded
		case cluster.ReasonOf(err) == cluster.ReasonNotFound:
			if err := s.hooks.unknown(); err != nil {
				return err
			}
			return errSuperseded
		case err != nil:
			s.setProblem("heartbeat: %v", err)
			s.log.Debug("heartbeat not answered", zap.Error(err))
			if cluster.ReasonOf(err) == 0 {
				s.hooks.suspect()
			}
			if !b.wait(ctx) {
				return ctx.Err()
			}
		default:
			b.reset()
			if !sleep(ctx, max(0, s.cfg.HeartbeatInterval-time.Since(sent))) {
				return ctx.Err()
			}
		}
	}
}

// heartbeatTimeout leaves time for another controller within half a lease.
func (s *session) heartbeatTimeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ttl <= 0 {
		return min(s.cfg.CallTimeout, max(s.cfg.HeartbeatInterval, 100*time.Millisecond))
	}
	return min(s.cfg.CallTimeout, max(s.mu.ttl/4, 20*time.Millisecond))
}

func (s *session) heartbeat(ctx context.Context, inc cluster.Incarnation, sent time.Time) error {
	s.mu.Lock()
	all := s.mu.wantSizes
	s.mu.Unlock()
	req := s.hooks.report(all)
	req.NodeId = string(s.cfg.NodeID)
	req.Incarnation = uint64(inc)
	req.Address = s.cfg.AdvertiseAddress()
	res, err := s.send(ctx, s.heartbeatTimeout(), req)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.ttl = res.GetLeaseTtl().AsDuration()
	s.mu.lease.renew(sent, s.mu.ttl)
	s.mu.leader = res.GetLeader()
	s.mu.lastSign = time.Now()
	s.mu.problem = ""
	s.mu.wantSizes = res.GetWantSizes()
	s.mu.Unlock()
	s.hooks.accepted(req)
	if len(res.GetOrders()) > 0 {
		s.hooks.orders(res.GetOrders())
	}
	return nil
}
