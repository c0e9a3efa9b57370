package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	leading "github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/nodeagent"
	"github.com/naradctl/naradctl-plane/nodeagent/dataplane"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
	"github.com/naradctl/naradctl-plane/test/watchcheck"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

const (
	callTimeout    = 1500 * time.Millisecond
	heartbeatEvery = 400 * time.Millisecond
	// callForever is a bound on the real clock, for code whose calls end by virtual time.
	callForever = time.Hour
)

// node is one data node: the real store, database and data plane on file systems that can crash, and deterministic shells
// around the real step functions and decisions.
type node struct {
	w    *World
	id   cluster.NodeID
	host host
	clk  clock
	// mem holds the partitions, dbmem the agent's database.
	mem   *vfs.MemFS
	fs    *faultyFS
	dbmem *vfs.MemFS
	db    *nodeagent.DB
	store *partitionlog.Store
	life  *life
	// lost says that host and disk are gone for ever.
	lost   bool
	leader int

	router *dataplane.Router
	plane  *dataplane.Service

	inc        cluster.Incarnation
	registered bool
	lease      time.Duration
	// refusedSince is since when produce is refused; zero when it is not.
	refusedSince time.Duration

	view    *nodeagent.View
	stream  *watchcheck.Stream
	synced  bool
	resumed bool
	dirty   bool

	outs      map[pm]*outbound
	reclaimer *transfer.Reclaimer
	reclaimAt map[pm]time.Duration
	seenEpoch map[cluster.PartitionID]cluster.Epoch
	runs      map[cluster.PartitionID]*run
	next      map[cluster.PartitionID]cluster.Assignment
	journaled map[cluster.PartitionID][]journaledMove
	epochs    map[cluster.PartitionID]cluster.Epoch
	retired   map[pm]time.Duration
}

func (n *node) up() bool { return n.life != nil && n.life.alive }

// now is the time of day here: it drifts and is never set.
func (n *node) now() time.Time { return time.Unix(0, int64(n.clk.now()-n.clk.offset)) }

func (w *World) addNode(id cluster.NodeID) *node {
	n := &node{w: w, id: id, host: host(id), mem: vfs.NewCrashableMem(), dbmem: vfs.NewCrashableMem(), clk: w.newClock()}
	w.nodes = append(w.nodes, n)
	return n
}

// boot starts the process over what the disks hold.
func (n *node) boot() {
	if n.up() || n.lost {
		return
	}
	n.clk = n.w.newClock()
	n.fs = &faultyFS{FS: n.mem}
	n.registered, n.lease, n.synced, n.resumed, n.refusedSince = false, 0, false, false, 0
	if err := n.open(); err != nil {
		n.w.violated("I2", "%s does not start: %v", n.id, err)
		return
	}
	n.view, n.stream = nodeagent.NewView(), n.w.watches.Stream(fmt.Sprintf("%s incarnation %d", n.id, n.inc))
	n.outs, n.runs = map[pm]*outbound{}, map[cluster.PartitionID]*run{}
	n.next, n.journaled = map[cluster.PartitionID]cluster.Assignment{}, map[cluster.PartitionID][]journaledMove{}
	n.epochs, n.retired = map[cluster.PartitionID]cluster.Epoch{}, map[pm]time.Duration{}
	n.seenEpoch, n.reclaimAt = map[cluster.PartitionID]cluster.Epoch{}, map[pm]time.Duration{}
	n.reclaimer = n.newReclaimer()
	cached, err := n.db.LoadView()
	if err != nil {
		n.w.violated("I7", "%s: cached view: %v", n.id, err)
	}
	n.view.Fold(true, 0, cached)
	n.router.Apply(true, 0, cached)
	n.life = n.w.newLife(string(n.id))
	n.w.log("%s boots as incarnation %d", n.id, n.inc)
	n.loadMarkers()
	n.loadMoves()
	n.fence()
	n.life.spawn(n.session)
	n.life.spawn(n.watch)
	n.life.spawn(n.reconcile)
	n.life.spawn(n.reclaimAll)
	n.life.spawn(n.retention)
	n.plane.Drive(func(p cluster.PartitionID) { n.life.spawn(func(q *proc) { n.deliver(q, p) }) })
}

