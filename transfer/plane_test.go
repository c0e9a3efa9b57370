package transfer_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer"
)

// plane is the real state machine without consensus: every command is one entry, applied when called.
type plane struct {
	t  *testing.T
	mu sync.Mutex
	m  *fsm.Machine
	n  uint64
	// fault, when set, is asked before and after a call of a node; an error before means that it was not
	// applied, one after that its answer is lost.
	faultMu sync.Mutex
	fault   func(node cluster.NodeID, method string, after bool) error
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	m, err := fsm.Open("fsm", fsm.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, m: m}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *plane) setFault(f func(node cluster.NodeID, method string, after bool) error) {
	p.faultMu.Lock()
	defer p.faultMu.Unlock()
	p.fault = f
}

func (p *plane) strike(node cluster.NodeID, method string, after bool) error {
	p.faultMu.Lock()
	f := p.fault
	p.faultMu.Unlock()
	if f == nil {
		return nil
	}
	return f(node, method, after)
}

func (p *plane) apply(cmd *storagev1.Command) fsm.Result {
	b, err := fsm.Encode(cmd)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	res, err := p.m.Apply([]fsm.Entry{{Index: p.n, Command: b}})
	if err != nil {
		panic(err)
	}
	return res[0]
}

// must applies a command that must not be refused.
func (p *plane) must(cmd *storagev1.Command) fsm.Result {
	p.t.Helper()
	r := p.apply(cmd)
	if r.Err != nil {
		p.t.Fatalf("%T refused: %v", cmd.GetCommand(), r.Err)
	}
	return r
}

func ref(id cluster.PartitionID) *storagev1.PartitionRef {
	return &storagev1.PartitionRef{TopicId: uint64(id.Topic), Index: id.Index}
}

func (p *plane) assignment(id cluster.PartitionID) (a cluster.Assignment) {
	p.m.Read(func(r fsm.Reader) { a, _ = r.Assignment(id) })
	return a
}

func (p *plane) outcome(id cluster.PartitionID, move cluster.MoveID) (o cluster.Outcome, ok bool) {
	p.m.Read(func(r fsm.Reader) { o, ok = r.Outcome(id, move) })
	return o, ok
}

func (p *plane) record(move cluster.MoveID) (rec cluster.MoveRecord) {
	p.m.Read(func(r fsm.Reader) {
		for _, m := range r.MoveHistory() {
			if m.MoveID == move {
				rec = m
			}
		}
	})
	return rec
}

func (p *plane) createTopic(name string, owners ...string) cluster.TopicID {
	p.t.Helper()
	return cluster.TopicID(p.must(&storagev1.Command{Command: &storagev1.Command_CreateTopic{
		CreateTopic: &storagev1.CreateTopic{Name: name, Owners: owners},
	}}).Value)
}

func (p *plane) setTarget(id cluster.PartitionID, target cluster.NodeID) cluster.MoveID {
	p.t.Helper()
	a := p.assignment(id)
	return cluster.MoveID(p.must(&storagev1.Command{Command: &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{
		Partition: ref(id), ExpectOwner: string(a.Owner), ExpectTarget: string(a.Target),
		ExpectEpoch: uint64(a.Epoch), Target: string(target), Reason: "test",
	}}}).Value)
}

func (p *plane) cancel(id cluster.PartitionID, move cluster.MoveID) {
	p.t.Helper()
	p.must(&storagev1.Command{Command: &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{
		Partition: ref(id), MoveId: uint64(move), Reason: "test",
	}}})
}

func (p *plane) markDead(node cluster.NodeID, inc cluster.Incarnation, hwms ...*storagev1.PartitionOffsetRecord) {
	p.t.Helper()
	p.must(&storagev1.Command{Command: &storagev1.Command_MarkDead{MarkDead: &storagev1.MarkDead{
		NodeId: string(node), Incarnation: uint64(inc), Hwms: hwms,
	}}})
}

// nodePlane is the plane as one node uses it.
type nodePlane struct {
	p    *plane
	node cluster.NodeID
}

var errUnreachable = errors.New("controllers unreachable")

func (n nodePlane) do(ctx context.Context, method string, cmd *storagev1.Command) (fsm.Result, error) {
	if err := errors.Join(ctx.Err(), n.p.strike(n.node, method, false)); err != nil {
		return fsm.Result{}, err
	}
	r := n.p.apply(cmd)
	if err := n.p.strike(n.node, method, true); err != nil {
		return fsm.Result{}, err
	}
	if r.Err != nil {
		return r, r.Err
	}
	return r, nil
}

