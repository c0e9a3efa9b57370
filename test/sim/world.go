package sim

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/test/watchcheck"
)

// World is one simulated cluster: the heap of events, the clock that all clocks derive from, chance, and the
// hosts. Everything runs in the goroutine that calls Run, one event at a time.
type World struct {
	Seed   uint64
	opts   Options
	rng    *rand.Rand
	now    time.Duration
	events eventHeap
	order  uint64
	count  uint64

	net   *network
	ctls  []*controller
	nodes []*node
	ops   *operator
	truth *truth
	book  *ledger
	// watches has what every node's watch showed.
	watches *watchcheck.Log
	// calm says that the faults have ended.
	calm bool

	trace traceRing
	bad   *Violation
}

// Violation is the first thing that went wrong.
type Violation struct {
	Invariant string
	Text      string
	At        time.Duration
}

// Error implements error.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s violated at %s: %s", v.Invariant, v.At, v.Text)
}

type event struct {
	at    time.Duration
	order uint64
	fn    func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// after runs fn once d has passed on the world's clock.
func (w *World) after(d time.Duration, fn func()) {
	w.order++
	heap.Push(&w.events, event{w.now + max(d, 0), w.order, fn})
}

// step runs the next event and the checks that hold after every one.
func (w *World) step() bool {
	if len(w.events) == 0 || w.bad != nil {
		return false
	}
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	w.count++
	e.fn()
	return w.bad == nil
}

func (w *World) runUntil(end time.Duration, done func() bool) bool {
	for len(w.events) > 0 && w.events[0].at <= end {
		if !w.step() {
			return false
		}
		if done != nil && done() {
			return true
		}
	}
	if w.bad == nil {
		w.now = max(w.now, end)
	}
	return done == nil && w.bad == nil
}

// violated records the first violation; the run ends with it.
func (w *World) violated(invariant, format string, args ...any) {
	if w.bad == nil {
		w.bad = &Violation{invariant, fmt.Sprintf(format, args...), w.now}
		w.log("VIOLATION %s: %s", invariant, w.bad.Text)
	}
}

// chance is true in n of 100 cases, and never once the faults have ended.
func (w *World) chance(n int) bool { return !w.calm && w.rng.IntN(100) < n }

// permille is chance in 1000 cases.
func (w *World) permille(n int) bool { return !w.calm && w.rng.IntN(1000) < n }

func (w *World) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

func pick[T any](w *World, list []T) T { return list[w.rng.IntN(len(list))] }

// traceRing keeps the last lines and a hash of all.
type traceRing struct {
	lines []string
	at    int
	hash  xxh3.Hasher
}

const traceLines = 400

func (w *World) log(format string, args ...any) {
	line := fmt.Sprintf("%10.4f %s", w.now.Seconds(), fmt.Sprintf(format, args...))
	t := &w.trace
	_, _ = t.hash.WriteString(line)
	if w.opts.Trace != nil {
		_, _ = fmt.Fprintln(w.opts.Trace, line)
	}
	if len(t.lines) < traceLines {
		t.lines = append(t.lines, line)
		return
	}
	t.lines[t.at] = line
	t.at = (t.at + 1) % traceLines
}

// Tail returns the last lines of the trace, oldest first.
func (w *World) Tail() []string {
	return append(slices.Clone(w.trace.lines[w.trace.at:]), w.trace.lines[:w.trace.at]...)
}

// clock is a host's monotonic clock: it has an offset of its own and drifts.
type clock struct {
	w      *World
	offset time.Duration
	// drift is in millionths.
	drift int64
}

func (c clock) now() time.Duration {
	return c.offset + c.w.now + time.Duration(int64(c.w.now)/1_000_000*c.drift)
}

// until is how long on the world's clock the host's clock takes to reach at.
func (c clock) until(at time.Duration) time.Duration {
	d := at - c.now()
	return d - time.Duration(int64(d)/1_000_000*c.drift)
}

func (w *World) newClock() clock {
	return clock{w, w.between(time.Second, time.Hour), w.rng.Int64N(2001) - 1000}
}

// digest is a revision's content, as text.
func digest(rc cluster.RevisionChanges) string {
	var out strings.Builder
	for _, c := range rc.Changes {
		switch {
		case c.Node != nil:
			fmt.Fprintf(&out, "node %+v;", *c.Node)
		case c.Assignment != nil:
			fmt.Fprintf(&out, "assignment %+v;", *c.Assignment)
		case c.Outcome != nil:
			fmt.Fprintf(&out, "outcome %+v;", *c.Outcome)
		case c.Topic != nil:
			fmt.Fprintf(&out, "topic %+v;", *c.Topic)
		case c.Settings != nil:
			fmt.Fprintf(&out, "settings %+v;", *c.Settings)
		case c.Controller != nil:
			fmt.Fprintf(&out, "controller %+v;", *c.Controller)
		default:
			fmt.Fprintf(&out, "%+v %+v %d %s %s;", c.AssignmentRemoved, c.OutcomeRemoved, c.TopicRemoved, c.NodeRemoved, c.ControllerRemoved)
		}
	}
	return fmt.Sprintf("%x", xxh3.HashString128(out.String()).Bytes())
}

// topics lists the topics that exist, by id.
func (w *World) topics() []cluster.Topic {
	var out []cluster.Topic
	for _, id := range sortedKeys(w.truth.view.Topics, cmp.Compare[cluster.TopicID]) {
		out = append(out, w.truth.view.Topics[id])
	}
	return out
}

func (w *World) partitions() []cluster.PartitionID {
	return sortedKeys(w.truth.view.Assignments, cluster.PartitionID.Compare)
}

func sortedKeys[K interface{ comparable }, V any](m map[K]V, cmp func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cmp)
	return keys
}

// pm names a move of a partition.
type pm struct {
	p cluster.PartitionID
	m cluster.MoveID
}

func comparePM(a, b pm) int {
	if c := a.p.Compare(b.p); c != 0 {
		return c
	}
	return int(a.m) - int(b.m)
}
