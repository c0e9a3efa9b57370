package handoff

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestScripts walks testdata/*.txt. Each line of an input is one event; the output is the phase that follows and
// the effects.
//
//	marked     the state of a marker that has just become durable
//	restored   the state of a marker that was found after a restart
//	step       one event per line: Name key=value …; "at=" sets the clock before it
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		var s State
		var now time.Duration
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "marked":
				s, now = New(), time.Second
				return s.Phase.String() + "\n"
			case "restored":
				s, now = Restored(), time.Second
				return s.Phase.String() + "\n"
			case "step":
				var out strings.Builder
				for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
					e, at := parseEvent(t, line)
					if at > 0 {
						now = at
					}
					before := s.Phase
					var effects []Effect
					s, effects = Step(s, Input{Now: now, Jitter: 1023, Event: e})
					fmt.Fprintf(&out, "%s: %s -> %s\n", Name(e), before, s.Phase)
					for _, x := range effects {
						fmt.Fprintf(&out, "  %s\n", show(x))
					}
				}
				return out.String()
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func show(e Effect) string {
	switch e := e.(type) {
	case Grant:
		return fmt.Sprintf("Grant{Incarnation:%d Nonce:%d…}", e.Incarnation, e.Nonce[0])
	case Answer:
		return fmt.Sprintf("Answer{Handoff:%d Nonce:%d… FrozenFor:%s}", e.Handoff, e.Nonce[0], e.FrozenFor)
	case Thaw:
		if e.Handoff == FenceHandoff {
			return "Thaw{fence}"
		}
	}
	return EffectName(e) + strings.TrimPrefix(fmt.Sprintf("%+v", e), "{}")
}

func parseEvent(t *testing.T, line string) (Event, time.Duration) {
	t.Helper()
	fields := strings.Fields(line)
	args := map[string]string{}
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, "=")
		args[k] = v
	}
	num := func(key string) (n uint64) {
		if v, ok := args[key]; ok {
			if _, err := fmt.Sscan(v, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		return n
	}
	var at time.Duration
	if v, ok := args["at"]; ok {
		var err error
		if at, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	views := map[string]View{"current": ViewCurrent, "granted": ViewGranted, "cancelled": ViewCancelled, "away": ViewAway}
	h := cluster.Handoff(num("handoff"))
	_, flipped := args["flipped"]
	events := map[string]Event{
		"Prepared": Prepared{Nonce: cluster.Nonce{byte(num("nonce"))}, Incarnation: cluster.Incarnation(num("inc")), TTL: 10 * time.Second},
		"Granted":  Granted{Handoff: h}, "GrantRefused": GrantRefused{Message: "refused"}, "Froze": Froze{Since: at},
		"Progressed": Progressed{Handoff: h, Step: num("step")}, "BytesRead": BytesRead{}, "Ticked": Ticked{},
		"Revoked": Revoked{Handoff: h}, "Ended": Ended{Flipped: flipped}, "Thawed": Thawed{}, "Hinted": Hinted{},
		"MovedAway": MovedAway{}, "Fence": Fence{}, "Registered": Registered{},
		"MoveRead": MoveRead{View: views[args["view"]], Handoff: h}, "Closed": Closed{}, "Unmarked": Unmarked{},
		"Failed": Failed{Message: "no luck"},
	}
	e, ok := events[fields[0]]
	if !ok {
		t.Fatalf("unknown event %s", fields[0])
	}
	return e, at
}

// TestTransitionsPage keeps testdata/transitions.md, the table as people read it, equal to the code's.
func TestTransitionsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| phase | result | next | why |\n|---|---|---|---|\n")
	for _, tr := range Transitions {
		var to []string
		for _, p := range tr.To {
			to = append(to, p.String())
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", tr.From, tr.Event, strings.Join(to, ", "), tr.Why)
	}
	const path = "testdata/transitions.md"
	if os.Getenv("REWRITE") != "" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != b.String() {
		t.Fatalf("%s is not the table (REWRITE=1 prints it): %v", path, err)
	}
}
