package dataplane

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// settleFunc acknowledges or extends one reservation.
type settleFunc func(*reservations, cluster.Offset, uint64) settlement

// given is a receipt with its text.
type given struct {
	receipt
	text string
}

func (g given) refuse(err error) *nodev1.ReceiptError {
	reason, message := cluster.ReasonBug, err.Error()
	if e := cluster.AsError(err); e != nil {
		reason, message = e.Reason, e.Message
	}
	return &nodev1.ReceiptError{Receipt: g.text, Reason: reason.String(), Message: message}
}

// outcome collects what became of receipts. Safe for concurrent use.
type outcome struct {
	mu     sync.Mutex
	done   uint32
	errors []*nodev1.ReceiptError
}

func (o *outcome) add(done uint32, errs ...*nodev1.ReceiptError) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done += done
	o.errors = append(o.errors, errs...)
}

// parseReceipts groups receipts by what of returns; those that are none are refused.
func parseReceipts[K comparable](texts []string, of func(receipt) K, out *outcome) map[K][]given {
	groups := map[K][]given{}
	for _, text := range texts {
		r, err := parseReceipt(text)
		g := given{r, text}
		if err != nil {
			out.add(0, g.refuse(err))
			continue
		}
		k := of(r)
		groups[k] = append(groups[k], g)
	}
	return groups
}

// settleOwned settles receipts of this node's partitions. What counts as done is durable.
func (s *Service) settleOwned(ctx context.Context, texts []string, fn settleFunc) (uint32, []*nodev1.ReceiptError, error) {
	if err := s.enter(); err != nil {
		return 0, nil, err
	}
	defer s.leave()
	if len(texts) > MaxReceipts {
		return 0, nil, cluster.Invalid("receipts", "%d receipts; at most %d are allowed", len(texts), MaxReceipts)
	}
	type key struct {
		partition cluster.PartitionID
		group     string
	}
	var out outcome
	groups := parseReceipts(texts, func(r receipt) key { return key{r.partition, r.group} }, &out)
	var g errgroup.Group
	g.SetLimit(parallel)
	for k, receipts := range groups {
		g.Go(func() error {
			s.owned.settle(k.partition, k.group, receipts, fn, &out)
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	return out.done, out.errors, ctx.Err()
}

// settle settles receipts of one group and partition, and then makes the committed offset durable.
func (op *ownedPartitions) settle(p cluster.PartitionID, name string, receipts []given, fn settleFunc, out *outcome) {
	refuseAll := func(err error) {
		for _, r := range receipts {
			out.add(0, r.refuse(err))
		}
	}
	o, err := op.get(p)
	if err != nil {
		refuseAll(err)
		return
	}
	g, err := o.group(name, false, op.cfg)
	if err != nil {
		refuseAll(err)
		return
	}
	var done []given
	for _, r := range receipts {
		if g == nil || r.epoch != o.epoch {
			out.add(0, r.refuse(cluster.Errorf(cluster.ReasonStaleReceipt,
				"the receipt is of epoch %d, partition %s is served since epoch %d; the record may be delivered again",
				r.epoch, p, o.epoch)))
			continue
		}
		g.mu.Lock()
		settlement := fn(g.mu.res, r.offset, r.nonce)
		g.mu.Unlock()
		if settlement == settleStale {
			out.add(0, r.refuse(cluster.Errorf(cluster.ReasonStaleReceipt,
				"offset %d of partition %s is no longer reserved by this receipt", r.offset, p)))
			continue
		}
		done = append(done, r)
	}
	if len(done) == 0 {
		return
	}
	g.wake(op.now())
	if err := g.commit(o.log); err != nil {
		for _, r := range done {
			out.add(0, r.refuse(err))
		}
		return
	}
	out.add(uint32(len(done)))
}