// open opens the database, takes the next incarnation, and opens store and data plane.
func (n *node) open() (err error) {
	if n.db, err = nodeagent.OpenDB(nodeagent.DBOptions{Dir: "/agent", NodeID: n.id, FS: n.dbmem}); err != nil {
		return err
	}
	if n.inc, err = n.db.NextIncarnation(); err != nil {
		return err
	}
	n.store, err = partitionlog.Open(partitionlog.Options{
		Dir: "/data", FS: n.fs, SegmentBytes: n.w.opts.segment, RetentionInterval: -1,
		Lease: func() bool { return n.registered && n.clk.now() < n.lease },
		Clock: n.now,
	})
	if err != nil {
		return err
	}
	n.router = dataplane.NewRouter()
	cfg := dataplane.DefaultConfig()
	cfg.VisibilityTimeout, cfg.MaxReservations = time.Second, 40
	cfg.DispatchMemory, cfg.RerouteAfter = 1<<20, n.w.opts.reroute
	n.plane, err = dataplane.New(cfg, dataplane.Deps{
		DB: n.db.Pebble(), Prefix: []byte(nodeagent.IngressPrefix), Logs: simLogs{n}, Router: n.router, Self: n.id,
		LeaseTTL: func() time.Duration { return leaseTTL }, AcceptsProduce: n.acceptsProduce, Now: n.now,
	})
	return err
}

// shut gives back what the process held, once its life has ended.
func (n *node) shut() {
	if err := errors.Join(n.store.Shutdown(), n.db.Close()); err != nil {
		n.w.violated("I2", "%s: close: %v", n.id, err)
	}
}

// crash ends the process. With power, the operating system lives and all writes survive; else a part of the
// unsynced ones is lost.
func (n *node) crash(power bool) {
	if !n.up() {
		return
	}
	n.w.log("%s crashes, power %t", n.id, power)
	n.life.end()
	mem, dbmem := n.mem, n.dbmem
	if power {
		mem = n.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: n.w.rng})
	} else {
		mem, dbmem = n.w.powerCut(n.mem), n.dbmem.CrashClone(vfs.CrashCloneCfg{})
	}
	n.fs.full = false
	n.shut()
	n.mem, n.dbmem = mem, dbmem
	n.registered = false
}

// die ends the process and its disk for ever.
func (n *node) die() {
	n.w.log("%s dies for ever", n.id)
	if n.up() {
		n.life.end()
		n.fs.full = false
		n.shut()
	}
	n.lost, n.registered = true, false
}

// leave ends a node that was decommissioned. It comes back as a new one, with empty disks.
func (n *node) leave() {
	n.w.log("%s has left", n.id)
	n.w.checkLeft(n)
	n.life.end()
	n.shut()
	n.registered = false
	n.mem, n.dbmem = vfs.NewCrashableMem(), vfs.NewCrashableMem()
	n.w.after(n.w.between(time.Second, 5*time.Second), n.boot)
}

// session keeps a registration and its lease.
func (n *node) session(p *proc) {
	for {
		reg := leading.Registration{Node: n.id, StoreID: n.db.StoreID(), Incarnation: n.inc, Address: string(n.id)}
		_, err := ask(p, n, func(p *proc, c *controller) (struct{}, error) {
			_, _, err := c.lead.Register(p.ctx(), reg)
			return struct{}{}, err
		})
		switch {
		case err == nil:
			n.w.log("%s registered as %d", n.id, n.inc)
			n.registered = true
			n.broadcastRegistered()
			n.resumeMoves()
			if n.beat(p) {
				return
			}
		case cluster.ReasonOf(err) == cluster.ReasonStaleIncarnation:
		default:
			p.sleep(p.w.between(100*time.Millisecond, 600*time.Millisecond))
			continue
		}
		// Invariant I7: closed to handoffs and frozen before the next incarnation is taken.
		n.registered, n.lease = false, 0
		n.fence()
		if n.inc, err = n.db.NextIncarnation(); err != nil {
			n.w.violated("I7", "%s: next incarnation: %v", n.id, err)
			return
		}
		n.w.log("%s takes incarnation %d", n.id, n.inc)
	}
}

