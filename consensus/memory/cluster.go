package memory

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/naradctl/naradctl-plane/consensus"
)

// Cluster is the log and the members that share it.
type Cluster struct {
	// CompactEvery bounds the log; members that lag further restore a snapshot. Zero keeps all. Set before use.
	CompactEvery uint64

	mu struct {
		sync.Mutex
		// log[0] has index first. Everything in it is committed.
		log    []entry
		first  uint64
		term   uint64
		leader consensus.ID
		conf   conf
		nodes  map[consensus.ID]*Backend
		cut    map[consensus.ID]bool
		// changed is closed at every change of the above.
		changed chan struct{}
	}
}

type entry struct {
	consensus.Entry
	term uint64
}

// conf is the configuration. It is the metadata record too.
type conf struct {
	Members map[consensus.ID]consensus.Member
	Removed map[consensus.ID]bool
}

func (c conf) encode() []byte {
	raw, err := json.Marshal(c)
	if err != nil {
		panic(err) // Maps with integer keys always marshal.
	}
	return raw
}

func (c conf) clone() conf {
	return conf{Members: maps.Clone(c.Members), Removed: maps.Clone(c.Removed)}
}

func (c conf) sorted() []consensus.Member {
	var out []consensus.Member
	for _, id := range slices.Sorted(maps.Keys(c.Members)) {
		out = append(out, c.Members[id])
	}
	return out
}

// NewCluster makes a cluster whose first members are the voters 1 to n, named c1 to cn. Start runs them.
func NewCluster(n int) *Cluster {
	c := &Cluster{}
	cf := conf{Members: map[consensus.ID]consensus.Member{}, Removed: map[consensus.ID]bool{}}
	for i := 1; i <= n; i++ {
		id := consensus.ID(i)
		cf.Members[id] = consensus.Member{
			ID: id, Name: fmt.Sprintf("c%d", i), Address: fmt.Sprintf("memory:%d", i), StoreID: fmt.Sprintf("store-%d", i), Role: consensus.Voter,
		}
	}
	c.mu.conf = cf
	c.mu.first = 1
	c.mu.log = []entry{{Entry: consensus.Entry{Index: 1, Metadata: cf.encode()}}}
	c.mu.nodes = map[consensus.ID]*Backend{}
	c.mu.cut = map[consensus.ID]bool{}
	c.mu.changed = make(chan struct{})
	return c
}

// Isolate cuts a member off from all others, or heals that.
func (c *Cluster) Isolate(id consensus.ID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.cut[id] = cut
	c.settle()
}

// last is the index of the last entry. Callers hold the lock.
func (c *Cluster) last() uint64 { return c.mu.first + uint64(len(c.mu.log)) - 1 }

// append commits an entry. Callers hold the lock and have checked that there is a leader.
func (c *Cluster) append(command, metadata []byte) uint64 {
	index := c.last() + 1
	c.mu.log = append(c.mu.log, entry{consensus.Entry{Index: index, Command: command, Metadata: metadata}, c.mu.term})
	c.compact()
	c.wake()
	return index
}

// compact cuts the log where some running member has it durably.
func (c *Cluster) compact() {
	if c.CompactEvery == 0 || uint64(len(c.mu.log)) < 2*c.CompactEvery {
		return
	}
	durable := uint64(0)
	for id, n := range c.mu.nodes {
		if !c.mu.cut[id] {
			durable = max(durable, n.sm.DurableIndex())
		}
	}
	if durable < c.mu.first+c.CompactEvery {
		return
	}
	keep := durable + 1 - c.CompactEvery/2
	c.mu.log = slices.Clone(c.mu.log[keep-c.mu.first:])
	c.mu.first = keep
}

// wake tells everyone that something changed. Callers hold the lock.
func (c *Cluster) wake() {
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

func (c *Cluster) reachable(id consensus.ID) bool {
	return c.mu.nodes[id] != nil && !c.mu.cut[id]
}

// settle elects a leader when there is none and one is possible. Callers hold the lock.
func (c *Cluster) settle() {
	defer c.wake()
	if c.electable(c.mu.leader) {
		return
	}
	old := c.mu.leader
	c.mu.leader = 0
	for _, m := range c.mu.conf.sorted() {
		if m.ID != old && c.electable(m.ID) {
			c.elect(m.ID)
			return
		}
	}
	if c.electable(old) {
		c.elect(old)
	}
}

// elect makes id the leader of a new term and commits the term's first entry.
func (c *Cluster) elect(id consensus.ID) {
	c.mu.term++
	c.mu.leader = id
	c.append(nil, nil)
}

// electable reports whether id is a voter that reaches a quorum.
func (c *Cluster) electable(id consensus.ID) bool {
	if c.mu.conf.Members[id].Role != consensus.Voter || !c.reachable(id) {
		return false
	}
	voters, up := 0, 0
	for _, m := range c.mu.conf.Members {
		if m.Role == consensus.Voter {
			voters++
			if c.reachable(m.ID) {
				up++
			}
		}
	}
	return up > voters/2
}
