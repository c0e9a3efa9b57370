package api

import (
	"context"
	"net"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/internal/wire"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

type nodeService struct{ *Server }

// Bounds of names that clients choose freely.
const (
	maxText    = 1000
	maxStoreID = 100
	maxZone    = 200
)

func checkText(field, s string, limit int) error {
	if len(s) > limit {
		return cluster.Invalid(field, "must be at most %d bytes, has %d", limit, len(s))
	}
	return nil
}

// checkAddress accepts host:port that others can dial.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return cluster.Invalid("address", "%q is not host:port", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return cluster.Invalid("address", "%q has no port from 1 to 65535", address)
	}
	if host == "" {
		return cluster.Invalid("address", "%q has no host", address)
	}
	// C66: others would dial themselves.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return cluster.Invalid("address", "%s is what one listens on, not what others dial", host)
	}
	return checkText("address", address, maxText)
}

func partitionRef(topicID uint64, index uint32) (*storagev1.PartitionRef, error) {
	if topicID == 0 {
		return nil, cluster.Invalid("topic_id", "is missing")
	}
	return &storagev1.PartitionRef{TopicId: topicID, Index: index}, nil
}

func checkMove(move uint64) error {
	if move == 0 {
		return cluster.Invalid("move_id", "is missing")
	}
	return nil
}

// propose orders a command and returns refusals as errors.
func (s *Server) propose(ctx context.Context, cmd *storagev1.Command) (fsm.Result, error) {
	r, err := s.deps.Controller.Propose(ctx, cmd)
	if err != nil {
		return r, err
	}
	if r.Err != nil {
		return r, r.Err
	}
	return r, nil
}

func (s nodeService) RegisterNode(ctx context.Context, req *planev1.RegisterNodeRequest) (*planev1.RegisterNodeResponse, error) {
	if err := checkRegistration(req); err != nil {
		return nil, fail(err)
	}
	own, from := s.deps.Controller.Config().ClusterID, s.restored()
	if id := cluster.ClusterID(req.GetClusterId()); id != "" && id != own && !slices.Contains(from.Predecessors, id) {
		return nil, fail(cluster.Errorf(cluster.ReasonForeignStore,
			"the data directory of node %s belongs to cluster %s, the controllers are of cluster %s: correct its controllers, or give it another data_dir",
			req.GetNodeId(), id, own))
	}
	r, n, err := s.deps.Controller.Register(asAgent(ctx, cluster.NodeID(req.GetNodeId())), controller.Registration{
		Node: cluster.NodeID(req.GetNodeId()), StoreID: cluster.StoreID(req.GetStoreId()),
		Incarnation: cluster.Incarnation(req.GetIncarnation()), Address: req.GetAddress(), Zone: req.GetZone(),
		Voter: cluster.ControllerName(req.GetVoter()), Weight: req.GetCapacityWeight(),
	})
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.RegisterNodeResponse{
		Revision: uint64(r.Revision), ClusterId: string(own), Node: wire.NodeToProto(n), Predecessors: wire.RestoredToProto(from).GetPredecessors(),
	}, nil
}

// restored says what this cluster's state was made from.
func (s *Server) restored() (from cluster.Restored) {
	s.deps.Machine.Read(func(r fsm.Reader) { from = r.Restored() })
	return from
}

// maxClaims bounds one part of a node's claims.
const maxClaims = 1000

func (s nodeService) ClaimPartitions(ctx context.Context, req *planev1.ClaimPartitionsRequest) (*planev1.ClaimPartitionsResponse, error) {
	if err := cluster.ValidateNodeID(cluster.NodeID(req.GetNodeId())); err != nil {
		return nil, fail(err)
	}
	if len(req.GetClaims()) > maxClaims || len(req.GetTopics()) > maxClaims {
		return nil, fail(cluster.Invalid("claims", "must be at most %d claims and topics in one part, are %d and %d",
			maxClaims, len(req.GetClaims()), len(req.GetTopics())))
	}
	cmd := &storagev1.ClaimPartitions{NodeId: req.GetNodeId(), Incarnation: req.GetIncarnation(), Last: req.GetLast()}
	for _, c := range req.GetClaims() {
		claim := &storagev1.ClaimRecord{
			TopicId: c.GetPartition().GetTopicId(), Index: c.GetPartition().GetIndex(), NodeId: req.GetNodeId(),
			Identity: c.GetIdentity(), Active: c.GetActive(), Forced: c.GetForced(),
		}
		for _, m := range c.GetMarkers() {
			claim.Markers = append(claim.Markers, &storagev1.ClaimMarker{MoveId: m.GetMoveId(), Destination: m.GetDestination()})
		}
		cmd.Claims = append(cmd.Claims, claim)
	}
	for _, t := range req.GetTopics() {
		cmd.Topics = append(cmd.Topics, fsm.TopicRecord(wire.TopicFromProto(t)))
	}
	r, err := s.propose(ctx, &storagev1.Command{Command: &storagev1.Command_ClaimPartitions{ClaimPartitions: cmd}})
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.ClaimPartitionsResponse{Revision: uint64(r.Revision)}, nil
}

