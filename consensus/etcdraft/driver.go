package etcdraft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
)

// SnapshotSource hands out the stream that came with a snapshot message.
type SnapshotSource interface {
	// Open returns the stream for meta. The driver closes it once it is restored.
	Open(meta *raftpb.SnapshotMetadata) (io.ReadCloser, error)
}

// DriverConfig is what a Driver needs. All fields are required but Incoming, Logger and the limits.
type DriverConfig struct {
	ID           consensus.ID
	Log          LogStore
	StateMachine consensus.StateMachine
	// ClusterID names the cluster of a state machine that has no metadata yet.
	ClusterID           string
	Incoming            SnapshotSource
	ElectionTicks       int
	HeartbeatTicks      int
	MaxMessageBytes     uint64
	MaxInflightMessages int
	Logger              *zap.Logger
}

// ProposalID ties an entry to who waits for it.
type ProposalID struct{ Nonce, Seq uint64 }

const proposalHeader = 16

// Work is what raft wants done. Messages may be sent at once; Append goes to Persist and Apply to Apply, each
// in the order in which they were handed out.
type Work struct {
	Messages []*raftpb.Message
	Append   *raftpb.Message
	Apply    *raftpb.Message
	Reads    []raft.ReadState
	Soft     *raft.SoftState
}

// AppliedEntry is one entry after it was applied.
type AppliedEntry struct {
	ID     ProposalID
	Index  uint64
	Term   uint64
	Result any
	// Err is why a configuration change was skipped.
	Err error
}

// Applied is the outcome of Apply, to be handed to Driver.Applied.
type Applied struct {
	// Index and Term are the last entry's.
	Index, Term uint64
	Entries     []AppliedEntry
	changes     []*raftpb.ConfChange
	responses   []*raftpb.Message
}

// Driver is the step core: raft over a log and a state machine, without goroutine, clock or network.
type Driver struct {
	id       consensus.ID
	rn       *raft.RawNode
	log      LogStore
	sm       consensus.StateMachine
	incoming SnapshotSource
	members  atomic.Pointer[membership]
	// termApplied is the term of the last applied entry that this process saw.
	termApplied uint64
	lastIndex   uint64
	// raftApplied is what raft knows to be applied; the log must not be compacted beyond it.
	raftApplied atomic.Uint64
}

// NewDriver continues from what log and state machine hold.
func NewDriver(cfg DriverConfig) (*Driver, error) {
	d := &Driver{id: cfg.ID, log: cfg.Log, sm: cfg.StateMachine, incoming: cfg.Incoming}
	members := emptyMembership(cfg.ClusterID)
	if raw := cfg.StateMachine.Metadata(); raw != nil {
		var err error
		if members, err = decodeMembership(raw); err != nil {
			return nil, err
		}
	}
	d.members.Store(members)
	logger := cfg.Logger
	if logger == nil {
		logger = zap.NewNop()
	}
	last, err := cfg.Log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	d.lastIndex = last
	d.raftApplied.Store(cfg.StateMachine.AppliedIndex())
	d.rn, err = raft.NewRawNode(&raft.Config{
		ID:                        uint64(cfg.ID),
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   raftStorage{LogStore: cfg.Log, conf: members.conf},
		Applied:                   cfg.StateMachine.AppliedIndex(),
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             cfg.MaxMessageBytes,
		MaxCommittedSizePerReady:  8 * cfg.MaxMessageBytes,
		MaxUncommittedEntriesSize: 256 << 20,
		MaxInflightMsgs:           cfg.MaxInflightMessages,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    raftLogger{logger.Named("raft").WithOptions(zap.AddCallerSkip(1)).Sugar()},
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	})
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	return d, nil
}

// Tick advances raft's clock.
func (d *Driver) Tick() { d.rn.Tick() }

// Campaign starts an election now.
func (d *Driver) Campaign() error { return d.rn.Campaign() }

// Step takes a message from a peer.
func (d *Driver) Step(m *raftpb.Message) error {
	if m.GetType() == raftpb.MsgReadIndex && d.leads() && !d.OwnTermApplied() {
		// A sole voter would answer from a commit index that may be behind. The asker repeats.
		return nil
	}
	if err := d.rn.Step(m); err != nil && !errors.Is(err, raft.ErrStepPeerNotFound) && !errors.Is(err, raft.ErrProposalDropped) {
		return err
	}
	return nil
}

// Propose appends a command at the leader. An error means that it will never be applied.
func (d *Driver) Propose(id ProposalID, command []byte) error {
	data := make([]byte, proposalHeader, proposalHeader+len(command))
	binary.BigEndian.PutUint64(data, id.Nonce)
	binary.BigEndian.PutUint64(data[8:], id.Seq)
	if err := d.canPropose(); err != nil {
		return err
	}
	if err := d.rn.Propose(append(data, command...)); err != nil {
		return fmt.Errorf("%w: %w", consensus.ErrBusy, err)
	}
	return nil
}

