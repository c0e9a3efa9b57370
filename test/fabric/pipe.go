package fabric

import (
	"context"
	"io"
	"net"
	"time"
)

const (
	// pieceSize is what a proxy passes on at once.
	pieceSize = 32 << 10
	// repetition is what a lost packet costs a connection: the kernel's shortest time-out.
	repetition = 200 * time.Millisecond
	// inFlight bounds the pieces that a delayed link holds.
	inFlight = 64
)

type piece struct {
	bytes []byte
	due   time.Time
}

// pipe passes on one direction of a connection, late and paused as the link wants it, and ends both ways at its end.
func (n *Proxies) pipe(from, to string, in, out net.Conn) {
	late := make(chan piece, inFlight)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.deliver(from, to, in, out, late)
	}()
	for {
		buf := make([]byte, pieceSize)
		k, err := in.Read(buf)
		if k > 0 {
			if l := n.limiter(from); l != nil {
				_ = l.WaitN(context.Background(), k)
			}
			late <- piece{buf[:k], time.Now().Add(n.lateness(from, to))}
		}
		if err != nil {
			if err != io.EOF {
				_ = out.Close()
			}
			break
		}
	}
	close(late)
	<-done
	_, _ = in.Close(), out.Close()
}

// lateness is how long a piece takes over a link. A piece that is lost comes with its repetition.
func (n *Proxies) lateness(from, to string) time.Duration {
	rule := n.rules.between(from, to)
	rule.Cut = false
	var sum time.Duration
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	for rule.Loss > 0 && n.rules.rng.Float64() < min(rule.Loss, 0.9) {
		sum += repetition
	}
	if rule.Jitter > 0 {
		sum += time.Duration(n.rules.rng.Int64N(int64(rule.Jitter)))
	}
	return sum + rule.Delay
}

func (n *Proxies) deliver(from, to string, in, out net.Conn, late <-chan piece) {
	failed := false
	for p := range late {
		if failed {
			continue // the reader must not wait for us
		}
		if wait := time.Until(p.due); wait > 0 {
			time.Sleep(wait)
		}
		if n.open(from, to) {
			if _, err := out.Write(p.bytes); err == nil {
				continue
			}
		}
		// What is read from now on goes nowhere; its sender has to learn of it.
		failed = true
		_ = in.Close()
	}
}
