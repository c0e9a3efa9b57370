package etcdraft_test

import (
	"sync/atomic"
	"testing"

	"github.com/naradctl/naradctl-plane/consensus/consensustest"
)

// BenchmarkPropose proposes 128-byte commands on three members over loopback HTTP and real logs.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 16, 64} {
		b.Run(map[int]string{1: "clients=1", 16: "clients=16", 64: "clients=64"}[clients], func(b *testing.B) {
			c := newRawCluster(b, 3, 1<<30)
			c.startAll()
			for i := range c.hosts {
				c.Machine(i).FlushEvery = 1 << 30
			}
			l := c.Backend(consensustest.Leader(b, c))
			ctx := b.Context()
			command := make([]byte, 128)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			done := make(chan error, clients)
			for range clients {
				go func() {
					for left.Add(-1) >= 0 {
						if _, _, err := l.Propose(ctx, command); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for range clients {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "proposals/s")
		})
	}
}
