package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/fsm"
	leading "github.com/naradctl/naradctl-plane/internal/controller"
)

const (
	tickEvery      = 100 * time.Millisecond
	electionTicks  = 10
	proposeTimeout = 3 * time.Second
	barrierTimeout = time.Second
	historyLimit   = 60
	// lingering is how long a removed member still votes.
	lingering = 5 * electionTicks * tickEvery
)

// errUnknown: the command may be applied now, later or never.
var errUnknown = errors.New("outcome unknown")

// stateMachine lets the driver drive the fsm.
type stateMachine struct{ *fsm.Machine }

// Apply implements consensus.StateMachine.
func (s stateMachine) Apply(entries []consensus.Entry) ([]any, error) {
	in := make([]fsm.Entry, len(entries))
	for i, e := range entries {
		in[i] = fsm.Entry{Index: e.Index, Command: e.Command, Metadata: e.Metadata}
	}
	results, err := s.Machine.Apply(in)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(entries))
	for i := range results {
		if len(entries[i].Command) > 0 {
			out[i] = results[i]
		}
	}
	return out, nil
}

// Snapshot implements consensus.StateMachine.
func (s stateMachine) Snapshot() (consensus.Snapshot, error) { return s.Machine.Snapshot() }

// controller is one member: the real driver over a log in memory that can crash, and the real state machine on
// a file system that can crash.
type controller struct {
	w       *World
	id      uint64
	host    host
	clk     clock
	fs      *vfs.MemFS
	machine *fsm.Machine
	log     *etcdraft.MemLog
	driver  *etcdraft.Driver
	life    *life
	runs    uint64
	seq     uint64

	snapshots map[uint64][]byte
	waiting   map[etcdraft.ProposalID]func(etcdraft.AppliedEntry)
	reads     map[string]func(uint64)
	scheduled bool
	heard     map[uint64]time.Duration
	// leadsSince is when this run began to lead last.
	leadsSince time.Duration
	// lead is the real controller over this member; turn is the proc that holds it.
	lead *leading.Controller
	turn *proc
	// gone says that the member was removed and has ended.
	gone bool
}

func (c *controller) up() bool { return c.life != nil && c.life.alive }

