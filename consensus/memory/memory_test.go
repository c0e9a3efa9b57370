package memory_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/consensustest"
	"github.com/naradctl/naradctl-plane/consensus/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type cluster struct {
	t        *testing.T
	c        *memory.Cluster
	disks    []*consensustest.Disk
	machines []*consensustest.Machine
	backends []consensus.Backend
}

func newCluster(t *testing.T, n int, compactEvery uint64) consensustest.Cluster {
	c := &cluster{t: t, c: memory.NewCluster(n)}
	c.c.CompactEvery = compactEvery
	for i := range n {
		c.add()
		c.start(i)
	}
	t.Cleanup(func() {
		for _, b := range c.backends {
			if err := b.Stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
	})
	return c
}

func (c *cluster) add() {
	c.disks = append(c.disks, &consensustest.Disk{})
	c.machines = append(c.machines, nil)
	c.backends = append(c.backends, nil)
}

func (c *cluster) start(i int) {
	c.t.Helper()
	c.machines[i] = consensustest.Open(c.disks[i])
	b, err := c.c.Start(consensus.ID(i+1), c.machines[i])
	if err != nil {
		c.t.Fatalf("start: %v", err)
	}
	c.backends[i] = b
}

func (c *cluster) Len() int                             { return len(c.backends) }
func (c *cluster) Backend(i int) consensus.Backend      { return c.backends[i] }
func (c *cluster) Machine(i int) *consensustest.Machine { return c.machines[i] }
func (c *cluster) Isolate(i int, cut bool)              { c.c.Isolate(consensus.ID(i+1), cut) }

func (c *cluster) Restart(i int) {
	c.t.Helper()
	if err := c.backends[i].Stop(); err != nil {
		c.t.Fatalf("stop: %v", err)
	}
	c.start(i)
}

func (c *cluster) Crash(i int) {
	c.machines[i].Abandon()
	c.Restart(i)
}

func (c *cluster) Join() int {
	c.t.Helper()
	i := len(c.backends)
	c.add()
	id := consensus.ID(i + 1)
	m := consensus.Member{ID: id, Name: fmt.Sprintf("c%d", id), Address: fmt.Sprintf("memory:%d", id), StoreID: fmt.Sprintf("store-%d", id)}
	for _, b := range c.backends[:i] {
		if b.Status().IsLeader() {
			if err := b.AddLearner(consensustest.Context(c.t), m); err != nil {
				c.t.Fatalf("add a learner: %v", err)
			}
			break
		}
	}
	c.start(i)
	return i
}

func TestConformance(t *testing.T) { consensustest.Run(t, newCluster) }
