package etcdraft_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/consensustest"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
)

// sim drives three Drivers by hand in one goroutine: a network that loses, delays and reorders, and
// members that crash at any step over logs that lose what was not synced.
type sim struct {
	t       *testing.T
	rng     *rand.Rand
	members []*simMember
	net     []*raftpb.Message
	faults  bool
	// cut is the member that no message reaches for the time being; zero for none.
	cut   uint64
	seq   uint64
	acked map[string]bool
}

type simMember struct {
	id        consensus.ID
	disk      *consensustest.Disk
	machine   *consensustest.Machine
	log       *etcdraft.MemLog
	driver    *etcdraft.Driver
	proposed  map[etcdraft.ProposalID]string
	snapshots map[uint64][]byte
}

// Open implements etcdraft.SnapshotSource.
func (m *simMember) Open(meta *raftpb.SnapshotMetadata) (io.ReadCloser, error) {
	raw, ok := m.snapshots[meta.GetIndex()]
	if !ok {
		return nil, fmt.Errorf("no snapshot %d", meta.GetIndex())
	}
	return io.NopCloser(bytes.NewReader(raw)), nil
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), acked: map[string]bool{}}
	var first []consensus.Member
	for i := range 3 {
		id := consensus.ID(i + 1)
		first = append(first, consensus.Member{ID: id, Name: fmt.Sprint(id), Address: fmt.Sprint(id), StoreID: fmt.Sprint(id), Role: consensus.Voter})
	}
	record := etcdraft.BootstrapMetadata("sim", first)
	for _, f := range first {
		m := &simMember{id: f.ID, disk: &consensustest.Disk{}, proposed: map[etcdraft.ProposalID]string{}, snapshots: map[uint64][]byte{}}
		m.machine = consensustest.Open(m.disk)
		if _, err := m.machine.Apply([]consensus.Entry{{Index: 1, Metadata: record}}); err != nil {
			t.Fatal(err)
		}
		if err := m.machine.Flush(); err != nil {
			t.Fatal(err)
		}
		m.log = etcdraft.NewMemLog(&raftpb.ConfState{Voters: []uint64{1, 2, 3}})
		s.members = append(s.members, m)
		s.boot(m)
	}
	return s
}

func (s *sim) boot(m *simMember) {
	s.t.Helper()
	d, err := etcdraft.NewDriver(etcdraft.DriverConfig{
		ID: m.id, Log: m.log, StateMachine: m.machine, ClusterID: "sim", Incoming: m,
		ElectionTicks: 10, HeartbeatTicks: 1, MaxMessageBytes: 1 << 10, MaxInflightMessages: 8,
	})
	if err != nil {
		s.t.Fatalf("member %d: %v", m.id, err)
	}
	m.driver = d
}

// crash loses what was not synced; a random number of records that happened to reach the disk survive.
func (s *sim) crash(m *simMember) {
	s.t.Helper()
	m.machine.Abandon()
	m.machine = consensustest.Open(m.disk)
	log, err := m.log.Crash(m.machine.AppliedIndex(), s.rng.IntN(3))
	if err != nil {
		s.t.Fatalf("member %d does not come back: %v", m.id, err)
	}
	m.log = log
	clear(m.proposed)
	s.boot(m)
}

// ready does the due work of m, crashing between any two steps of it.
func (s *sim) ready(m *simMember) {
	s.t.Helper()
	maybeCrash := func() bool {
		if s.faults && s.rng.IntN(400) == 0 {
			s.crash(m)
			return true
		}
		return false
	}
	for {
		w, ok := m.driver.Ready()
		if !ok {
			return
		}
		s.send(m, w.Messages)
		if w.Append != nil {
			batch := []*raftpb.Message{w.Append}
			if err := m.driver.Persist(batch, nil); err != nil {
				s.t.Fatalf("member %d: persist: %v", m.id, err)
			}
			if maybeCrash() {
				return
			}
			s.send(m, m.driver.Persisted(batch))
		}
		if w.Apply != nil {
			a, err := m.driver.Apply([]*raftpb.Message{w.Apply})
			if err != nil {
				s.t.Fatalf("member %d: apply: %v", m.id, err)
			}
			if maybeCrash() {
				return
			}
			for _, e := range a.Entries {
				if command, ok := m.proposed[e.ID]; ok && e.Result != nil {
					s.acked[command] = true
				}
			}
			m.driver.Applied(a)
		}
	}
}

