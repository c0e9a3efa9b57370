package client

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// shunFor is how long an address that did not answer is asked last.
const shunFor = 10 * time.Second

// pool orders the controllers' addresses: the leader first when it is known by one of them, those that did not answer
// last. Safe for concurrent use.
type pool struct {
	addresses []string
	mu        struct {
		sync.Mutex
		first   string // asked first; the leader, or who answered last
		shunned map[string]time.Time
	}
}

func newPool(addresses []string) *pool {
	p := &pool{addresses: slices.Clone(addresses)}
	p.mu.shunned = map[string]time.Time{}
	if len(addresses) > 0 {
		// Clients that start together spread over the controllers.
		p.mu.first = addresses[rand.IntN(len(addresses))]
	}
	return p
}

func (p *pool) order() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	rank := func(a string) int {
		switch {
		case now.Before(p.mu.shunned[a]):
			return 2
		case a == p.mu.first:
			return 0
		}
		return 1
	}
	out := slices.Clone(p.addresses)
	slices.SortStableFunc(out, func(a, b string) int { return rank(a) - rank(b) })
	return out
}

// answered notes who answered, and whom it named as the leader; empty when it named nobody.
func (p *pool) answered(address, leader string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.shunned, address)
	p.mu.first = address
	if slices.Contains(p.addresses, leader) && !time.Now().Before(p.mu.shunned[leader]) {
		p.mu.first = leader
	}
}

// silent notes who did not answer.
func (p *pool) silent(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.shunned[address] = time.Now().Add(shunFor)
}