func (d *Driver) canPropose() error {
	st := d.rn.BasicStatus()
	if st.RaftState != raft.StateLeader {
		return consensus.ErrNotLeader
	}
	if st.LeadTransferee != 0 {
		return fmt.Errorf("%w: leadership is being handed over", consensus.ErrBusy)
	}
	return nil
}

// errPending: another configuration change is not applied yet; try again.
var errPending = errors.New("another configuration change is pending")

// ProposeChange appends a configuration change at the leader.
func (d *Driver) ProposeChange(id ProposalID, cc *raftpb.ConfChange) error {
	if err := d.canPropose(); err != nil {
		return err
	}
	if !d.OwnTermApplied() {
		return errPending
	}
	cc.Id = new(id.Seq)
	typ, data, err := raftpb.MarshalConfChange(cc)
	if err != nil {
		return fmt.Errorf("encode the configuration change: %w", err)
	}
	m := &raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(uint64(d.id)), Entries: []*raftpb.Entry{{Type: typ.Enum(), Data: data}}}
	if err := d.rn.Step(m); err != nil {
		return fmt.Errorf("%w: %w", consensus.ErrBusy, err)
	}
	// Raft turns a change that it can't take now into an empty entry.
	if m.GetEntries()[0].GetType() != raftpb.EntryConfChange {
		return errPending
	}
	return nil
}

func (d *Driver) leads() bool { return d.rn.BasicStatus().RaftState == raft.StateLeader }

// Status is raft's.
func (d *Driver) Status() raft.BasicStatus { return d.rn.BasicStatus() }

// OwnTermApplied reports whether an entry of the present term was applied: only then does a new leader
// know all that was committed before it.
func (d *Driver) OwnTermApplied() bool { return d.termApplied == d.rn.BasicStatus().GetTerm() }

// Ready returns the next work, or false when there is none.
func (d *Driver) Ready() (Work, bool) {
	if !d.rn.HasReady() {
		return Work{}, false
	}
	rd := d.rn.Ready()
	w := Work{Reads: rd.ReadStates, Soft: rd.SoftState}
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			w.Append = m
			if n := len(m.GetEntries()); n > 0 {
				d.lastIndex = m.GetEntries()[n-1].GetIndex()
			} else if i := m.GetSnapshot().GetMetadata().GetIndex(); i > 0 {
				d.lastIndex = i
			}
		case raft.LocalApplyThread:
			w.Apply = m
		default:
			w.Messages = append(w.Messages, m)
		}
	}
	return w, true
}

// Persist writes what the messages carry, in order, with one sync. restore installs a snapshot into the state
// machine on the goroutine that applies; nil means here. An error means that the log or the state is broken.
func (d *Driver) Persist(ms []*raftpb.Message, restore func(*raftpb.SnapshotMetadata) error) error {
	if restore == nil {
		restore = d.Restore
	}
	var hs *raftpb.HardState
	var entries []*raftpb.Entry
	flush := func() error {
		defer func() { hs, entries = nil, nil }()
		if hs == nil && len(entries) == 0 {
			return nil
		}
		return d.log.Save(hs, entries)
	}
	for _, m := range ms {
		if meta := m.GetSnapshot().GetMetadata(); meta.GetIndex() > 0 {
			if err := flush(); err != nil {
				return err
			}
			if err := d.install(meta, restore); err != nil {
				return err
			}
		}
		if es := m.GetEntries(); len(es) > 0 {
			// Entries that replace earlier ones make a write of their own.
			if n := len(entries); n > 0 && entries[n-1].GetIndex()+1 != es[0].GetIndex() {
				if err := flush(); err != nil {
					return err
				}
			}
			entries = append(entries, es...)
		}
		if st := (&raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}); !raft.IsEmptyHardState(st) {
			hs = st
		}
	}
	return flush()
}

func (d *Driver) install(meta *raftpb.SnapshotMetadata, restore func(*raftpb.SnapshotMetadata) error) error {
	// The intent is durable first: if the crash comes after the state machine took the snapshot, the next
	// start finds why its state is ahead of the log.
	if err := d.log.BeginSnapshot(meta); err != nil {
		return err
	}
	if err := restore(meta); err != nil {
		return err
	}
	return d.log.FinishSnapshot(meta)
}

