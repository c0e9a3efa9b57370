package chaos

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// afterTrouble is how long after a failing disk a daemon may end because of it.
const afterTrouble = 10 * time.Second

// restartAfter is how long a daemon that has ended stays down, as a service manager does it.
const restartAfter = 300 * time.Millisecond

// tend starts daemons that have ended, as a service manager does, and judges why they ended. Whoever was killed, here or
// at a fault point, is started again. Whoever an operator has sent away is let go. Whoever's disk fails may end. All else
// is a violation.
func (r *run) tend() {
	for _, d := range r.daemons(func(d *daemon) bool { return d.held == 0 }) {
		if !d.Running() {
			r.ended(d)
		}
	}
}

func (r *run) ended(d *daemon) {
	r.mu.Lock()
	leaving, excused, at := d.leaving, time.Now().Before(d.mayEndUntil), d.startAt
	if at.IsZero() {
		d.startAt = time.Now().Add(restartAfter)
	}
	r.mu.Unlock()
	err := d.Err()
	switch {
	case !at.IsZero() && time.Now().Before(at):
		return
	case !at.IsZero():
		r.mu.Lock()
		d.startAt = time.Time{}
		r.mu.Unlock()
		if err := d.Start(); err != nil {
			r.violate("start %s: %v", d.Name, err)
		}
	case err == nil && leaving:
		r.sayf("%s has left", d.Name)
		r.retire(d)
	case killed(err):
	case excused:
		r.sayf("%s ended with its disk failing: %v", d.Name, err)
	default:
		r.violate("%s ended by itself: %v\n%s", d.Name, err, d.LogTail(3000))
	}
}

func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	st, ok := exit.Sys().(syscall.WaitStatus)
	return ok && st.Signaled() && st.Signal() == syscall.SIGKILL
}
