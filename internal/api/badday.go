package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// snapshotPartBytes bounds one message of a backup.
const snapshotPartBytes = 256 << 10

// SaveSnapshot streams a backup of this controller's state, which is current as of the call.
func (s clusterService) SaveSnapshot(ctx context.Context, _ *planev1.SaveSnapshotRequest, stream planev1connect.ClusterServiceSaveSnapshotServerStream) (err error) {
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return fail(err)
	}
	snap, err := s.deps.Machine.Snapshot()
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	out := bufio.NewWriterSize(parts{func(b []byte) error {
		if err := extendWrite(ctx, s.deps.WriteTimeout); err != nil {
			return err
		}
		return stream.Send(&planev1.SaveSnapshotResponse{Data: b})
	}}, snapshotPartBytes)
	cfg := s.deps.Controller.Config()
	if err := snap.WriteBackup(out, fsm.BackupHeader{
		ClusterID: cfg.ClusterID, CreatedAt: time.Now(), Controller: cfg.Name, Version: s.deps.Version,
	}); err != nil {
		return fail(err)
	}
	return out.Flush()
}

// parts sends what is written in messages of a bounded size.
type parts struct{ send func([]byte) error }

var _ io.Writer = parts{}

func (p parts) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		n := min(len(b), snapshotPartBytes)
		if err := p.send(b[:n]); err != nil {
			return written, err
		}
		written, b = written+n, b[n:]
	}
	return written, nil
}

func (s clusterService) ForgetMember(ctx context.Context, req *planev1.ForgetMemberRequest) (*planev1.ForgetMemberResponse, error) {
	if err := cluster.ValidateNodeID(cluster.NodeID(req.GetId())); err != nil {
		return nil, fail(cluster.Invalid("id", "%v", err))
	}
	id, err := requestID("ForgetMember", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	rev, losses, err := s.deps.Controller.Forget(ctx, cluster.NodeID(req.GetId()), req.GetAcceptLoss(), req.GetDryRun(), id)
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.ForgetMemberResponse{Revision: uint64(rev)}
	for _, l := range losses {
		lost := &planev1.LostPartition{Partition: wire.PartitionToProto(l.Partition), Bytes: uint64(l.Bytes), NewOwner: string(l.NewOwner)}
		lost.Partition.Topic = topicOf(l.Name)
		for _, n := range l.SalvagedFrom {
			lost.SalvagedFrom = append(lost.SalvagedFrom, string(n))
		}
		res.Lost = append(res.Lost, lost)
	}
	return res, nil
}

// topicOf is the topic's name of "topic/index".
func topicOf(name string) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '/' {
			return name[:i]
		}
	}
	return name
}

func (s clusterService) AdoptPartition(ctx context.Context, req *planev1.AdoptPartitionRequest) (*planev1.AdoptPartitionResponse, error) {
	err := cluster.ValidateTopicName(req.GetTopic())
	if err == nil {
		if err = cluster.ValidateNodeID(cluster.NodeID(req.GetFrom())); err != nil {
			err = cluster.Invalid("from", "%v", err)
		}
	}
	if err != nil {
		return nil, fail(err)
	}
	id, err := requestID("AdoptPartition", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	r, p, owner, err := s.deps.Controller.Adopt(ctx, req.GetTopic(), req.GetIndex(), cluster.NodeID(req.GetFrom()), id)
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.AdoptPartitionResponse{
		Revision: uint64(r.Revision), Owner: owner, MoveId: r.Value, Partition: wire.PartitionWithTopic(p, req.GetTopic()),
	}, nil
}

func (s clusterService) RetryMove(ctx context.Context, req *planev1.RetryMoveRequest) (*planev1.RetryMoveResponse, error) {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return nil, fail(err)
	}
	m, _, err := s.deps.Controller.RetryMove(ctx, req.GetTopic(), req.GetIndex())
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.RetryMoveResponse{Move: moveMessage(m, req.GetTopic())}, nil
}

func (s clusterService) ForcePromoteMove(ctx context.Context, req *planev1.ForcePromoteMoveRequest) (*planev1.ForcePromoteMoveResponse, error) {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return nil, fail(err)
	}
	m, _, hwm, err := s.deps.Controller.ForcePromoteMove(ctx, req.GetTopic(), req.GetIndex(), req.GetAcceptLoss())
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.ForcePromoteMoveResponse{Move: moveMessage(m, req.GetTopic()), KnownHwm: uint64(hwm)}, nil
}

func moveMessage(m controller.Move, topic string) *planev1.Move {
	out := &planev1.Move{Assignment: wire.AssignmentToProto(m.Assignment)}
	out.Assignment.Partition.Topic = topic
	if m.Progress != nil {
		out.Progress = wire.MoveProgressToProto(*m.Progress)
		out.Progress.Partition.Topic = topic
	}
	return out
}

func (s clusterService) SetMaintenance(ctx context.Context, req *planev1.SetMaintenanceRequest) (*planev1.SetMaintenanceResponse, error) {
	err := cluster.ValidateNodeID(cluster.NodeID(req.GetId()))
	if err != nil {
		err = cluster.Invalid("id", "%v", err)
	} else {
		err = checkText("reason", req.GetReason(), maxText)
	}
	if err != nil {
		return nil, fail(err)
	}
	id, err := requestID("SetMaintenance", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	rev, err := s.deps.Controller.SetMaintenance(ctx, cluster.NodeID(req.GetId()), req.GetMaintenance(), req.GetReason(), id)
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.SetMaintenanceResponse{Revision: uint64(rev)}, nil
}

func (s clusterService) PromoteController(ctx context.Context, req *planev1.PromoteControllerRequest) (*planev1.PromoteControllerResponse, error) {
	name := cluster.ControllerName(req.GetName())
	if err := cluster.ValidateControllerName(name); err != nil {
		return nil, fail(err)
	}
	rev, already, err := s.deps.Controller.PromoteController(ctx, name)
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.PromoteControllerResponse{Revision: uint64(rev), Already: already}, nil
}
