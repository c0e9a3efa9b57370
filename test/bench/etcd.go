package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// etcdCluster is three members of etcd with their defaults, on the same disk, and its client.
type etcdCluster struct {
	members   []*harness.Process
	endpoints string
	client    string
}

// startEtcd runs etcd. Nil without an error says that it is not there, and why.
func (e *env) startEtcd(ctx context.Context) (c *etcdCluster, why string, err error) {
	for _, b := range []string{e.etcd, e.etcdClient} {
		if _, err := os.Stat(b); err != nil {
			return nil, err.Error(), nil
		}
	}
	dir, err := os.MkdirTemp(e.dir, "etcd-")
	if err != nil {
		return nil, "", err
	}
	c = &etcdCluster{client: e.etcdClient}
	var initial, endpoints []string
	peers := make([]string, 3)
	for i := range peers {
		client, err := harness.FreeAddress()
		if err != nil {
			return nil, "", err
		}
		peer, err := harness.FreeAddress()
		if err != nil {
			return nil, "", err
		}
		name := fmt.Sprintf("etcd-%d", i+1)
		c.members = append(c.members, &harness.Process{Name: name, Address: client, Binary: e.etcd, LogPath: filepath.Join(dir, name+".log")})
		peers[i] = "http://" + peer
		initial, endpoints = append(initial, name+"="+peers[i]), append(endpoints, "http://"+client)
	}
	c.endpoints = strings.Join(endpoints, ",")
	for i, m := range c.members {
		m.Args = []string{
			"--name", m.Name, "--data-dir", filepath.Join(dir, m.Name), "--listen-client-urls", endpoints[i], "--advertise-client-urls", endpoints[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(initial, ","),
			"--log-level", "error",
		}
		if err := m.Start(); err != nil {
			c.stop()
			return nil, "", err
		}
	}
	// The client waits for a leader.
	if _, err := c.put(ctx, 1, 100*time.Millisecond); err != nil {
		c.stop()
		return nil, "", err
	}
	return c, "", nil
}

func (c *etcdCluster) stop() {
	if c == nil {
		return
	}
	for _, m := range c.members {
		_ = m.Kill()
	}
}

// putResult is what the client prints.
type putResult struct {
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Revision  uint64  `json:"revision"`
}

// put puts values from a number of clients to the leader for a while.
func (c *etcdCluster) put(ctx context.Context, clients int, d time.Duration) (putResult, error) {
	return c.ask(ctx, "put", "-clients", strconv.Itoa(clients), "-for", d.String())
}

func (c *etcdCluster) ask(ctx context.Context, args ...string) (putResult, error) {
	args = append(args, "-endpoints", c.endpoints)
	cmd := exec.CommandContext(ctx, c.client, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return putResult{}, fmt.Errorf("%s %s: %w", c.client, args[0], err)
	}
	var r putResult
	return r, json.Unmarshal(out, &r)
}

// watchEtcd is watchOurs for etcd; nil when it is not there.
func (e *env) watchEtcd(ctx context.Context, n int) (*fanOut, string, error) {
	c, why, err := e.startEtcd(ctx)
	if c == nil || err != nil {
		return nil, why, err
	}
	defer c.stop()
	before, err := resident(pids(c.members))
	if err != nil {
		return nil, "", err
	}
	w, err := startWatchers(ctx, n, c.client, "watch", "-endpoints", c.endpoints, "-streams")
	if err != nil {
		return nil, "", err
	}
	defer w.stop()
	e.log("%d streams of etcd are open", n)
	putter, err := startPutter(ctx, c)
	if err != nil {
		return nil, "", err
	}
	defer putter.stop()
	times, err := w.follow(ctx, func(int) (uint64, error) { return putter.put() })
	if err != nil {
		return nil, "", err
	}
	f, err := fanned(times, before, pids(c.members), n)
	return &f, "", err
}
