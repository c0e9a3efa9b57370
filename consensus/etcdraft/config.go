package etcdraft

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/naradctl/naradctl-plane/consensus"
)

// Peer is one of the first members, by name and host:port.
type Peer struct {
	Name    string
	Address string
}

// JoinInfo tells a new process the cluster it was admitted to by Backend.AddLearner.
type JoinInfo struct {
	ClusterID string
	// Self is the record that was admitted; its StoreID is this directory's.
	Self consensus.Member
	// Members are those to talk to at first; the log brings later ones.
	Members []consensus.Member
}

// Config describes one member. Zero values of the tunables take the defaults stated with them.
type Config struct {
	// Name is this member's; unique in the cluster, and for ever tied to its directory.
	Name string
	// AdvertiseAddress is the host:port under which the others reach Handler.
	AdvertiseAddress string
	// DataDir holds the log and the store id. One process uses it at a time.
	DataDir string
	// InitialMembers are the first members, this one included, in the same order on all of them: a
	// member's place in the list is its id. Only read while the directory is fresh.
	InitialMembers []Peer
	// Join is set instead of InitialMembers for a process that joins an existing cluster. Ignored when
	// the directory is not fresh.
	Join *JoinInfo

	// TickInterval is the unit of time of elections; default 100 ms. Shorter finds a dead leader sooner and
	// mistakes a slow disk for a dead one more often. Alike on all members.
	TickInterval time.Duration
	// ElectionTicks is how long a follower waits for its leader; default 10. At least 3 × HeartbeatTicks.
	ElectionTicks int
	// HeartbeatTicks is how often a leader shows a sign of life; default 1.
	HeartbeatTicks int
	// MaxMessageBytes bounds the entries in one message; default 1 MiB.
	MaxMessageBytes uint64
	// MaxInflightMessages bounds unacknowledged messages per follower; default 256.
	MaxInflightMessages int
	// MaxProposals bounds proposals in flight on this member; more are refused with ErrBusy. Default 4096.
	MaxProposals int
	// SnapshotEntries is how many entries are kept before the log is compacted; default 10,000. More
	// cost memory and start-up time.
	SnapshotEntries uint64
	// TrailEntries are kept behind a compaction for followers that lag; default 5,000. A follower that is
	// further behind needs a snapshot.
	TrailEntries uint64
	// SegmentBytes is the size of a log file, preallocated; default 16 MiB. Process-wide: the first
	// Config that is used sets it.
	SegmentBytes int64
	// Scheme is "http" (default) or "https".
	Scheme string
	// RoundTripper carries requests to peers. Nil is an own HTTP/1.1 transport, whose timed-out connections
	// are discarded; an HTTP/2 one should find dead connections by itself (ReadIdleTimeout).
	RoundTripper http.RoundTripper
}

func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def64 := func(p *uint64, v uint64) {
		if *p == 0 {
			*p = v
		}
	}
	if c.TickInterval == 0 {
		c.TickInterval = 100 * time.Millisecond
	}
	def(&c.ElectionTicks, 10)
	def(&c.HeartbeatTicks, 1)
	def64(&c.MaxMessageBytes, 1<<20)
	def(&c.MaxInflightMessages, 256)
	def(&c.MaxProposals, 4096)
	def64(&c.SnapshotEntries, 10_000)
	def64(&c.TrailEntries, 5_000)
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 16 << 20
	}
	if c.Scheme == "" {
		c.Scheme = "http"
	}
	return c
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Name == "" {
		bad("name is empty")
	}
	if c.AdvertiseAddress == "" {
		bad("advertise address is empty")
	}
	if c.DataDir == "" {
		bad("data directory is empty")
	}
	if c.TickInterval < time.Millisecond {
		bad("tick interval %v is below 1ms", c.TickInterval)
	}
	if c.HeartbeatTicks < 1 || c.ElectionTicks < 3*c.HeartbeatTicks {
		bad("election ticks %d must be at least three times heartbeat ticks %d", c.ElectionTicks, c.HeartbeatTicks)
	}
	if c.SegmentBytes < 64<<10 {
		bad("segment size %d is below 64 KiB", c.SegmentBytes)
	}
	if c.MaxProposals < 1 || c.MaxInflightMessages < 1 {
		bad("limits on proposals and messages must be positive")
	}
	names, addresses := map[string]bool{}, map[string]bool{}
	for _, p := range c.InitialMembers {
		if p.Name == "" || p.Address == "" {
			bad("initial member %q=%q needs a name and an address", p.Name, p.Address)
		}
		if names[p.Name] || addresses[p.Address] {
			bad("initial member %s=%s is listed twice, by name or by address", p.Name, p.Address)
		}
		names[p.Name], addresses[p.Address] = true, true
	}
	if c.Join == nil && len(c.InitialMembers) > 0 && !names[c.Name] {
		bad("initial members do not list this member, %q", c.Name)
	}
	if c.Scheme != "http" && c.Scheme != "https" {
		bad("scheme %q is neither http nor https", c.Scheme)
	}
	return errors.Join(errs...)
}

func (c Config) electionTimeout() time.Duration {
	return time.Duration(c.ElectionTicks) * c.TickInterval
}

// Errors that say why a member does not start. Each message carries the remedy.
var (
	// ErrInUse: another process uses the data directory.
	ErrInUse = errors.New("etcdraft: data directory is in use")
	// ErrForeignStore: the cluster knows this name with another store id, or the log belongs to another
	// store, member or cluster.
	ErrForeignStore = errors.New("etcdraft: wiped or foreign disk")
	// ErrStateMismatch: the state machine and the log do not fit together.
	ErrStateMismatch = errors.New("etcdraft: state and log do not fit together")
)

// DamageError says where a log is damaged. It is never repaired by cutting off synced entries.
type DamageError struct {
	File   string
	Offset int64
	Reason string
}

// Error names the place, the reason and the remedy.
func (e *DamageError) Error() string {
	return fmt.Sprintf("etcdraft: log file %s is damaged at offset %d: %s; nothing was changed: "+
		"restore the file, or remove this controller from the cluster, empty its data directory and start it with --join",
		e.File, e.Offset, e.Reason)
}
