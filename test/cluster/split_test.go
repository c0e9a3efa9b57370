package cluster_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/faults"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

type settings = planev1.Settings

func (e *env) settings(change func(*settings)) error {
	s := &settings{}
	change(s)
	return e.cluster.API.UpdateSettings(e.ctx, s)
}

// split is a cluster with a source that is cut off from the controllers, not from clients and not from the destination, in the
// middle of a move.
type split struct {
	*env
	links []*harness.Proxy
	topic *planev1.Topic
	index uint32
	move  uint64
}

// cutOff starts a move from agent-2 to agent-1 and cuts agent-2 off when it has begun. armed is called before the move.
func cutOff(t *testing.T, armed func(s *split)) *split {
	t.Helper()
	s := &split{env: start(t, 3, 1)}
	var through []string
	for _, a := range s.cluster.ControllerAddresses() {
		p, err := harness.NewProxy(a)
		s.must(err)
		t.Cleanup(func() { _ = p.Close() })
		s.links, through = append(s.links, p), append(through, p.Address)
	}
	// agent-1 is the destination; agent-2, the source, reaches the controllers through the proxies only.
	_, err := s.cluster.AddAgent(s.ctx, "agent-2", "--controllers", strings.Join(through, ","), "--follow-controllers=false")
	s.must(err)
	s.load.SetAgents(s.cluster.AgentAddresses())
	s.topic = s.env.topic("orders", 2)
	s.fill("orders", 1<<20)
	s.traffic("orders")
	if s.assignment("orders", 0).GetOwner() != "agent-2" {
		s.index = 1
	}
	if armed != nil {
		armed(s)
	}
	// The link is cut when the move has begun. The copy goes on and can't be handed over.
	record := s.arm("agent-1", faults.MoveBegun, "block", s.topic.GetTopicId())
	s.move, err = s.cluster.API.StartMove(s.ctx, "orders", s.index, "agent-1")
	s.must(err)
	s.struck(record)
	for _, p := range s.links {
		p.Cut()
	}
	return s
}

// status waits for the leader's word on agent-2.
func (s *split) status(want planev1.NodeStatus) {
	s.Helper()
	s.must(harness.Poll(s.ctx, fmt.Sprintf("agent-2 is %s", want), func() error {
		members, err := s.cluster.API.Members(s.ctx)
		if err != nil {
			return err
		}
		if got := members["agent-2"].GetNode().GetStatus(); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	}))
}

// promoted waits until agent-1 has promoted its copy.
func (s *split) promoted() {
	s.Helper()
	s.status(planev1.NodeStatus_NODE_STATUS_DEAD)
	s.moved("orders", s.index, "agent-1")
	got, err := s.cluster.API.Assignment(s.ctx, s.topic.GetTopicId(), s.index, s.move)
	s.must(err)
	if got.GetOutcome().GetKind() != planev1.OutcomeKind_OUTCOME_KIND_FORCED {
		s.Fatalf("the move ended as %v, want a forced promotion", got.GetOutcome())
	}
}

func (s *split) heal() {
	for _, p := range s.links {
		p.Heal()
	}
}

// salvaged waits until agent-2 is back, has nothing in quarantine, and the outcome is no longer needed.
func (s *split) salvaged() {
	s.Helper()
	s.must(harness.Poll(s.ctx, "agent-2 is back and has salvaged", func() error {
		members, err := s.cluster.API.Members(s.ctx)
		if err != nil {
			return err
		}
		m := members["agent-2"]
		if m.GetNode().GetStatus() != planev1.NodeStatus_NODE_STATUS_ALIVE || m.GetQuarantined() != 0 {
			return fmt.Errorf("it is %v", m)
		}
		got, err := s.cluster.API.Assignment(s.ctx, s.topic.GetTopicId(), s.index, s.move)
		if err != nil {
			return err
		}
		if got.GetOutcome() != nil {
			return fmt.Errorf("the outcome is not reclaimed: %v", got.GetOutcome())
		}
		return nil
	}))
}

// TestC74SourceCutOff: the source is cut off from the controllers, not from clients. It stops acknowledging when its lease has run
// out, is declared dead, and the destination promotes its copy. When the link heals, the source salvages what the destination
// never had (C76).
func TestC74SourceCutOff(t *testing.T) {
	s := cutOff(t, nil)
	s.must(harness.DisarmFaults(s.ctx, s.cluster.Process("agent-1")))
	s.promoted()
	s.heal()
	s.salvaged()
	s.verdict()
}

// TestC76KillsAroundAPromotion: the destination loses the reply to its promotion, or dies with it; the source that came back
// dies when its copy is set aside, when its records are in the topic again, before it deletes and before it reports. It ends
// as without them.
func TestC76KillsAroundAPromotion(t *testing.T) {
	for _, action := range []string{"error", "kill"} {
		t.Run("the reply: "+action, func(t *testing.T) {
			s := cutOff(t, nil)
			topic := s.topic.GetTopicId()
			s.must(harness.DisarmFaults(s.ctx, s.cluster.Process("agent-1")))
			reply := s.arm("agent-1", faults.MoveForceReply, action, topic)
			if action == "kill" {
				s.diesAt("agent-1", reply)
			} else {
				s.struck(reply)
			}
			s.promoted()
			record := s.arm("agent-2", faults.SalvageQuarantine, "kill", topic)
			s.heal()
			for _, next := range []string{faults.SalvageProduced, faults.ReclaimConfirmed, faults.ReclaimDeleted, ""} {
				after := s.armNext("agent-2", next, topic)
				s.diesAt("agent-2", record)
				record = after
			}
			s.salvaged()
			s.verdict()
		})
	}
}

