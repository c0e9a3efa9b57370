package dataplane

import (
	"context"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// Ack confirms records at the owners of their partitions.
func (h dataHandler) Ack(ctx context.Context, req *nodev1.AckRequest) (*nodev1.AckResponse, error) {
	out, err := h.s.settle(ctx, req.GetTopic(), req.GetReceipts(), settleCall{local: (*reservations).ack,
		remote: func(ctx context.Context, p *peer, receipts []string) (uint32, []*nodev1.ReceiptError, error) {
			resp, err := p.client.AckOwned(ctx, &nodev1.AckOwnedRequest{Receipts: receipts})
			return resp.GetAcked(), resp.GetErrors(), err
		}})
	if err != nil {
		return nil, h.s.wire(err)
	}
	return &nodev1.AckResponse{Acked: out.done, Errors: out.errors}, nil
}

// Extend restarts reservations at the owners of their partitions.
func (h dataHandler) Extend(ctx context.Context, req *nodev1.ExtendRequest) (*nodev1.ExtendResponse, error) {
	visibility, err := visibilityOf(req.GetVisibilityTimeout(), h.s.cfg)
	if err != nil {
		return nil, h.s.wire(err)
	}
	out, err := h.s.settle(ctx, req.GetTopic(), req.GetReceipts(), settleCall{local: h.s.extendBy(visibility),
		remote: func(ctx context.Context, p *peer, receipts []string) (uint32, []*nodev1.ReceiptError, error) {
			resp, err := p.client.ExtendOwned(ctx, &nodev1.ExtendOwnedRequest{Receipts: receipts,
				VisibilityTimeout: durationpb.New(visibility)})
			return resp.GetExtended(), resp.GetErrors(), err
		}})
	if err != nil {
		return nil, h.s.wire(err)
	}
	return &nodev1.ExtendResponse{Extended: out.done, Errors: out.errors}, nil
}

// settleCall settles receipts here or at a peer.
type settleCall struct {
	local  settleFunc
	remote func(context.Context, *peer, []string) (uint32, []*nodev1.ReceiptError, error)
}

// settle brings receipts to their owners. Those that an owner no longer serves go to the next one once.
func (s *Service) settle(ctx context.Context, name string, texts []string, call settleCall) (*outcome, error) {
	if err := cluster.ValidateTopicName(name); err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, cluster.Invalid("receipts", "at least one receipt is needed")
	}
	if len(texts) > MaxReceipts {
		return nil, cluster.Invalid("receipts", "%d receipts; at most %d are allowed", len(texts), MaxReceipts)
	}
	topic, err := s.router.Await(ctx, name)
	if err != nil {
		return nil, err
	}
	revision := s.router.Revision()
	out := s.settleOnce(ctx, topic, texts, call)
	if s.router.Revision() == revision {
		return out, nil
	}
	// The routes changed meanwhile: a receipt that met the former owner is brought to the present one.
	var again []string
	kept := out.errors[:0]
	for _, e := range out.errors {
		if e.GetReason() == cluster.ReasonNotOwner.String() {
			again = append(again, e.GetReceipt())
		} else {
			kept = append(kept, e)
		}
	}
	out.errors = kept
	if len(again) > 0 {
		second := s.settleOnce(ctx, topic, again, call)
		out.add(second.done, second.errors...)
	}
	return out, nil
}

func (s *Service) settleOnce(ctx context.Context, topic cluster.Topic, texts []string, call settleCall) *outcome {
	out := &outcome{}
	type destination struct {
		owner   cluster.NodeID
		address string
	}
	foreign := cluster.NodeID("\x00foreign")
	groups := parseReceipts(texts, func(r receipt) destination {
		if r.partition.Topic != topic.ID {
			return destination{owner: foreign}
		}
		route, _ := s.router.Route(r.partition)
		return destination{route.Owner, route.Address}
	}, out)
	var g errgroup.Group
	g.SetLimit(parallel)
	for to, receipts := range groups {
		g.Go(func() error {
			texts := make([]string, len(receipts))
			for i, r := range receipts {
				texts[i] = r.text
			}
			var n uint32
			var errs []*nodev1.ReceiptError
			var err error
			switch to.owner {
			case foreign:
				err = cluster.Invalid("receipts", "the receipt is not of topic %q", topic.Name)
			case "":
				err = cluster.Errorf(cluster.ReasonNotFound, "the receipt's partition has no known owner")
			case s.deps.Self:
				n, errs, err = s.settleOwned(ctx, texts, call.local)
			default:
				n, errs, err = s.settleAt(ctx, to.address, texts, call)
			}
			if err != nil {
				for _, r := range receipts {
					out.add(0, r.refuse(err))
				}
				return nil
			}
			out.add(n, errs...)
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	return out
}

func (s *Service) settleAt(ctx context.Context, address string, texts []string, call settleCall) (n uint32, errs []*nodev1.ReceiptError, err error) {
	p := s.peers.at(address)
	err = p.call(ctx, s.cfg.RequestTimeout, func(ctx context.Context) error {
		n, errs, err = call.remote(ctx, p, texts)
		return err
	})
	if err != nil {
		// Repeating is safe: an acknowledgement that did arrive is confirmed again.
		return 0, nil, cluster.Errorf(cluster.ReasonNoLeader, "the partition's owner at %s does not answer; repeat the request", address)
	}
	return n, errs, nil
}
