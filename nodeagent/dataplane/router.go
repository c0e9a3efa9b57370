package dataplane

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Route says where a partition is served.
type Route struct {
	Partition cluster.PartitionID
	Owner     cluster.NodeID
	Target    cluster.NodeID
	Epoch     cluster.Epoch
	// Granted says that a handoff is granted: the partition is frozen or about to be.
	Granted bool
	// Address is the owner's host:port; empty when the owner is not known.
	Address string
	// Alive is false when the owner was declared dead or is not known.
	Alive bool
}

// Router holds the topics and routes that the watch stream brings. Safe for concurrent use.
type Router struct {
	mu struct {
		sync.RWMutex
		revision cluster.Revision
		changed  chan struct{}
		nodes    map[cluster.NodeID]cluster.Node
		topics   map[cluster.TopicID]*topicRoutes
		names    map[string]*topicRoutes
		// restored says from what the controllers' state was restored, if it was.
		restored cluster.Restored
	}
}

// topicRoutes is one topic's routes; an entry without Owner is not known.
type topicRoutes struct {
	topic cluster.Topic
	parts []assigned
	// next is the round robin's position.
	next atomic.Uint64
	// changed is closed when the topic or a route of it changes; nil when nobody waits.
	changed chan struct{}
}

func (t *topicRoutes) wake() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// assigned is what a router keeps of an assignment.
type assigned struct {
	owner, target cluster.NodeID
	epoch         cluster.Epoch
	granted       bool
}

// NewRouter returns a router that knows nothing.
func NewRouter() *Router {
	r := &Router{}
	r.mu.changed = make(chan struct{})
	r.clear()
	return r
}

func (r *Router) clear() {
	r.mu.nodes = map[cluster.NodeID]cluster.Node{}
	r.mu.topics = map[cluster.TopicID]*topicRoutes{}
	r.mu.names = map[string]*topicRoutes{}
}

// Apply folds a whole snapshot (reset), or one whole revision. What is older than the router's revision
// is ignored: a controller that lags must not take routes back in time, and an absent topic is taken for
// deleted when the revision has passed its id.
func (r *Router) Apply(reset bool, rev cluster.Revision, changes []cluster.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev < r.mu.revision || (rev == r.mu.revision && !reset && rev != 0) {
		return
	}
	r.mu.revision = rev
	var before map[cluster.TopicID]*topicRoutes
	if reset {
		before = r.mu.topics
		r.clear()
	}
	for i := range changes {
		r.fold(&changes[i])
	}
	r.wake(before, changes)
	for id, t := range before {
		if now, ok := r.mu.topics[id]; ok {
			now.next.Store(t.next.Load())
		}
	}
	if reset || len(changes) > 0 {
		close(r.mu.changed)
		r.mu.changed = make(chan struct{})
	}
}

// wake tells who waits for a topic that it may have changed. before is what a snapshot replaced.
func (r *Router) wake(before map[cluster.TopicID]*topicRoutes, changes []cluster.Change) {
	for _, t := range before {
		t.wake()
	}
	for i := range changes {
		id := cluster.TopicID(0)
		switch c := &changes[i]; {
		case c.Node != nil || c.NodeRemoved != "":
			for _, t := range r.mu.topics {
				t.wake()
			}
		case c.Topic != nil:
			id = c.Topic.ID
		case c.Assignment != nil:
			id = c.Assignment.Partition.Topic
		case c.AssignmentRemoved != nil:
			id = c.AssignmentRemoved.Topic
		}
		if t := r.mu.topics[id]; t != nil {
			t.wake()
		}
	}
}

