package api

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	"github.com/naradctl/naradctl-plane/planner"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

type clusterService struct{ *Server }

// maxDrainIDs bounds one plan.
const maxDrainIDs = 1000

func (s clusterService) GetClusterStatus(ctx context.Context, _ *planev1.GetClusterStatusRequest) (*planev1.GetClusterStatusResponse, error) {
	return statusMessage(s.deps.Controller.Status(ctx), s.deps.Controller.Config().ClusterID), nil
}

func (s clusterService) ListMembers(ctx context.Context, _ *planev1.ListMembersRequest) (*planev1.ListMembersResponse, error) {
	list, err := s.deps.Controller.Members(ctx)
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.ListMembersResponse{Revision: uint64(list.Revision)}
	for _, m := range list.Members {
		res.Members = append(res.Members, memberMessage(m, list.Topics))
	}
	return res, nil
}

func (s clusterService) ListMoves(ctx context.Context, req *planev1.ListMovesRequest) (*planev1.ListMovesResponse, error) {
	m, err := s.deps.Controller.Moves(ctx, req.GetHistory(), int(req.GetHistoryLimit()))
	if err != nil {
		return nil, fail(err)
	}
	return movesMessage(m), nil
}

func (s clusterService) PlanMoves(ctx context.Context, req *planev1.PlanMovesRequest) (*planev1.PlanMovesResponse, error) {
	if len(req.GetDrain()) > maxDrainIDs {
		return nil, fail(cluster.Invalid("drain", "must be at most %d, are %d", maxDrainIDs, len(req.GetDrain())))
	}
	what := planner.WhatIf{Add: int(req.GetAddNodes())}
	for _, v := range req.GetDrain() {
		if err := cluster.ValidateNodeID(cluster.NodeID(v)); err != nil {
			return nil, fail(cluster.Invalid("drain", "%v", err))
		}
		what.Drain = append(what.Drain, cluster.NodeID(v))
	}
	f, err := s.deps.Controller.PlanMoves(ctx, what)
	if err != nil {
		return nil, fail(err)
	}
	return planMessage(f), nil
}

func (s clusterService) ExplainPartition(ctx context.Context, req *planev1.ExplainPartitionRequest) (*planev1.ExplainPartitionResponse, error) {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return nil, fail(err)
	}
	e, err := s.deps.Controller.Explain(ctx, req.GetTopic(), req.GetIndex())
	if err != nil {
		return nil, fail(err)
	}
	return explanationMessage(e, req.GetTopic()), nil
}

