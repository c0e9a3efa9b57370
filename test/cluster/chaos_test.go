package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/chaos"
	"github.com/naradctl/naradctl-plane/test/fabric"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// TestChaosForAWhile is a short run of make chaos that needs no privileges: kills, stops, cuts, slow links and operators.
func TestChaosForAWhile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const seed = 85 // its schedule has something of everything
	dir := t.TempDir()
	v, err := chaos.Run(ctx, chaos.Options{
		Seed: seed, Duration: 15 * time.Second, Dir: dir, Binary: binaries.faults, Network: fabric.NewProxies(seed), Agents: 3,
		Say: func(format string, args ...any) { t.Logf(format, args...) },
	})
	if err != nil {
		t.Error(err)
	}
	for _, s := range v.Violations {
		t.Error(s)
	}
	t.Log(v)
}

// TestC65CopiesSaturateTheLink: three hosts run a controller and an agent each, on links that bulk copies fill. Raft's
// messages and heartbeats get through: the leader, whose host is the source, stays, and no node loses its lease for so long
// that it is declared dead.
func TestC65CopiesSaturateTheLink(t *testing.T) {
	const link = 4 << 20 // bytes per second
	net := fabric.NewProxies(1)
	t.Cleanup(func() { _ = net.Close() })
	dir := t.TempDir()
	e := startWith(t, 3, 3, func(o *harness.Options) {
		o.Dir = dir
		o.Place = func(name string) (harness.Placement, error) {
			at, err := net.Add("host-" + name[strings.LastIndex(name, "-")+1:])
			return harness.Placement{Listen: at.Listen, Advertise: at.Advertise, Start: at.Start, DataDir: dir + "/" + name}, err
		}
	})
	e.topic("orders", 3)
	e.fill("orders", 48<<20)
	source := e.assignment("orders", 0).GetOwner()
	leader := "ctl-" + strings.TrimPrefix(source, "agent-")
	e.must2(harness.Call(e.ctx, e.cluster.API, func(ctx context.Context, c harness.Clients) (*planev1.TransferLeadershipResponse, error) {
		return c.TransferLeadership(ctx, &planev1.TransferLeadershipRequest{To: leader})
	}))
	e.must(harness.Poll(e.ctx, leader+" leads", func() error {
		if s, err := e.cluster.API.Status(e.ctx); err != nil || s.GetLeader() != leader {
			return fmt.Errorf("%s does, %v", s.GetLeader(), err)
		}
		return nil
	}))
	terms, incarnations := e.terms(), e.incarnations()
	to := "agent-1"
	if source == to {
		to = "agent-2"
	}
	for i := range 3 {
		net.Rate(fmt.Sprintf("host-%d", i+1), link)
	}
	began := time.Now()
	e.must2(e.cluster.API.StartMove(e.ctx, "orders", 0, to))
	e.traffic("orders")
	e.moved("orders", 0, to)
	took := time.Since(began)
	t.Logf("copied in %s over a link of 4 MiB/s", took.Round(time.Millisecond))
	if took < 2*time.Second {
		t.Errorf("the move took %s: the link was not full", took)
	}
	if got := e.terms(); got != terms {
		t.Errorf("the leader changed: %s, before %s", got, terms)
	}
	if got := e.incarnations(); got != incarnations {
		t.Errorf("a node was declared dead: incarnations %s, before %s", got, incarnations)
	}
	net.Heal()
	e.verdict()
}

// terms are each controller's term and leader.
func (e *env) terms() string {
	e.Helper()
	var out []string
	for _, p := range e.cluster.Controllers {
		s, err := harness.ClientsOf(p.Address).GetControllerState(e.ctx, &planev1.GetControllerStateRequest{})
		e.must(err)
		out = append(out, fmt.Sprintf("%s: %s leads in term %d", p.Name, s.GetLeader(), s.GetTerm()))
	}
	return strings.Join(out, ", ")
}

func (e *env) incarnations() string {
	e.Helper()
	members, err := e.cluster.API.Members(e.ctx)
	e.must(err)
	var out []string
	for _, p := range e.cluster.Agents {
		out = append(out, fmt.Sprintf("%s: %d", p.Name, members[p.Name].GetNode().GetIncarnation()))
	}
	return strings.Join(out, ", ")
}
