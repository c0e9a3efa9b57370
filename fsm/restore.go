package fsm

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// rebaseStep is how far a restored state begins above the backup: at the next multiple. Every identifier is a revision, and what
// the lost controllers numbered after the backup must never be numbered again. At ten thousand revisions a second it takes three
// years to use a step up.
const rebaseStep = 1_000_000_000_000

// Rebirth is what a restored state becomes the state of.
type Rebirth struct {
	// Metadata is the consensus record that the new cluster begins with; it stands for FirstIndex.
	Metadata   []byte
	FirstIndex uint64
	// Controller is the only first member. A raft id of zero gets the next one; Metadata must name it.
	Controller cluster.Controller
	Now        time.Time
}

// NextRaftID reads a backup's head and pairs for the raft id that a new member gets. r is read to its end.
func NextRaftID(r io.Reader) (cluster.RaftID, error) {
	next := uint64(1)
	if _, err := readBackup(r, func(key, value []byte) error {
		if string(key) == string(keyNextRaftID) && len(value) == 8 {
			next = decode64(value)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	return cluster.RaftID(next), nil
}

// Import makes a backup the state of a new cluster, durably, on a machine that has applied nothing. The state of the machine
// stays as it is when it fails.
//
// Nothing that the lost cluster decided after the backup is known, so nothing is taken for granted: every node is dead until it
// registers, moves that were in flight are over, and no partition has an owner until the nodes have said what they hold.
func (m *Machine) Import(r io.Reader, b Rebirth) (BackupHeader, cluster.Restored, error) {
	var h BackupHeader
	var restored cluster.Restored
	if a := m.AppliedIndex(); a != 0 {
		return h, restored, fmt.Errorf("import: the state machine has applied index %d, it must be empty", a)
	}
	err := m.replace(func(db *pebble.DB) error {
		batch := db.NewBatch()
		defer func() { _ = batch.Close() }()
		var err error
		h, err = readBackup(r, func(key, value []byte) error {
			if err := batch.Set(key, value, nil); err != nil || batch.Len() < restoreBatch {
				return err
			}
			if err := batch.Commit(pebble.NoSync); err != nil {
				return err
			}
			batch = db.NewBatch()
			return nil
		})
		if err == nil {
			err = batch.Commit(pebble.NoSync)
		}
		if err != nil {
			return err
		}
		restored, err = rebirth(db, m.limit, h, b)
		return err
	})
	return h, restored, err
}

// rebirth turns the state in db into the first one of a new cluster.
func rebirth(db *pebble.DB, limit uint64, h BackupHeader, b Rebirth) (cluster.Restored, error) {
	st, _, err := load(db, limit)
	if err != nil {
		return cluster.Restored{}, err
	}
	if st.revision != h.Revision {
		return cluster.Restored{}, fmt.Errorf("the backup's head says revision %d, its state is at %d", h.Revision, st.revision)
	}
	base := cluster.Revision((uint64(st.revision)/rebaseStep + 1) * rebaseStep)
	restored := cluster.Restored{
		From: st.revision, Base: base, At: b.Now,
		Predecessors: append(slices.Clone(st.restored.Predecessors), h.ClusterID),
	}
	batch := db.NewBatch()
	defer func() { _ = batch.Close() }()
	// What was for the members and the watchers of the lost cluster.
	for _, prefix := range []byte{prefixLocal, prefixController, prefixHistory, prefixRequest, prefixClaim} {
		if err := batch.DeleteRange([]byte{prefix}, []byte{prefix + 1}, nil); err != nil {
			return restored, err
		}
	}
	st.batch, st.next, st.now = batch, base, b.Now
	st.controllers = map[cluster.ControllerName]cluster.Controller{}
	for _, n := range sortedNodes(st.nodes) {
		n.Status, n.DeadAt, n.DeadHWMs, n.DeadHWMsUnknown, n.Unclaimed = cluster.NodeDead, b.Now, nil, true, true
		st.putNode(n)
	}
	for _, id := range slices.Sorted(maps.Keys(st.assignments)) {
		for _, a := range st.assignments[id] {
			// Epochs go up like revisions: an agent takes a lower one for a view that is behind.
			a.Epoch += cluster.Epoch(base)
			after := stable(a)
			after.OwnerEpoch, after.Unconfirmed = after.Epoch, true
			st.putAssignment(after)
		}
	}
	if r := st.controllerPut(b.Controller); r.Err != nil {
		return restored, r.Err
	}
	st.set(keyRestored, marshal(restoredRecord(restored)))
	st.set(keyRevision, value64(uint64(base)))
	st.set(keyConsensus, b.Metadata)
	st.set(keyApplied, value64(b.FirstIndex))
	if st.err != nil {
		return restored, st.err
	}
	return restored, batch.Commit(pebble.NoSync)
}

// replace fills a fresh database by fill and switches to it, durably. The old state stays whole until then.
func (m *Machine) replace(fill func(db *pebble.DB) error) error {
	m.mu.RLock()
	old := m.mu.db
	m.mu.RUnlock()
	oldName, err := m.activeName()
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(oldName, dbPrefix))
	if err != nil {
		return fmt.Errorf("restore: %s in %s is damaged: %q", activeFile, m.dir, oldName)
	}
	name := dbPrefix + strconv.Itoa(n+1)
	db, err := m.openDB(name)
	if err != nil {
		return err
	}
	fail := func(err error) error {
		return fmt.Errorf("restore: %w", errors.Join(err, db.release(), m.fs.RemoveAll(m.path(name))))
	}
	if err := fill(db.DB); err != nil {
		return fail(err)
	}
	if err := db.Flush(); err != nil {
		return fail(err)
	}
	st, applied, err := load(db.DB, m.limit)
	if err != nil {
		return fail(err)
	}
	if err := m.setActive(name); err != nil {
		return fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return errors.Join(errors.New("restore: the state machine is closed"), db.release())
	}
	m.mu.db, m.mu.state = db, st
	m.applied.Store(applied)
	m.durable.Store(applied)
	close(m.mu.updated)
	m.mu.updated = make(chan struct{})
	old.onLast = func() error { return m.fs.RemoveAll(m.path(oldName)) }
	return old.release()
}

func restoredRecord(r cluster.Restored) *storagev1.RestoredRecord {
	out := &storagev1.RestoredRecord{FromRevision: uint64(r.From), BaseRevision: uint64(r.Base), At: nanos(r.At)}
	for _, id := range r.Predecessors {
		out.Predecessors = append(out.Predecessors, string(id))
	}
	return out
}

func (st *state) loadRestored(value []byte) error {
	r := &storagev1.RestoredRecord{}
	if err := proto.Unmarshal(value, r); err != nil {
		return err
	}
	st.restored = cluster.Restored{
		From: cluster.Revision(r.GetFromRevision()), Base: cluster.Revision(r.GetBaseRevision()), At: fromNanos(r.GetAt()),
	}
	for _, id := range r.GetPredecessors() {
		st.restored.Predecessors = append(st.restored.Predecessors, cluster.ClusterID(id))
	}
	return nil
}
