package fabric

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// read takes a host's packets until its interface is closed.
func (n *Namespaces) read(h *host) {
	buf := make([]byte, 1<<16)
	for {
		k, err := h.tun.Read(buf)
		if err != nil {
			return
		}
		h.egress.send(buf[:k])
	}
}

// forward takes a packet to where it is addressed, if a link leads there. What is not IPv4 is chatter of interfaces.
func (n *Namespaces) forward(from *host, packet []byte) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return
	}
	to := n.at(netip.AddrFrom4([4]byte(packet[16:20])))
	if to == nil {
		return
	}
	for _, after := range n.rules.fate(from.name, to.name) {
		if after == 0 {
			_, _ = to.tun.Write(packet) // a full interface loses packets
			continue
		}
		late := bytes.Clone(packet)
		time.AfterFunc(after, func() { _, _ = to.tun.Write(late) })
	}
}

func (n *Namespaces) at(ip netip.Addr) *host {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		if h.ip == ip {
			return h
		}
	}
	return nil
}

// queued is how many packets wait in front of a slow link; what is more is lost, as at a real one.
const queued = 64

// shaper lets a host's packets out in their order, no faster than its rate.
type shaper struct {
	out   func([]byte)
	queue chan []byte
	done  context.CancelFunc
	ctx   context.Context
	mu    struct {
		sync.Mutex
		limiter *rate.Limiter // nil for none
		waiting int
	}
}

func newShaper(out func([]byte)) *shaper {
	s := &shaper{out: out, queue: make(chan []byte, queued)}
	s.ctx, s.done = context.WithCancel(context.Background())
	return s
}

func (s *shaper) limit(bytesPerSecond int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limiter = nil
	if bytesPerSecond > 0 {
		s.mu.limiter = rate.NewLimiter(rate.Limit(bytesPerSecond), 2*deviceMTU)
	}
}

// send lets a packet out, now or when it is its turn.
func (s *shaper) send(p []byte) {
	s.mu.Lock()
	direct := s.mu.limiter == nil && s.mu.waiting == 0
	if !direct {
		s.mu.waiting++
	}
	s.mu.Unlock()
	if direct {
		s.out(p)
		return
	}
	select {
	case s.queue <- bytes.Clone(p):
	default:
		s.sent()
	}
}

func (s *shaper) sent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.waiting--
}

func (s *shaper) run() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case p := <-s.queue:
			s.mu.Lock()
			l := s.mu.limiter
			s.mu.Unlock()
			if l != nil && l.WaitN(s.ctx, len(p)) != nil {
				return
			}
			s.out(p)
			s.sent()
		}
	}
}

func (s *shaper) close() { s.done() }
