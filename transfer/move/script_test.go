package move

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestScripts walks testdata/*.txt. Each line of an input is one event; the output is the whole decision: the
// phase that follows, the effects, and why when there is a why.
//
//	settings key=value …     changes the live settings for what follows
//	new                      a fresh state of move 7 of partition 3/0 from source a
//	restart                  the process dies: the state is what was journaled last, and time begins anew
//	step                     one event per line: Name key=value …; "at=" sets the clock before it
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		w := &world{set: cluster.DefaultSettings()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "settings":
				for _, a := range d.CmdArgs {
					w.setting(t, a.Key, a.Vals[0])
				}
				return ""
			case "new":
				w.s, w.now = New(cluster.PartitionID{Topic: 3}, 7, "a"), time.Second
				return w.show(nil)
			case "restart":
				return w.restart(t)
			case "step":
				var out strings.Builder
				for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
					out.WriteString(w.step(t, line))
				}
				return out.String()
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

type world struct {
	s     State
	saved []byte
	now   time.Duration
	set   cluster.Settings
}

func (w *world) setting(t *testing.T, key, value string) {
	t.Helper()
	var err error
	switch key {
	case "max_passes":
		_, err = fmt.Sscan(value, &w.set.MaxPasses)
	case "stall_passes":
		_, err = fmt.Sscan(value, &w.set.StallPasses)
	case "force_promote_after":
		w.set.ForcePromoteAfter, err = time.ParseDuration(value)
	default:
		t.Fatalf("unknown setting %s", key)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) restart(t *testing.T) string {
	t.Helper()
	w.now = time.Second
	if w.saved == nil {
		w.s = New(cluster.PartitionID{Topic: 3}, 7, "a")
		return "nothing was journaled\n" + w.show(nil)
	}
	s, err := Decode(w.saved)
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	return w.show(nil)
}

func (w *world) step(t *testing.T, line string) string {
	t.Helper()
	name, args := parseLine(t, line)
	if at, ok := args["at"]; ok {
		d, err := time.ParseDuration(at)
		if err != nil {
			t.Fatal(err)
		}
		w.now = d
	}
	before := w.s.Phase
	var effects []Effect
	w.s, effects = Step(w.s, Input{Now: w.now, Jitter: 1023, Settings: w.set, Event: makeEvent(t, name, args)})
	for _, e := range effects {
		if _, ok := e.(Save); ok {
			b, err := w.s.Encode()
			if err != nil {
				t.Fatal(err)
			}
			w.saved = b
		}
	}
	return fmt.Sprintf("%s: %s -> %s", name, before, w.show(effects))
}

// show prints the phase, the effects, and what operators see.
func (w *world) show(effects []Effect) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", w.s.Phase)
	if !w.s.InFlight && w.s.Phase != Done && w.s.RetryAt > 0 {
		fmt.Fprintf(&b, " until %s", w.s.RetryAt)
	}
	for _, e := range effects {
		text := strings.TrimPrefix(fmt.Sprintf("%+v", e), "{}")
		if _, ok := e.(Report); ok {
			r := e.(Report)
			text = fmt.Sprintf("{Epoch:%d Freeze:%s Passes:%d Attempts:%d Converged:%t}", r.Epoch, r.Stats.Freeze,
				r.Stats.Passes, r.Stats.Attempts, r.Stats.Converged)
		}
		if c, ok := e.(CompleteMove); ok {
			text = fmt.Sprintf("{Handoff:%d Nonce:%x…}", c.Handoff, c.Nonce[:2])
		}
		fmt.Fprintf(&b, "\n  %s%s", EffectName(e), text)
	}
	if w.s.NonConverged {
		b.WriteString("\n  (non-converged)")
	}
	if w.s.LastError != "" {
		fmt.Fprintf(&b, "\n  (%s: %s)", w.s.Shown(), w.s.LastError)
	}
	b.WriteString("\n")
	return b.String()
}

func parseLine(t *testing.T, line string) (string, map[string]string) {
	t.Helper()
	fields := strings.Fields(line)
	if len(fields) == 0 {
		t.Fatal("empty line")
	}
	args := map[string]string{}
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, "=")
		args[k] = v
	}
	return fields[0], args
}

type arguments struct {
	t    *testing.T
	args map[string]string
}

func (a arguments) num(key string) (n uint64) {
	if v, ok := a.args[key]; ok {
		if _, err := fmt.Sscan(v, &n); err != nil {
			a.t.Fatalf("%s=%s: %v", key, v, err)
		}
	}
	return n
}

func (a arguments) dur(key string) (d time.Duration) {
	if v, ok := a.args[key]; ok {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			a.t.Fatal(err)
		}
	}
	return d
}

func (a arguments) has(key string) bool { _, ok := a.args[key]; return ok }

// makeEvent makes an event from its name; flags are keys without a value, and an unnamed field is zero.
func makeEvent(t *testing.T, name string, args map[string]string) Event {
	t.Helper()
	a := arguments{t, args}
	measured := Measured{
		Total: cluster.Bytes(a.num("total")), Missing: cluster.Bytes(a.num("missing")),
		Unconfirmed: int(a.num("unconfirmed")), HWM: cluster.Offset(a.num("hwm")), Meta: []byte("meta"),
	}
	switch name {
	case "Started":
		return Started{Installed: a.has("installed"), Confirmed: a.has("confirmed"), Handoff: cluster.Handoff(a.num("handoff"))}
	case "Ticked":
		return Ticked{}
	case "PromoteAsked":
		return PromoteAsked{AcceptLoss: a.has("accept_loss")}
	case "SourceSeen":
		return SourceSeen{Dead: a.has("dead"), Incarnation: cluster.Incarnation(a.num("inc")), HWM: cluster.Offset(a.num("hwm"))}
	case "Hinted":
		return Hinted{}
	case "Retried":
		return Retried{}
	case "Begun":
		return Begun{Incarnation: cluster.Incarnation(a.num("inc")), Measured: measured}
	case "Measured":
		return measured
	case "Copied":
		return Copied{Bytes: cluster.Bytes(a.num("bytes")), Elapsed: a.dur("elapsed")}
	case "FreezeGranted":
		return FreezeGranted{
			Incarnation: cluster.Incarnation(a.num("inc")), Handoff: cluster.Handoff(a.num("handoff")),
			Nonce: cluster.Nonce{byte(a.num("nonce")), 1}, HWM: cluster.Offset(a.num("hwm")), FrozenFor: a.dur("frozen"),
		}
	case "Drained":
		return Drained{Read: cluster.Bytes(a.num("read"))}
	case "Verified":
		return Verified{Read: cluster.Bytes(a.num("read"))}
	case "Installed":
		return Installed{}
	case "FlipAnswered":
		return FlipAnswered{Epoch: cluster.Epoch(a.num("epoch")), Forced: a.has("forced")}
	case "FlipRefused":
		return FlipRefused{Message: "refused", Ended: a.has("ended")}
	case "OutcomeUnknown":
		return OutcomeUnknown{Message: "timed out"}
	case "Revoked":
		return Revoked{Ended: a.has("ended")}
	case "RolledBack":
		return RolledBack{}
	case "Promotable":
		return Promotable{LEO: cluster.Offset(a.num("leo"))}
	case "Confirmed":
		return Confirmed{}
	case "Opened":
		return Opened{}
	case "Reported":
		return Reported{}
	case "MoveRead":
		return MoveRead{
			Current: a.has("current"), Mine: a.has("mine"), Epoch: cluster.Epoch(a.num("epoch")),
			Forced: a.has("forced"), OwnerDead: a.has("owner_dead"),
		}
	case "Dropped":
		return Dropped{}
	case "Failed":
		return Failed{Message: "no luck", Blocked: a.has("blocked"), Hint: a.has("hint")}
	}
	t.Fatalf("unknown event %s", name)
	return nil
}

// TestTransitionsPage keeps testdata/transitions.md, the table as people read it, equal to the code's.
func TestTransitionsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| phase | event | next | why |\n|---|---|---|---|\n")
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

func FuzzDecode(f *testing.F) {
	s := New(cluster.PartitionID{Topic: 3, Index: 1}, 7, "a")
	s.Meta, s.Nonce, s.Handoff = []byte("m"), cluster.Nonce{1, 2}, 4
	b, err := s.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{FormatVersion, '{', '}'})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			if cluster.ReasonOf(err) != cluster.ReasonCorrupt {
				t.Fatalf("decode %q: %v, want CORRUPT", b, err)
			}
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		s2, err := Decode(again)
		if err != nil {
			t.Fatalf("decode what was encoded from %q: %v", b, err)
		}
		third, err := s2.Encode()
		if err != nil || string(third) != string(again) {
			t.Fatalf("encoding is not stable: %q, %q, %v", again, third, err)
		}
		Step(s, Input{Settings: cluster.DefaultSettings(), Event: Started{Installed: true, Handoff: 1}})
	})
}
