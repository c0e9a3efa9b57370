package sim

import "time"

// host names an end of a link.
type host string

type link struct{ from, to host }

// network delivers closures with delay, loss, repetition and reordering, and not at all over links that are cut.
type network struct {
	w   *World
	cut map[link]bool
	// loss and dup are in thousandths.
	loss, dup int
	slow      time.Duration
}

func newNetwork(w *World) *network {
	return &network{w: w, cut: map[link]bool{}, loss: w.rng.IntN(40), dup: w.rng.IntN(30), slow: w.between(2*time.Millisecond, 30*time.Millisecond)}
}

// send delivers fn once, twice or never.
func (n *network) send(from, to host, fn func()) {
	if from == to {
		n.w.after(0, fn)
		return
	}
	if n.w.permille(n.loss) {
		return
	}
	n.deliver(from, to, fn)
	if n.w.permille(n.dup) {
		n.deliver(from, to, fn)
	}
}

// deliver is send without loss by chance.
func (n *network) deliver(from, to host, fn func()) {
	d := n.w.between(time.Millisecond/2, n.slow)
	if n.w.permille(10) {
		d += n.w.between(0, 4*time.Second) // a request that is still on its way when all have given it up
	}
	n.w.after(d, func() {
		// A cut takes what is on the link, too.
		if !n.cut[link{from, to}] {
			fn()
		}
	})
}

// split cuts links between two hosts, one way or both.
func (n *network) split(a, b host, oneWay bool) {
	n.cut[link{a, b}] = true
	if !oneWay {
		n.cut[link{b, a}] = true
	}
}

func (n *network) heal() { clear(n.cut) }

// call sends a request to a handler that lives as long as alive says, and its answer back.
func call[T any](p *proc, from, to host, timeout time.Duration, handle func(reply func(T))) (T, bool) {
	n := p.w.net
	return await(p, timeout, func(done func(T)) {
		n.send(from, to, func() {
			handle(func(v T) { n.send(to, from, func() { done(v) }) })
		})
	})
}
