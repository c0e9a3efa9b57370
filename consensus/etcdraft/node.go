package etcdraft

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

// Node is a member before and while it runs: it holds the data directory and serves peers. Serve Handler
// first, then call Start: fresh members find each other through their handlers.
type Node struct {
	cfg       Config
	log       *zap.Logger
	dir       *dataDir
	transport *transport

	mu struct {
		sync.Mutex
		started bool
		closed  bool
	}
}

// New locks and reads the data directory, and creates it when absent. ErrInUse when another process
// holds it. Close releases it unless Start succeeded; then Backend.Stop does.
func New(cfg Config, logger *zap.Logger) (*Node, error) {
	if logger == nil {
		logger = zap.NewNop()
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("consensus configuration: %w", err)
	}
	cfg = cfg.withDefaults()
	setSegmentBytes(cfg.SegmentBytes)
	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: logger, dir: dir}
	n.transport = newTransport(cfg, dir, logger)
	return n, nil
}

// Handler serves peers under /raft/v1/. It works from New on; until Start has found the cluster it only
// tells this member's identity.
func (n *Node) Handler() http.Handler { return n.transport.handler() }

// StoreID is the identity of the data directory.
func (n *Node) StoreID() string { return n.dir.storeID }

// Initialized reports whether the directory belongs to a cluster already.
func (n *Node) Initialized() bool { return n.dir.hasLog() || n.dir.bootstrap() != nil }

// ClusterID is the cluster that the directory belongs to; empty while fresh.
func (n *Node) ClusterID() string { return n.dir.bootstrap().GetClusterId() }

// Start finds or continues the cluster, recovers the log and runs the member. It waits for the other
// first members when the directory is fresh, until ctx is done; it does not wait for a leader. ctx does not
// bound the life of the Backend. sm must outlive it.
func (n *Node) Start(ctx context.Context, sm consensus.StateMachine) (*Backend, error) {
	n.mu.Lock()
	if n.mu.started || n.mu.closed {
		n.mu.Unlock()
		return nil, errors.New("start consensus: already started or closed")
	}
	n.mu.started = true
	n.mu.Unlock()
	b, err := n.start(ctx, sm)
	if err != nil {
		n.mu.Lock()
		n.mu.started = false
		n.mu.Unlock()
		return nil, err
	}
	return b, nil
}

func (n *Node) start(ctx context.Context, sm consensus.StateMachine) (*Backend, error) {
	if err := n.dir.checkLost(); err != nil {
		return nil, err
	}
	if !n.dir.hasLog() {
		if err := n.create(ctx, sm); err != nil {
			return nil, err
		}
	}
	if err := n.dir.markLog(); err != nil {
		return nil, err
	}
	meta, wl, err := openWALLog(n.dir.walDir(), sm.AppliedIndex(), n.log)
	if err != nil {
		return nil, err
	}
	d, err := n.recover(meta, wl, sm)
	if err != nil {
		return nil, errors.Join(err, wl.Close())
	}
	return startBackend(n, d, wl, sm), nil
}

// create makes the log of a fresh directory.
func (n *Node) create(ctx context.Context, sm consensus.StateMachine) error {
	if n.cfg.Join != nil {
		return n.createJoining(sm)
	}
	boot, err := n.findBootstrap(ctx, sm)
	if err != nil {
		return err
	}
	return n.createFirst(boot, sm)
}

// createFirst starts from the bootstrap record. Each step is repeatable: a crash between two of them
// leads to the same record again.
func (n *Node) createFirst(boot *raftv1.Bootstrap, sm consensus.StateMachine) error {
	members := membershipOf(boot)
	self, ok := members.byName(n.cfg.Name)
	if !ok || self.StoreID != n.dir.storeID {
		return n.refuseForeign(boot, "the bootstrap record")
	}
	switch sm.AppliedIndex() {
	case 0:
		entry := consensus.Entry{Index: bootstrapIndex, Metadata: members.encode()}
		if _, err := sm.Apply([]consensus.Entry{entry}); err != nil {
			return fmt.Errorf("apply the bootstrap record: %w", err)
		}
		if err := sm.Flush(); err != nil {
			return fmt.Errorf("flush the bootstrap record: %w", err)
		}
	case bootstrapIndex:
	default:
		return fmt.Errorf("%w: the state machine has applied index %d but %s holds no log; restore the log, or "+
			"empty both directories and start this controller with --join", ErrStateMismatch, sm.AppliedIndex(), n.dir.walDir())
	}
	if err := n.dir.saveBootstrap(boot); err != nil {
		return err
	}
	head := &raftv1.WALMetadata{
		ClusterId: boot.GetClusterId(), RaftId: uint64(self.ID), StoreId: n.dir.storeID, Name: n.cfg.Name,
	}
	return createWALLog(n.dir.walDir(), head, members.conf, n.log)
}