// asAgent says that a request comes from a node's agent.
func asAgent(ctx context.Context, id cluster.NodeID) context.Context {
	a, _ := controller.ActorOf(ctx)
	a.Kind, a.Name = cluster.ActorAgent, string(id)
	return controller.WithActor(ctx, a)
}

// target is the destination of a partition's move; empty when there is none.
func (s *Server) target(ref *storagev1.PartitionRef) (id cluster.NodeID) {
	s.deps.Machine.Read(func(r fsm.Reader) {
		a, _ := r.Assignment(cluster.PartitionID{Topic: cluster.TopicID(ref.GetTopicId()), Index: ref.GetIndex()})
		id = a.Target
	})
	return id
}

func checkRegistration(req *planev1.RegisterNodeRequest) error {
	if err := cluster.ValidateNodeID(cluster.NodeID(req.GetNodeId())); err != nil {
		return err
	}
	switch {
	case req.GetStoreId() == "":
		return cluster.Invalid("store_id", "is missing")
	case req.GetIncarnation() == 0:
		return cluster.Invalid("incarnation", "must be at least 1")
	case req.GetCapacityWeight() > cluster.MaxWeight:
		return cluster.Invalid("capacity_weight", "must be 1 to %d, is %d", cluster.MaxWeight, req.GetCapacityWeight())
	}
	if req.GetVoter() != "" {
		if err := cluster.ValidateControllerName(cluster.ControllerName(req.GetVoter())); err != nil {
			return cluster.Invalid("voter", "%v", err)
		}
	}
	for _, err := range []error{
		checkText("store_id", req.GetStoreId(), maxStoreID), checkText("zone", req.GetZone(), maxZone), checkAddress(req.GetAddress()),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s nodeService) Heartbeat(ctx context.Context, req *planev1.HeartbeatRequest) (*planev1.HeartbeatResponse, error) {
	if err := cluster.ValidateNodeID(cluster.NodeID(req.GetNodeId())); err != nil {
		return nil, fail(err)
	}
	lease, err := s.deps.Controller.Heartbeat(ctx, cluster.NodeID(req.GetNodeId()), cluster.Incarnation(req.GetIncarnation()),
		req.GetAddress(), report(req))
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.HeartbeatResponse{
		LeaseTtl: durationpb.New(lease.TTL), Leader: string(s.deps.Controller.Config().Name), WantSizes: lease.WantSizes,
	}
	for _, o := range lease.Orders {
		res.Orders = append(res.Orders, &planev1.MoveOrder{
			Partition: wire.PartitionToProto(o.Partition), MoveId: uint64(o.MoveID), Promote: o.Promote, AcceptLoss: o.AcceptLoss,
		})
	}
	return res, nil
}

func report(req *planev1.HeartbeatRequest) controller.Report {
	rep := controller.Report{
		OutboundHWMs:   wire.PartitionOffsetsFromProto(req.GetOutboundHwms()),
		IngressRecords: req.GetIngressRecords(),
		IngressBytes:   cluster.Bytes(req.GetIngressBytes()),
		IngressClosed:  req.GetIngressClosed(),
		DiskTotal:      cluster.Bytes(req.GetDiskTotalBytes()),
		DiskFree:       cluster.Bytes(req.GetDiskFreeBytes()),
		Quarantined:    req.GetQuarantined(),
		SizesComplete:  req.GetSizesComplete(),
	}
	for _, m := range req.GetMoves() {
		rep.Moves = append(rep.Moves, wire.MoveProgressFromProto(m))
	}
	for _, z := range req.GetSizes() {
		rep.Sizes = append(rep.Sizes, controller.PartitionSize{
			Partition: wire.PartitionFromProto(z.GetPartition()), Bytes: cluster.Bytes(z.GetBytes()),
		})
	}
	return rep
}

func (s nodeService) GetAssignment(ctx context.Context, req *planev1.GetAssignmentRequest) (*planev1.GetAssignmentResponse, error) {
	if req.GetTopicId() == 0 {
		return nil, fail(cluster.Invalid("topic_id", "is missing"))
	}
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return nil, fail(err)
	}
	p := cluster.PartitionID{Topic: cluster.TopicID(req.GetTopicId()), Index: req.GetIndex()}
	move := cluster.MoveID(req.GetMoveId())
	res := &planev1.GetAssignmentResponse{}
	s.deps.Machine.Read(func(r fsm.Reader) {
		res.Revision = uint64(r.Revision())
		a, ok := r.Assignment(p)
		res.UnknownTopic = !ok && r.Restored().Unknown(cluster.Revision(p.Topic))
		if ok {
			res.Assignment = wire.AssignmentToProto(a)
			if n, ok := r.Node(a.Owner); ok {
				res.Owner = wire.NodeToProto(n)
			}
		}
		if move == 0 {
			return
		}
		if o, ended := r.Outcome(p, move); ended {
			res.MoveState, res.Outcome = planev1.MoveState_MOVE_STATE_ENDED, wire.OutcomeToProto(o)
		} else if ok && a.MoveID == move {
			res.MoveState = planev1.MoveState_MOVE_STATE_CURRENT
		} else {
			res.MoveState = planev1.MoveState_MOVE_STATE_FORGOTTEN
		}
	})
	return res, nil
}

