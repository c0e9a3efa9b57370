package harness

import (
	"io"
	"net"
	"sync"
)

// Proxy is a TCP proxy whose link can be cut: open connections and new ones then hang without a word, as
// they do when a network drops packets.
type Proxy struct {
	Address string
	target  string
	l       net.Listener
	wg      sync.WaitGroup
	mu      struct {
		sync.Mutex
		cut    bool
		healed chan struct{}
		conns  map[net.Conn]struct{}
		closed bool
	}
}

// NewProxy listens on a free loopback address and forwards to target.
func NewProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Address: l.Addr().String(), target: target, l: l}
	p.mu.conns = map[net.Conn]struct{}{}
	p.mu.healed = make(chan struct{})
	close(p.mu.healed)
	p.wg.Go(p.accept)
	return p, nil
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

// track registers a connection, so that Close ends it; false when the proxy is closed.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.conns[c] = struct{}{}
	return true
}

func (p *Proxy) serve(c net.Conn) {
	defer c.Close()
	if !p.track(c) {
		return
	}
	p.pass()
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer up.Close()
	if !p.track(up) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(up, c) })
	both.Go(func() { p.copy(c, up) })
	both.Wait()
}

func (p *Proxy) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.pass()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				from.Close()
			}
			return
		}
	}
}

// pass waits while the link is cut.
func (p *Proxy) pass() {
	p.mu.Lock()
	healed := p.mu.healed
	p.mu.Unlock()
	<-healed
}

// Cut makes the link silent. What hangs goes on after Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.cut {
		p.mu.cut, p.mu.healed = true, make(chan struct{})
	}
}

// Heal mends the link.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cut {
		p.mu.cut = false
		close(p.mu.healed)
	}
}

// Close ends all connections and waits for them.
func (p *Proxy) Close() error {
	p.Heal()
	err := p.l.Close()
	p.mu.Lock()
	p.mu.closed = true
	for c := range p.mu.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return err
}
