package nodeagent

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// stuckStore fails, or never answers, for one partition index.
type stuckStore struct {
	*partitionlog.Store
	index uint32
	stuck func() error // nil error when it is over
}

func (s stuckStore) Create(p cluster.PartitionID, id store.Identity) error {
	if p.Index == s.index {
		if err := s.stuck(); err != nil {
			return err
		}
	}
	return s.Store.Create(p, id)
}

// One partition whose directory can't be made, or whose disk hangs, holds up no other; it is named, and is
// served when that is over.
func TestC41StuckPartitionHoldsUpNoOther(t *testing.T) {
	healed := make(chan struct{})
	for name, stuck := range map[string]func() error{
		"failing": func() error {
			select {
			case <-healed:
				return nil
			default:
				return errors.New("read-only file system")
			}
		},
		"hanging": func() error { <-healed; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			healed = make(chan struct{})
			var once sync.Once
			heal := func() { once.Do(func() { close(healed) }) }
			t.Cleanup(heal)
			c := startController(t)
			a := startAgent(t, agentOptions{
				id: "n1", dir: t.TempDir(), controllers: []string{c.address},
				wrap: func(s *partitionlog.Store) Store { return stuckStore{Store: s, index: 3, stuck: stuck} },
			})
			a.waitReady(t)
			topic := c.createTopic(t, "orders", 40)
			for i := range topic.Partitions {
				if i != 3 {
					waitOwner(t, c, pid(topic.ID, i), "n1")
				}
			}
			if c.assignment(pid(topic.ID, 3)).Opened {
				t.Fatal("partition 3 is not stuck")
			}
			if name == "failing" {
				eventually(t, "problem", func() error {
					if ps := a.Problems(); len(ps) != 1 || ps[0].Name != "orders/3" || !strings.Contains(ps[0].Text, "read-only") {
						return fmt.Errorf("%+v", ps)
					}
					return nil
				})
			}
			heal()
			waitOwner(t, c, pid(topic.ID, 3), "n1")
			eventually(t, "no problem", func() error {
				if ps := a.Problems(); len(ps) > 0 {
					return fmt.Errorf("%+v", ps)
				}
				return nil
			})
		})
	}
}

// slowly makes a move take some seconds.
func slowly(t *testing.T, c *testController, a *testAgent, p cluster.PartitionID) {
	t.Helper()
	for i := range 4 {
		a.append(t, p, fmt.Sprintf("%d %s", i, strings.Repeat("y", 64<<10)))
	}
	setRate(t, c, 64<<10)
}

func setRate(t *testing.T, c *testController, rate cluster.Bytes) {
	t.Helper()
	eventually(t, "copy rate", func() error {
		_, _, err := c.UpdateSettings(t.Context(), func(s cluster.Settings) cluster.Settings {
			s.CopyRatePerNode = rate
			return s
		}, "")
		return err
	})
}

// Both agents restart in the middle of a move, one after the other; it completes, and nothing is lost.
func TestC06I7BothSidesRestartDuringAMove(t *testing.T) {
	c := startController(t)
	oa := agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}}
	ob := agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}}
	a := startAgent(t, oa)
	a.waitReady(t)
	p := pid(c.createTopic(t, "orders", 1).ID, 0)
	b := startAgent(t, ob)
	b.waitReady(t)
	slowly(t, c, a, p)
	before, err := a.values(p)
	if err != nil {
		t.Fatal(err)
	}
	c.move(t, "orders", 0, "n2")
	waitMarker(t, a, p)
	oa.listen, ob.listen = a.address, b.address
	a.stop()
	a = startAgent(t, oa)
	b.stop()
	b = startAgent(t, ob)
	// The source accepts writes again once it has read that the move goes on (I7), or the new owner does.
	w := startWriter(t, p, a, b)
	w.waitFor(t, 20)
	setRate(t, c, 0)
	waitOwner(t, c, p, "n2")
	w.waitFor(t, 20)
	w.stop()
	got, err := b.values(p)
	if err != nil {
		t.Fatal(err)
	}
	if l := lost(append(before, w.acked...), got); len(l) > 0 {
		t.Fatalf("I2: %d acknowledged records are lost: %v", len(l), l[:min(10, len(l))])
	}
}

// A move is cancelled while its destination is down. The source serves on without a marker, and the
// destination, back again, drops what it had staged once it is confirmed that nobody needs it.
func TestI9StagingOfACancelledMoveGoesAfterConfirmation(t *testing.T) {
	c := startController(t)
	a := startAgent(t, agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{c.address}})
	a.waitReady(t)
	p := pid(c.createTopic(t, "orders", 1).ID, 0)
	ob := agentOptions{id: "n2", dir: t.TempDir(), controllers: []string{c.address}}
	b := startAgent(t, ob)
	b.waitReady(t)
	slowly(t, c, a, p)
	c.move(t, "orders", 0, "n2")
	eventually(t, "staged bytes", func() error {
		for _, s := range b.copiesOf(t, p) {
			if s.Place == store.Staged && s.Bytes > 0 {
				return nil
			}
		}
		return errors.New("none")
	})
	b.stop()
	if _, err := c.CancelMove(t.Context(), "orders", 0, 0, ""); err != nil {
		t.Fatal(err)
	}
	a.append(t, p, "after")
	eventually(t, "marker removed", func() error {
		if a.source.HasMarker(p) {
			return errors.New("marked")
		}
		return nil
	})
	b = startAgent(t, ob)
	eventually(t, "staging removed", func() error {
		if left := b.copiesOf(t, p); len(left) > 0 {
			return fmt.Errorf("%+v", left)
		}
		return nil
	})
	if got, err := a.values(p); err != nil || len(got) != 5 {
		t.Fatalf("n1 has %d records, %v", len(got), err)
	}
}
