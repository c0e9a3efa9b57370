package dataplane

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// dataHandler serves DataService.
type dataHandler struct{ s *Service }

// Produce accepts records.
func (h dataHandler) Produce(ctx context.Context, req *nodev1.ProduceRequest) (*nodev1.ProduceResponse, error) {
	n, err := h.s.produce(ctx, req)
	if err != nil {
		return nil, h.s.wire(err)
	}
	return &nodev1.ProduceResponse{Accepted: n}, nil
}

func (s *Service) produce(ctx context.Context, req *nodev1.ProduceRequest) (uint32, error) {
	if err := validateProduce(req); err != nil {
		return 0, err
	}
	if s.deps.AcceptsProduce != nil {
		if err := s.deps.AcceptsProduce(); err != nil {
			return 0, err
		}
	}
	now := s.deps.Now().UnixMilli()
	records := make([]store.Record, len(req.GetRecords()))
	for i, r := range req.GetRecords() {
		records[i] = store.Record{Time: now, Key: r.GetKey(), Value: r.GetValue()}
	}
	if err := s.accept(ctx, req.GetTopic(), records); err != nil {
		return 0, err
	}
	return uint32(len(records)), nil
}

func validateProduce(req *nodev1.ProduceRequest) error {
	if err := cluster.ValidateTopicName(req.GetTopic()); err != nil {
		return err
	}
	if len(req.GetRecords()) == 0 {
		return cluster.Invalid("records", "at least one record is needed")
	}
	for i, r := range req.GetRecords() {
		if n := len(r.GetKey()); n > cluster.MaxKeyBytes {
			return cluster.Invalid(fmt.Sprintf("records[%d].key", i), "%d bytes; at most %d are allowed", n, cluster.MaxKeyBytes)
		}
		if n := len(r.GetKey()) + len(r.GetValue()); n > cluster.MaxRecordBytes {
			return cluster.Invalid(fmt.Sprintf("records[%d].value", i), "key and value have %d bytes; at most %d are allowed",
				n, cluster.MaxRecordBytes)
		}
	}
	if n := proto.Size(req); n > MaxProduceBytes {
		return cluster.Invalid("records", "the request has %d bytes; at most %d are allowed", n, MaxProduceBytes)
	}
	return nil
}

// Produce accepts records of the agent itself, such as salvaged ones, and keeps their times; their offsets
// are ignored. Each part of about MaxProduceBytes is accepted on its own: after an error a prefix may be
// accepted. Records beyond the limits are INVALID. It works on an agent that takes no more records from clients.
func (s *Service) Produce(ctx context.Context, topic string, records []store.Record) error {
	for i := range records {
		if r := &records[i]; len(r.Key) > cluster.MaxKeyBytes || len(r.Key)+len(r.Value) > cluster.MaxRecordBytes {
			return cluster.Invalid(fmt.Sprintf("records[%d]", i), "the record exceeds the limits of key and value")
		}
	}
	for len(records) > 0 {
		n, size := 0, 0
		for n < len(records) && (n == 0 || size+len(records[n].Key)+len(records[n].Value) <= MaxProduceBytes) {
			size += len(records[n].Key) + len(records[n].Value)
			n++
		}
		if err := s.accept(ctx, topic, records[:n]); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// accept makes records durable, all or none.
func (s *Service) accept(ctx context.Context, name string, records []store.Record) error {
	if _, err := s.router.Await(ctx, name); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.disk.check(); err != nil {
		return err
	}
	topic, at, err := s.router.place(name, len(records), func(i int) []byte { return records[i].Key }, s.dispatcher.isStuck)
	if err != nil {
		return err
	}
	if err := s.in.accept(chunksOf(topic.ID, records, at)); err != nil {
		return err
	}
	if err := faults.Hit(faults.Event{Point: faults.IngressSynced, TopicID: uint64(topic.ID), Index: at[0]}); err != nil {
		return err
	}
	s.stats.accepted.Add(uint64(len(records)))
	return nil
}
