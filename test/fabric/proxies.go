package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"

	"golang.org/x/time/rate"
)

// Proxies is a network of loopback addresses behind TCP proxies.
type Proxies struct {
	rules *rules
	wg    sync.WaitGroup
	mu    struct {
		sync.Mutex
		pids      map[int]string
		rates     map[string]*rate.Limiter
		listeners []net.Listener
		conns     map[net.Conn]struct{}
		changed   chan struct{} // closed when rules change
		closed    bool
	}
}

// NewProxies returns an empty network.
func NewProxies(seed uint64) *Proxies {
	n := &Proxies{rules: newRules(seed)}
	n.mu.pids = map[int]string{os.Getpid(): Clients}
	n.mu.rates = map[string]*rate.Limiter{}
	n.mu.conns = map[net.Conn]struct{}{}
	n.mu.changed = make(chan struct{})
	return n
}

// Kind implements Network.
func (n *Proxies) Kind() string { return "proxies" }

// Add implements Network.
func (n *Proxies) Add(host string) (Place, error) {
	front, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return Place{}, fmt.Errorf("host %s: %w", host, err)
	}
	// The daemon binds this port after it was let go; the kernel gives out other ones first.
	behind, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return Place{}, errors.Join(fmt.Errorf("host %s: %w", host, err), front.Close())
	}
	target := behind.Addr().String()
	if err := behind.Close(); err != nil {
		return Place{}, errors.Join(err, front.Close())
	}
	n.mu.Lock()
	n.mu.listeners = append(n.mu.listeners, front)
	n.mu.Unlock()
	n.wg.Go(func() { n.accept(front, host, target) })
	start := func(cmd *exec.Cmd) error {
		// The lock keeps a connection from being looked up before its process is known.
		n.mu.Lock()
		defer n.mu.Unlock()
		if err := cmd.Start(); err != nil {
			return err
		}
		n.mu.pids[cmd.Process.Pid] = host
		return nil
	}
	return Place{Listen: target, Advertise: front.Addr().String(), Start: start}, nil
}

func (n *Proxies) accept(l net.Listener, host, target string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		n.wg.Go(func() { n.serve(c, host, target) })
	}
}

// dialler names the host that has dialled; an unknown process is nobody's.
func (n *Proxies) dialler(c net.Conn) string {
	local, err1 := netip.ParseAddrPort(c.RemoteAddr().String())
	remote, err2 := netip.ParseAddrPort(c.LocalAddr().String())
	if err1 != nil || err2 != nil {
		return ""
	}
	n.mu.Lock()
	pids := maps.Clone(n.mu.pids)
	n.mu.Unlock()
	return pids[holder(local, remote, slices.Sorted(maps.Keys(pids)))]
}

// track registers a connection, so that Close ends it; false when the network is closed.
func (n *Proxies) track(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return false
	}
	n.mu.conns[c] = struct{}{}
	return true
}

func (n *Proxies) untrack(c net.Conn) {
	_ = c.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mu.conns, c)
}

func (n *Proxies) serve(c net.Conn, host, target string) {
	defer n.untrack(c)
	if !n.track(c) {
		return
	}
	from := n.dialler(c)
	// A connection over a link that is cut, in either direction, is not made before it is mended.
	if !n.open(from, host) || !n.open(host, from) {
		return
	}
	up, err := net.Dial("tcp4", target)
	if err != nil {
		return
	}
	defer n.untrack(up)
	if !n.track(up) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { n.pipe(from, host, c, up) })
	both.Go(func() { n.pipe(host, from, up, c) })
	both.Wait()
}

// open waits until a link is not cut; false when the network closes.
func (n *Proxies) open(from, to string) bool {
	for {
		n.mu.Lock()
		changed, closed := n.mu.changed, n.mu.closed
		n.mu.Unlock()
		switch {
		case closed:
			return false
		case !n.rules.between(from, to).Cut:
			return true
		}
		<-changed
	}
}

// change wakes those who wait for a link. The caller holds the lock.
func (n *Proxies) change() {
	close(n.mu.changed)
	n.mu.changed = make(chan struct{})
}

// Set implements Network.
func (n *Proxies) Set(from, to string, r Rule) {
	n.rules.set(from, to, r)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.change()
}

// Rate implements Network.
func (n *Proxies) Rate(host string, bytesPerSecond int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mu.rates, host)
	if bytesPerSecond > 0 {
		n.mu.rates[host] = rate.NewLimiter(rate.Limit(bytesPerSecond), pieceSize)
	}
}

func (n *Proxies) limiter(host string) *rate.Limiter {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.rates[host]
}

// Heal implements Network.
func (n *Proxies) Heal() {
	n.rules.clear()
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.mu.rates)
	n.change()
}

// Close implements Network.
func (n *Proxies) Close() error {
	n.mu.Lock()
	n.mu.closed = true
	var errs []error
	for _, l := range n.mu.listeners {
		errs = append(errs, l.Close())
	}
	for c := range n.mu.conns {
		_ = c.Close()
	}
	n.change()
	n.mu.Unlock()
	n.wg.Wait()
	return errors.Join(errs...)
}
