package sim

import (
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/test/watchcheck"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
)

// Options of a run. The zero value is usable.
type Options struct {
	// Faults is how long faults go on; zero draws it from the seed.
	Faults time.Duration
	// Bound is how long convergence may take after them; zero is three minutes.
	Bound time.Duration
	// Trace receives every line of the trace; nil keeps the last ones alone.
	Trace io.Writer

	segment cluster.Bytes
	pace    time.Duration
	reroute time.Duration
}

// Result is what a run did.
type Result struct {
	Seed      uint64
	Hash      string
	Events    uint64
	Virtual   time.Duration
	Acked     int
	Flips     int
	Forced    int
	Violation *Violation
	Tail      []string
}

// Run simulates one cluster from a seed. The caller has made crypto/rand deterministic with the same seed:
// raft draws its election time-outs from it.
func Run(seed uint64, opts Options) Result {
	w := &World{Seed: seed, opts: opts, rng: rand.New(rand.NewPCG(seed, 0x6e61726164))}
	w.trace.hash.Reset()
	w.opts.segment = cluster.Bytes(500 + w.rng.IntN(4000))
	w.opts.pace = w.between(20*time.Millisecond, 200*time.Millisecond)
	w.opts.reroute = w.between(5*time.Millisecond, 2*time.Second)
	if w.opts.Faults == 0 {
		w.opts.Faults = w.between(20*time.Second, 60*time.Second)
	}
	if w.opts.Bound == 0 {
		w.opts.Bound = 3 * time.Minute
	}
	w.watches = &watchcheck.Log{}
	w.net, w.truth, w.book = newNetwork(w), newTruth(w), newLedger(w)
	w.ops = w.newOperator()
	for i := range 3 + w.rng.IntN(2) {
		w.addNode(cluster.NodeID(fmt.Sprintf("n%d", i+1)))
	}
	w.run()
	for _, c := range w.ctls {
		if c.up() {
			c.life.end()
			_ = c.machine.Close()
		}
	}
	for _, n := range w.nodes {
		if n.up() {
			n.life.end()
			n.shut()
		}
	}
	w.ops.at.life.end()
	sum := w.trace.hash.Sum128().Bytes()
	return Result{
		Seed: seed, Hash: hex.EncodeToString(sum[:]), Events: w.count, Virtual: w.now, Acked: len(w.book.acked),
		Flips: w.truth.flips, Forced: w.truth.forced, Violation: w.bad, Tail: w.Tail(),
	}
}

func (w *World) run() {
	if err := w.bootControllers(); err != nil {
		w.violated("I1", "boot: %v", err)
		return
	}
	for _, n := range w.nodes {
		n.boot()
	}
	w.ops.at.life.spawn(w.ops.begin)
	for i := range 2 {
		w.ops.at.life.spawn(w.producer(host(fmt.Sprintf("p%d", i))))
	}
	for i := range 2 {
		w.ops.at.life.spawn(w.consumer(host(fmt.Sprintf("k%d", i))))
	}
	if !w.runUntil(15*time.Second, func() bool { return w.ops.faults }) && w.bad == nil {
		w.violated("liveness", "the cluster does not come up")
	}
	w.runUntil(w.now+w.opts.Faults, nil)
	if w.bad != nil {
		return
	}
	w.ops.mend()
	if !w.runUntil(w.now+w.opts.Bound, w.converged) && w.bad == nil {
		why := w.unsettled()
		w.describe()
		w.violated("liveness", "no convergence within %s: %s", w.opts.Bound, why)
	}
	w.alike()
	for _, v := range w.watches.Check() {
		w.violated("watch", "%s", v)
	}
}

func (w *World) converged() bool { return w.count%64 == 0 && w.unsettled() == "" }

