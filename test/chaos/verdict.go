package chaos

import (
	"fmt"
	"strings"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// Verdict is how a run ended.
type Verdict struct {
	Seed uint64
	// Faults counts what was performed, by kind.
	Faults     map[Kind]int
	Tally      harness.Tally
	Violations []string
}

func (r *run) judge() *Verdict {
	v := &Verdict{Seed: r.Seed, Tally: r.ledger.Tally(), Violations: r.violations()}
	r.mu.Lock()
	v.Faults = r.mu.performed
	r.mu.Unlock()
	if r.owners != nil {
		for _, s := range r.owners.Violations() {
			v.Violations = append(v.Violations, "two owners, or a broken watch: "+s)
		}
	}
	if v.Tally.Lost > 0 {
		v.Violations = append(v.Violations, fmt.Sprintf("%d acknowledged records were not delivered: %s", v.Tally.Lost, strings.Join(v.Tally.FirstLost, ", ")))
	}
	if v.Tally.Unknown > 0 {
		v.Violations = append(v.Violations, fmt.Sprintf("%d records were delivered that nobody produced", v.Tally.Unknown))
	}
	if v.Tally.Acknowledged == 0 {
		v.Violations = append(v.Violations, "nothing was acknowledged: the run showed nothing")
	}
	return v
}

// Pass reports whether nothing was violated.
func (v *Verdict) Pass() bool { return len(v.Violations) == 0 }

// String is the last line of a run.
func (v *Verdict) String() string {
	word, total := "PASS", 0
	if !v.Pass() {
		word = "FAIL"
	}
	var each []string
	for _, k := range Kinds() {
		if n := v.Faults[k]; n > 0 {
			total += n
			each = append(each, fmt.Sprintf("%s:%d", k, n))
		}
	}
	t := v.Tally
	return fmt.Sprintf("chaos: %s seed=%d faults=%d (%s) acknowledged=%d delivered=%d lost=%d duplicates=%d refused=%d violations=%d",
		word, v.Seed, total, strings.Join(each, " "), t.Acknowledged, t.Delivered, t.Lost, t.Duplicates, len(t.ProduceFailed), len(v.Violations))
}
