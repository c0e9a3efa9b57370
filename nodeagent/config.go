package nodeagent

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Config holds an agent's start-up settings. What operators change while the cluster runs is in
// cluster.Settings and arrives on the watch stream; lease durations come with each heartbeat's answer.
type Config struct {
	// NodeID names the node in the cluster; the operator chooses it once.
	NodeID cluster.NodeID
	// DataDir holds the agent's database and all partitions. It belongs to one process and one node id.
	DataDir string
	// Listen is the host:port that this agent's server is bound to.
	Listen string
	// Advertise is the host:port that others dial; empty means Listen. It must not be unspecified,
	// since peers would then dial themselves.
	Advertise string
	// Controllers are host:port addresses; all are tried in turn, so that one is enough to start
	// and all should be listed.
	Controllers []string
	// FollowControllers has those tried, too, that the cluster names. Without it an agent whose listed
	// controllers were all replaced has to be configured anew.
	FollowControllers bool
	// Zone is a label that the planner spreads partitions by; may be empty.
	Zone string
	// CapacityWeight is how much the node should hold beside the others, 1 to cluster.MaxWeight; zero means 1.
	CapacityWeight uint32
	// Voter names the controller on this host; decommissioning the node then removes both. May be
	// empty.
	Voter cluster.ControllerName
	// HeartbeatInterval is how often the lease is renewed. Rule of thumb: a fifth of the controllers'
	// lease_ttl; beyond a third, one lost heartbeat can end a lease.
	HeartbeatInterval time.Duration
	// WatchIdle ends a watch stream on which nothing arrived for so long. It must be longer than the
	// controllers' progress interval.
	WatchIdle time.Duration
	// CallTimeout bounds one attempt of one call to one controller.
	CallTimeout time.Duration
	// DialTimeout bounds the making of a connection to a controller.
	DialTimeout time.Duration
	// Workers bounds how many partitions are opened, closed or reclaimed at once.
	Workers int
	// ResyncInterval is how often every partition is looked at again although nothing changed.
	ResyncInterval time.Duration
}

// DefaultConfig returns the defaults of every key that has one.
func DefaultConfig() Config {
	return Config{
		DataDir:           "naradplane-data/agent",
		Listen:            "127.0.0.1:7500",
		Controllers:       []string{"127.0.0.1:7400"},
		FollowControllers: true,
		HeartbeatInterval: 2 * time.Second,
		WatchIdle:         8 * time.Second,
		CallTimeout:       5 * time.Second,
		DialTimeout:       2 * time.Second,
		Workers:           16,
		ResyncInterval:    15 * time.Second,
	}
}

// AdvertiseAddress is Advertise, or Listen when that is empty.
func (c Config) AdvertiseAddress() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	return c.Listen
}

// Validate returns all faults at once, each a ReasonInvalid error naming its key.
func (c Config) Validate() error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, cluster.Invalid(field, format, args...))
	}
	if err := cluster.ValidateNodeID(c.NodeID); err != nil {
		errs = append(errs, err)
	}
	if c.Voter != "" {
		if err := cluster.ValidateControllerName(c.Voter); err != nil {
			add("voter", "%q is not a controller name", c.Voter)
		}
	}
	if c.DataDir == "" {
		add("data_dir", "must name a directory")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		add("listen", "%q is not host:port", c.Listen)
	}
	if err := CheckAdvertise(c.AdvertiseAddress()); err != nil {
		errs = append(errs, err)
	}
	if len(c.Controllers) == 0 {
		add("controllers", "at least one host:port is needed")
	}
	for _, a := range c.Controllers {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			add("controllers", "%q is not host:port", a)
		}
	}
	if len(c.Zone) > 200 {
		add("zone", "must be at most 200 bytes, is %d", len(c.Zone))
	}
	if c.CapacityWeight > cluster.MaxWeight {
		add("capacity_weight", "must be 1 to %d, is %d", cluster.MaxWeight, c.CapacityWeight)
	}
	durations := []struct {
		key      string
		d        time.Duration
		min, max time.Duration
	}{
		{"heartbeat_interval", c.HeartbeatInterval, 10 * time.Millisecond, time.Minute},
		{"watch_idle", c.WatchIdle, 100 * time.Millisecond, 10 * time.Minute},
		{"call_timeout", c.CallTimeout, 50 * time.Millisecond, time.Minute},
		{"dial_timeout", c.DialTimeout, 10 * time.Millisecond, time.Minute},
		{"resync_interval", c.ResyncInterval, 100 * time.Millisecond, time.Hour},
	}
	for _, d := range durations {
		if d.d < d.min || d.d > d.max {
			add(d.key, "must be %s to %s, is %s", d.min, d.max, d.d)
		}
	}
	if c.Workers < 1 || c.Workers > 1024 {
		add("workers", "must be 1 to 1024, is %d", c.Workers)
	}
	return errors.Join(errs...)
}

// CheckAdvertise refuses an address that others can't dial: an unspecified host, no host, no port. A
// host name is accepted as it is.
func CheckAdvertise(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return cluster.Invalid("advertise", "%q is not host:port", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return cluster.Invalid("advertise", "%q has no usable port; give the port that others dial", address)
	}
	if host == "" {
		return cluster.Invalid("advertise", "%q names no host; give the host name or address that others dial", address)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return cluster.Invalid("advertise", "%q is unspecified, so that others would dial themselves; give the address that they dial", address)
	}
	return nil
}