func (s nodeService) GrantHandoff(ctx context.Context, req *planev1.GrantHandoffRequest) (*planev1.GrantHandoffResponse, error) {
	ref, err := partitionRef(req.GetTopicId(), req.GetIndex())
	if err == nil {
		err = checkMove(req.GetMoveId())
	}
	if err != nil {
		return nil, fail(err)
	}
	r, err := s.propose(ctx, &storagev1.Command{Command: &storagev1.Command_GrantHandoff{GrantHandoff: &storagev1.GrantHandoff{
		Partition: ref, MoveId: req.GetMoveId(), NodeId: req.GetNodeId(), Incarnation: req.GetIncarnation(), NonceHash: req.GetNonceHash(),
	}}})
	if err != nil {
		return nil, fail(err)
	}
	res := &planev1.GrantHandoffResponse{Revision: uint64(r.Revision), Handoff: uint32(r.Value)}
	if r.Assignment != nil {
		res.Epoch = uint64(r.Assignment.Epoch)
	}
	return res, nil
}

func (s nodeService) RevokeHandoff(ctx context.Context, req *planev1.RevokeHandoffRequest) (*planev1.RevokeHandoffResponse, error) {
	ref, err := partitionRef(req.GetTopicId(), req.GetIndex())
	if err == nil {
		err = checkMove(req.GetMoveId())
	}
	if err == nil {
		err = checkText("reason", req.GetReason(), maxText)
	}
	if err != nil {
		return nil, fail(err)
	}
	r, err := s.propose(ctx, &storagev1.Command{Command: &storagev1.Command_RevokeHandoff{RevokeHandoff: &storagev1.RevokeHandoff{
		Partition: ref, MoveId: req.GetMoveId(), Handoff: req.GetHandoff(), Reason: req.GetReason(),
	}}})
	if err != nil {
		return nil, fail(err)
	}
	// Invariant I6: accepted without an outcome means that this handoff is not live and never flipped.
	res := &planev1.RevokeHandoffResponse{Revision: uint64(r.Revision), Revoked: r.Outcome == nil}
	if r.Outcome != nil {
		res.Outcome = wire.OutcomeToProto(*r.Outcome)
	}
	if r.Assignment != nil {
		res.Assignment = wire.AssignmentToProto(*r.Assignment)
	}
	return res, nil
}

