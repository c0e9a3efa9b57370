package api

import (
	"context"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

type topicService struct{ *Server }

func (s topicService) CreateTopic(ctx context.Context, req *planev1.CreateTopicRequest) (*planev1.CreateTopicResponse, error) {
	if err := checkTopic(req); err != nil {
		return nil, fail(err)
	}
	id, err := requestID("CreateTopic", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	rev, t, err := s.deps.Controller.CreateTopic(ctx, req.GetName(), req.GetPartitions(), req.GetParent(), req.GetRetention().AsDuration(), id)
	if err != nil {
		return nil, fail(err)
	}
	m := wire.TopicToProto(t)
	m.Parent = req.GetParent()
	return &planev1.CreateTopicResponse{Revision: uint64(rev), Topic: m}, nil
}

func checkTopic(req *planev1.CreateTopicRequest) error {
	if err := cluster.ValidateTopicName(req.GetName()); err != nil {
		return err
	}
	if n := req.GetPartitions(); n < 1 || n > cluster.MaxPartitions {
		return cluster.Invalid("partitions", "must be 1 to %d, is %d", cluster.MaxPartitions, n)
	}
	if req.GetParent() != "" {
		if err := cluster.ValidateTopicName(req.GetParent()); err != nil {
			return cluster.Invalid("parent", "%v", err)
		}
	}
	if d := req.GetRetention(); d != nil {
		if err := d.CheckValid(); err != nil {
			return cluster.Invalid("retention", "%v", err)
		}
		if d.AsDuration() < 0 {
			return cluster.Invalid("retention", "must not be negative, is %s", d.AsDuration())
		}
	}
	return nil
}

func (s topicService) ListTopics(ctx context.Context, _ *planev1.ListTopicsRequest) (*planev1.ListTopicsResponse, error) {
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return nil, fail(err)
	}
	res := &planev1.ListTopicsResponse{}
	s.deps.Machine.Read(func(r fsm.Reader) {
		res.Revision = uint64(r.Revision())
		for _, t := range r.Topics() {
			res.Topics = append(res.Topics, topicMessage(r, t))
		}
	})
	return res, nil
}

func topicMessage(r fsm.Reader, t cluster.Topic) *planev1.Topic {
	m := wire.TopicToProto(t)
	if parent, ok := r.Topic(t.Parent); ok {
		m.Parent = parent.Name
	}
	return m
}

func (s topicService) DescribeTopic(ctx context.Context, req *planev1.DescribeTopicRequest) (*planev1.DescribeTopicResponse, error) {
	if err := cluster.ValidateTopicName(req.GetName()); err != nil {
		return nil, fail(err)
	}
	if err := s.deps.Controller.Barrier(ctx); err != nil {
		return nil, fail(err)
	}
	res := &planev1.DescribeTopicResponse{}
	s.deps.Machine.Read(func(r fsm.Reader) {
		res.Revision = uint64(r.Revision())
		t, ok := r.TopicByName(req.GetName())
		if !ok {
			return
		}
		res.Topic = topicMessage(r, t)
		for _, a := range r.TopicAssignments(t.ID) {
			m := wire.AssignmentToProto(a)
			m.Partition.Topic = t.Name
			res.Assignments = append(res.Assignments, m)
		}
	})
	if res.Topic == nil {
		return nil, fail(cluster.NotFound("topic %s does not exist", req.GetName()))
	}
	return res, nil
}

func (s topicService) DeleteTopic(ctx context.Context, req *planev1.DeleteTopicRequest) (*planev1.DeleteTopicResponse, error) {
	if err := cluster.ValidateTopicName(req.GetName()); err != nil {
		return nil, fail(err)
	}
	id, err := requestID("DeleteTopic", req.GetRequestId())
	if err != nil {
		return nil, fail(err)
	}
	if _, err := s.deps.Controller.Confirm(ctx); err != nil {
		return nil, fail(err)
	}
	var t cluster.Topic
	s.deps.Machine.Read(func(r fsm.Reader) { t, _ = r.TopicByName(req.GetName()) })
	// A topic that is not there still asks the state machine: it may remember this very request. Topic
	// zero never exists.
	r, err := s.propose(ctx, &storagev1.Command{RequestId: id, Command: &storagev1.Command_DeleteTopic{
		DeleteTopic: &storagev1.DeleteTopic{TopicId: uint64(t.ID)},
	}})
	switch {
	case err == nil:
		return &planev1.DeleteTopicResponse{Revision: uint64(r.Revision)}, nil
	case cluster.ReasonOf(err) == cluster.ReasonNotFound:
		return nil, fail(cluster.NotFound("topic %s does not exist", req.GetName()))
	}
	return nil, fail(err)
}
