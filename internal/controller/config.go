package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Config is what a controller is started with. DefaultConfig has every default but Name.
type Config struct {
	// Name is this controller's name; it appears in heartbeats' answers.
	Name cluster.ControllerName
	// ClusterID is handed to agents and joining controllers.
	ClusterID cluster.ClusterID
	// LeaseTTL is how long a node may acknowledge writes to partitions with an outbound marker after it
	// sent a heartbeat. Shorter finds dead sources sooner; below a few heartbeats, one lost packet
	// stops writes.
	LeaseTTL time.Duration
	// HeartbeatInterval is how often agents are expected; it paces grace periods only.
	HeartbeatInterval time.Duration
	// DeadAfter is the silence after which a node is declared dead. It must exceed twice LeaseTTL, so
	// that the node has stopped acknowledging long before anybody takes over.
	DeadAfter time.Duration
	// SlowTick is how often the leader plans without a reason, as a safety net.
	SlowTick time.Duration
	// ProposeTimeout bounds one proposal; afterwards its outcome is unknown.
	ProposeTimeout time.Duration
	// BarrierTimeout bounds the confirmation of leadership; afterwards there is no leader.
	BarrierTimeout time.Duration
	// Meter makes the instruments; nil makes none.
	Meter metric.Meter
	// Now is the clock of leases, grace periods and verdicts; nil is time.Now. Its times carry a monotonic reading, or come
	// from a clock that is never set.
	Now func() time.Time
	// Start runs a proposal of a plan beside the round that planned it; nil starts a goroutine that Run waits for.
	Start func(propose func(context.Context))
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		LeaseTTL:          10 * time.Second,
		HeartbeatInterval: 2 * time.Second,
		DeadAfter:         30 * time.Second,
		SlowTick:          5 * time.Second,
		ProposeTimeout:    10 * time.Second,
		BarrierTimeout:    3 * time.Second,
	}
}

// Validate returns a ReasonInvalid error that names every key out of its range.
func (c Config) Validate() error {
	var faults []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	if err := cluster.ValidateControllerName(c.Name); err != nil {
		faults = append(faults, err.Error())
	}
	check(c.LeaseTTL >= 100*time.Millisecond, "lease_ttl: must be at least 100ms, is %s", c.LeaseTTL)
	check(c.HeartbeatInterval > 0 && c.HeartbeatInterval < c.LeaseTTL,
		"heartbeat_interval: must be positive and below lease_ttl (%s), is %s", c.LeaseTTL, c.HeartbeatInterval)
	check(c.DeadAfter > 2*c.LeaseTTL, "dead_after: must exceed 2 × lease_ttl (%s), is %s", 2*c.LeaseTTL, c.DeadAfter)
	check(c.SlowTick >= 10*time.Millisecond, "slow_tick: must be at least 10ms, is %s", c.SlowTick)
	check(c.ProposeTimeout >= 100*time.Millisecond, "propose_timeout: must be at least 100ms, is %s", c.ProposeTimeout)
	check(c.BarrierTimeout >= 100*time.Millisecond, "barrier_timeout: must be at least 100ms, is %s", c.BarrierTimeout)
	if len(faults) == 0 {
		return nil
	}
	return cluster.Errorf(cluster.ReasonInvalid, "controller: %s", strings.Join(faults, "; "))
}

func (c Config) meter() metric.Meter {
	if c.Meter == nil {
		return noop.Meter{}
	}
	return c.Meter
}
