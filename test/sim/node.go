package sim

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const (
	callTimeout    = 1500 * time.Millisecond
	heartbeatEvery = 400 * time.Millisecond
)

// node is one data node: the real store on a file system that can crash, and deterministic shells around the
// real step functions.
type node struct {
	w       *World
	id      cluster.NodeID
	host    host
	clk     clock
	mem     *vfs.MemFS
	fs      *faultyFS
	journal *journal
	store   *partitionlog.Store
	life    *life
	// lost says that host and disk are gone for ever.
	lost   bool
	leader int

	inc        cluster.Incarnation
	registered bool
	lease      time.Duration

	view    *nodeagent.View
	synced  bool
	resumed bool
	cache   map[cluster.PartitionID]cluster.Assignment

	outs      map[pm]*outbound
	seenEpoch map[cluster.PartitionID]cluster.Epoch
	runs      map[cluster.PartitionID]*run
	next      map[cluster.PartitionID]cluster.Assignment
	journaled map[cluster.PartitionID][]journaledMove
	epochs    map[cluster.PartitionID]cluster.Epoch
	confirmed map[pm]time.Duration
}

func (n *node) up() bool { return n.life != nil && n.life.alive }

func (w *World) addNode(id cluster.NodeID) *node {
	n := &node{w: w, id: id, host: host(id), mem: vfs.NewCrashableMem(), journal: newJournal(w), clk: w.newClock()}
	w.nodes = append(w.nodes, n)
	return n
}

// boot starts the process over what the disk holds.
func (n *node) boot() {
	if n.up() || n.lost {
		return
	}
	n.clk = n.w.newClock()
	n.fs = &faultyFS{FS: n.mem}
	var err error
	n.store, err = partitionlog.Open(partitionlog.Options{
		Dir: "/data", FS: n.fs, SegmentBytes: n.w.opts.segment, RetentionInterval: -1,
		Lease: func() bool { return n.registered && n.clk.now() < n.lease },
		Clock: func() time.Time { return time.UnixMilli(n.w.now.Milliseconds()) },
	})
	if err != nil {
		n.w.violated("I2", "%s does not open its store: %v", n.id, err)
		return
	}
	n.inc = n.journal.nextIncarnation()
	n.registered, n.lease, n.synced, n.resumed = false, 0, false, false
	if n.view != nil {
		n.cache = n.view.Assignments
	}
	n.view = nodeagent.NewView()
	n.outs, n.runs = map[pm]*outbound{}, map[cluster.PartitionID]*run{}
	n.next, n.journaled = map[cluster.PartitionID]cluster.Assignment{}, map[cluster.PartitionID][]journaledMove{}
	n.epochs, n.confirmed = map[cluster.PartitionID]cluster.Epoch{}, map[pm]time.Duration{}
	n.seenEpoch = map[cluster.PartitionID]cluster.Epoch{}
	n.life = n.w.newLife(string(n.id))
	n.w.log("%s boots as incarnation %d", n.id, n.inc)
	n.loadMarkers()
	n.loadMoves()
	n.fence()
	n.life.spawn(n.session)
	n.life.spawn(n.watch)
	n.life.spawn(n.reconcile)
	n.life.spawn(n.reclaimAll)
}

// crash ends the process. With power, the operating system lives and all writes survive; else a part of the
// unsynced ones is lost.
func (n *node) crash(power bool) {
	if !n.up() {
		return
	}
	n.w.log("%s crashes, power %t", n.id, power)
	n.life.end()
	if power {
		n.mem = n.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: n.w.rng})
	} else {
		n.mem = n.w.powerCut(n.mem)
		n.journal.crash()
	}
	n.registered = false
}

// die ends the process and its disk for ever.
func (n *node) die() {
	n.w.log("%s dies for ever", n.id)
	if n.up() {
		n.life.end()
	}
	n.lost, n.registered = true, false
}

