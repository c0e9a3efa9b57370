package fsm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// recentLimit is how many revisions are kept decoded for watches; older ones are read from the database.
const recentLimit = 4096

type outcomeKey struct {
	partition cluster.PartitionID
	move      cluster.MoveID
}

// state holds all records in memory, mirrored by the database. The put and remove methods are the only
// writers: each updates memory, the batch and the changes of the revision under way.
type state struct {
	limit    uint64 // revisions of history
	metadata []byte
	revision cluster.Revision

	nodes       map[cluster.NodeID]cluster.Node
	topics      map[cluster.TopicID]cluster.Topic
	topicNames  map[string]cluster.TopicID
	assignments map[cluster.TopicID][]cluster.Assignment // by index
	outcomes    map[outcomeKey]cluster.Outcome
	settings    cluster.Settings
	controllers map[cluster.ControllerName]cluster.Controller
	nextRaftID  uint64
	// restored is zero unless the state was made from a backup.
	restored cluster.Restored
	claims   map[cluster.PartitionID]map[claimKey]*storagev1.ClaimRecord

	// Derived from the above.
	outcomesAt map[cluster.PartitionID][]cluster.MoveID   // looked up, never iterated
	outcomesBy map[cluster.NodeID]map[outcomeKey]struct{} // by source
	owned      map[cluster.NodeID]int
	inbound    map[cluster.NodeID]int
	granted    map[cluster.PartitionID]struct{}
	requests   map[string]*storagev1.ResultRecord
	recent     []cluster.RevisionChanges // the newest revisions, without a gap
	ended      []endedMove               // oldest first
	events     []cluster.Event           // oldest first, ids without a gap

	// The command under way.
	batch   *pebble.Batch
	err     error // first error of the batch
	now     time.Time
	actor   cluster.Actor
	next    cluster.Revision
	changes []cluster.Change
	noted   []cluster.Event
}

type endedMove struct {
	revision cluster.Revision
	record   cluster.MoveRecord
}

func newState(limit uint64) *state {
	return &state{
		limit: limit, settings: cluster.DefaultSettings(), nextRaftID: 1,
		nodes: map[cluster.NodeID]cluster.Node{}, topics: map[cluster.TopicID]cluster.Topic{},
		topicNames: map[string]cluster.TopicID{}, assignments: map[cluster.TopicID][]cluster.Assignment{},
		outcomes: map[outcomeKey]cluster.Outcome{}, outcomesAt: map[cluster.PartitionID][]cluster.MoveID{},
		outcomesBy: map[cluster.NodeID]map[outcomeKey]struct{}{}, controllers: map[cluster.ControllerName]cluster.Controller{},
		owned: map[cluster.NodeID]int{}, inbound: map[cluster.NodeID]int{},
		granted: map[cluster.PartitionID]struct{}{}, requests: map[string]*storagev1.ResultRecord{},
		claims: map[cluster.PartitionID]map[claimKey]*storagev1.ClaimRecord{},
	}
}

// begin starts a command: what it writes belongs to revision next.
func (st *state) begin(cmd *storagev1.Command) {
	st.now = fromNanos(cmd.GetNowUnixNano())
	st.actor = actor(cmd.GetActor())
	st.next = st.revision + 1
	st.changes, st.noted = nil, nil
}

// end finishes a command: when it changed something, its revision, history and request id are written.
func (st *state) end(cmd *storagev1.Command, r Result) Result {
	if len(st.changes) == 0 {
		r.Revision = st.revision
		return r
	}
	st.revision = st.next
	r.Revision, r.Changed = st.revision, true
	st.set(keyRevision, value64(uint64(st.revision)))
	st.remember(cmd.GetRequestId(), r)
	st.writeEvents()
	st.writeHistory(cluster.RevisionChanges{Revision: st.revision, Changes: st.changes})
	st.changes = nil
	return r
}

