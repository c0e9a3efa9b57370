package chaos

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

const (
	// patience is how long an operator waits for an answer.
	patience = 10 * time.Second
	// joining is how long one waits for a new daemon.
	joining   = 60 * time.Second
	minAgents = 3
	maxAgents = 5
)

// operator hands an action to the one office that performs them, one after the other. A busy office drops it.
func (r *run) operator(s Step) (string, func()) {
	var act func(context.Context) string
	switch s.Kind {
	case Moves:
		act = func(ctx context.Context) string { return r.moves(ctx, s) }
	case Cancel:
		act = r.cancel
	case Drain:
		act = func(ctx context.Context) string { return r.drain(ctx, s) }
	case Undrain:
		act = func(ctx context.Context) string { return r.undrain(ctx, s) }
	case Settings:
		act = func(ctx context.Context) string { return r.settings(ctx, s) }
	case Topics:
		act = func(ctx context.Context) string { return r.topics(ctx, s) }
	case Transfer:
		act = r.transfer
	case Replace:
		act = func(ctx context.Context) string { return r.replace(ctx, s) }
	}
	select {
	case r.operators <- func(ctx context.Context) {
		if said := act(ctx); said != "" {
			r.sayf("%-10s %s", s.Kind, said)
		}
	}:
		return "asked for", nil
	default:
		return "", nil
	}
}

// call calls the controllers with an operator's patience.
func call[T any](ctx context.Context, r *run, fn func(context.Context, harness.Clients) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return harness.Call(ctx, r.cluster.API, fn)
}

// said is what an operator tells of an answer.
func said(what string, err error) string {
	if err != nil {
		return fmt.Sprintf("%s: %v", what, err)
	}
	return what
}

// moves sends some partitions elsewhere.
func (r *run) moves(ctx context.Context, s Step) string {
	agents := r.daemons(func(d *daemon) bool { return d.agent && !d.leaving })
	if len(agents) == 0 {
		return ""
	}
	done := 0
	for i := range 1 + s.Choice%4 {
		topic, index := "orders", uint32((s.Target+i)%orders)
		if (s.Target+i)%7 == 0 {
			topic, index = "single", 0
		}
		_, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.StartMoveResponse, error) {
			return c.StartMove(ctx, &planev1.StartMoveRequest{Topic: topic, Index: index, To: agents[(s.Other+i)%len(agents)].Name})
		})
		if err == nil {
			done++
		}
	}
	return fmt.Sprintf("%d of %d were taken", done, 1+s.Choice%4)
}

// cancel ends whatever moves.
func (r *run) cancel(ctx context.Context) string {
	list, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.ListMovesResponse, error) {
		return c.ListMoves(ctx, &planev1.ListMovesRequest{})
	})
	if err != nil {
		return said("list moves", err)
	}
	done := 0
	for _, m := range list.GetMoves() {
		p := m.GetAssignment().GetPartition()
		_, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.CancelMoveResponse, error) {
			return c.CancelMove(ctx, &planev1.CancelMoveRequest{Topic: p.GetTopic(), Index: p.GetIndex(), MoveId: m.GetAssignment().GetMoveId()})
		})
		if err == nil {
			done++
		}
	}
	return fmt.Sprintf("%d of %d moves", done, len(list.GetMoves()))
}

func (r *run) decommission(ctx context.Context, id string) error {
	_, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.DecommissionResponse, error) {
		return c.Decommission(ctx, &planev1.DecommissionRequest{Id: id, Reason: "chaos"})
	})
	return err
}

// drain sends a node away and brings another one.
func (r *run) drain(ctx context.Context, s Step) string {
	staying := r.daemons(func(d *daemon) bool { return d.agent && !d.leaving })
	text := ""
	if len(r.daemons(isAgent)) < maxAgents {
		name := r.name("agent")
		wait, cancel := context.WithTimeout(ctx, joining)
		p, err := r.cluster.AddAgent(wait, name)
		cancel()
		if p != nil {
			r.admit(p, true)
		}
		text = said(name+" came; ", err)
		r.addresses()
	}
	if len(staying) < minAgents {
		return text + "nobody can go"
	}
	gone := staying[s.Target%len(staying)]
	// It may be draining although the answer is lost, and then ends by itself.
	r.mu.Lock()
	gone.leaving = true
	r.mu.Unlock()
	return text + said(gone.Name+" is to go", r.decommission(ctx, gone.Name))
}

