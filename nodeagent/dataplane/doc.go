// Package dataplane is what producers and consumers talk to on an agent: it accepts records durably,
// brings them to the partitions' owners, hands records out under reservations, and keeps the committed
// offsets of consumer groups moving.
//
// It does not store partitions (nodeagent/partitionlog does), moves nothing, and decides nothing about
// ownership: it follows the routes that it is told.
//
// # Produce
//
// A record is acknowledged when it is synced in the ingress queue of the agent that was asked; a
// dispatcher then appends it to the partition's owner. So a produce neither fails nor waits because of a
// move. Rules:
//
//   - I2: an entry leaves the ingress queue only after an owner's acknowledgement, or after the topic is
//     known to be deleted (its id is a revision that the routes have passed without it).
//   - I10: an acknowledgement that arrives later than lease_ttl after its commit was sent is treated as
//     unknown, and the batch is sent again. All of delivery is at least once.
//   - A refused batch goes to the new owner as soon as that is known; after reroute_after it goes to
//     another living partition of the topic. A topic with one partition waits in the queue.
//   - Back-off, memory and the one append in flight are per partition, and slots and circuit breakers are
//     per owner, so that nothing stuck holds up anything else.
//
// # Consume
//
// Reservations are soft state of the owner's open log: they end with it. The committed offset is the end
// of the contiguous acknowledged prefix and never passes a record that was not acknowledged (I4). A
// receipt names the epoch at which its log was opened; another epoch answers STALE_RECEIPT.
//
// # Faults
//
// A crash of the agent: the queue is in its database and is delivered after the restart; what was
// delivered but not yet durably removed is delivered twice. A dead or silent peer: appends time out, a
// breaker leaves one probe at a time, other owners' partitions go on. A full queue or disk: LIMIT with
// retry-after, never a loss. A lagging controller: routes never go back in revision.
//
// # Concurrency
//
// Service and Router are safe for concurrent use. Each partition with something to deliver has one
// goroutine, which Run waits for.
//
// Files: service.go (wiring), logs.go and storelogs.go (what is needed of partition logs), config.go,
// router.go, chunk.go (queue entries), ingress.go and queue.go (durable queue), decide.go (pure), delivery.go (steps),
// dispatcher.go, peers.go, produce.go, consume.go, ack.go and receipts.go (client side), owner.go, owned.go
// and settle.go (owner side), reservations.go (pure).
package dataplane