// TestC60SilentLink: packets are dropped both ways without a reset. The node is declared dead at most, comes back by
// registering, and nothing is lost.
func TestC60SilentLink(t *testing.T) {
	e := start(t, 1, 1)
	proxy, err := harness.NewProxy(e.cluster.Controllers[0].Address)
	e.must(err)
	t.Cleanup(func() { _ = proxy.Close() })
	_, err = e.cluster.AddAgent(e.ctx, "agent-2", "--controllers", proxy.Address, "--follow-controllers=false")
	e.must(err)
	e.load.SetAgents(e.cluster.AgentAddresses())
	e.topic("orders", 4)
	e.traffic("orders")
	status := func() (planev1.NodeStatus, error) {
		members, err := e.cluster.API.Members(e.ctx)
		return members["agent-2"].GetNode().GetStatus(), err
	}
	proxy.Cut()
	e.must(harness.Poll(e.ctx, "agent-2 is declared dead", func() error {
		if s, err := status(); err != nil || s != planev1.NodeStatus_NODE_STATUS_DEAD {
			return fmt.Errorf("it is %s (%v)", s, err)
		}
		return nil
	}))
	proxy.Heal()
	healed := time.Now()
	e.must(harness.Poll(e.ctx, "agent-2 is back", func() error {
		if s, err := status(); err != nil || s != planev1.NodeStatus_NODE_STATUS_ALIVE {
			return fmt.Errorf("it is %s (%v)", s, err)
		}
		return nil
	}))
	t.Logf("back %s after the link healed", time.Since(healed).Round(time.Millisecond))
	e.verdict()
}

// TestC50KillControllers: kill -9 of each controller in a loop under load; at equal revisions all have the same state.
func TestC50KillControllers(t *testing.T) {
	e := start(t, 3, 2)
	e.topic("orders", 8)
	e.traffic("orders")
	for round := range 6 {
		p := e.cluster.Controllers[round%3]
		a := e.assignment("orders", uint32(round))
		_, err := e.cluster.API.StartMove(e.ctx, "orders", uint32(round), e.other(a))
		e.must(err)
		e.must(p.Kill())
		e.moved("orders", uint32(round), e.other(a))
		e.must(p.Start())
	}
	e.must(harness.Poll(e.ctx, "all controllers have the same state", func() error {
		seen := map[string]string{}
		var revision uint64
		for _, p := range e.cluster.Controllers {
			s, err := harness.ClientsOf(p.Address).GetControllerState(e.ctx, &planev1.GetControllerStateRequest{StateHash: true})
			if err != nil {
				return err
			}
			if revision != 0 && s.GetRevision() != revision {
				return fmt.Errorf("%s is at revision %d, another at %d", p.Name, s.GetRevision(), revision)
			}
			revision = s.GetRevision()
			seen[s.GetStateHash()] = p.Name
		}
		if len(seen) != 1 {
			return harness.Fatal(fmt.Errorf("at revision %d the states differ: %v", revision, seen))
		}
		return nil
	}))
	e.verdict()
}

// TestC37ForeignStore: a known id with a wiped disk, a second process on one directory, and a wiped controller are refused with
// the reason and the remedy; the first keeps serving.
func TestC37ForeignStore(t *testing.T) {
	e := start(t, 3, 1)
	refused := func(name string, args []string, want ...string) {
		t.Helper()
		p := &harness.Process{Name: name, Binary: binaries.release, Args: args, LogPath: filepath.Join(t.TempDir(), "log")}
		e.must(p.Start())
		t.Cleanup(func() { _ = p.Kill() })
		select {
		case <-p.Done():
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it runs; want it refused\n%s", name, p.LogTail(2000))
			return
		}
		if p.Err() == nil {
			t.Errorf("%s: exit code 0, want an error", name)
		}
		for _, w := range want {
			if text := p.LogTail(4000); !strings.Contains(text, w) {
				t.Errorf("%s: its output does not say %q:\n%s", name, w, text)
			}
		}
	}
	addr, err := harness.FreeAddress()
	e.must(err)
	agent := e.cluster.Agents[0]
	with := func(args []string, flag, value string) []string {
		out := append([]string(nil), args...)
		for i := range out {
			if out[i] == flag {
				out[i+1] = value
			}
		}
		return out
	}
	elsewhere := with(agent.Args, "--listen", addr)
	refused("two agents on one directory", elsewhere, "agent-1", "another process")
	refused("wiped agent", with(elsewhere, "--data-dir", t.TempDir()), "wiped", "node_id")
	ctl := e.cluster.Controllers[2]
	// Its own entry in the list of peers must name the address it is dialled at.
	twin := with(ctl.Args, "--listen", addr)
	for i, arg := range twin {
		twin[i] = strings.ReplaceAll(arg, ctl.Address, addr)
	}
	refused("two controllers on one directory", twin, "another process")
	e.must(ctl.Kill())
	refused("wiped controller", with(ctl.Args, "--data-dir", t.TempDir()), "wiped", "controllers remove")
	e.must(ctl.Start())
	e.must(e.cluster.WaitReady(e.ctx, agent))
}