// createJoining starts with an empty log; the leader sends a snapshot.
func (n *Node) createJoining(sm consensus.StateMachine) error {
	j := n.cfg.Join
	if j.Self.StoreID != n.dir.storeID || j.Self.Name != n.cfg.Name {
		return fmt.Errorf("%w: admitted were name %q and store %s, this directory is name %q and store %s; remove "+
			"member %d and join again", ErrForeignStore, j.Self.Name, j.Self.StoreID, n.cfg.Name, n.dir.storeID, j.Self.ID)
	}
	if j.ClusterID == "" || j.Self.ID == 0 {
		return errors.New("join: cluster id and member id are required")
	}
	if a := sm.AppliedIndex(); a != 0 {
		return fmt.Errorf("%w: the state machine has applied index %d but the log is empty; empty it before joining", ErrStateMismatch, a)
	}
	boot := &raftv1.Bootstrap{ClusterId: j.ClusterID}
	for _, m := range j.Members {
		boot.Members = append(boot.Members, memberToProto(m))
	}
	if err := n.dir.saveBootstrap(boot); err != nil {
		return err
	}
	head := &raftv1.WALMetadata{
		ClusterId: j.ClusterID, RaftId: uint64(j.Self.ID), StoreId: n.dir.storeID, Name: n.cfg.Name,
	}
	return createWALLog(n.dir.walDir(), head, nil, n.log)
}

// recover checks that directory, log and state machine belong together, and makes the driver.
func (n *Node) recover(head *raftv1.WALMetadata, log LogStore, sm consensus.StateMachine) (*Driver, error) {
	if head.GetStoreId() != n.dir.storeID || head.GetName() != n.cfg.Name {
		return nil, fmt.Errorf("%w: the log in %s was written by %q with store id %s, this is %q with store id %s; "+
			"point data_dir to the right directory, or restore the file %s", ErrForeignStore, n.dir.walDir(),
			head.GetName(), head.GetStoreId(), n.cfg.Name, n.dir.storeID, n.dir.path(storeIDFile))
	}
	members := emptyMembership(head.GetClusterId())
	if raw := sm.Metadata(); raw != nil {
		var err error
		if members, err = decodeMembership(raw); err != nil {
			return nil, err
		}
	}
	if members.clusterID != head.GetClusterId() {
		return nil, fmt.Errorf("%w: the log is of cluster %s, the state of cluster %s", ErrForeignStore, head.GetClusterId(), members.clusterID)
	}
	id := consensus.ID(head.GetRaftId())
	if members.removed[id] {
		return nil, removedError(n.cfg.Name, id)
	}
	if m, ok := members.members[id]; ok && m.StoreID != n.dir.storeID {
		return nil, fmt.Errorf("%w: member %d is known with store id %s, this directory is %s", ErrForeignStore, id, m.StoreID, n.dir.storeID)
	}
	return NewDriver(DriverConfig{
		ID: id, Log: log, StateMachine: sm, ClusterID: head.GetClusterId(), Incoming: n.transport.spool,
		ElectionTicks: n.cfg.ElectionTicks, HeartbeatTicks: n.cfg.HeartbeatTicks,
		MaxMessageBytes: n.cfg.MaxMessageBytes, MaxInflightMessages: n.cfg.MaxInflightMessages,
		Logger: n.log,
	})
}

// Close releases the directory of a node that does not run.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.started || n.mu.closed {
		return nil
	}
	n.mu.closed = true
	n.transport.close()
	return n.dir.close()
}

func removedError(name string, id consensus.ID) error {
	return fmt.Errorf("%w: member %d (%s) was removed from the cluster and its id never comes back; to use this host "+
		"again, empty the data directory and start the controller with --join", consensus.ErrRemoved, id, name)
}