// Restore replaces the state machine's state by an incoming snapshot. It belongs to the goroutine that
// calls Apply.
func (d *Driver) Restore(meta *raftpb.SnapshotMetadata) (err error) {
	if d.incoming == nil {
		return fmt.Errorf("restore a snapshot at index %d: no source of snapshots", meta.GetIndex())
	}
	r, err := d.incoming.Open(meta)
	if err != nil {
		return fmt.Errorf("open the snapshot at index %d: %w", meta.GetIndex(), err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := d.sm.Restore(r); err != nil {
		return fmt.Errorf("restore the snapshot at index %d: %w", meta.GetIndex(), err)
	}
	if got := d.sm.AppliedIndex(); got != meta.GetIndex() {
		return fmt.Errorf("restore the snapshot at index %d: the state machine says index %d", meta.GetIndex(), got)
	}
	ms, err := decodeMembership(d.sm.Metadata())
	if err != nil {
		return err
	}
	if err := ms.conf.Equivalent(meta.GetConfState()); err != nil {
		return fmt.Errorf("restore the snapshot at index %d: its configuration differs from its message's: %w", meta.GetIndex(), err)
	}
	d.members.Store(ms)
	return nil
}

// Persisted tells raft that ms were written, and returns the messages to peers that waited for it.
func (d *Driver) Persisted(ms []*raftpb.Message) []*raftpb.Message {
	var out []*raftpb.Message
	for _, m := range ms {
		for _, r := range m.GetResponses() {
			if r.GetTo() == uint64(d.id) {
				_ = d.rn.Step(r) // A stale response is ignored by design.
			} else {
				out = append(out, r)
			}
		}
	}
	return out
}

// Apply hands committed entries to the state machine, as one batch.
func (d *Driver) Apply(ms []*raftpb.Message) (Applied, error) {
	var a Applied
	var batch []consensus.Entry
	members := d.members.Load()
	for _, m := range ms {
		a.responses = append(a.responses, m.GetResponses()...)
		for _, e := range m.GetEntries() {
			out := AppliedEntry{Index: e.GetIndex(), Term: e.GetTerm()}
			in := consensus.Entry{Index: e.GetIndex()}
			switch {
			case e.GetType() == raftpb.EntryConfChange:
				cc := &raftpb.ConfChange{}
				if err := proto.Unmarshal(e.GetData(), cc); err != nil {
					return a, fmt.Errorf("decode the configuration change at index %d: %w", e.GetIndex(), err)
				}
				out.ID.Seq = cc.GetId()
				if next, err := members.apply(cc); err != nil {
					out.Err = err
				} else {
					members = next
					in.Metadata = next.encode()
					a.changes = append(a.changes, cc)
				}
			case e.GetType() != raftpb.EntryNormal:
				return a, fmt.Errorf("entry at index %d is of unknown kind %v", e.GetIndex(), e.GetType())
			case len(e.GetData()) == 0: // A new leader's first entry.
			case len(e.GetData()) < proposalHeader:
				return a, fmt.Errorf("entry at index %d has no header", e.GetIndex())
			default:
				b := e.GetData()
				out.ID = ProposalID{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
				in.Command = b[proposalHeader:]
			}
			batch, a.Entries = append(batch, in), append(a.Entries, out)
		}
	}
	if len(batch) == 0 {
		return a, nil
	}
	results, err := d.sm.Apply(batch)
	if err != nil {
		return a, fmt.Errorf("apply entries %d to %d: %w", batch[0].Index, batch[len(batch)-1].Index, err)
	}
	if len(results) != len(batch) {
		return a, fmt.Errorf("apply entries %d to %d: %d results for %d entries", batch[0].Index, batch[len(batch)-1].Index, len(results), len(batch))
	}
	for i := range results {
		a.Entries[i].Result = results[i]
	}
	last := a.Entries[len(a.Entries)-1]
	a.Index, a.Term = last.Index, last.Term
	d.members.Store(members)
	return a, nil
}

// Applied tells raft the outcome of Apply.
func (d *Driver) Applied(a Applied) {
	if a.Term > d.termApplied {
		d.termApplied = a.Term
	}
	for _, cc := range a.changes {
		d.rn.ApplyConfChange(cc)
	}
	for _, r := range a.responses {
		_ = d.rn.Step(r)
	}
	if a.Index > 0 {
		d.raftApplied.Store(a.Index)
	}
}

// ProcessReady does all due work here and now, and returns the messages to send and the reads that were
// confirmed. For simulations and tests; Backend spreads the same steps over goroutines.
func (d *Driver) ProcessReady() (out []*raftpb.Message, reads []raft.ReadState, applied []AppliedEntry, err error) {
	for {
		w, ok := d.Ready()
		if !ok {
			return out, reads, applied, nil
		}
		out, reads = append(out, w.Messages...), append(reads, w.Reads...)
		if w.Append != nil {
			if err := d.Persist([]*raftpb.Message{w.Append}, nil); err != nil {
				return out, reads, applied, err
			}
			out = append(out, d.Persisted([]*raftpb.Message{w.Append})...)
		}
		if w.Apply != nil {
			a, err := d.Apply([]*raftpb.Message{w.Apply})
			if err != nil {
				return out, reads, applied, err
			}
			d.Applied(a)
			applied = append(applied, a.Entries...)
		}
	}
}

// raftLogger adapts zap to raft. What raft tells as Info is detail; the shell logs the transitions.
type raftLogger struct{ *zap.SugaredLogger }

func (l raftLogger) Info(v ...any)                    { l.Debug(v...) }
func (l raftLogger) Infof(format string, v ...any)    { l.Debugf(format, v...) }
func (l raftLogger) Warning(v ...any)                 { l.Warn(v...) }
func (l raftLogger) Warningf(format string, v ...any) { l.Warnf(format, v...) }
