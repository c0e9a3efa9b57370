package chaos

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// usage is what a quiet daemon holds.
type usage struct{ goroutines, files int }

func (u usage) String() string { return fmt.Sprintf("%d goroutines, %d files", u.goroutines, u.files) }

// beyond reports whether a daemon holds more than one that was just started, by more than chance: connections that are
// kept for later, tables that are open.
func (u usage) beyond(fresh usage) bool {
	return u.goroutines > fresh.goroutines*2+100 || u.files > fresh.files*2+100
}

// leaks compares each daemon, after all it went through and without load, with itself just started.
func (r *run) leaks(ctx context.Context) {
	for _, d := range r.daemons(nil) {
		old, err := r.quiet(ctx, d)
		if err == nil {
			err = d.Stop(20 * time.Second)
		}
		if err == nil {
			err = d.Start()
		}
		if err == nil {
			err = r.cluster.WaitReady(ctx, d.Process)
		}
		if err != nil {
			r.violate("leaks of %s: %v", d.Name, err)
			continue
		}
		fresh, err := r.quiet(ctx, d)
		if err != nil {
			r.violate("leaks of %s: %v", d.Name, err)
			continue
		}
		r.sayf("%s held %s; just started it holds %s", d.Name, old, fresh)
		if old.beyond(fresh) {
			r.violate("%s leaks: it held %s, and just started it holds %s", d.Name, old, fresh)
		}
	}
}

// quiet is the least that a daemon holds for a moment, since what comes and goes is no leak.
func (r *run) quiet(ctx context.Context, d *daemon) (usage, error) {
	var least usage
	for i := range 20 {
		u, err := measure(d.Process)
		if err != nil {
			return least, err
		}
		if i == 0 {
			least = u
		}
		least = usage{goroutines: min(least.goroutines, u.goroutines), files: min(least.files, u.files)}
		select {
		case <-ctx.Done():
			return least, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return least, nil
}

func measure(p *harness.Process) (u usage, err error) {
	files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.PID()), "fd"))
	if err != nil {
		return u, err
	}
	u.files = len(files)
	resp, err := http.Get("http://" + p.Address + "/metrics")
	if err != nil {
		return u, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			u.goroutines, err = strconv.Atoi(n)
			return u, err
		}
	}
	return u, fmt.Errorf("%s has no metric go_goroutines", p.Name)
}
