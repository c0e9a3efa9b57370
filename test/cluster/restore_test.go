package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// loseControllers kills all controllers and removes their directories.
func (e *env) loseControllers() {
	e.Helper()
	for _, p := range e.cluster.Controllers {
		e.must(p.Kill())
		e.must(os.RemoveAll(filepath.Join(e.cluster.Dir, p.Name)))
	}
}

// restore makes the first controller of a new cluster from a backup, and has the others join.
func (e *env) restore(file string) {
	e.Helper()
	first := e.cluster.Controllers[0]
	dir := filepath.Join(e.cluster.Dir, first.Name)
	out, code := e.local("cluster", "snapshot", "restore", file, "--data-dir", dir, "--name", first.Name, "--advertise", first.Address)
	if code != 0 {
		e.Fatalf("restore: exit code %d\n%s", code, out)
	}
	e.Log(strings.TrimSpace(out))
	e.must(first.Start())
	e.must(e.cluster.WaitReady(e.ctx, first))
	for _, p := range e.cluster.Controllers[1:] {
		for i, arg := range p.Args {
			if arg == "--peers" {
				p.Args[i], p.Args[i+1] = "--join", first.Address
			}
		}
		e.must(p.Start())
	}
}

// confirmed waits until every partition of the topics is served by its owner again.
func (e *env) confirmed(topics ...string) {
	e.Helper()
	limit, cancel := context.WithTimeout(e.ctx, 60*time.Second)
	defer cancel()
	e.must(harness.Poll(limit, "all partitions are confirmed and open", func() error {
		for _, name := range topics {
			as, err := e.cluster.API.Assignments(limit, name)
			if err != nil {
				return err
			}
			for _, a := range as {
				if a.GetUnconfirmed() || !a.GetOpened() {
					return fmt.Errorf("%s: %v", name, a)
				}
			}
		}
		return nil
	}))
}

// TestRestoreAfterTheLossOfAllControllers: a backup is taken under load. Then partitions move, one with its destination in the middle of
// the copy, one is promoted away from a node that died, a topic and a node are added. All controllers are lost with their disks. A new
// cluster is made from the backup, which knows nothing of all this; the agents come by themselves, nothing is lost, and nobody goes back.
func TestRestoreAfterTheLossOfAllControllers(t *testing.T) {
	e := start(t, 3, 3)
	e.topic("orders", 6)
	e.fill("orders", 2<<20)
	e.traffic("orders")
	file := filepath.Join(t.TempDir(), "plane.snap")
	if out, code := e.cli("cluster", "snapshot", "save", file); code != 0 {
		t.Fatalf("save: exit code %d\n%s", code, out)
	}
	if out, code := e.local("cluster", "snapshot", "show", file); code != 0 || !strings.Contains(out, "revision") {
		t.Fatalf("show: exit code %d\n%s", code, out)
	}
	old, err := e.cluster.API.Status(e.ctx)
	e.must(err)

	// A move that ends, there and back, and a node and a topic that the backup does not have.
	first := e.assignment("orders", 0).GetOwner()
	next := e.another(first)
	e.must2(e.cluster.API.StartMove(e.ctx, "orders", 0, next))
	e.moved("orders", 0, next)
	e.must2(e.cluster.AddAgent(e.ctx, "agent-4"))
	e.must2(e.cluster.API.StartMove(e.ctx, "orders", 1, "agent-4"))
	e.moved("orders", 1, "agent-4")
	later, err := e.cluster.API.CreateTopic(e.ctx, "later", 3, "")
	e.must(err)
	e.confirmed("later")
	e.fill("later", 1<<20)
	// A move whose destination has begun and goes on trying.
	stuck := e.assignment("orders", 2)
	to := e.another(stuck.GetOwner())
	record := e.arm(to, faults.MoveBegun, "block", stuck.GetPartition().GetTopicId())
	e.must2(e.cluster.API.StartMove(e.ctx, "orders", 2, to))
	e.struck(record)

	e.loseControllers()
	// One agent restarts while nobody can tell it anything.
	e.must(e.cluster.Agents[1].Kill())
	e.must(e.cluster.Agents[1].Start())
	e.must(harness.DisarmFaults(e.ctx, e.cluster.Process(to)))
	e.restore(file)
	e.confirmed("orders", "later")

	now, err := e.cluster.API.Status(e.ctx)
	e.must(err)
	if now.GetClusterId() == old.GetClusterId() || now.GetRevision() <= old.GetRevision()+1_000_000 {
		t.Errorf("cluster %s at revision %d goes on as %s at %d: want another id, and revisions far above",
			old.GetClusterId(), old.GetRevision(), now.GetClusterId(), now.GetRevision())
	}
	for index, want := range []string{next, "agent-4", stuck.GetOwner()} {
		if a := e.assignment("orders", uint32(index)); a.GetOwner() != want {
			t.Errorf("orders/%d is owned by %s, want %s: that is who has its records", index, a.GetOwner(), want)
		}
	}
	if topics, err := e.cluster.API.Assignments(e.ctx, "later"); err != nil || topics[0].GetPartition().GetTopicId() != later.GetTopicId() {
		t.Errorf("the topic made after the backup: %v, %v", topics, err)
	}
	// It is a whole cluster again: it moves, and all controllers vote.
	e.must(harness.Poll(e.ctx, "three voters", func() error {
		s, err := e.cluster.API.Status(e.ctx)
		if err == nil && s.GetVoters() != 3 {
			err = fmt.Errorf("%d voters", s.GetVoters())
		}
		return err
	}))
	e.must2(e.cluster.API.StartMove(e.ctx, "orders", 0, first))
	e.moved("orders", 0, first)
	e.load.SetAgents(e.cluster.AgentAddresses())
	e.consumeToo("later")
	e.verdict()
}

