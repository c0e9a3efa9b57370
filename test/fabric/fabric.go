// Package fabric is the network between the daemons of a test: hosts that reach each other over links which can be cut
// one way or both, lose, repeat, delay and reorder packets, and be slow.
//
// There are two kinds. Namespaces gives each host a network namespace of the kernel, with packets that pass through this
// process; what TCP makes of lost and late packets is the kernel's real work. Proxies needs no privileges: hosts are
// loopback addresses, and connections pass through a TCP proxy that knows by its socket which host has dialled. A proxy can't
// lose or reorder what TCP carries; there, a lost packet is a pause as long as its repetition takes.
//
// It knows nothing of the product.
//
// Files: fabric.go (rules), namespaces.go, router.go (the way of a packet), proxies.go, pipe.go (one connection), socket.go
// (who has dialled).
package fabric

import (
	"math/rand/v2"
	"os/exec"
	"sync"
	"time"
)

// Rule says what becomes of what one host sends to another. The zero value is a good link.
type Rule struct {
	// Cut lets nothing through, and tells nobody.
	Cut bool
	// Loss and Duplicate are shares of packets, 0 to 1.
	Loss, Duplicate float64
	// Delay is added to each packet, and up to Jitter more, which reorders them.
	Delay, Jitter time.Duration
}

// Place is where a daemon of a host listens, what others dial, and how its processes are started.
type Place struct {
	Listen, Advertise string
	Start             func(*exec.Cmd) error
}

// Network connects hosts. Safe for concurrent use.
type Network interface {
	// Kind is "namespaces" or "proxies".
	Kind() string
	// Add makes a host, or another place on one that exists.
	Add(host string) (Place, error)
	// Set sets the rule of what from sends to to. Either may be Any.
	Set(from, to string, r Rule)
	// Rate bounds what a host sends, in bytes per second; zero does not.
	Rate(host string, bytesPerSecond int)
	// Heal makes all links good and fast.
	Heal()
	// Close removes the hosts. Their processes must have ended.
	Close() error
}

const (
	// Any stands for each host.
	Any = "*"
	// Clients is the host of the process that made the network.
	Clients = "clients"
)

// rules are the links that are not good.
type rules struct {
	mu    sync.Mutex
	links map[[2]string]Rule
	rng   *rand.Rand
}

func newRules(seed uint64) *rules {
	return &rules{links: map[[2]string]Rule{}, rng: rand.New(rand.NewPCG(seed, 1))}
}

func (r *rules) set(from, to string, rule Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rule == (Rule{}) {
		delete(r.links, [2]string{from, to})
		return
	}
	r.links[[2]string{from, to}] = rule
}

func (r *rules) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.links)
}

// between is the sum of what applies to a link.
func (r *rules) between(from, to string) Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.links) == 0 || from == to {
		return Rule{}
	}
	var sum Rule
	for _, k := range [][2]string{{from, to}, {from, Any}, {Any, to}, {Any, Any}} {
		one := r.links[k]
		sum.Cut = sum.Cut || one.Cut || one.Loss >= 1
		sum.Loss, sum.Duplicate = max(sum.Loss, one.Loss), max(sum.Duplicate, one.Duplicate)
		sum.Delay, sum.Jitter = max(sum.Delay, one.Delay), max(sum.Jitter, one.Jitter)
	}
	return sum
}

// fate is what happens to one packet: how many copies arrive, and after which time each.
func (r *rules) fate(from, to string) []time.Duration {
	rule := r.between(from, to)
	if rule == (Rule{}) {
		return now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rule.Cut || r.rng.Float64() < rule.Loss {
		return nil
	}
	copies := 1
	if r.rng.Float64() < rule.Duplicate {
		copies = 2
	}
	out := make([]time.Duration, copies)
	for i := range out {
		out[i] = rule.Delay
		if rule.Jitter > 0 {
			out[i] += time.Duration(r.rng.Int64N(int64(rule.Jitter)))
		}
	}
	return out
}

var now = []time.Duration{0}
