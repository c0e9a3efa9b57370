package dataplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Limits of requests. Beyond them a request is refused with INVALID.
const (
	// MaxProduceBytes bounds an encoded ProduceRequest.
	MaxProduceBytes = 4 << 20
	// MaxConsumeRecords, MaxConsumeBytes and MaxConsumeWait bound one Consume.
	MaxConsumeRecords = 10_000
	MaxConsumeBytes   = 4 << 20
	MaxConsumeWait    = 30 * time.Second
	// MaxReceipts bounds the receipts of one Ack or Extend.
	MaxReceipts = 10_000
	// MinVisibility and MaxVisibility bound how long records are reserved.
	MinVisibility = time.Second
	MaxVisibility = 12 * time.Hour

	defaultConsumeRecords = 100
	defaultConsumeBytes   = 1 << 20
)

// Config holds the start-up settings of an agent's data plane.
type Config struct {
	// IngressMaxBytes bounds what is accepted and not yet delivered. At the limit produce is refused
	// with LIMIT. Rule of thumb: what arrives during the longest outage of an owner to ride out.
	IngressMaxBytes cluster.Bytes
	// DiskReserve is the free space on the agent's disk below which produce is refused with LIMIT, so
	// that the partitions' owners on the same disk can still append. Zero switches the guard off.
	DiskReserve cluster.Bytes
	// RerouteAfter is how long a batch waits for its own partition before another one gets it. Less
	// than a usual freeze costs locality of keys for nothing; much more delays records.
	RerouteAfter time.Duration
	// BatchBytes bounds one append to one partition; a single queue entry may exceed it.
	BatchBytes cluster.Bytes
	// DispatchMemory bounds accepted records that are kept in memory for their dispatch. What exceeds
	// it is read back from the database.
	DispatchMemory cluster.Bytes
	// AppendsPerOwner bounds the appends in flight to one owner. Each holds up to BatchBytes.
	AppendsPerOwner int
	// RequestTimeout bounds one call to a peer. Less than the time to sync BatchBytes on a busy disk
	// makes duplicates.
	RequestTimeout time.Duration
	// VisibilityTimeout is how long records are reserved when the consumer does not say.
	VisibilityTimeout time.Duration
	// MaxReservations bounds, per group and partition, the records between the committed offset and the
	// newest reserved one. At the limit only records whose reservation ran out are handed out.
	MaxReservations int
	// MaxGroups bounds the groups of one partition that are in memory. At the limit a consume by a
	// further group is refused with LIMIT.
	MaxGroups int
}

// DefaultConfig returns the default of every key.
func DefaultConfig() Config {
	return Config{
		IngressMaxBytes:   1 << 30,
		DiskReserve:       256 << 20,
		RerouteAfter:      20 * time.Millisecond,
		BatchBytes:        1 << 20,
		DispatchMemory:    64 << 20,
		AppendsPerOwner:   32,
		RequestTimeout:    5 * time.Second,
		VisibilityTimeout: 30 * time.Second,
		MaxReservations:   50_000,
		MaxGroups:         1000,
	}
}

// Validate returns every fault at once, with key and allowed range.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, key, allowed string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: must be %s", key, allowed))
		}
	}
	check(c.IngressMaxBytes >= 8<<20, "ingress_bytes", "at least 8 MiB")
	check(c.RerouteAfter >= time.Millisecond && c.RerouteAfter <= time.Minute, "reroute_after", "1ms to 1m")
	check(c.BatchBytes >= 4<<10 && c.BatchBytes <= 2<<20, "batch_bytes", "4 KiB to 2 MiB")
	check(c.DispatchMemory >= 1<<20, "dispatch_memory", "at least 1 MiB")
	check(c.AppendsPerOwner >= 1 && c.AppendsPerOwner <= 1024, "appends_per_owner", "1 to 1024")
	check(c.RequestTimeout >= 100*time.Millisecond && c.RequestTimeout <= time.Minute, "request_timeout", "100ms to 1m")
	check(c.VisibilityTimeout >= MinVisibility && c.VisibilityTimeout <= MaxVisibility, "visibility_timeout", "1s to 12h")
	check(c.MaxReservations >= 1 && c.MaxReservations <= 10_000_000, "max_reservations", "1 to 10000000")
	check(c.MaxGroups >= 1 && c.MaxGroups <= 100_000, "max_groups", "1 to 100000")
	return errors.Join(errs...)
}