// another returns an agent other than those.
func (e *env) another(not ...string) string {
	for _, p := range e.cluster.Agents {
		if !slices.Contains(not, p.Name) {
			return p.Name
		}
	}
	e.Fatal("no other agent")
	return ""
}

// consumeToo has the ledger see a second topic's records, until the verdict.
func (e *env) consumeToo(topic string) {
	ctx, cancel := context.WithCancel(e.ctx)
	e.load.Consume(ctx, topic, "test", 0)
	finish := e.finish
	e.finish = func() { cancel(); finish() }
	e.Cleanup(cancel)
}

// TestRestoreRefusals: what is no backup, a damaged one, a directory with something in it, and the old controllers, are refused and
// change nothing.
func TestRestoreRefusals(t *testing.T) {
	e := start(t, 1, 1)
	e.topic("orders", 2)
	dir := t.TempDir()
	file := filepath.Join(dir, "plane.snap")
	if out, code := e.cli("cluster", "snapshot", "save", file); code != 0 {
		t.Fatalf("save: exit code %d\n%s", code, out)
	}
	whole, err := os.ReadFile(file)
	e.must(err)
	target := filepath.Join(dir, "ctl")
	refused := func(what string, content []byte, want string) {
		t.Helper()
		bad := filepath.Join(dir, "bad.snap")
		e.must(os.WriteFile(bad, content, 0o600))
		out, code := e.local("cluster", "snapshot", "restore", bad, "--data-dir", target, "--name", "ctl-1", "--advertise", "127.0.0.1:1")
		if code == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, want a refusal that says %q\n%s", what, code, want, out)
		}
		if _, err := os.Stat(target); err == nil {
			t.Errorf("%s: %s was made", what, target)
		}
	}
	refused("no backup", []byte("hello, this is some other file"), "no backup")
	refused("cut off", whole[:len(whole)-9], "backup")
	flipped := slices.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	refused("one bit", flipped, "checksum")
	refused("something behind", append(slices.Clone(whole), 0), "damaged")

	// A directory that is in use, or was.
	if out, code := e.local("cluster", "snapshot", "restore", file, "--data-dir", filepath.Join(e.cluster.Dir, "ctl-1"),
		"--name", "ctl-1", "--advertise", e.cluster.Controllers[0].Address); code != 3 || !strings.Contains(out, "not empty") {
		t.Errorf("a controller's directory: exit code %d\n%s", code, out)
	}
	// Agents that have gone with the restored cluster refuse the old controllers.
	ctl := e.cluster.Controllers[0]
	e.must(ctl.Kill())
	olddir := filepath.Join(dir, "old")
	e.must(os.Rename(filepath.Join(e.cluster.Dir, ctl.Name), olddir))
	e.restore(file)
	e.confirmed("orders")
	e.must(ctl.Kill())
	e.must(os.Rename(filepath.Join(e.cluster.Dir, ctl.Name), filepath.Join(dir, "new")))
	e.must(os.Rename(olddir, filepath.Join(e.cluster.Dir, ctl.Name)))
	e.must(ctl.Start())
	e.must(harness.Poll(e.ctx, "the agent refuses the old controllers", func() error {
		if a := e.cluster.Agents[0]; a.Running() {
			return fmt.Errorf("it runs")
		} else if log := a.LogTail(3000); !strings.Contains(log, "belongs to cluster") {
			return harness.Fatal(fmt.Errorf("it ended for another reason: %s", log))
		}
		return nil
	}))
}
