package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// cpuTime is what all daemons of a cluster have used of the processors since they began.
func cpuTime(c *harness.Cluster) time.Duration {
	const hz = 100 // of /proc, on every Linux that Go runs on
	var ticks int64
	for _, p := range slices.Concat(c.Agents, c.Controllers) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			continue
		}
		// Fields 14 and 15, counted after the command's name, which may hold spaces.
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 {
			continue
		}
		for _, s := range f[11:13] {
			n, _ := strconv.ParseInt(s, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / hz
}

// profile takes CPU and allocation profiles of daemons until the returned function is called, if profiles are asked for.
func (e *env) profile(ctx context.Context, name string, ps ...*harness.Process) (stop func()) {
	if e.profiles == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				e.fetchProfile(ctx, fmt.Sprintf("%s-%s-%d.cpu", name, p.Name, i), p, "profile?seconds=5")
			}
			e.fetchProfile(context.WithoutCancel(ctx), fmt.Sprintf("%s-%s.allocs", name, p.Name), p, "allocs")
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (e *env) fetchProfile(ctx context.Context, file string, p *harness.Process, what string) {
	if err := fetch(ctx, filepath.Join(e.profiles, file), "http://"+p.Debug+"/debug/pprof/"+what); err != nil && ctx.Err() == nil {
		e.log("profile of %s: %v", p.Name, err)
		pause(ctx, time.Second)
	}
}

func fetch(ctx context.Context, path, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}