// beat sends heartbeats until the session is superseded, or, true, the node was removed.
func (n *node) beat(p *proc) (removed bool) {
	inc := n.inc
	for {
		sent := n.clk.now()
		rep := n.report()
		_, err := ask(p, n, func(p *proc, c *controller) (leading.Lease, error) {
			return c.lead.Heartbeat(p.ctx(), n.id, inc, string(n.id), rep)
		})
		switch reason := cluster.ReasonOf(err); {
		case reason == cluster.ReasonNotFound && n.drained():
			p.w.after(0, n.leave)
			return true
		case reason == cluster.ReasonStaleIncarnation || reason == cluster.ReasonNotFound:
			n.w.log("%s is told: %v", n.id, err)
			return false
		}
		if err == nil {
			// Invariant I10: the lease counts from when the request was sent.
			n.lease = max(n.lease, sent+leaseTTL)
		}
		if n.dirty && n.db.SaveView(n.view, n.id) == nil {
			n.dirty = false
		}
		p.sleep(heartbeatEvery)
	}
}

// drained says that the node drains and owns nothing.
func (n *node) drained() bool {
	return n.synced && n.view.Nodes[n.id].Draining && len(n.view.Owned(n.id)) == 0 || n.leftBehind()
}

// leftBehind says that the watch has shown the removal before a heartbeat was refused.
func (n *node) leftBehind() bool {
	_, member := n.view.Nodes[n.id]
	return n.synced && !member && n.refusedSince != 0
}

func (n *node) acceptsProduce() error {
	if !n.drained() {
		return nil
	}
	return cluster.Errorf(cluster.ReasonBlocked, "%s is being decommissioned", n.id)
}

// ingressGrace is how long produce must have been refused before the queue counts as closed.
const ingressGrace = 500 * time.Millisecond

func (n *node) report() leading.Report {
	r := leading.Report{SizesComplete: true}
	switch {
	case n.acceptsProduce() == nil:
		n.refusedSince = 0
	case n.refusedSince == 0:
		n.refusedSince = n.clk.now()
	default:
		r.IngressClosed = n.clk.now()-n.refusedSince >= ingressGrace
	}
	records, bytes := n.plane.Depth()
	r.IngressRecords, r.IngressBytes = records, cluster.Bytes(bytes)
	copies, err := n.store.Copies()
	if err != nil {
		n.w.violated("I9", "%s: list copies: %v", n.id, err)
	}
	for _, c := range copies {
		if c.Place == store.Quarantined {
			r.Quarantined++
		} else if c.Place == store.Active {
			r.Sizes = append(r.Sizes, leading.PartitionSize{Partition: c.Partition, Bytes: c.Bytes})
		}
	}
	for _, k := range sortedKeys(n.outs, comparePM) {
		if l, err := n.store.Log(k.p); err == nil {
			r.OutboundHWMs = append(r.OutboundHWMs, cluster.PartitionOffset{Partition: k.p, Offset: l.HWM()})
		}
	}
	for _, p := range sortedKeys(n.runs, cluster.PartitionID.Compare) {
		x := n.runs[p]
		r.Moves = append(r.Moves, cluster.MoveProgress{Partition: p, MoveID: x.move, Phase: x.st.Shown(), Attempt: x.st.Stats.Attempts})
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
		c := pick(p.w, p.w.members())
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
			if a.revision < n.view.Revision {
				continue
			}
			reset = false
			n.stream.Open(0)
			n.stream.Snapshot(uint64(a.revision), true, true)
			n.applyView(true, a.revision, a.changes)
		default:
			n.stream.Open(uint64(after))
			for _, rc := range a.revisions {
				n.stream.Delta(uint64(rc.Revision), digest(rc))
				n.applyView(false, rc.Revision, rc.Changes)
			}
			n.stream.Progress(uint64(n.view.Revision))
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
		for _, x := range r.Controllers() {
			a.changes = append(a.changes, cluster.Change{Controller: &x})
		}
	})
	return a
}