func (s *sim) send(m *simMember, ms []*raftpb.Message) {
	s.t.Helper()
	for _, msg := range ms {
		// The receiver gets its own copy, as over a network.
		msg = proto.Clone(msg).(*raftpb.Message)
		if msg.GetType() == raftpb.MsgSnap {
			snap, err := m.machine.Snapshot()
			if err != nil {
				s.t.Fatal(err)
			}
			term, err := m.log.Term(snap.Index())
			if err != nil {
				s.t.Fatal(err)
			}
			var body bytes.Buffer
			if _, err := snap.WriteTo(&body); err != nil {
				s.t.Fatal(err)
			}
			s.members[msg.GetTo()-1].snapshots[snap.Index()] = body.Bytes()
			msg.Snapshot.Metadata.Index, msg.Snapshot.Metadata.Term = new(snap.Index()), new(term)
		}
		s.net = append(s.net, msg)
	}
}

// step is one event.
func (s *sim) step() {
	m := s.members[s.rng.IntN(3)]
	if s.faults && s.rng.IntN(1000) == 0 {
		s.cut = uint64(s.rng.IntN(4))
	}
	switch k := s.rng.IntN(100); {
	case k < 12:
		m.driver.Tick()
	case k < 20:
		s.seq++
		id, command := etcdraft.ProposalID{Nonce: 7, Seq: s.seq}, fmt.Sprint("p", s.seq)
		if err := m.driver.Propose(id, []byte(command)); err == nil {
			m.proposed[id] = command
		}
	case k < 22 && s.faults && s.rng.IntN(20) == 0:
		s.crash(m)
	case k < 23:
		s.compact(m)
	default:
		if len(s.net) == 0 {
			return
		}
		i := 0
		if s.faults {
			i = s.rng.IntN(len(s.net))
		}
		msg := s.net[i]
		s.net = append(s.net[:i], s.net[i+1:]...)
		if s.faults && (s.rng.IntN(10) == 0 || msg.GetTo() == s.cut || msg.GetFrom() == s.cut) {
			return
		}
		m = s.members[msg.GetTo()-1]
		if err := m.driver.Step(msg); err != nil {
			s.t.Fatalf("member %d: step: %v", m.id, err)
		}
	}
	s.ready(m)
}

func (s *sim) compact(m *simMember) {
	at := m.machine.DurableIndex()
	if first, _ := m.log.FirstIndex(); at < first+10 || at > m.machine.AppliedIndex() {
		return
	}
	term, err := m.log.Term(at)
	if err != nil {
		return
	}
	if err := m.log.Compact(&raftpb.SnapshotMetadata{Index: new(at), Term: new(term), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}); err != nil {
		s.t.Fatal(err)
	}
}

// settled reports whether all members have applied the same.
func (s *sim) settled() bool {
	a := s.members[0].machine.AppliedIndex()
	for _, m := range s.members {
		if m.machine.AppliedIndex() != a || m.driver.Status().GetCommit() != a {
			return false
		}
	}
	return a > 1
}

// TestC50CrashAnywhere crashes members between any two steps of the driver: when the faults end, all members
// agree, and every acknowledged command is there exactly once.
func TestC50CrashAnywhere(t *testing.T) {
	acked, restores := 0, 0
	for seed := range uint64(40) {
		s := newSim(t, seed)
		s.faults = true
		for range 6000 {
			s.step()
		}
		s.faults, s.cut = false, 0
		for _, m := range s.members {
			s.crash(m)
		}
		s.net = nil
		before := len(s.acked)
		for n := 0; len(s.acked) == before || !s.settled(); n++ {
			if n > 200_000 {
				t.Fatalf("seed %d: the members do not converge", seed)
			}
			s.step()
		}
		want := s.members[0].machine.Records()
		for _, m := range s.members[1:] {
			if diff := cmp.Diff(want, m.machine.Records()); diff != "" {
				t.Fatalf("seed %d: members 1 and %d differ:\n%s", seed, m.id, diff)
			}
		}
		for command := range s.acked {
			if n := s.members[0].machine.Count(command); n != 1 {
				t.Fatalf("seed %d: acknowledged %q is there %d times", seed, command, n)
			}
		}
		acked += len(s.acked)
		for _, m := range s.members {
			restores += m.machine.Restores()
		}
	}
	if acked == 0 || restores == 0 {
		t.Fatalf("%d acknowledged commands and %d snapshots: the test shows nothing", acked, restores)
	}
	t.Logf("%d acknowledged, %d snapshots", acked, restores)
}
