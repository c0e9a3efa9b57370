package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/faultfs"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// settling bounds each part of the end.
const settling = 180 * time.Second

// settle ends the load and demands that everything comes to rest: each node alive or gone, each partition open at one
// node and its copies nowhere else, shares even, all records delivered, all controllers of one state.
func (r *run) settle(ctx context.Context) {
	r.Network.Heal()
	r.mu.Lock()
	for _, d := range r.mu.disks {
		d.Set(faultfs.Faults{})
	}
	r.mu.Unlock()
	r.sayf("faults have ended")
	// Who tends ends before the load is looked at.
	tending, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t := time.NewTicker(50 * time.Millisecond); tending.Err() == nil; {
			select {
			case <-tending.Done():
			case <-t.C:
				r.tend()
			}
		}
	}()
	defer func() { stop(); <-done }()

	r.poll(ctx, "the settings are as usual", func(ctx context.Context) error { return r.cluster.API.UpdateSettings(ctx, usual()) })
	r.poll(ctx, "nodes and partitions are at rest", r.atRest)
	r.sayf("nodes and partitions are at rest")
	r.load.StopProducers()
	r.poll(ctx, "acknowledged records are delivered", func(context.Context) error {
		if n := r.ledger.Outstanding(); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	r.poll(ctx, "ingress queues are empty", r.queuesEmpty)
	r.poll(ctx, "nodes and partitions are at rest", r.atRest)
	r.poll(ctx, "one copy of each partition is on disk", r.oneCopy)
	r.poll(ctx, "all controllers have one state", r.oneState)
	r.sayf("settled")
}

// poll waits for a condition, and makes a violation of what does not come.
func (r *run) poll(ctx context.Context, what string, fn func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	err := harness.Poll(ctx, what, func() error {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return fn(attempt)
	})
	if err != nil {
		r.violate("not within %s: %v", settling, err)
	}
}

func (r *run) atRest(ctx context.Context) error {
	members, err := r.cluster.API.Members(ctx)
	if err != nil {
		return err
	}
	var want []string
	for _, d := range r.daemons(isAgent) {
		want = append(want, d.Name)
	}
	if got := slices.Sorted(maps.Keys(members)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		return fmt.Errorf("members are %v, agents that run are %v; %s", got, want, blockers(members))
	}
	total, least, most := uint32(0), ^uint32(0), uint32(0)
	for id, m := range members {
		switch {
		case m.GetNode().GetStatus() != planev1.NodeStatus_NODE_STATUS_ALIVE || m.GetNode().GetDraining():
			return fmt.Errorf("%s is %v, draining: %t; %s", id, m.GetNode().GetStatus(), m.GetNode().GetDraining(), blockers(members))
		case m.GetQuarantined() > 0 || m.GetUnopened() > 0:
			return fmt.Errorf("%s holds %d quarantined copies, %d copies that are not opened elsewhere", id, m.GetQuarantined(), m.GetUnopened())
		}
		total, least, most = total+m.GetOwned(), min(least, m.GetOwned()), max(most, m.GetOwned())
	}
	moves, err := r.cluster.API.Moves(ctx, false)
	if err != nil {
		return err
	}
	if len(moves.GetMoves()) > 0 {
		return fmt.Errorf("%d moves, the first one %v", len(moves.GetMoves()), moves.GetMoves()[0])
	}
	for _, topic := range []string{"orders", "single"} {
		as, err := r.cluster.API.Assignments(ctx, topic)
		if err != nil {
			return err
		}
		for _, a := range as {
			if !a.GetOpened() || a.GetTarget() != "" || members[a.GetOwner()] == nil {
				return fmt.Errorf("%s is not open: %v", topic, a)
			}
		}
	}
	if most > least+1 {
		return fmt.Errorf("shares are uneven: from %d to %d of %d", least, most, total)
	}
	return nil
}

// queuesEmpty holds once the load has ended.
func (r *run) queuesEmpty(ctx context.Context) error {
	members, err := r.cluster.API.Members(ctx)
	for id, m := range members {
		if n := m.GetIngressRecords(); n > 0 {
			err = fmt.Errorf("%s holds %d records", id, n)
		}
	}
	return err
}

func blockers(members map[string]*planev1.Member) string {
	var out []string
	for id, m := range members {
		if len(m.GetBlockers()) > 0 {
			out = append(out, id+": "+strings.Join(m.GetBlockers(), ", "))
		}
	}
	return strings.Join(out, "; ")
}

// oneCopy looks at the agents' disks.
func (r *run) oneCopy(ctx context.Context) error {
	for _, topic := range []string{"orders", "single"} {
		as, err := r.cluster.API.Assignments(ctx, topic)
		if err != nil {
			return err
		}
		for _, a := range as {
			p := a.GetPartition()
			var at []string
			for _, d := range r.daemons(isAgent) {
				dirs, err := filepath.Glob(filepath.Join(d.DataDir, "store", "partitions", fmt.Sprint(p.GetTopicId()), fmt.Sprint(p.GetIndex())))
				if err != nil {
					return harness.Fatal(err)
				}
				if len(dirs) > 0 {
					at = append(at, d.Name)
				}
			}
			if len(at) > 1 || (len(at) == 1 && at[0] != a.GetOwner()) {
				return fmt.Errorf("%s/%d of %s is on the disks of %v", topic, p.GetIndex(), a.GetOwner(), at)
			}
		}
	}
	return nil
}

// oneState compares the controllers at one revision.
func (r *run) oneState(ctx context.Context) error {
	hashes := map[string][]string{}
	revisions := map[uint64]bool{}
	for _, d := range r.daemons(isController) {
		s, err := harness.ClientsOf(d.Address).GetControllerState(ctx, &planev1.GetControllerStateRequest{StateHash: true})
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		hashes[s.GetStateHash()] = append(hashes[s.GetStateHash()], d.Name)
		revisions[s.GetRevision()] = true
	}
	if len(revisions) > 1 {
		return errors.New("the controllers are at different revisions")
	}
	if len(hashes) > 1 {
		return harness.Fatal(fmt.Errorf("at one revision the states differ: %v", hashes))
	}
	return nil
}