func (s nodeService) CompleteMove(ctx context.Context, req *planev1.CompleteMoveRequest) (*planev1.CompleteMoveResponse, error) {
	ref, err := partitionRef(req.GetTopicId(), req.GetIndex())
	if err == nil {
		err = checkMove(req.GetMoveId())
	}
	if err != nil {
		return nil, fail(err)
	}
	if err := hitFlip(faults.LeaderFlipAsked, req); err != nil {
		return nil, lostReply(err)
	}
	r, err := s.propose(ctx, &storagev1.Command{Command: &storagev1.Command_CompleteMove{CompleteMove: &storagev1.CompleteMove{
		Partition: ref, MoveId: req.GetMoveId(), Handoff: req.GetHandoff(), Nonce: req.GetNonce(),
	}}})
	if err != nil {
		return nil, fail(err)
	}
	if err := hitFlip(faults.LeaderFlipApplied, req); err != nil {
		return nil, lostReply(err)
	}
	res := &planev1.CompleteMoveResponse{Revision: uint64(r.Revision)}
	if r.Outcome != nil {
		res.Outcome = wire.OutcomeToProto(*r.Outcome)
	}
	return res, nil
}

// flipRequest is a request to flip, with or without a handoff.
type flipRequest interface {
	GetTopicId() uint64
	GetIndex() uint32
	GetMoveId() uint64
}

func hitFlip(point string, req flipRequest) error {
	return faults.Hit(faults.Event{Point: point, TopicID: req.GetTopicId(), Index: req.GetIndex(), MoveID: req.GetMoveId()})
}

func (s nodeService) ForceCompleteMove(ctx context.Context, req *planev1.ForceCompleteMoveRequest) (*planev1.ForceCompleteMoveResponse, error) {
	ref, err := partitionRef(req.GetTopicId(), req.GetIndex())
	if err == nil {
		err = checkMove(req.GetMoveId())
	}
	if err != nil {
		return nil, fail(err)
	}
	r, err := s.propose(asAgent(ctx, s.target(ref)), &storagev1.Command{Command: &storagev1.Command_ForceCompleteMove{ForceCompleteMove: &storagev1.ForceCompleteMove{
		Partition: ref, MoveId: req.GetMoveId(), SourceIncarnation: req.GetSourceIncarnation(),
		StagedLeo: req.GetStagedLeo(), ReadHwm: req.GetReadHwm(), AcceptLoss: req.GetAcceptLoss(),
	}}})
	if err != nil {
		return nil, fail(err)
	}
	if err := hitFlip(faults.LeaderFlipApplied, req); err != nil {
		return nil, lostReply(err)
	}
	res := &planev1.ForceCompleteMoveResponse{Revision: uint64(r.Revision)}
	if r.Outcome != nil {
		res.Outcome = wire.OutcomeToProto(*r.Outcome)
	}
	return res, nil
}

func (s nodeService) ReportOpened(ctx context.Context, req *planev1.ReportOpenedRequest) (*planev1.ReportOpenedResponse, error) {
	ref, err := partitionRef(req.GetTopicId(), req.GetIndex())
	if err != nil {
		return nil, fail(err)
	}
	cmd := &storagev1.ReportOpened{Partition: ref, NodeId: req.GetNodeId(), Epoch: req.GetEpoch(), MoveId: req.GetMoveId()}
	if m := req.GetStats(); m != nil {
		cmd.Stats = &storagev1.MoveStatsRecord{
			Bytes: m.GetBytes(), Duration: int64(m.GetDuration().AsDuration()), Freeze: int64(m.GetFreeze().AsDuration()),
			Passes: m.GetPasses(), Attempts: m.GetAttempts(), Converged: m.GetConverged(), FrozenReadBytes: m.GetFrozenReadBytes(),
		}
	}
	r, err := s.propose(ctx, &storagev1.Command{Command: &storagev1.Command_ReportOpened{ReportOpened: cmd}})
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.ReportOpenedResponse{Revision: uint64(r.Revision)}, nil
}

func (s nodeService) ReportReclaimed(ctx context.Context, req *planev1.ReportReclaimedRequest) (*planev1.ReportReclaimedResponse, error) {
	ref, err := partitionRef(req.GetTopicId(), req.GetIndex())
	if err == nil {
		err = checkMove(req.GetMoveId())
	}
	if err != nil {
		return nil, fail(err)
	}
	r, err := s.propose(ctx, &storagev1.Command{Command: &storagev1.Command_ReportReclaimed{ReportReclaimed: &storagev1.ReportReclaimed{
		Partition: ref, MoveId: req.GetMoveId(), NodeId: req.GetNodeId(),
	}}})
	if err != nil {
		return nil, fail(err)
	}
	return &planev1.ReportReclaimedResponse{Revision: uint64(r.Revision)}, nil
}
