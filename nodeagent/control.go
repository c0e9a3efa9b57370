package nodeagent

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
	"github.com/naradctl/naradctl-plane/transfer"
)

// nodeClient shortens the signatures below.
type nodeClient = planev1connect.NodeServiceClient

// control is the control plane as one node uses it.
type control struct {
	client *Client
	node   cluster.NodeID
}

var _ transfer.ControlPlane = control{}

// register begins a session. The request id is the same in all attempts. have is the cluster that the directory belongs to.
func (c control) register(ctx context.Context, cfg Config, store cluster.StoreID, have cluster.ClusterID, inc cluster.Incarnation) (enrolment, error) {
	req := &planev1.RegisterNodeRequest{
		NodeId:         string(c.node),
		StoreId:        string(store),
		Incarnation:    uint64(inc),
		Address:        cfg.AdvertiseAddress(),
		Zone:           cfg.Zone,
		Voter:          string(cfg.Voter),
		CapacityWeight: cfg.CapacityWeight,
		RequestId:      uuid.NewString(),
		ClusterId:      string(have),
	}
	res, err := call(ctx, c.client, "register", func(ctx context.Context, n nodeClient) (*planev1.RegisterNodeResponse, error) {
		return n.RegisterNode(ctx, req)
	})
	e := enrolment{cluster: cluster.ClusterID(res.GetClusterId()), claim: res.GetNode().GetUnclaimed()}
	for _, id := range res.GetPredecessors() {
		e.predecessors = append(e.predecessors, cluster.ClusterID(id))
	}
	return e, err
}

// claim sends one part of what this node holds.
func (c control) claim(ctx context.Context, req *planev1.ClaimPartitionsRequest) error {
	_, err := call(ctx, c.client, "claim partitions", func(ctx context.Context, n nodeClient) (*planev1.ClaimPartitionsResponse, error) {
		return n.ClaimPartitions(ctx, req)
	})
	return err
}

// heartbeat makes one attempt: the lease counts from when the request was sent, so that a late repetition
// would be worth less than a new one.
func (c control) heartbeat(ctx context.Context, timeout time.Duration, req *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
	return once(ctx, c.client, timeout, func(ctx context.Context, n nodeClient) (*planev1.HeartbeatResponse, error) {
		return n.Heartbeat(ctx, req)
	})
}

// GrantHandoff implements transfer.ControlPlane.
func (c control) GrantHandoff(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
	inc cluster.Incarnation, hash cluster.NonceHash,
) (cluster.Handoff, error) {
	req := &planev1.GrantHandoffRequest{
		TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(move),
		NodeId: string(c.node), Incarnation: uint64(inc), NonceHash: hash[:],
	}
	res, err := call(ctx, c.client, "grant handoff", func(ctx context.Context, n nodeClient) (*planev1.GrantHandoffResponse, error) {
		return n.GrantHandoff(ctx, req)
	})
	return cluster.Handoff(res.GetHandoff()), err
}

// RevokeHandoff implements transfer.ControlPlane.
func (c control) RevokeHandoff(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
	handoff cluster.Handoff, reason string,
) (transfer.Revocation, error) {
	req := &planev1.RevokeHandoffRequest{
		TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(move), Handoff: uint32(handoff), Reason: reason,
	}
	res, err := call(ctx, c.client, "revoke handoff", func(ctx context.Context, n nodeClient) (*planev1.RevokeHandoffResponse, error) {
		return n.RevokeHandoff(ctx, req)
	})
	if err != nil {
		return transfer.Revocation{}, err
	}
	out := transfer.Revocation{Revoked: res.GetRevoked()}
	if res.Outcome != nil {
		o := wire.OutcomeFromProto(res.GetOutcome())
		out.Outcome = &o
	}
	if res.Assignment != nil {
		a := wire.AssignmentFromProto(res.GetAssignment())
		out.Assignment = &a
	}
	return out, nil
}

// CompleteMove implements transfer.ControlPlane.
func (c control) CompleteMove(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
	handoff cluster.Handoff, nonce cluster.Nonce,
) (cluster.Outcome, error) {
	req := &planev1.CompleteMoveRequest{
		TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(move), Handoff: uint32(handoff), Nonce: nonce[:],
	}
	res, err := call(ctx, c.client, "complete move", func(ctx context.Context, n nodeClient) (*planev1.CompleteMoveResponse, error) {
		return n.CompleteMove(ctx, req)
	})
	if err != nil {
		return cluster.Outcome{}, err
	}
	return wire.OutcomeFromProto(res.GetOutcome()), nil
}

