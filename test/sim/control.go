package sim

import (
	"context"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer"
)

// control is transfer.ControlPlane of a node: it sends commands to the leader, over the network. A domain error other than
// NO_LEADER is definite, all else leaves the outcome unknown.
type control struct{ n *node }

var _ transfer.ControlPlane = control{}

func (n *node) command(p *proc, make func() *storagev1.Command) (fsm.Result, error) {
	return ask(p, n, func(p *proc, c *controller) (fsm.Result, error) { return c.do(p, make()) })
}

// GrantHandoff implements transfer.ControlPlane.
func (c control) GrantHandoff(ctx context.Context, p cluster.PartitionID, m cluster.MoveID, inc cluster.Incarnation, hash cluster.NonceHash) (cluster.Handoff, error) {
	r, err := c.n.command(procOf(ctx), func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{
			Partition: refOf(p), MoveId: uint64(m), NodeId: string(c.n.id), Incarnation: uint64(inc), NonceHash: hash[:],
		}}}
	})
	return cluster.Handoff(r.Value), err
}

// RevokeHandoff implements transfer.ControlPlane.
func (c control) RevokeHandoff(ctx context.Context, p cluster.PartitionID, m cluster.MoveID, h cluster.Handoff, _ string) (transfer.Revocation, error) {
	r, err := c.n.command(procOf(ctx), func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_RevokeHandoff{RevokeHandoff: &storagev1.RevokeHandoff{
			Partition: refOf(p), MoveId: uint64(m), Handoff: uint32(h),
		}}}
	})
	return transfer.Revocation{Revoked: err == nil && r.Outcome == nil, Outcome: r.Outcome, Assignment: r.Assignment}, err
}

// CompleteMove implements transfer.ControlPlane.
func (c control) CompleteMove(ctx context.Context, p cluster.PartitionID, m cluster.MoveID, h cluster.Handoff, nonce cluster.Nonce) (cluster.Outcome, error) {
	c.n.w.checkFlipAsked(c.n, pm{p, m}, h)
	r, err := c.n.command(procOf(ctx), func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
			Partition: refOf(p), MoveId: uint64(m), Handoff: uint32(h), Nonce: nonce[:],
		}}}
	})
	return outcomeOf(r, err)
}

// ForceCompleteMove implements transfer.ControlPlane.
func (c control) ForceCompleteMove(ctx context.Context, f transfer.ForceRequest) (cluster.Outcome, error) {
	c.n.w.book.promoting(c.n, pm{f.Partition, f.MoveID}, f.SourceIncarnation)
	r, err := c.n.command(procOf(ctx), func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_ForceCompleteMove{ForceCompleteMove: &storagev1.ForceCompleteMove{
			Partition: refOf(f.Partition), MoveId: uint64(f.MoveID), SourceIncarnation: uint64(f.SourceIncarnation),
			StagedLeo: uint64(f.StagedLEO), ReadHwm: uint64(f.ReadHWM),
		}}}
	})
	return outcomeOf(r, err)
}

func outcomeOf(r fsm.Result, err error) (cluster.Outcome, error) {
	if err != nil || r.Outcome == nil {
		return cluster.Outcome{}, err
	}
	return *r.Outcome, nil
}

// ReportOpened implements transfer.ControlPlane.
func (c control) ReportOpened(ctx context.Context, p cluster.PartitionID, epoch cluster.Epoch, m cluster.MoveID, _ *cluster.MoveStats) error {
	_, err := c.n.command(procOf(ctx), func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_ReportOpened{ReportOpened: &storagev1.ReportOpened{
			Partition: refOf(p), MoveId: uint64(m), NodeId: string(c.n.id), Epoch: uint64(epoch),
		}}}
	})
	return err
}

// ReportReclaimed implements transfer.ControlPlane.
func (c control) ReportReclaimed(ctx context.Context, p cluster.PartitionID, m cluster.MoveID) error {
	_, err := c.n.command(procOf(ctx), func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_ReportReclaimed{ReportReclaimed: &storagev1.ReportReclaimed{
			Partition: refOf(p), MoveId: uint64(m), NodeId: string(c.n.id),
		}}}
	})
	return err
}

// ReadMove implements transfer.ControlPlane.
func (c control) ReadMove(ctx context.Context, p cluster.PartitionID, m cluster.MoveID) (transfer.MoveView, error) {
	return ask(procOf(ctx), c.n, func(q *proc, ctl *controller) (v transfer.MoveView, err error) {
		if _, err := ctl.lead.Confirm(q.ctx()); err != nil {
			return v, err
		}
		ctl.machine.Read(func(r fsm.Reader) {
			a, ok := r.Assignment(p)
			if ok {
				v.Assignment = &a
				if owner, ok := r.Node(a.Owner); ok {
					v.Owner = &owner
				}
			}
			v.State = transfer.MoveForgotten
			if o, found := r.Outcome(p, m); found {
				v.State, v.Outcome = transfer.MoveEnded, &o
			}
			if ok && a.Moving() && a.MoveID == m {
				v.State = transfer.MoveCurrent
			}
		})
		return v, nil
	})
}

// resolver says what answers about one move mean.
func (r *run) resolver() transfer.Resolver {
	return transfer.Resolver{Node: r.n.id, Store: r.n.store, Control: control{r.n}, Partition: r.p, Move: r.move, CallTimeout: callForever}
}