func (r *Router) fold(c *cluster.Change) {
	switch {
	case c.Node != nil:
		r.mu.nodes[c.Node.ID] = *c.Node
	case c.NodeRemoved != "":
		delete(r.mu.nodes, c.NodeRemoved)
	case c.Topic != nil:
		t := r.entry(c.Topic.ID)
		t.topic = *c.Topic
		r.mu.names[c.Topic.Name] = t
	case c.TopicRemoved != 0:
		if t, ok := r.mu.topics[c.TopicRemoved]; ok {
			t.wake()
			delete(r.mu.topics, c.TopicRemoved)
			if r.mu.names[t.topic.Name] == t {
				delete(r.mu.names, t.topic.Name)
			}
		}
	case c.Assignment != nil:
		a := c.Assignment
		if a.Partition.Index >= cluster.MaxPartitions {
			return
		}
		t := r.entry(a.Partition.Topic)
		if n := int(a.Partition.Index) + 1; n > len(t.parts) {
			t.parts = slices.Grow(t.parts, n-len(t.parts))[:n]
		}
		t.parts[a.Partition.Index] = assigned{a.Owner, a.Target, a.Epoch, a.Granted}
	case c.AssignmentRemoved != nil:
		p := *c.AssignmentRemoved
		if t, ok := r.mu.topics[p.Topic]; ok && int(p.Index) < len(t.parts) {
			t.parts[p.Index] = assigned{}
		}
		// The topic may have been removed by an earlier change of the revision; then nothing is left.
	case c.Restored != nil:
		r.mu.restored = *c.Restored
	}
}

// entry returns the topic's entry; assignments may come before their topic's record.
func (r *Router) entry(id cluster.TopicID) *topicRoutes {
	t, ok := r.mu.topics[id]
	if !ok {
		t = &topicRoutes{}
		r.mu.topics[id] = t
	}
	return t
}

// Changed returns a channel that is closed when the routes next change. Take it before reading.
func (r *Router) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.changed
}

// TopicChanged is Changed of one topic and the nodes that its routes lead to. What others do must not wake every consumer.
func (r *Router) TopicChanged(id cluster.TopicID) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.mu.topics[id]
	if !ok {
		return r.mu.changed
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// Revision returns the revision of the last fold; zero before the first.
func (r *Router) Revision() cluster.Revision {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.revision
}

// Topic returns a topic by name.
func (r *Router) Topic(name string) (cluster.Topic, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.mu.names[name]
	if !ok {
		return cluster.Topic{}, false
	}
	return t.topic, true
}

// topicWait bounds how long a request waits for a topic that is not known here. A topic that was just created is
// known to its creator before every agent's watch has brought it.
const topicWait = time.Second

// Await returns a topic by name, waiting a moment for one that is not known. ReasonNotFound, or ReasonNoLeader
// when the agent was told no topics yet.
func (r *Router) Await(ctx context.Context, name string) (cluster.Topic, error) {
	end := time.NewTimer(topicWait)
	defer end.Stop()
	for {
		changed := r.Changed()
		if t, ok := r.Topic(name); ok && t.Partitions > 0 {
			return t, nil
		}
		rev := r.Revision()
		if rev == 0 {
			return cluster.Topic{}, unknownTopic(rev, name)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return cluster.Topic{}, ctx.Err()
		case <-end.C:
			return cluster.Topic{}, unknownTopic(rev, name)
		}
	}
}

// unknownTopic is the error about a topic that a router at rev does not have.
func unknownTopic(rev cluster.Revision, name string) error {
	if rev == 0 {
		e := cluster.Errorf(cluster.ReasonNoLeader, "the agent has not yet been told the topics")
		e.RetryAfter = retryAfter
		return e
	}
	return cluster.NotFound("topic %s does not exist", name)
}

// TopicName returns the name of a topic, or its id as text when it is not known.
func (r *Router) TopicName(id cluster.TopicID) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t, ok := r.mu.topics[id]; ok && t.topic.Name != "" {
		return t.topic.Name
	}
	name, _, _ := strings.Cut(cluster.PartitionID{Topic: id}.String(), "/")
	return name
}

// Gone reports whether a topic was deleted. It is certain: ids are revisions, so a revision at or past
// the id without the topic comes after its deletion. Controllers that were restored from a backup know nothing of topics that were
// made after it; their records are kept.
func (r *Router) Gone(id cluster.TopicID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.mu.topics[id]
	return !ok && r.mu.revision >= cluster.Revision(id) && !r.mu.restored.Unknown(cluster.Revision(id))
}