// remember keeps the result of a request for requestLimit revisions. Only commands that changed something
// are remembered: repeating any other is harmless.
func (st *state) remember(id string, r Result) {
	if id != "" {
		rec := &storagev1.ResultRecord{Revision: uint64(r.Revision), Value: r.Value, RequestId: id}
		st.requests[id] = rec
		st.set(key64(prefixRequest, uint64(r.Revision)), marshal(rec))
	}
	if uint64(r.Revision) <= requestLimit {
		return
	}
	st.delete(key64(prefixRequest, uint64(r.Revision)-requestLimit))
	if len(st.requests) > 2*requestLimit {
		for id, rec := range st.requests {
			if rec.GetRevision()+requestLimit <= uint64(r.Revision) {
				delete(st.requests, id)
			}
		}
	}
}

// remembered answers a request that was applied before.
func (st *state) remembered(id string) (Result, bool) {
	rec, ok := st.requests[id]
	if id == "" || !ok || rec.GetRevision()+requestLimit <= uint64(st.revision) {
		return Result{}, false
	}
	return Result{Revision: cluster.Revision(rec.GetRevision()), Value: rec.GetValue()}, true
}

func (st *state) writeHistory(rc cluster.RevisionChanges) {
	st.set(key64(prefixHistory, uint64(rc.Revision)), marshal(revisionRecord(rc)))
	if uint64(rc.Revision) > st.limit {
		st.delete(key64(prefixHistory, uint64(rc.Revision)-st.limit))
	}
	if len(st.recent) >= 2*recentLimit {
		st.recent = slices.Clone(st.recent[len(st.recent)-recentLimit:])
	}
	st.recent = append(st.recent, rc)
}

func (st *state) set(key, value []byte) {
	if st.err == nil {
		st.err = st.batch.Set(key, value, nil)
	}
}

func (st *state) delete(key []byte) {
	if st.err == nil {
		st.err = st.batch.Delete(key, nil)
	}
}

func (st *state) change(c cluster.Change) { st.changes = append(st.changes, c) }

func (st *state) putNode(n cluster.Node) {
	st.nodes[n.ID] = n
	st.set(keyString(prefixNode, string(n.ID)), marshal(nodeRecord(n)))
	st.change(cluster.Change{Node: &n})
}

func (st *state) dropNode(id cluster.NodeID) {
	delete(st.nodes, id)
	st.delete(keyString(prefixNode, string(id)))
	st.change(cluster.Change{NodeRemoved: id})
}

func (st *state) putTopic(t cluster.Topic) {
	st.topics[t.ID] = t
	st.topicNames[t.Name] = t.ID
	st.set(key64(prefixTopic, uint64(t.ID)), marshal(topicRecord(t)))
	st.change(cluster.Change{Topic: &t})
}

func (st *state) dropTopic(t cluster.Topic) {
	delete(st.topics, t.ID)
	delete(st.topicNames, t.Name)
	st.delete(key64(prefixTopic, uint64(t.ID)))
	st.change(cluster.Change{TopicRemoved: t.ID})
}

func (st *state) assignment(p cluster.PartitionID) (cluster.Assignment, bool) {
	as := st.assignments[p.Topic]
	if int(p.Index) >= len(as) {
		return cluster.Assignment{}, false
	}
	return as[p.Index], true
}

// addAssignments creates a topic's assignments, in order of their index.
func (st *state) addAssignments(id cluster.TopicID, as []cluster.Assignment) {
	st.assignments[id] = as
	for i := range as {
		a := as[i]
		st.count(a, 1)
		st.set(keyPartition(prefixAssignment, a.Partition), marshal(assignmentRecord(a)))
		st.change(cluster.Change{Assignment: &a})
	}
}

func (st *state) putAssignment(a cluster.Assignment) {
	as := st.assignments[a.Partition.Topic]
	before := as[a.Partition.Index]
	st.count(before, -1)
	st.count(a, 1)
	as[a.Partition.Index] = a
	st.set(keyPartition(prefixAssignment, a.Partition), marshal(assignmentRecord(a)))
	st.change(cluster.Change{Assignment: &a, Before: &before})
}

func (st *state) dropAssignments(id cluster.TopicID) {
	for _, a := range st.assignments[id] {
		st.count(a, -1)
		st.delete(keyPartition(prefixAssignment, a.Partition))
		st.change(cluster.Change{AssignmentRemoved: &a.Partition, Before: &a})
	}
	delete(st.assignments, id)
}