// session keeps a registration and its lease.
func (n *node) session(p *proc) {
	for {
		inc := n.inc
		_, err := ask(p, n, func(p *proc, c *controller) (struct{}, error) { return struct{}{}, c.register(p, n.id, inc) })
		switch {
		case err == nil:
			n.w.log("%s registered as %d", n.id, inc)
			n.registered = true
			n.broadcastRegistered()
			n.resumeMoves()
			n.beat(p)
		case cluster.ReasonOf(err) == cluster.ReasonStaleIncarnation:
		default:
			p.sleep(p.w.between(100*time.Millisecond, 600*time.Millisecond))
			continue
		}
		// Invariant I7: closed to handoffs and frozen before the next incarnation is taken.
		n.registered, n.lease = false, 0
		n.fence()
		n.inc = n.journal.nextIncarnation()
		n.w.log("%s takes incarnation %d", n.id, n.inc)
	}
}

// beat sends heartbeats until the session is superseded.
func (n *node) beat(p *proc) {
	inc := n.inc
	for {
		sent := n.clk.now()
		rep := n.report()
		_, err := ask(p, n, func(p *proc, c *controller) (struct{}, error) { return struct{}{}, c.heartbeat(p, n.id, inc, rep) })
		switch cluster.ReasonOf(err) {
		case cluster.ReasonStaleIncarnation, cluster.ReasonNotFound:
			n.w.log("%s is told: %v", n.id, err)
			return
		}
		if err == nil {
			// Invariant I10: the lease counts from when the request was sent.
			n.lease = max(n.lease, sent+leaseTTL)
		}
		p.sleep(heartbeatEvery)
	}
}

func (n *node) report() report {
	var r report
	for _, k := range sortedKeys(n.outs, comparePM) {
		if l, err := n.store.Log(k.p); err == nil {
			r.hwms = append(r.hwms, cluster.PartitionOffset{Partition: k.p, Offset: l.HWM()})
		}
	}
	for _, p := range sortedKeys(n.runs, cluster.PartitionID.Compare) {
		x := n.runs[p]
		r.moves = append(r.moves, cluster.MoveProgress{Partition: p, MoveID: x.move, Phase: x.st.Shown(), Attempt: x.st.Stats.Attempts})
	}
	return r
}

// watchAnswer is a part of a watch stream.
type watchAnswer struct {
	reset     bool
	revision  cluster.Revision
	changes   []cluster.Change
	revisions []cluster.RevisionChanges
	compacted bool
}

// watch follows the state at any controller, which may lag.
func (n *node) watch(p *proc) {
	reset := true
	for {
		p.sleep(p.w.between(20*time.Millisecond, 250*time.Millisecond))
		c := pick(p.w, p.w.ctls)
		after, whole := n.view.Revision, reset
		a, ok := call(p, n.host, c.host, callTimeout, func(reply func(watchAnswer)) {
			if c.up() {
				reply(c.watched(after, whole))
			}
		})
		switch {
		case !ok:
		case a.compacted:
			reset = true
		case a.reset:
			reset = false
			n.applyView(true, a.revision, a.changes)
		default:
			for _, rc := range a.revisions {
				if rc.Revision != n.view.Revision+1 {
					n.w.violated("watch", "%s: revision %d follows %d", n.id, rc.Revision, n.view.Revision)
				}
				n.applyView(false, rc.Revision, rc.Changes)
			}
		}
	}
}

// watched is a controller's side of a watch.
func (c *controller) watched(after cluster.Revision, whole bool) watchAnswer {
	if !whole {
		rs, err := c.machine.Changes(after, 100)
		return watchAnswer{revisions: slices.Clone(rs), compacted: err != nil}
	}
	a := watchAnswer{reset: true}
	c.machine.Read(func(r fsm.Reader) {
		a.revision = r.Revision()
		s := r.Settings()
		a.changes = append(a.changes, cluster.Change{Settings: &s})
		for _, x := range r.Nodes() {
			a.changes = append(a.changes, cluster.Change{Node: &x})
		}
		for _, x := range r.Topics() {
			a.changes = append(a.changes, cluster.Change{Topic: &x})
		}
		for _, x := range r.Assignments() {
			a.changes = append(a.changes, cluster.Change{Assignment: &x})
		}
		for _, x := range r.Outcomes() {
			a.changes = append(a.changes, cluster.Change{Outcome: &x})
		}
	})
	return a
}

