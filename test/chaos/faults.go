package chaos

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/test/fabric"
	"github.com/naradctl/naradctl-plane/test/faultfs"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// processFault kills, stops, or deceives a daemon.
func (r *run) processFault(s Step) (string, func()) {
	if s.Kind == KillAll {
		role, want := "controllers", isController
		if s.Choice%2 == 1 {
			role, want = "agents", isAgent
		}
		var undos []func()
		for _, d := range r.daemons(func(d *daemon) bool { return d.held == 0 && want(d) }) {
			undos = append(undos, r.kill(d))
		}
		return fmt.Sprintf("all %s, for %s", role, seconds(s.For)), func() { runAll(undos) }
	}
	d := r.pick(s.Target, nil)
	if d == nil {
		return "", nil
	}
	switch s.Kind {
	case Kill:
		return fmt.Sprintf("%s, for %s", d.Name, seconds(s.For)), r.kill(d)
	case Pause:
		if d.Signal(syscall.SIGSTOP) != nil {
			return "", nil
		}
		return fmt.Sprintf("%s, for %s", d.Name, seconds(s.For)), func() { _ = d.Signal(syscall.SIGCONT) }
	case Point:
		return r.point(d, s)
	}
	step := time.Hour
	if s.Choice%2 == 1 {
		step = -time.Hour
	}
	if setClock(d, step) != nil {
		return "", nil
	}
	// What it says of the time shows that the fault is one.
	if off, err := clockOff(d); err == nil && (off-step).Abs() > time.Minute {
		r.violate("the clock of %s was set by %s and is off by %s", d.Name, step, off)
	}
	return fmt.Sprintf("of %s by %s, back after %s", d.Name, step, seconds(s.For)), func() { _ = setClock(d, 0) }
}

func runAll(fns []func()) {
	for _, fn := range fns {
		fn()
	}
}

// kill ends a daemon; it is started again by the undoing.
func (r *run) kill(d *daemon) func() {
	r.mu.Lock()
	d.held++
	r.mu.Unlock()
	if err := d.Kill(); err != nil {
		r.violate("kill %s: %v", d.Name, err)
	}
	return func() {
		r.mu.Lock()
		d.held--
		r.mu.Unlock() // the next look at it starts it
	}
}

// point arms a death at a named point, at any daemon that comes there. What did not strike is disarmed.
func (r *run) point(d *daemon, s Step) (string, func()) {
	points := faults.Points()
	point := points[s.Choice%len(points)]
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if harness.ArmFault(ctx, d.Process, harness.Arm{Point: point, Action: "kill"}) != nil {
		return "", nil
	}
	return fmt.Sprintf("%s of %s, within %s", point, d.Name, seconds(s.For)), func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = harness.DisarmFaults(ctx, d.Process) // it may have struck
	}
}

func setClock(d *daemon, by time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return harness.SetClock(ctx, d.Process, by)
}

// clockOff is by how much a daemon's wall clock differs from this process's.
func clockOff(d *daemon) (time.Duration, error) {
	resp, err := quick.Get("http://" + d.Address + "/healthz")
	if err != nil {
		return 0, err
	}
	if err := resp.Body.Close(); err != nil {
		return 0, err
	}
	at, err := http.ParseTime(resp.Header.Get("Date"))
	return time.Until(at), err
}

var quick = &http.Client{Timeout: time.Second}

// linkFault worsens the links of one host, or one link.
func (r *run) linkFault(s Step) (string, func()) {
	all := r.daemons(nil)
	if len(all) < 2 {
		return "", nil
	}
	a, b := all[s.Target%len(all)].Name, all[s.Other%len(all)].Name
	if a == b {
		b = fabric.Clients
	}
	set := func(from, to string, rule fabric.Rule) func() {
		r.Network.Set(from, to, rule)
		return func() { r.Network.Set(from, to, fabric.Rule{}) }
	}
	both := func(rule fabric.Rule) func() {
		out, in := set(a, fabric.Any, rule), set(fabric.Any, a, rule)
		return func() { out(); in() }
	}
	cut := fabric.Rule{Cut: true}
	switch s.Kind {
	case Split:
		return fmt.Sprintf("%s to %s, for %s", a, b, seconds(s.For)), set(a, b, cut)
	case Isolate:
		return fmt.Sprintf("%s, for %s", a, seconds(s.For)), both(cut)
	case Deaf:
		return fmt.Sprintf("%s, for %s", a, seconds(s.For)), set(fabric.Any, a, cut)
	case Mute:
		return fmt.Sprintf("%s, for %s", a, seconds(s.For)), set(a, fabric.Any, cut)
	case Loss:
		rule := fabric.Rule{Loss: 0.02 + 0.3*s.Amount, Duplicate: 0.1 * s.Amount}
		return fmt.Sprintf("%.0f%% of %s, for %s", rule.Loss*100, a, seconds(s.For)), both(rule)
	case Delay:
		rule := fabric.Rule{Delay: time.Duration(s.Amount * float64(150*time.Millisecond)), Jitter: time.Duration((1 - s.Amount) * float64(150*time.Millisecond))}
		return fmt.Sprintf("%s and up to %s more at %s, for %s", rule.Delay.Round(time.Millisecond), rule.Jitter.Round(time.Millisecond), a, seconds(s.For)), both(rule)
	}
	bytes := 64<<10 + int(s.Amount*float64(1<<20))
	r.Network.Rate(a, bytes)
	return fmt.Sprintf("%s to %d KiB/s, for %s", a, bytes>>10, seconds(s.For)), func() { r.Network.Rate(a, 0) }
}

// diskFault worsens a daemon's disk.
func (r *run) diskFault(s Step) (string, func()) {
	d := r.pick(s.Target, func(d *daemon) bool { return d.disk != nil })
	if d == nil {
		return "", nil
	}
	trouble := func(lasts time.Duration) {
		r.mu.Lock()
		d.mayEndUntil = time.Now().Add(lasts + afterTrouble)
		r.mu.Unlock()
	}
	var f faultfs.Faults
	text := ""
	switch s.Kind {
	case DiskFull:
		f.Full = true
		trouble(s.For)
	case SyncFails:
		f.SyncFails = true
		trouble(s.For)
	default:
		f.SyncDelay = 20*time.Millisecond + time.Duration(s.Amount*float64(time.Second))
		text = fmt.Sprintf(" by %s", f.SyncDelay.Round(time.Millisecond))
	}
	d.disk.Set(f)
	return fmt.Sprintf("of %s%s, for %s", d.Name, text, seconds(s.For)), func() { d.disk.Set(faultfs.Faults{}) }
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