// applyView folds a revision and tells both sides of moves, nodes first.
func (n *node) applyView(reset bool, rev cluster.Revision, changes []cluster.Change) {
	touched := n.view.Fold(reset, rev, changes)
	n.router.Apply(reset, rev, changes)
	n.synced, n.dirty = true, true
	for _, id := range slices.Sorted(maps.Keys(touched.Nodes)) {
		if v, ok := n.view.Nodes[id]; ok {
			n.observeNode(v)
		}
	}
	for _, p := range sortedKeys(touched.Partitions, cluster.PartitionID.Compare) {
		if a, ok := n.view.Assignments[p]; ok {
			n.observeMove(a)
			n.observeOut(a)
		} else {
			n.observeGone(p)
		}
	}
	if !reset {
		return
	}
	working := map[cluster.PartitionID]bool{}
	for p := range n.runs {
		working[p] = true
	}
	for k := range n.outs {
		working[k.p] = true
	}
	for _, p := range sortedKeys(working, cluster.PartitionID.Compare) {
		if _, ok := n.view.Assignments[p]; !ok {
			n.observeGone(p)
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
		members := p.w.members()
		c := members[n.leader%len(members)]
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
	all, err := n.store.CopiesOf(p)
	if err != nil {
		n.w.violated("I2", "%s: list copies: %v", n.id, err)
	}
	return all
}

func (n *node) activeCopy(p cluster.PartitionID) (store.Copy, bool) {
	for _, c := range n.copiesOf(p) {
		if c.Place == store.Active {
			return c, true
		}
	}
	return store.Copy{}, false
}

// save makes a journal entry durable.
func (n *node) save(key string, value []byte) {
	if err := n.db.Journal().Save(key, value); err != nil {
		n.w.violated("I7", "%s: journal: %v", n.id, err)
	}
}

func (n *node) remove(key string) {
	if err := n.db.Journal().Delete(key); err != nil {
		n.w.violated("I7", "%s: journal: %v", n.id, err)
	}
}

// load returns the journal's entries below a prefix, in order.
func (n *node) load(prefix string) [][]byte {
	entries, err := n.db.Journal().Load(prefix)
	if err != nil {
		n.w.violated("I7", "%s: journal: %v", n.id, err)
	}
	var out [][]byte
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, entries[k])
	}
	return out
}

// retention enforces it now and then, with the topics' own settings.
func (n *node) retention(p *proc) {
	for {
		p.sleep(p.w.between(500*time.Millisecond, 3*time.Second))
		copies, _ := n.store.Copies()
		for _, c := range copies {
			if t, ok := n.view.Topics[c.Partition.Topic]; ok && c.Open {
				if l, err := n.store.Log(c.Partition); err == nil {
					l.SetRetention(t.Retention)
				}
			}
		}
		_ = n.store.EnforceRetention() // what a full disk leaves is for the next time
		for _, c := range copies {
			n.w.book.expire(n, c.Partition)
		}
	}
}

// produceSalvaged puts salvaged records into the topic, through the node's own queue.
func (n *node) produceSalvaged(ctx context.Context, topic cluster.TopicID, records []store.Record) error {
	name := n.router.TopicName(topic)
	if _, ok := n.router.Topic(name); !ok {
		return cluster.NotFound("topic %d is not known here", topic)
	}
	err := n.plane.Produce(ctx, name, records)
	for _, r := range records {
		if err == nil {
			n.w.book.queued(n, string(r.Key))
		}
	}
	return err
}
