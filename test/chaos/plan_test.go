package chaos

import (
	"slices"
	"testing"
	"time"
)

func everything(Kind) bool { return true }

// TestPlanIsOfItsSeed: the same seed makes the same faults, another one others; all kinds come, none outlasts the run.
func TestPlanIsOfItsSeed(t *testing.T) {
	const d = 20 * time.Minute
	a := Plan(7, d, everything)
	if !slices.Equal(a, Plan(7, d, everything)) {
		t.Error("one seed made two plans")
	}
	if slices.Equal(a, Plan(8, d, everything)) {
		t.Error("two seeds made one plan")
	}
	seen := map[Kind]int{}
	for _, s := range a {
		seen[s.Kind]++
		if s.At+s.For > d {
			t.Errorf("%v outlasts the run", s)
		}
	}
	for _, k := range Kinds() {
		if seen[k] == 0 {
			t.Errorf("in %s no %s came", d, k)
		}
	}
}

// TestPlanOfOneKind: what a machine can't do, and what is not asked for, does not come.
func TestPlanOfOneKind(t *testing.T) {
	only, err := Only([]string{"kill", "pause"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Plan(1, time.Minute, only) {
		if s.Kind != Kill && s.Kind != Pause {
			t.Errorf("%v came", s)
		}
	}
	if _, err := Only([]string{"quake"}); err == nil {
		t.Error("a kind that does not exist was taken")
	}
}