// unsettled says what has not come to rest; empty when all has.
func (w *World) unsettled() string {
	var index uint64
	for _, c := range w.members() {
		if !c.up() {
			return string(c.host) + " is down"
		}
		if index = max(index, c.machine.AppliedIndex()); c.machine.AppliedIndex() < index {
			return string(c.host) + " is behind"
		}
	}
	for _, p := range w.partitions() {
		a := w.truth.view.Assignments[p]
		n := w.node(a.Owner)
		if n.lost {
			continue
		}
		if a.Moving() && !w.lost(a.Target) {
			return fmt.Sprintf("%s: move %d from %s to %s is current", p, a.MoveID, a.Owner, a.Target)
		}
		l, err := n.store.Log(p)
		if err != nil || !a.Opened {
			return fmt.Sprintf("%s: %s does not serve it (opened %t)", p, n.id, a.Opened)
		}
		if f := l.Frozen(); f != nil {
			return fmt.Sprintf("%s: %s is frozen for %+v", p, n.id, *f)
		}
		if off, _ := l.CommittedOffset(group); off != l.HWM() {
			return fmt.Sprintf("%s: committed is %d, HWM %d", p, off, l.HWM())
		}
	}
	for _, n := range w.nodes {
		for _, p := range sortedKeys(n.runs, cluster.PartitionID.Compare) {
			if r := n.runs[p]; n.up() && !w.lost(w.truth.owner(p)) {
				return fmt.Sprintf("%s: %s works on move %d, %s: %s", p, n.id, r.move, r.st.Phase, r.st.LastError)
			}
		}
		for _, k := range sortedKeys(n.outs, comparePM) {
			o := n.outs[k]
			a, exists := w.truth.view.Assignments[k.p]
			if !exists && n.up() {
				return fmt.Sprintf("C38: %s has a marker of move %d of %s, whose topic is deleted", n.id, k.m, k.p)
			}
			if n.up() && o.st.Phase == handoff.Flipped && !w.lost(a.Owner) {
				return fmt.Sprintf("%s: %s keeps its copy after move %d", k.p, n.id, k.m)
			}
		}
	}
	if why := w.leftovers(); why != "" {
		return why
	}
	if missing := w.book.missing(); len(missing) > 0 {
		return fmt.Sprintf("I2: %d of %d acknowledged records were not delivered: %v", len(missing), len(w.book.acked), missing[:min(len(missing), 5)])
	}
	return ""
}

// lost says that a node is gone with its disk.
func (w *World) lost(id cluster.NodeID) bool {
	n := w.node(id)
	return n != nil && n.lost
}

// leftovers names what should have gone: copies of deleted topics, records in queues that can be delivered.
func (w *World) leftovers() string {
	lost := slices.ContainsFunc(w.nodes, func(n *node) bool { return n.lost })
	for _, n := range w.nodes {
		if !n.up() {
			continue
		}
		copies, _ := n.store.Copies()
		for _, c := range copies {
			if _, ok := w.truth.view.Topics[c.Partition.Topic]; !ok {
				return fmt.Sprintf("C38: %s keeps its %s copy %d of %s, whose topic is deleted", n.id, c.Place, c.Identity, c.Partition)
			}
		}
		if records, _ := n.plane.Depth(); records > 0 && !lost {
			return fmt.Sprintf("%s has %d records in its queue", n.id, records)
		}
	}
	return ""
}

// describe puts into the trace where everything stands.
func (w *World) describe() {
	for _, id := range w.book.missing() {
		w.log("missing: %s", w.book.whereabouts(id))
	}
	for _, p := range w.partitions() {
		w.log("%s: %+v", p, w.truth.view.Assignments[p])
	}
	for _, n := range w.nodes {
		if n.lost || !n.up() {
			w.log("%s is down, lost %t", n.id, n.lost)
			continue
		}
		w.log("%s: incarnation %d, registered %t, view at revision %d of %d", n.id, n.inc, n.registered, n.view.Revision, w.truth.view.Revision)
		copies, _ := n.store.Copies()
		for _, c := range copies {
			w.log("  %+v", c)
		}
		for _, k := range sortedKeys(n.outs, comparePM) {
			w.log("  out %v %s in flight %t identity %d", k, n.outs[k].st.Phase, n.outs[k].st.InFlight, n.outs[k].mark.Identity)
		}
		for _, p := range sortedKeys(n.runs, cluster.PartitionID.Compare) {
			w.log("  in %s move %d %s in flight %t: %s", p, n.runs[p].move, n.runs[p].st.Phase, n.runs[p].st.InFlight, n.runs[p].st.LastError)
		}
	}
}

// alike wants equal states at equal revisions.
func (w *World) alike() {
	hashes := map[cluster.Revision]string{}
	for _, c := range w.members() {
		if !c.up() || w.bad != nil {
			continue
		}
		h, rev, err := c.machine.StateHash()
		if err != nil {
			w.violated("C50", "%s: %v", c.host, err)
		}
		if old, ok := hashes[rev]; ok && old != h {
			w.violated("C50", "%s differs from another member at revision %d", c.host, rev)
		}
		hashes[rev] = h
	}
}