// count keeps the derived numbers.
func (st *state) count(a cluster.Assignment, by int) {
	if st.owned[a.Owner] += by; st.owned[a.Owner] == 0 {
		delete(st.owned, a.Owner)
	}
	if a.Target != "" {
		if st.inbound[a.Target] += by; st.inbound[a.Target] == 0 {
			delete(st.inbound, a.Target)
		}
	}
	if a.Granted && by > 0 {
		st.granted[a.Partition] = struct{}{}
	} else {
		delete(st.granted, a.Partition)
	}
}

func (st *state) putOutcome(o cluster.Outcome) {
	st.holdOutcome(o)
	st.set(keyOutcome(o.Partition, o.MoveID), marshal(outcomeRecord(o)))
	st.change(cluster.Change{Outcome: &o})
}

func (st *state) dropOutcome(o cluster.Outcome) {
	st.releaseOutcome(o)
	st.delete(keyOutcome(o.Partition, o.MoveID))
	st.change(cluster.Change{OutcomeRemoved: &cluster.OutcomeKey{
		Partition: o.Partition, MoveID: o.MoveID, Source: o.Source, Destination: o.Destination}})
}

// holdOutcome adds or replaces an outcome in memory.
func (st *state) holdOutcome(o cluster.Outcome) {
	k := outcomeKey{o.Partition, o.MoveID}
	if _, ok := st.outcomes[k]; !ok {
		st.outcomesAt[o.Partition] = append(st.outcomesAt[o.Partition], o.MoveID)
		if st.outcomesBy[o.Source] == nil {
			st.outcomesBy[o.Source] = map[outcomeKey]struct{}{}
		}
		st.outcomesBy[o.Source][k] = struct{}{}
	}
	st.outcomes[k] = o
}

func (st *state) releaseOutcome(o cluster.Outcome) {
	k := outcomeKey{o.Partition, o.MoveID}
	delete(st.outcomes, k)
	at := slices.DeleteFunc(st.outcomesAt[o.Partition], func(m cluster.MoveID) bool { return m == o.MoveID })
	if st.outcomesAt[o.Partition] = at; len(at) == 0 {
		delete(st.outcomesAt, o.Partition)
	}
	if delete(st.outcomesBy[o.Source], k); len(st.outcomesBy[o.Source]) == 0 {
		delete(st.outcomesBy, o.Source)
	}
}