func (n nodePlane) GrantHandoff(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
	inc cluster.Incarnation, hash cluster.NonceHash,
) (cluster.Handoff, error) {
	r, err := n.do(ctx, "GrantHandoff", &storagev1.Command{Command: &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{
		Partition: ref(p), MoveId: uint64(move), NodeId: string(n.node), Incarnation: uint64(inc), NonceHash: hash[:],
	}}})
	return cluster.Handoff(r.Value), err
}

func (n nodePlane) RevokeHandoff(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
	h cluster.Handoff, reason string,
) (transfer.Revocation, error) {
	r, err := n.do(ctx, "RevokeHandoff", &storagev1.Command{Command: &storagev1.Command_RevokeHandoff{RevokeHandoff: &storagev1.RevokeHandoff{
		Partition: ref(p), MoveId: uint64(move), Handoff: uint32(h), Reason: reason,
	}}})
	return transfer.Revocation{Revoked: err == nil && r.Outcome == nil, Outcome: r.Outcome, Assignment: r.Assignment}, err
}

func (n nodePlane) CompleteMove(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
	h cluster.Handoff, nonce cluster.Nonce,
) (cluster.Outcome, error) {
	r, err := n.do(ctx, "CompleteMove", &storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
		Partition: ref(p), MoveId: uint64(move), Handoff: uint32(h), Nonce: nonce[:],
	}}})
	if err != nil {
		return cluster.Outcome{}, err
	}
	return *r.Outcome, nil
}

func (n nodePlane) ForceCompleteMove(ctx context.Context, f transfer.ForceRequest) (cluster.Outcome, error) {
	r, err := n.do(ctx, "ForceCompleteMove", &storagev1.Command{Command: &storagev1.Command_ForceCompleteMove{ForceCompleteMove: &storagev1.ForceCompleteMove{
		Partition: ref(f.Partition), MoveId: uint64(f.MoveID), SourceIncarnation: uint64(f.SourceIncarnation),
		StagedLeo: uint64(f.StagedLEO), ReadHwm: uint64(f.ReadHWM),
	}}})
	if err != nil {
		return cluster.Outcome{}, err
	}
	return *r.Outcome, nil
}

func (n nodePlane) ReadMove(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) (transfer.MoveView, error) {
	if err := errors.Join(ctx.Err(), n.p.strike(n.node, "ReadMove", false)); err != nil {
		return transfer.MoveView{}, err
	}
	var v transfer.MoveView
	n.p.m.Read(func(r fsm.Reader) {
		a, ok := r.Assignment(p)
		if !ok {
			v.State = transfer.MoveForgotten
			return
		}
		v.Assignment = &a
		if o, ok := r.Node(a.Owner); ok {
			v.Owner = &o
		}
		o, ended := r.Outcome(p, move)
		switch {
		case move == 0:
		case a.MoveID == move:
			v.State = transfer.MoveCurrent
		case ended:
			v.State, v.Outcome = transfer.MoveEnded, &o
		default:
			v.State = transfer.MoveForgotten
		}
	})
	return v, nil
}

func (n nodePlane) ReportOpened(ctx context.Context, p cluster.PartitionID, epoch cluster.Epoch, move cluster.MoveID, st *cluster.MoveStats) error {
	c := &storagev1.ReportOpened{Partition: ref(p), NodeId: string(n.node), Epoch: uint64(epoch), MoveId: uint64(move)}
	if st != nil {
		c.Stats = &storagev1.MoveStatsRecord{
			Bytes: uint64(st.Bytes), Duration: int64(st.Duration), Freeze: int64(st.Freeze), Passes: st.Passes,
			Attempts: st.Attempts, Converged: st.Converged, FrozenReadBytes: uint64(st.FrozenReadBytes),
		}
	}
	_, err := n.do(ctx, "ReportOpened", &storagev1.Command{Command: &storagev1.Command_ReportOpened{ReportOpened: c}})
	return err
}

func (n nodePlane) ReportReclaimed(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) error {
	_, err := n.do(ctx, "ReportReclaimed", &storagev1.Command{Command: &storagev1.Command_ReportReclaimed{ReportReclaimed: &storagev1.ReportReclaimed{
		Partition: ref(p), MoveId: uint64(move), NodeId: string(n.node),
	}}})
	return err
}

// memJournal survives what the test calls a crash: Save is synced by contract.
type memJournal struct {
	mu sync.Mutex
	kv map[string][]byte
}

func (j *memJournal) Save(k string, v []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.kv == nil {
		j.kv = map[string][]byte{}
	}
	j.kv[k] = append([]byte(nil), v...)
	return nil
}

func (j *memJournal) Delete(k string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.kv, k)
	return nil
}

func (j *memJournal) Load(prefix string) (map[string][]byte, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := maps.Clone(j.kv)
	maps.DeleteFunc(out, func(k string, _ []byte) bool { return !strings.HasPrefix(k, prefix) })
	return out, nil
}
