package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// routes knows where the partitions of the topics are that calls were about: one watch for each topic, begun by its first
// call. Safe for concurrent use.
type routes struct {
	c    *Client
	ctx  context.Context // of the watches
	end  context.CancelFunc
	wg   sync.WaitGroup
	lock sync.Mutex
	of   map[string]*table
}

func newRoutes(c *Client) *routes {
	r := &routes{c: c, of: map[string]*table{}}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

func (r *routes) close() {
	r.end()
	r.wg.Wait()
}

// agents returns whom to ask about a topic: the owners of its partitions, then other living nodes, then those that drain.
// It waits for the controllers' first answer, until ctx ends or no controller could be reached.
func (r *routes) agents(ctx context.Context, topic string) ([]string, error) {
	t, err := r.table(topic)
	if err != nil {
		return nil, err
	}
	return t.agents(ctx, r.c.opts.Patience)
}

func (r *routes) table(topic string) (*table, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if len(r.c.controllers.addresses) == 0 {
		return nil, errors.New("client: without Controllers nobody knows the agents; name some in Agents")
	}
	if r.ctx.Err() != nil {
		return nil, errors.New("client: it was closed")
	}
	t := r.of[topic]
	if t == nil {
		t = newTable()
		r.of[topic] = t
		r.wg.Go(func() { t.follow(r.ctx, r.c, topic) })
	}
	return t, nil
}

// table is the routes of one topic.
type table struct {
	mu struct {
		sync.Mutex
		changed chan struct{} // closed by the next change of what follows
		known   bool          // a state has arrived
		failed  error         // why none has
		nodes   map[string]*planev1.Node
		owners  map[uint32]string
	}
}

func newTable() *table {
	t := &table{}
	t.mu.changed = make(chan struct{})
	return t
}

// follow keeps the table up to date until ctx ends.
func (t *table) follow(ctx context.Context, c *Client, topic string) {
	o := WatchOptions{}
	if topic != "" {
		o.Topics = []string{topic}
	}
	for e, err := range c.watchRoutes(ctx, o, t.fail) {
		if err != nil {
			t.fail(err)
			return
		}
		t.apply(e)
	}
}

func (t *table) update(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}

func (t *table) fail(err error) {
	t.update(func() { t.mu.failed = err })
}

func (t *table) apply(e Event) {
	t.update(func() {
		t.mu.known = true
		if e.Reset {
			t.mu.nodes, t.mu.owners = map[string]*planev1.Node{}, map[uint32]string{}
		}
		for _, c := range e.Changes {
			switch c := c.GetChange().(type) {
			case *planev1.Change_Node:
				t.mu.nodes[c.Node.GetNodeId()] = c.Node
			case *planev1.Change_NodeRemoved:
				delete(t.mu.nodes, c.NodeRemoved)
			case *planev1.Change_Assignment:
				t.mu.owners[c.Assignment.GetPartition().GetIndex()] = c.Assignment.GetOwner()
			case *planev1.Change_TopicRemoved:
				clear(t.mu.owners)
			}
		}
	})
}

// agents waits for the first state and orders the agents by it. While there is no leader it waits until ctx ends, while no
// controller answers for as long as patience.
func (t *table) agents(ctx context.Context, patience time.Duration) ([]string, error) {
	start := time.Now()
	for {
		list, wait, err := t.look()
		switch {
		case list != nil:
			return list, nil
		case err != nil && ReasonOf(err) != planev1.ErrorReason_ERROR_REASON_NO_LEADER && time.Since(start) >= patience:
			return nil, fmt.Errorf("find the agents: %w", err)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			if err == nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("find the agents: %w", err)
		}
	}
}

// ErrNoAgent says that the cluster has no living node.
var ErrNoAgent = errors.New("no node is alive")

// look returns the agents, or why there are none, and what to wait for.
func (t *table) look() ([]string, <-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.known {
		return nil, t.mu.changed, t.mu.failed
	}
	owners := map[string]bool{}
	for _, o := range t.mu.owners {
		owners[o] = true
	}
	var ranked [3][]string
	for _, id := range slices.Sorted(maps.Keys(t.mu.nodes)) {
		n := t.mu.nodes[id]
		switch {
		case n.GetStatus() != planev1.NodeStatus_NODE_STATUS_ALIVE:
		case n.GetDraining():
			ranked[2] = append(ranked[2], n.GetAddress())
		case owners[id]:
			ranked[0] = append(ranked[0], n.GetAddress())
		default:
			ranked[1] = append(ranked[1], n.GetAddress())
		}
	}
	for _, list := range ranked {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	list := slices.Concat(ranked[0], ranked[1], ranked[2])
	if len(list) == 0 {
		return nil, t.mu.changed, ErrNoAgent
	}
	return list, t.mu.changed, nil
}