// outcomesOf returns the outcomes of one partition that match, by move. Moves end all the time: it must not look at
// those of all partitions.
func (st *state) outcomesOf(p cluster.PartitionID, match func(cluster.Outcome) bool) []cluster.Outcome {
	var out []cluster.Outcome
	for _, m := range st.outcomesAt[p] {
		if o := st.outcomes[outcomeKey{p, m}]; match(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, compareOutcomes)
	return out
}

// outcomesFrom returns the outcomes with a node as source, ordered by partition and move.
func (st *state) outcomesFrom(id cluster.NodeID) []cluster.Outcome {
	var out []cluster.Outcome
	for k := range st.outcomesBy[id] {
		out = append(out, st.outcomes[k])
	}
	slices.SortFunc(out, compareOutcomes)
	return out
}

// outcomesWhere returns the outcomes that match, ordered by partition and move.
func (st *state) outcomesWhere(match func(cluster.Outcome) bool) []cluster.Outcome {
	var out []cluster.Outcome
	for _, o := range st.outcomes {
		if match(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, compareOutcomes)
	return out
}

func compareOutcomes(a, b cluster.Outcome) int {
	return cmp.Or(a.Partition.Compare(b.Partition), cmp.Compare(a.MoveID, b.MoveID))
}

// putEnded lists a move that ends in this revision.
func (st *state) putEnded(r cluster.MoveRecord) {
	e := endedMove{st.next, r}
	st.ended = append(st.ended, e)
	st.set(keyEnded(e.revision, r.Partition), marshal(endedRecord(r)))
	for len(st.ended) > EndedLimit {
		st.delete(keyEnded(st.ended[0].revision, st.ended[0].record.Partition))
		st.ended = st.ended[1:]
	}
}

// measured adds what the destination measured to the list of ended moves.
func (st *state) measured(p cluster.PartitionID, move cluster.MoveID, s cluster.MoveStats) {
	for i := len(st.ended) - 1; i >= 0; i-- {
		e := &st.ended[i]
		if e.record.MoveID == move && e.record.Partition == p {
			e.record.Stats = s
			st.set(keyEnded(e.revision, p), marshal(endedRecord(e.record)))
			return
		}
	}
}

func (st *state) putController(c *storagev1.PutController) Result {
	return st.controllerPut(controller(&storagev1.ControllerRecord{
		Name: c.GetName(), RaftId: c.GetRaftId(), Address: c.GetAddress(), StoreId: c.GetStoreId(), Learner: c.GetLearner(),
	}))
}

// loadKey takes one key of the database into memory.
func (st *state) loadKey(key, value []byte) error {
	if len(key) == 0 {
		return fmt.Errorf("is empty")
	}
	switch key[0] {
	case prefixLocal:
		st.metadata = slices.Clone(value)
	case prefixMeta:
		return st.loadMeta(key, value)
	case prefixNode:
		return loadRecord(value, &storagev1.NodeRecord{}, func(r *storagev1.NodeRecord) {
			n := node(r)
			st.nodes[n.ID] = n
		})
	case prefixTopic:
		return loadRecord(value, &storagev1.TopicRecord{}, func(r *storagev1.TopicRecord) {
			t := topic(r)
			st.topics[t.ID], st.topicNames[t.Name] = t, t.ID
		})
	case prefixAssignment:
		return loadRecord(value, &storagev1.AssignmentRecord{}, func(r *storagev1.AssignmentRecord) {
			a := assignment(r)
			st.assignments[a.Partition.Topic] = append(st.assignments[a.Partition.Topic], a)
			st.count(a, 1)
		})
	case prefixOutcome:
		return loadRecord(value, &storagev1.OutcomeRecord{}, func(r *storagev1.OutcomeRecord) {
			o := outcome(r)
			st.holdOutcome(o)
		})
	case prefixSettings:
		return loadRecord(value, &storagev1.SettingsRecord{}, func(r *storagev1.SettingsRecord) { st.settings = settings(r) })
	case prefixController:
		return loadRecord(value, &storagev1.ControllerRecord{}, func(r *storagev1.ControllerRecord) {
			c := controller(r)
			st.controllers[c.Name] = c
		})
	case prefixRequest:
		return loadRecord(value, &storagev1.ResultRecord{}, func(r *storagev1.ResultRecord) { st.requests[r.GetRequestId()] = r })
	case prefixEnded:
		return loadRecord(value, &storagev1.MoveHistoryRecord{}, func(r *storagev1.MoveHistoryRecord) {
			st.ended = append(st.ended, endedMove{cluster.Revision(binary.BigEndian.Uint64(key[1:])), ended(r)})
		})
	case prefixClaim:
		return loadRecord(value, &storagev1.ClaimRecord{}, st.keepClaim)
	case prefixEvent:
		if len(key) != 9 {
			return fmt.Errorf("is damaged")
		}
		return loadRecord(value, &storagev1.EventRecord{}, func(r *storagev1.EventRecord) {
			st.events = append(st.events, event(key, r))
		})
	case prefixHistory:
		return nil // read on demand
	default:
		return fmt.Errorf("is of a kind that this version does not know; upgrade this process")
	}
	return nil
}

func (st *state) loadMeta(key, value []byte) error {
	if string(key) == string(keyRestored) {
		return st.loadRestored(value)
	}
	if len(value) != 8 {
		return fmt.Errorf("is damaged")
	}
	n := binary.BigEndian.Uint64(value)
	switch string(key) {
	case string(keyFormat):
		if n != formatVersion {
			return fmt.Errorf("format version is %d, this process knows %d; upgrade this process", n, formatVersion)
		}
	case string(keyRevision):
		st.revision = cluster.Revision(n)
	case string(keyNextRaftID):
		st.nextRaftID = n
	default:
		return fmt.Errorf("is of a kind that this version does not know; upgrade this process")
	}
	return nil
}

func loadRecord[M proto.Message](value []byte, m M, use func(M)) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return err
	}
	use(m)
	return nil
}
