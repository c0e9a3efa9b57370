package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

const (
	tickEvery      = 100 * time.Millisecond
	electionTicks  = 10
	proposeTimeout = 3 * time.Second
	barrierTimeout = time.Second
	historyLimit   = 60
)

// errUnknown: the command may be applied now, later or never.
var errUnknown = errors.New("outcome unknown")

func noLeader(c *controller) error {
	return cluster.Errorf(cluster.ReasonNoLeader, "controller %d does not lead", c.id)
}

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
	waiting   map[etcdraft.ProposalID]func(fsm.Result)
	reads     map[string]func(uint64)
	scheduled bool
	soft      soft
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
	c.snapshots, c.scheduled, c.soft = map[uint64][]byte{}, false, soft{}
	c.waiting, c.reads = map[etcdraft.ProposalID]func(fsm.Result){}, map[string]func(uint64){}
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
	c.life.spawn(c.keep)
	c.life.spawn(c.lead)
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

// restart brings a crashed member back.
func (c *controller) restart() {
	if c.up() {
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
		meta := &raftpb.SnapshotMetadata{Index: new(at), Term: new(term), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}
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
		r, ok := e.Result.(fsm.Result)
		if done := c.waiting[e.ID]; ok && done != nil {
			delete(c.waiting, e.ID)
			done(r)
		}
	}
	c.driver.Applied(a)
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
		to := c.w.ctls[m.GetTo()-1]
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
	term, terr := c.log.Term(snap.Index())
	if err := errors.Join(err, terr, snap.Close()); err != nil {
		c.w.violated("I1", "%s: snapshot: %v", c.host, err)
		return
	}
	index := snap.Index()
	m.Snapshot.Metadata.Index, m.Snapshot.Metadata.Term = new(index), new(term)
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
	if err := c.driver.Step(proto.Clone(m).(*raftpb.Message)); err != nil {
		c.w.violated("I1", "%s: step: %v", c.host, err)
		return
	}
	c.schedule()
}

func (c *controller) leads() bool { return c.driver.Status().RaftState == raft.StateLeader }

// propose orders a command. NO_LEADER says that it will never be applied, errUnknown that it may be.
func (c *controller) propose(p *proc, cmd *storagev1.Command) (fsm.Result, error) {
	cmd.NowUnixNano = int64(c.clk.now())
	b, err := fsm.Encode(cmd)
	if err != nil {
		return fsm.Result{}, err
	}
	c.seq++
	id := etcdraft.ProposalID{Nonce: c.id<<32 | c.runs, Seq: c.seq}
	if err := c.driver.Propose(id, b); err != nil {
		return fsm.Result{}, noLeader(c)
	}
	r, ok := await(p, proposeTimeout, func(done func(fsm.Result)) {
		c.waiting[id] = done
		c.schedule()
	})
	delete(c.waiting, id)
	if !ok {
		return fsm.Result{}, errUnknown
	}
	return r, nil
}

// confirm returns when this member leads and its state is current as of the call.
func (c *controller) confirm(p *proc) error {
	if !c.leads() || !c.driver.OwnTermApplied() {
		return noLeader(c)
	}
	term := c.driver.Status().GetTerm()
	c.seq++
	ctx := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.id<<32|c.runs), c.seq)
	index, ok := await(p, barrierTimeout, func(done func(uint64)) {
		c.reads[string(ctx)] = done
		m := &raftpb.Message{Type: raftpb.MsgReadIndex.Enum(), From: new(c.id), To: new(c.id), Entries: []*raftpb.Entry{{Data: ctx}}}
		if err := c.driver.Step(m); err != nil {
			c.w.violated("I1", "%s: read: %v", c.host, err)
		}
		c.schedule()
	})
	delete(c.reads, string(ctx))
	if !ok {
		return noLeader(c)
	}
	for c.machine.AppliedIndex() < index {
		p.sleep(5 * time.Millisecond)
	}
	if !c.leads() || c.driver.Status().GetTerm() != term {
		return noLeader(c)
	}
	c.adopt(term)
	return nil
}

// do is propose with refusals as errors.
func (c *controller) do(p *proc, cmd *storagev1.Command) (fsm.Result, error) {
	r, err := c.propose(p, cmd)
	if err == nil && r.Err != nil {
		err = r.Err
	}
	return r, err
}
