package main

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// observe registers an agent's metrics. None has a label, so their number is fixed.
func (n *agentNode) observe(m metric.Meter) error {
	var b instruments
	accepted := b.counter(m, "naradnode_ingress_accepted_records", "Records accepted durably from producers.")
	delivered := b.counter(m, "naradnode_ingress_delivered_records", "Accepted records that an owner has acknowledged.")
	rerouted := b.counter(m, "naradnode_ingress_rerouted_records", "Delivered records that went to another partition than their own.")
	refused := b.counter(m, "naradnode_append_refused", "Appends that an owner did not acknowledge and that were repeated.")
	late := b.counter(m, "naradnode_append_late", "Refused appends whose acknowledgement came later than lease_ttl.")
	consumed := b.counter(m, "naradnode_consumed_records", "Records handed out by this node as owner.")
	redelivered := b.counter(m, "naradnode_redelivered_records", "Records handed out again.")
	acked := b.counter(m, "naradnode_acked_records", "Records acknowledged by consumers.")
	depth := b.gauge(m, "naradnode_ingress_records", "Records that wait in the ingress queue.")
	bytes := b.gauge(m, "naradnode_ingress_bytes", "Bytes that wait in the ingress queue.")
	lease := b.gauge(m, "naradnode_lease_valid", "1 while the node's lease is valid.")
	problems := b.gauge(m, "naradnode_partition_problems", "Partitions that something keeps from being served or moved.")
	if b.err != nil {
		return b.err
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		c := n.plane.Counts()
		o.ObserveInt64(accepted, int64(c.Accepted))
		o.ObserveInt64(delivered, int64(c.Delivered))
		o.ObserveInt64(rerouted, int64(c.Rerouted))
		o.ObserveInt64(refused, int64(c.Refused))
		o.ObserveInt64(late, int64(c.Late))
		o.ObserveInt64(consumed, int64(c.Consumed))
		o.ObserveInt64(redelivered, int64(c.Redelivered))
		o.ObserveInt64(acked, int64(c.Acked))
		records, size := n.plane.Depth()
		o.ObserveInt64(depth, int64(records))
		o.ObserveInt64(bytes, int64(size))
		var valid int64
		if n.agent.LeaseValid() {
			valid = 1
		}
		o.ObserveInt64(lease, valid)
		o.ObserveInt64(problems, int64(len(n.agent.Problems())))
		return nil
	}, b.all...)
	return err
}

// instruments collects observables and the first error of making one.
type instruments struct {
	all []metric.Observable
	err error
}

func (b *instruments) counter(m metric.Meter, name, help string) metric.Int64ObservableCounter {
	i, err := m.Int64ObservableCounter(name, metric.WithDescription(help))
	b.keep(i, err)
	return i
}

func (b *instruments) gauge(m metric.Meter, name, help string) metric.Int64ObservableGauge {
	i, err := m.Int64ObservableGauge(name, metric.WithDescription(help))
	b.keep(i, err)
	return i
}

func (b *instruments) keep(i metric.Observable, err error) {
	b.all = append(b.all, i)
	if b.err == nil {
		b.err = err
	}
}