// applyView folds a revision and tells both sides of moves, nodes first.
func (n *node) applyView(reset bool, rev cluster.Revision, changes []cluster.Change) {
	if reset && rev < n.view.Revision {
		return
	}
	touched := n.view.Fold(reset, rev, changes)
	n.synced = true
	for _, id := range slices.Sorted(maps.Keys(touched.Nodes)) {
		if v, ok := n.view.Nodes[id]; ok {
			n.observeNode(v)
		}
	}
	for _, p := range sortedKeys(touched.Partitions, cluster.PartitionID.Compare) {
		if a, ok := n.view.Assignments[p]; ok {
			n.observeMove(a)
			n.observeOut(a)
		}
	}
}

// answer is what a handler at a controller returns.
type answer[T any] struct {
	v   T
	err error
}

// ask has fn run at the controller that leads; NO_LEADER is asked elsewhere, everything else is the answer.
func ask[T any](p *proc, n *node, fn func(p *proc, c *controller) (T, error)) (T, error) {
	var last answer[T]
	for range 3 {
		c := p.w.ctls[n.leader%3]
		a, ok := call(p, n.host, c.host, callTimeout, func(reply func(answer[T])) {
			if c.up() {
				c.life.spawn(func(p *proc) {
					v, err := fn(p, c)
					reply(answer[T]{v, err})
				})
			}
		})
		if !ok {
			n.leader++
			return last.v, errUnknown
		}
		last = a
		if cluster.ReasonOf(a.err) != cluster.ReasonNoLeader {
			return a.v, a.err
		}
		n.leader++
	}
	return last.v, last.err
}

// copiesOf lists p's directories; activeCopy returns the one in the real place.
func (n *node) copiesOf(p cluster.PartitionID) []store.Copy {
	all, err := n.store.Copies()
	if err != nil {
		n.w.violated("I2", "%s: list copies: %v", n.id, err)
	}
	return slices.DeleteFunc(all, func(c store.Copy) bool { return c.Partition != p })
}

func (n *node) activeCopy(p cluster.PartitionID) (store.Copy, bool) {
	for _, c := range n.copiesOf(p) {
		if c.Place == store.Active {
			return c, true
		}
	}
	return store.Copy{}, false
}

// journal keeps small values durably, in order: a crash may undo the removals since the last save.
type journal struct {
	w       *World
	values  map[string][]byte
	removed map[string][]byte
	inc     cluster.Incarnation
}

func newJournal(w *World) *journal {
	return &journal{w: w, values: map[string][]byte{}, removed: map[string][]byte{}}
}

func (j *journal) save(key string, value []byte) {
	clear(j.removed) // one log: what comes before a synced write is durable with it
	j.values[key] = value
}

func (j *journal) remove(key string) {
	if v, ok := j.values[key]; ok {
		j.removed[key] = v
		delete(j.values, key)
	}
}

func (j *journal) crash() {
	for _, k := range slices.Sorted(maps.Keys(j.removed)) {
		if j.w.rng.IntN(2) == 0 {
			j.values[k] = j.removed[k]
		}
	}
	clear(j.removed)
}

func (j *journal) nextIncarnation() cluster.Incarnation {
	j.inc++
	return j.inc
}

// faultyFS fails the next syncs of data when it is told to.
type faultyFS struct {
	vfs.FS
	failSyncs int
	injected  int
}

var errInjected = errors.New("injected: sync failed")

type faultyFile struct {
	vfs.File
	fs *faultyFS
}

// OpenReadWrite implements vfs.FS.
func (f *faultyFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f}, nil
}

// SyncData implements vfs.File.
func (f *faultyFile) SyncData() error {
	if f.fs.failSyncs > 0 {
		f.fs.failSyncs--
		f.fs.injected++
		return errInjected
	}
	return f.File.SyncData()
}
