package chaos

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

func quietRun() *run {
	r := &run{ledger: harness.NewLedger(), began: time.Now()}
	r.Say = func(string, ...any) {}
	r.mu.performed = map[Kind]int{Kill: 2}
	return r
}

// TestVerdictFails: a record that was acknowledged and not delivered, one that nobody produced, or nothing at all, is no pass.
func TestVerdictFails(t *testing.T) {
	r := quietRun()
	if r.judge().Pass() {
		t.Error("a run without records passes")
	}
	id := r.ledger.Open("orders")
	r.ledger.Acknowledged(id, 0, 2, time.Millisecond)
	r.ledger.Delivered(harness.Value(make([]byte, 12), id, 0))
	v := r.judge()
	if v.Pass() || !strings.Contains(v.String(), "chaos: FAIL") || !strings.Contains(v.String(), "lost=1") {
		t.Errorf("a lost record: %s", v)
	}
	r.ledger.Delivered(harness.Value(make([]byte, 12), id, 1))
	if v := r.judge(); !v.Pass() || !strings.Contains(v.String(), "chaos: PASS") || !strings.Contains(v.String(), "faults=2 (kill:2)") {
		t.Errorf("all delivered: %s, %v", v, v.Violations)
	}
	r.ledger.Delivered(harness.Value(make([]byte, 12), id+7, 0))
	if r.judge().Pass() {
		t.Error("a record that nobody produced passes")
	}
}

// TestEndsAreJudged: a daemon that ends by itself is a violation, unless an operator has sent it away or its disk fails.
func TestEndsAreJudged(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		prepare func(*daemon)
		bad     bool
	}{
		"by itself":             {"exit 1", func(*daemon) {}, true},
		"without an error":      {"exit 0", func(*daemon) {}, true},
		"killed":                {"kill -9 $$", func(*daemon) {}, false},
		"disk":                  {"exit 1", func(d *daemon) { d.mayEndUntil = time.Now().Add(time.Minute) }, false},
		"sent away, and failed": {"exit 1", func(d *daemon) { d.leaving = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := quietRun()
			p := &harness.Process{Name: "x", Binary: "/bin/sh", Args: []string{"-c", tc.command}, LogPath: t.TempDir() + "/log"}
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			d := &daemon{Process: p}
			tc.prepare(d)
			r.mu.daemons = []*daemon{d}
			r.tend()
			if got := len(r.violations()) > 0; got != tc.bad {
				t.Errorf("a violation: %t (%v), want %t", got, r.violations(), tc.bad)
			}
			d.startAt = time.Now().Add(-time.Second)
			if r.tend(); !d.startAt.IsZero() {
				t.Error("it was not started again")
			}
			<-p.Done()
		})
	}
}

// TestLeaksAreSeen: this process's own usage is measured, and growth beyond chance is a leak.
func TestLeaksAreSeen(t *testing.T) {
	fresh := usage{goroutines: 60, files: 40}
	if (usage{goroutines: 150, files: 100}).beyond(fresh) {
		t.Error("some kept connections are a leak")
	}
	if !(usage{goroutines: 400, files: 40}).beyond(fresh) || !(usage{goroutines: 60, files: 400}).beyond(fresh) {
		t.Error("hundreds of goroutines, or files, are no leak")
	}
	if _, err := os.ReadDir("/proc/self/fd"); err != nil {
		t.Errorf("open files can't be counted: %v", err)
	}
}