func (s clusterService) Decommission(ctx context.Context, req *planev1.DecommissionRequest) (*planev1.DecommissionResponse, error) {
	ids, err := drainIDs(req)
	if err == nil {
		err = checkText("reason", req.GetReason(), maxText)
	}
	if err != nil {
		return nil, fail(err)
	}
	id, err := requestID("Decommission", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	d, err := s.deps.Controller.Decommission(ctx, ids, req.GetReason(), req.GetDryRun(), id)
	if err != nil {
		return nil, fail(err)
	}
	return drainMessage(d, req.GetDryRun()), nil
}

func drainIDs(req *planev1.DecommissionRequest) ([]cluster.NodeID, error) {
	if len(req.GetOtherIds()) >= maxDrainIDs {
		return nil, cluster.Invalid("other_ids", "must be fewer than %d, are %d", maxDrainIDs, len(req.GetOtherIds()))
	}
	var ids []cluster.NodeID
	for i, v := range append([]string{req.GetId()}, req.GetOtherIds()...) {
		id := cluster.NodeID(v)
		if err := cluster.ValidateNodeID(id); err != nil {
			return nil, cluster.Invalid([]string{"id", "other_ids"}[min(i, 1)], "%v", err)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (s clusterService) CancelDecommission(ctx context.Context, req *planev1.CancelDecommissionRequest) (*planev1.CancelDecommissionResponse, error) {
	if err := cluster.ValidateNodeID(cluster.NodeID(req.GetId())); err != nil {
		return nil, fail(cluster.Invalid("id", "%v", err))
	}
	id, err := requestID("CancelDecommission", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	rev, err := s.deps.Controller.CancelDecommission(ctx, cluster.NodeID(req.GetId()), id)
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.CancelDecommissionResponse{Revision: uint64(rev)}, nil
}

func (s clusterService) StartMove(ctx context.Context, req *planev1.StartMoveRequest) (*planev1.StartMoveResponse, error) {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return nil, fail(err)
	}
	if err := cluster.ValidateNodeID(cluster.NodeID(req.GetTo())); err != nil {
		return nil, fail(cluster.Invalid("to", "%v", err))
	}
	id, err := requestID("StartMove", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	r, err := s.deps.Controller.StartMove(ctx, req.GetTopic(), req.GetIndex(), cluster.NodeID(req.GetTo()), id)
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.StartMoveResponse{Revision: uint64(r.Revision)}
	s.deps.Machine.Read(func(rd fsm.Reader) {
		a := r.Assignment
		if a == nil { // the request was remembered: the present assignment
			if t, ok := rd.TopicByName(req.GetTopic()); ok {
				if now, ok := rd.Assignment(cluster.PartitionID{Topic: t.ID, Index: req.GetIndex()}); ok {
					a = &now
				}
			}
		}
		if a != nil {
			res.Assignment = wire.AssignmentToProto(*a)
			res.Assignment.Partition.Topic = req.GetTopic()
		}
	})
	return res, nil
}

func (s clusterService) CancelMove(ctx context.Context, req *planev1.CancelMoveRequest) (*planev1.CancelMoveResponse, error) {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return nil, fail(err)
	}
	id, err := requestID("CancelMove", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	r, err := s.deps.Controller.CancelMove(ctx, req.GetTopic(), req.GetIndex(), cluster.MoveID(req.GetMoveId()), id)
	if err != nil {
		return nil, fail(err)
	}
	// A remembered request carries no outcome; only a cancellation is remembered.
	res := &planev1.CancelMoveResponse{Revision: uint64(r.Revision), Cancelled: r.Outcome == nil || r.Outcome.Kind == cluster.OutcomeCancelled}
	if r.Outcome != nil {
		res.Outcome = wire.OutcomeToProto(*r.Outcome)
	}
	return res, nil
}

func (s clusterService) GetSettings(ctx context.Context, _ *planev1.GetSettingsRequest) (*planev1.GetSettingsResponse, error) {
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return nil, fail(err)
	}
	res := &planev1.GetSettingsResponse{}
	s.deps.Machine.Read(func(r fsm.Reader) {
		res.Revision, res.Settings = uint64(r.Revision()), wire.SettingsToProto(r.Settings())
	})
	return res, nil
}

func (s clusterService) UpdateSettings(ctx context.Context, req *planev1.UpdateSettingsRequest) (*planev1.UpdateSettingsResponse, error) {
	if err := checkSettings(req.GetSettings()); err != nil {
		return nil, fail(err)
	}
	id, err := requestID("UpdateSettings", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	var old cluster.Settings
	rev, set, err := s.deps.Controller.UpdateSettings(ctx, func(base cluster.Settings) cluster.Settings {
		old = base
		return wire.ApplySettings(base, req.GetSettings())
	}, id)
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.UpdateSettingsResponse{Revision: uint64(rev), Settings: wire.SettingsToProto(set), Previous: wire.SettingsToProto(old)}, nil
}

// checkSettings refuses durations that are none.
func checkSettings(p *planev1.Settings) error {
	if p == nil {
		return cluster.Invalid("settings", "is missing")
	}
	for _, f := range []struct {
		field string
		value *durationpb.Duration
	}{
		{"freeze_budget", p.FreezeBudget},
		{"handoff_ttl", p.HandoffTtl},
		{"reclaim_after", p.ReclaimAfter},
		{"force_promote_after", p.ForcePromoteAfter},
		{"rebalance_delay", p.RebalanceDelay},
	} {
		if f.value == nil {
			continue
		}
		if err := f.value.CheckValid(); err != nil {
			return cluster.Invalid(f.field, "%v", err)
		}
	}
	return nil
}

func (s clusterService) ListControllers(ctx context.Context, _ *planev1.ListControllersRequest) (*planev1.ListControllersResponse, error) {
	rev, term, tolerance, list, err := s.deps.Controller.Controllers(ctx)
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.ListControllersResponse{Revision: uint64(rev), Term: term, FailureTolerance: uint32(tolerance)}
	for _, c := range list {
		res.Controllers = append(res.Controllers, &planev1.ControllerState{
			Controller: wire.ControllerToProto(c.Controller), Leader: c.Leader, LagEntries: c.Lag, Active: c.Active,
		})
	}
	return res, nil
}

func (s clusterService) AddController(ctx context.Context, req *planev1.AddControllerRequest) (*planev1.AddControllerResponse, error) {
	err := cluster.ValidateControllerName(cluster.ControllerName(req.GetName()))
	if err == nil {
		err = checkAddress(req.GetAddress())
	}
	if err == nil && req.GetStoreId() == "" {
		err = cluster.Invalid("store_id", "is missing")
	}
	if err == nil {
		err = checkText("store_id", req.GetStoreId(), maxStoreID)
	}
	if err != nil {
		return nil, fail(err)
	}
	id, err := requestID("AddController", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	rev, rec, all, err := s.deps.Controller.AddController(ctx, cluster.ControllerName(req.GetName()), req.GetAddress(), cluster.StoreID(req.GetStoreId()), id)
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.AddControllerResponse{
		Revision: uint64(rev), ClusterId: string(s.deps.Controller.Config().ClusterID), Controller: wire.ControllerToProto(rec),
	}
	for _, c := range all {
		res.Controllers = append(res.Controllers, wire.ControllerToProto(c))
	}
	return res, nil
}

func (s clusterService) RemoveController(ctx context.Context, req *planev1.RemoveControllerRequest) (*planev1.RemoveControllerResponse, error) {
	name := cluster.ControllerName(req.GetName())
	if err := cluster.ValidateControllerName(name); err != nil {
		return nil, fail(err)
	}
	rev, err := s.deps.Controller.RemoveController(ctx, name, req.GetForce())
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.RemoveControllerResponse{Revision: uint64(rev)}, nil
}

func (s clusterService) TransferLeadership(ctx context.Context, req *planev1.TransferLeadershipRequest) (*planev1.TransferLeadershipResponse, error) {
	to := cluster.ControllerName(req.GetTo())
	if to != "" {
		if err := cluster.ValidateControllerName(to); err != nil {
			return nil, fail(cluster.Invalid("to", "%v", err))
		}
	}
	leader, err := s.deps.Controller.TransferLeadership(ctx, to)
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.TransferLeadershipResponse{Leader: string(leader)}, nil
}

// GetControllerState answers for this controller alone, whether it leads or not.
func (s clusterService) GetControllerState(_ context.Context, req *planev1.GetControllerStateRequest) (*planev1.GetControllerStateResponse, error) {
	st := s.deps.Backend.Status()
	res := &planev1.GetControllerStateResponse{
		Name: string(s.deps.Controller.Config().Name), AppliedIndex: s.deps.Machine.AppliedIndex(), Term: st.Term,
		StartedAt: timestamppb.New(s.started),
	}
	for _, m := range st.Members {
		if m.ID == st.Leader {
			res.Leader = m.Name
		}
	}
	if req.GetStateHash() {
		// The hash names its revision: the state may have gone on since.
		hash, rev, err := s.deps.Machine.StateHash()
		if err != nil {
			return nil, fail(fmt.Errorf("hash the state: %w", err))
		}
		res.StateHash, res.Revision = hash, uint64(rev)
		return res, nil
	}
	s.deps.Machine.Read(func(r fsm.Reader) { res.Revision = uint64(r.Revision()) })
	return res, nil
}
