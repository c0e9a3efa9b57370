package sim

import (
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/move"
)

// command sends a command to the leader. The answers are those of transfer.ControlPlane: a domain error other
// than NO_LEADER is definite, all else leaves the outcome unknown.
func (n *node) command(p *proc, make func() *storagev1.Command) (fsm.Result, error) {
	return ask(p, n, func(p *proc, c *controller) (fsm.Result, error) { return c.do(p, make()) })
}

func (n *node) grantHandoff(p *proc, k pm, inc cluster.Incarnation, hash cluster.NonceHash) (cluster.Handoff, error) {
	r, err := n.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{
			Partition: refOf(k.p), MoveId: uint64(k.m), NodeId: string(n.id), Incarnation: uint64(inc), NonceHash: hash[:],
		}}}
	})
	return cluster.Handoff(r.Value), err
}

func (n *node) revokeHandoff(p *proc, k pm, h cluster.Handoff) (fsm.Result, error) {
	return n.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_RevokeHandoff{RevokeHandoff: &storagev1.RevokeHandoff{
			Partition: refOf(k.p), MoveId: uint64(k.m), Handoff: uint32(h),
		}}}
	})
}

func (n *node) completeMove(p *proc, k pm, e move.CompleteMove) (fsm.Result, error) {
	return n.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
			Partition: refOf(k.p), MoveId: uint64(k.m), Handoff: uint32(e.Handoff), Nonce: e.Nonce[:],
		}}}
	})
}

func (n *node) forceComplete(p *proc, k pm, e move.ForceComplete) (fsm.Result, error) {
	return n.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_ForceCompleteMove{ForceCompleteMove: &storagev1.ForceCompleteMove{
			Partition: refOf(k.p), MoveId: uint64(k.m), SourceIncarnation: uint64(e.Incarnation), StagedLeo: uint64(e.LEO), ReadHwm: uint64(e.ReadHWM),
		}}}
	})
}

func (n *node) reportOpened(p *proc, k pm, epoch cluster.Epoch) error {
	_, err := n.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_ReportOpened{ReportOpened: &storagev1.ReportOpened{
			Partition: refOf(k.p), MoveId: uint64(k.m), NodeId: string(n.id), Epoch: uint64(epoch),
		}}}
	})
	return err
}

func (n *node) reportReclaimed(p *proc, k pm) error {
	_, err := n.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_ReportReclaimed{ReportReclaimed: &storagev1.ReportReclaimed{
			Partition: refOf(k.p), MoveId: uint64(k.m), NodeId: string(n.id),
		}}}
	})
	return err
}

// readMove is a linearizable read of a partition and one move of it.
func (n *node) readMove(p *proc, k pm) (transfer.MoveView, error) {
	return ask(p, n, func(p *proc, c *controller) (v transfer.MoveView, err error) {
		if err := c.confirm(p); err != nil {
			return v, err
		}
		c.machine.Read(func(r fsm.Reader) {
			a, ok := r.Assignment(k.p)
			if ok {
				v.Assignment = &a
				if owner, ok := r.Node(a.Owner); ok {
					v.Owner = &owner
				}
			}
			v.State = transfer.MoveForgotten
			if o, found := r.Outcome(k.p, k.m); found {
				v.State, v.Outcome = transfer.MoveEnded, &o
			}
			if ok && a.Moving() && a.MoveID == k.m {
				v.State = transfer.MoveCurrent
			}
		})
		return v, nil
	})
}