// bootControllers makes three members that begin at the bootstrap record.
func (w *World) bootControllers() error {
	var members []consensus.Member
	for i := range uint64(3) {
		s := fmt.Sprintf("c%d", i+1)
		members = append(members, consensus.Member{ID: consensus.ID(i + 1), Name: s, Address: s, StoreID: s, Role: consensus.Voter})
	}
	record := etcdraft.BootstrapMetadata("sim", members)
	for i := range uint64(3) {
		c := &controller{w: w, id: i + 1, host: host(fmt.Sprintf("c%d", i+1)), clk: w.newClock(), fs: vfs.NewCrashableMem()}
		w.ctls = append(w.ctls, c)
		if err := c.open(); err != nil {
			return err
		}
		if _, err := c.machine.Apply([]fsm.Entry{{Index: 1, Metadata: record}}); err != nil {
			return err
		}
		if err := c.machine.Flush(); err != nil {
			return err
		}
		c.log = etcdraft.NewMemLog(&raftpb.ConfState{Voters: []uint64{1, 2, 3}})
		if err := c.start(); err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) open() (err error) {
	c.machine, err = fsm.Open("state", fsm.Options{FS: c.fs, HistoryLimit: historyLimit})
	return err
}

// Open implements etcdraft.SnapshotSource.
func (c *controller) Open(meta *raftpb.SnapshotMetadata) (io.ReadCloser, error) {
	raw, ok := c.snapshots[meta.GetIndex()]
	if !ok {
		return nil, fmt.Errorf("no snapshot %d", meta.GetIndex())
	}
	return io.NopCloser(bytes.NewReader(raw)), nil
}

// start begins a life over what log and state machine hold.
func (c *controller) start() (err error) {
	c.runs++
	c.snapshots, c.scheduled, c.turn = map[uint64][]byte{}, false, nil
	c.waiting, c.reads = map[etcdraft.ProposalID]func(etcdraft.AppliedEntry){}, map[string]func(uint64){}
	c.heard, c.leadsSince = map[uint64]time.Duration{}, c.w.now
	c.driver, err = etcdraft.NewDriver(etcdraft.DriverConfig{
		ID: consensus.ID(c.id), Log: c.log, StateMachine: stateMachine{c.machine}, ClusterID: "sim", Incoming: c,
		ElectionTicks: electionTicks, HeartbeatTicks: 2, MaxMessageBytes: 4 << 10, MaxInflightMessages: 16,
	})
	if err != nil {
		return err
	}
	c.life = c.w.newLife(string(c.host))
	c.life.spawn(func(p *proc) {
		for {
			p.sleep(c.clk.until(c.clk.now() + tickEvery))
			c.driver.Tick()
			c.schedule()
		}
	})
	c.lead = leading.New(c.config(), backend{c}, c.machine, nil)
	c.life.spawn(c.keep)
	c.life.spawn(c.rounds)
	return nil
}

// crash ends the life; what was not synced is lost, but for some records of the log.
func (c *controller) crash() {
	c.w.log("%s crashes at index %d", c.host, c.machine.AppliedIndex())
	c.life.end()
	clone := c.fs.CrashClone(vfs.CrashCloneCfg{})
	if err := c.machine.Close(); err != nil {
		c.w.violated("I1", "%s: close: %v", c.host, err)
	}
	c.fs = clone
}

// retire ends a member that was removed, for good.
func (c *controller) retire() {
	if c.gone {
		return
	}
	c.w.log("%s was removed and stops", c.host)
	c.gone = true
	if !c.up() {
		return
	}
	c.life.end()
	if err := c.machine.Close(); err != nil {
		c.w.violated("I1", "%s: close: %v", c.host, err)
	}
}

// join starts a member that was admitted: it has neither log nor state, and is sent a snapshot.
func (w *World) join(id uint64, name string) {
	if w.member(id) != nil {
		return
	}
	c := &controller{w: w, id: id, host: host(name), clk: w.newClock(), fs: vfs.NewCrashableMem(), log: etcdraft.NewMemLog(nil)}
	w.ctls = append(w.ctls, c)
	w.log("%s joins as member %d", name, id)
	if err := errors.Join(c.open(), c.start()); err != nil {
		w.violated("I1", "%s does not join: %v", name, err)
	}
}

func (w *World) member(id uint64) *controller {
	for _, c := range w.ctls {
		if c.id == id {
			return c
		}
	}
	return nil
}

// members are the controllers that were not removed.
func (w *World) members() []*controller {
	return slices.DeleteFunc(slices.Clone(w.ctls), func(c *controller) bool { return c.gone })
}

// restart brings a crashed member back.
func (c *controller) restart() {
	if c.up() || c.gone {
		return
	}
	if err := c.open(); err != nil {
		c.w.violated("I1", "%s does not open its state: %v", c.host, err)
		return
	}
	log, err := c.log.Crash(c.machine.AppliedIndex(), c.w.rng.IntN(3))
	if err != nil {
		c.w.violated("I1", "%s does not come back: %v", c.host, err)
		return
	}
	c.log = log
	c.w.log("%s starts at index %d", c.host, c.machine.AppliedIndex())
	if err := c.start(); err != nil {
		c.w.violated("I1", "%s does not start: %v", c.host, err)
	}
}

// keep flushes the state machine and compacts the log behind it.
func (c *controller) keep(p *proc) {
	for {
		p.sleep(p.w.between(2*time.Second, 12*time.Second))
		if err := c.machine.Flush(); err != nil {
			p.w.violated("I1", "%s: flush: %v", c.host, err)
			return
		}
		at := c.machine.DurableIndex()
		if first, _ := c.log.FirstIndex(); at < first+10 || p.w.rng.IntN(2) == 0 {
			continue
		}
		term, err := c.log.Term(at)
		if err != nil {
			continue
		}
		meta := &raftpb.SnapshotMetadata{Index: new(at), Term: new(term), ConfState: c.driver.ConfState()}
		if err := c.log.Compact(meta); err != nil {
			p.w.violated("I1", "%s: compact: %v", c.host, err)
			return
		}
	}
}

// schedule has the driver's work done after the event in progress.
func (c *controller) schedule() {
	if c.scheduled {
		return
	}
	c.scheduled = true
	l := c.life
	c.w.after(0, func() {
		if l.alive && c.life == l {
			c.scheduled = false
			c.ready()
		}
	})
}

// ready does all due work, and sometimes crashes between two steps of it.
func (c *controller) ready() {
	for {
		work, ok := c.driver.Ready()
		if !ok {
			return
		}
		c.send(work.Messages)
		if work.Soft != nil && work.Soft.Lead == c.id {
			c.leadsSince = c.w.now
		}
		for _, r := range work.Reads {
			if done := c.reads[string(r.RequestCtx)]; done != nil {
				delete(c.reads, string(r.RequestCtx))
				done(r.Index)
			}
		}
		if work.Append != nil {
			batch := []*raftpb.Message{work.Append}
			if err := c.driver.Persist(batch, nil); err != nil {
				c.w.violated("I1", "%s: persist: %v", c.host, err)
				return
			}
			if c.mayCrash() {
				return
			}
			c.w.truth.observe(c) // a snapshot may have been installed
			c.send(c.driver.Persisted(batch))
		}
		if work.Apply != nil && !c.apply(work.Apply) {
			return
		}
	}
}

func (c *controller) apply(m *raftpb.Message) bool {
	a, err := c.driver.Apply([]*raftpb.Message{m})
	if err != nil {
		c.w.violated("I1", "%s: apply: %v", c.host, err)
		return false
	}
	c.w.truth.observe(c)
	if c.mayCrash() {
		return false
	}
	for _, e := range a.Entries {
		if done := c.waiting[e.ID]; done != nil {
			delete(c.waiting, e.ID)
			done(e)
		}
	}
	c.driver.Applied(a)
	if c.driver.Removed(consensus.ID(c.id)) {
		// The others may need its vote until they know.
		l := c.life
		c.w.after(lingering, func() {
			if c.life == l {
				c.retire()
			}
		})
	}
	return true
}

func (c *controller) mayCrash() bool {
	if !c.w.ops.faults || c.w.rng.IntN(3000) != 0 || c.w.calm {
		return false
	}
	c.crash()
	c.w.after(c.w.between(0, 5*time.Second), c.restart)
	return true
}

func (c *controller) send(ms []*raftpb.Message) {
	for _, m := range ms {
		m := proto.Clone(m).(*raftpb.Message)
		to := c.w.member(m.GetTo())
		if to == nil {
			continue // admitted, and not started yet
		}
		if m.GetType() == raftpb.MsgSnap {
			c.sendSnapshot(to, m)
			continue
		}
		c.w.net.send(c.host, to.host, func() { to.step(m) })
	}
}

// sendSnapshot streams the state along with the message; the stream is not lost by chance, since nothing here
// tells raft of a failed one.
func (c *controller) sendSnapshot(to *controller, m *raftpb.Message) {
	snap, err := c.machine.Snapshot()
	if err != nil {
		c.w.violated("I1", "%s: snapshot: %v", c.host, err)
		return
	}
	var body bytes.Buffer
	_, err = snap.WriteTo(&body)
	m, merr := c.driver.SnapshotMessage(m, snap)
	index := snap.Index()
	if err := errors.Join(err, merr, snap.Close()); err != nil {
		c.w.violated("I1", "%s: snapshot: %v", c.host, err)
		return
	}
	c.w.log("%s sends %s a snapshot of index %d", c.host, to.host, index)
	c.w.net.deliver(c.host, to.host, func() {
		if to.up() {
			to.snapshots[index] = body.Bytes()
			to.step(m)
		}
	})
}

func (c *controller) step(m *raftpb.Message) {
	if !c.up() {
		return
	}
	if c.driver.Removed(consensus.ID(m.GetFrom())) {
		// Who was removed is told so.
		if from := c.w.member(m.GetFrom()); from != nil && m.GetFrom() != c.id {
			c.w.net.send(c.host, from.host, from.retire)
		}
		return
	}
	c.heard[m.GetFrom()] = c.w.now
	if err := c.driver.Step(proto.Clone(m).(*raftpb.Message)); err != nil {
		c.w.violated("I1", "%s: step: %v", c.host, err)
		return
	}
	c.schedule()
}

func (c *controller) leads() bool { return c.driver.Status().RaftState == raft.StateLeader }