// ForceCompleteMove implements transfer.ControlPlane.
func (c control) ForceCompleteMove(ctx context.Context, r transfer.ForceRequest) (cluster.Outcome, error) {
	req := &planev1.ForceCompleteMoveRequest{
		TopicId: uint64(r.Partition.Topic), Index: r.Partition.Index, MoveId: uint64(r.MoveID),
		SourceIncarnation: uint64(r.SourceIncarnation), StagedLeo: uint64(r.StagedLEO),
		ReadHwm: uint64(r.ReadHWM), AcceptLoss: r.AcceptLoss,
	}
	res, err := call(ctx, c.client, "force-complete move", func(ctx context.Context, n nodeClient) (*planev1.ForceCompleteMoveResponse, error) {
		return n.ForceCompleteMove(ctx, req)
	})
	if err != nil {
		return cluster.Outcome{}, err
	}
	return wire.OutcomeFromProto(res.GetOutcome()), nil
}

// ReadMove implements transfer.ControlPlane.
func (c control) ReadMove(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) (transfer.MoveView, error) {
	req := &planev1.GetAssignmentRequest{TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(move)}
	res, err := call(ctx, c.client, "read assignment", func(ctx context.Context, n nodeClient) (*planev1.GetAssignmentResponse, error) {
		return n.GetAssignment(ctx, req)
	})
	if err != nil {
		return transfer.MoveView{}, err
	}
	// Invariant I9: after a restore the state is older than what was decided since. It proves nothing about a partition that it
	// does not know, or that is not confirmed yet.
	switch {
	case res.GetUnknownTopic():
		return transfer.MoveView{}, unsettled("topic %d was made after the backup that the controllers were restored from, and is not known to them", p.Topic)
	case res.GetAssignment().GetUnconfirmed():
		return transfer.MoveView{}, unsettled("partition %s waits for its confirmation: the controllers were restored from a backup", p)
	}
	var out transfer.MoveView
	switch res.GetMoveState() {
	case planev1.MoveState_MOVE_STATE_CURRENT:
		out.State = transfer.MoveCurrent
	case planev1.MoveState_MOVE_STATE_ENDED:
		out.State = transfer.MoveEnded
	case planev1.MoveState_MOVE_STATE_FORGOTTEN:
		out.State = transfer.MoveForgotten
	}
	if res.Assignment != nil {
		a := wire.AssignmentFromProto(res.GetAssignment())
		out.Assignment = &a
	}
	if res.Outcome != nil {
		o := wire.OutcomeFromProto(res.GetOutcome())
		out.Outcome = &o
	}
	if res.Owner != nil {
		n := wire.NodeFromProto(res.GetOwner())
		out.Owner = &n
	}
	return out, nil
}

// ReportOpened implements transfer.ControlPlane.
func (c control) ReportOpened(ctx context.Context, p cluster.PartitionID, epoch cluster.Epoch,
	move cluster.MoveID, stats *cluster.MoveStats,
) error {
	req := &planev1.ReportOpenedRequest{
		TopicId: uint64(p.Topic), Index: p.Index, NodeId: string(c.node), Epoch: uint64(epoch), MoveId: uint64(move),
	}
	if stats != nil {
		req.Stats = wire.MoveStatsToProto(*stats)
	}
	_, err := call(ctx, c.client, "report opened", func(ctx context.Context, n nodeClient) (*planev1.ReportOpenedResponse, error) {
		return n.ReportOpened(ctx, req)
	})
	return err
}

// ReportReclaimed implements transfer.ControlPlane.
func (c control) ReportReclaimed(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) error {
	req := &planev1.ReportReclaimedRequest{
		TopicId: uint64(p.Topic), Index: p.Index, MoveId: uint64(move), NodeId: string(c.node),
	}
	_, err := call(ctx, c.client, "report reclaimed", func(ctx context.Context, n nodeClient) (*planev1.ReportReclaimedResponse, error) {
		return n.ReportReclaimed(ctx, req)
	})
	return err
}

// unsettled is no answer: what it is about is asked for again.
func unsettled(format string, args ...any) error {
	e := cluster.Errorf(cluster.ReasonNoLeader, format, args...)
	e.RetryAfter = time.Second
	return e
}
