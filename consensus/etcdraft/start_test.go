package etcdraft_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/consensustest"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
)

func TestSingleMemberStartsWithoutWaiting(t *testing.T) {
	c := newRawCluster(t, 1, 1<<30)
	cfg := c.config(c.hosts[0])
	cfg.InitialMembers = nil
	if err := c.tryStart(consensustest.Context(t), c.hosts[0], cfg); err != nil {
		t.Fatal(err)
	}
	consensustest.Propose(t, c, "x")
}

// Two of three first members wait for the third, and say whom they wait for.
func TestBootstrapWaitsForAll(t *testing.T) {
	c := newRawCluster(t, 3, 1<<30)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	errs := make(chan error, 2)
	for _, h := range c.hosts[:2] {
		go func() { errs <- c.tryStart(ctx, h, c.config(h)) }()
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "c3") {
			t.Fatalf("start without the third member: %v, want a time-out that names c3", err)
		}
	}
	c.startAll()
	consensustest.Propose(t, c, "x")
	consensustest.Alike(t, c)
	id := c.hosts[0].backend.ClusterID()
	for _, h := range c.hosts {
		if got := h.backend.ClusterID(); got != id || id == "" {
			t.Fatalf("%s is in cluster %q, c1 in %q", h.name, got, id)
		}
	}
}

// Once the first members have a cluster, each starts without the others: READY comes before a quorum.
func TestRestartDoesNotWaitForQuorum(t *testing.T) {
	c := newRawCluster(t, 3, 1<<30)
	c.startAll()
	consensustest.Propose(t, c, "x")
	for _, h := range c.hosts {
		c.stop(h)
	}
	c.start(c.hosts[0])
	if s := c.hosts[0].backend.Status(); s.Leader != 0 || s.Self == 0 {
		t.Fatalf("status of a member alone: %+v, want no leader", s)
	}
	c.start(c.hosts[1])
	consensustest.Propose(t, c, "y", 0, 1)
	c.start(c.hosts[2])
	consensustest.Leader(t, c)
	consensustest.Alike(t, c)
}

func TestC52WipedMemberIsRefused(t *testing.T) {
	c := newRawCluster(t, 3, 1<<30)
	c.startAll()
	consensustest.Propose(t, c, "x")
	h := c.hosts[1]
	c.stop(h)
	if err := os.RemoveAll(h.dir); err != nil {
		t.Fatal(err)
	}
	h.disk = &consensustest.Disk{}
	err := c.tryStart(consensustest.Context(t), h, c.config(h))
	if !errors.Is(err, etcdraft.ErrForeignStore) || !strings.Contains(err.Error(), "naradctl-plane cluster controllers remove c2") ||
		!strings.Contains(err.Error(), "--join") {
		t.Fatalf("start on a wiped disk: %v; want ErrForeignStore with the remedy", err)
	}
	// The remedy works.
	leader := consensustest.Leader(t, c, 0, 2)
	if err := c.Backend(leader).Remove(consensustest.Context(t), 2); err != nil {
		t.Fatalf("remove the wiped member: %v", err)
	}
	_ = h.server.Close()
	c.hosts = []*host{c.hosts[0], c.hosts[2]}
	c.Join()
	consensustest.Leader(t, c)
	consensustest.Alike(t, c)
}

// A lost log under a kept store id would forget votes; it is not taken for a first start.
func TestC52LostLogIsRefused(t *testing.T) {
	for _, lost := range []string{"wal", "store-id", "state", "wal and state"} {
		t.Run(lost, func(t *testing.T) {
			c := newRawCluster(t, 3, 1<<30)
			c.startAll()
			for range 40 {
				consensustest.Propose(t, c, "x")
			}
			consensustest.Alike(t, c)
			h := c.hosts[0]
			c.stop(h)
			if strings.Contains(lost, "state") {
				h.disk = &consensustest.Disk{}
			}
			for _, name := range []string{"wal", "store-id"} {
				if strings.Contains(lost, name) {
					if err := os.RemoveAll(filepath.Join(h.dir, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			err := c.tryStart(consensustest.Context(t), h, c.config(h))
			if !errors.Is(err, etcdraft.ErrForeignStore) && !errors.Is(err, etcdraft.ErrStateMismatch) {
				t.Fatalf("start without its %s: %v, want a refusal", lost, err)
			}
			if !strings.Contains(err.Error(), "--join") {
				t.Fatalf("start without its %s: %v; the remedy is missing", lost, err)
			}
			h.backend = nil
		})
	}
}

func TestForeignLogIsRefused(t *testing.T) {
	c := newRawCluster(t, 1, 1<<30)
	c.startAll()
	h := c.hosts[0]
	c.stop(h)
	cfg := c.config(h)
	cfg.Name, cfg.InitialMembers = "other", nil
	err := c.tryStart(consensustest.Context(t), h, cfg)
	if !errors.Is(err, etcdraft.ErrForeignStore) || !strings.Contains(err.Error(), `"c1"`) {
		t.Fatalf("start under another name: %v, want ErrForeignStore that names c1", err)
	}
	h.backend = nil
}

// TestTwoProcessesOneDirectory holds the directory with another process.
func TestTwoProcessesOneDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envMember+"=hold", "NARADPLANE_TEST_DIR="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the other process: %v", err)
	}
	cfg := etcdraft.Config{Name: "a", AdvertiseAddress: "127.0.0.1:1", DataDir: dir}
	_, err = etcdraft.New(cfg, zap.NewNop())
	if !errors.Is(err, etcdraft.ErrInUse) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "data_dir") {
		t.Fatalf("second process in one directory: %v; want ErrInUse with directory and remedy", err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	n, err := etcdraft.New(cfg, zap.NewNop())
	if err != nil {
		t.Fatalf("after the first process ended: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

// A removed member that is started again says so at once, and the text says what to do.
func TestC43RemovedMemberSaysWhyAndStops(t *testing.T) {
	c := newRawCluster(t, 3, 1<<30)
	c.startAll()
	consensustest.Propose(t, c, "x")
	gone := 0
	if consensustest.Leader(t, c) == 0 {
		gone = 1
	}
	h := c.hosts[gone]
	c.stop(h) // It misses its own removal.
	rest := []int{1 - gone, 2}
	if err := c.Backend(consensustest.Leader(t, c, rest...)).Remove(consensustest.Context(t), consensus.ID(gone+1)); err != nil {
		t.Fatal(err)
	}
	c.start(h)
	<-h.backend.Done()
	err := h.backend.Err()
	if !errors.Is(err, consensus.ErrRemoved) || !strings.Contains(err.Error(), "--join") || !strings.Contains(err.Error(), h.name) {
		t.Fatalf("a removed member stopped with %v; want ErrRemoved, its name and the remedy", err)
	}
	consensustest.Alike(t, c, rest...)
}