// Route returns a partition's route; false when it is not known.
func (r *Router) Route(p cluster.PartitionID) (Route, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.mu.topics[p.Topic]
	if !ok {
		return Route{}, false
	}
	return r.route(t, p)
}

// Routes returns the known routes of a topic, by index.
func (r *Router) Routes(id cluster.TopicID) []Route {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.mu.topics[id]
	if !ok {
		return nil
	}
	out := make([]Route, 0, len(t.parts))
	for i := range t.parts {
		if route, ok := r.route(t, cluster.PartitionID{Topic: id, Index: uint32(i)}); ok {
			out = append(out, route)
		}
	}
	return out
}

func (r *Router) route(t *topicRoutes, p cluster.PartitionID) (Route, bool) {
	if int(p.Index) >= len(t.parts) || t.parts[p.Index].owner == "" {
		return Route{}, false
	}
	a := t.parts[p.Index]
	route := Route{Partition: p, Owner: a.owner, Target: a.target, Epoch: a.epoch, Granted: a.granted}
	if n, ok := r.mu.nodes[a.owner]; ok {
		route.Address = n.Address
		route.Alive = n.Status == cluster.NodeAlive
	}
	return route, true
}

// withOwner returns a route that leads to another owner, for a hint that is newer than the routes.
func (r *Router) withOwner(route Route, owner cluster.NodeID, epoch cluster.Epoch) (Route, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n, ok := r.mu.nodes[owner]
	if !ok {
		return route, false
	}
	route.Owner, route.Epoch, route.Target, route.Granted = owner, epoch, "", false
	route.Address, route.Alive = n.Address, n.Status == cluster.NodeAlive
	return route, true
}

// PartitionOf returns the partition index of a key: xxhash64(key) mod partitions.
func PartitionOf(key []byte, partitions uint32) uint32 {
	return uint32(xxhash.Sum64(key) % uint64(partitions))
}

// maxPick bounds how many partitions a round robin looks at for one that is available.
const maxPick = 1024

// place chooses a partition for each of n records of a topic: by key, or round robin over partitions that
// are alive, not frozen and not avoided. When none is available any will do, since the record waits in the
// queue. avoid must not call the router.
func (r *Router) place(name string, n int, key func(int) []byte,
	avoid func(cluster.PartitionID) bool) (cluster.Topic, []uint32, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.mu.names[name]
	if !ok || t.topic.Partitions == 0 {
		return cluster.Topic{}, nil, unknownTopic(r.mu.revision, name)
	}
	out := make([]uint32, n)
	for i := range out {
		if k := key(i); len(k) > 0 {
			out[i] = PartitionOf(k, t.topic.Partitions)
			continue
		}
		at, ok := r.pick(t, avoid)
		if !ok {
			at = uint32(t.next.Add(1) % uint64(t.topic.Partitions))
		}
		out[i] = at
	}
	return t.topic, out, nil
}

// pickOther chooses, round robin, an available partition of a topic; false when there is none.
func (r *Router) pickOther(id cluster.TopicID, avoid func(cluster.PartitionID) bool) (Route, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.mu.topics[id]
	if !ok {
		return Route{}, false
	}
	i, ok := r.pick(t, avoid)
	if !ok {
		return Route{}, false
	}
	return r.route(t, cluster.PartitionID{Topic: id, Index: i})
}

func (r *Router) pick(t *topicRoutes, avoid func(cluster.PartitionID) bool) (uint32, bool) {
	n := uint64(t.topic.Partitions)
	for range min(n, maxPick) {
		i := uint32(t.next.Add(1) % n)
		p := cluster.PartitionID{Topic: t.topic.ID, Index: i}
		if route, ok := r.route(t, p); ok && route.Alive && !route.Granted && !avoid(p) {
			return i, true
		}
	}
	return 0, false
}