// undrain sends a node away and calls it back.
func (r *run) undrain(ctx context.Context, s Step) string {
	staying := r.daemons(func(d *daemon) bool { return d.agent && !d.leaving })
	if len(staying) < minAgents {
		return ""
	}
	d := staying[s.Target%len(staying)]
	r.mu.Lock()
	d.leaving = true
	r.mu.Unlock()
	text := said(d.Name+" is to go", r.decommission(ctx, d.Name))
	select {
	case <-ctx.Done():
	case <-time.After(min(s.For, 2*time.Second)):
	}
	_, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.CancelDecommissionResponse, error) {
		return c.CancelDecommission(ctx, &planev1.CancelDecommissionRequest{Id: d.Name})
	})
	if err != nil {
		return text + "; " + said("and may not stay", err) // it drains, or will: let it go
	}
	r.mu.Lock()
	d.leaving = false
	r.mu.Unlock()
	return text + "; and stays"
}

// settings changes what operators may change.
func (r *run) settings(ctx context.Context, s Step) string {
	set := usual()
	switch s.Choice % 6 {
	case 0:
		set.HandoffTtl = durationpb.New(500*time.Millisecond + time.Duration(s.Amount*float64(4*time.Second)))
	case 1:
		n := uint32(1 + s.Other%16)
		set.MaxInFlightMoves, set.MaxMovesPerNode = &n, &n
	case 2:
		rate := uint64(256<<10 + s.Amount*float64(2<<20))
		set.CopyRatePerNode = &rate
	case 3:
		lag := uint64(1024)
		set.LagBytes, set.FreezeBudget = &lag, durationpb.New(time.Millisecond)
	case 4:
		on := true
		set.RebalancePaused = &on
	default:
		set.ReclaimAfter = durationpb.New(0)
	}
	_, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.UpdateSettingsResponse, error) {
		return c.UpdateSettings(ctx, &planev1.UpdateSettingsRequest{Settings: set})
	})
	return said(fmt.Sprintf("kind %d", s.Choice%6), err)
}

// topics makes a topic, writes into it and deletes it; its records are nobody's.
func (r *run) topics(ctx context.Context, s Step) string {
	name := r.name("scratch")
	_, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.CreateTopicResponse, error) {
		return c.CreateTopic(ctx, &planev1.CreateTopicRequest{Name: name, Partitions: uint32(1 + s.Choice%6)})
	})
	if err != nil {
		return said("make "+name, err)
	}
	written := harness.NewLedger()
	load := harness.NewLoad(written, agentAddresses(r))
	wait, cancel := context.WithTimeout(ctx, min(s.For, 3*time.Second))
	load.Produce(wait, harness.Producer{Topic: name, Batch: 20, Size: recordSize, Records: 400, Pause: 5 * time.Millisecond})
	load.WaitProducers()
	cancel()
	_, err = call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.DeleteTopicResponse, error) {
		return c.DeleteTopic(ctx, &planev1.DeleteTopicRequest{Name: name})
	})
	return said(fmt.Sprintf("%s made, %d records written, deleted", name, written.Tally().Acknowledged), err)
}

func agentAddresses(r *run) []string {
	var out []string
	for _, d := range r.daemons(isAgent) {
		out = append(out, d.Address)
	}
	return out
}

func (r *run) transfer(ctx context.Context) string {
	resp, err := call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.TransferLeadershipResponse, error) {
		return c.TransferLeadership(ctx, &planev1.TransferLeadershipRequest{})
	})
	return said("to "+resp.GetLeader(), err)
}

// replace adds a controller, waits until it votes, and removes another one.
func (r *run) replace(ctx context.Context, s Step) string {
	text := ""
	if len(r.daemons(isController)) <= controllers {
		name := r.name("ctl")
		p, err := r.cluster.AddController(name)
		if p == nil {
			return said("add "+name, err)
		}
		r.admit(p, false)
		r.addresses()
		text = name + " came; "
	}
	wait, cancel := context.WithTimeout(ctx, joining)
	defer cancel()
	err := harness.Poll(wait, "the new controller votes", func() error {
		st, err := r.cluster.API.Status(wait)
		if err == nil && (st.GetVoters() <= controllers || st.GetLearners() != 0) {
			err = fmt.Errorf("%d voters, %d learners", st.GetVoters(), st.GetLearners())
		}
		return err
	})
	if err != nil {
		return text + said("and waits", err)
	}
	all := r.daemons(func(d *daemon) bool { return !d.agent && !d.leaving })
	gone := all[s.Target%len(all)]
	r.mu.Lock()
	gone.leaving = true
	r.mu.Unlock()
	_, err = call(ctx, r, func(ctx context.Context, c harness.Clients) (*planev1.RemoveControllerResponse, error) {
		return c.RemoveController(ctx, &planev1.RemoveControllerRequest{Name: gone.Name})
	})
	return text + said(gone.Name+" is to go", err)
}
