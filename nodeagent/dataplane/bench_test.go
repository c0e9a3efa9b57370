package dataplane

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// benchProduce measures produce calls through HTTP on the real disk until everything is delivered.
func benchProduce(b *testing.B, records, size, clients int) {
	c := newClusterOn(b, DefaultConfig(), func() vfs.FS { return inDir{vfs.Default, b.TempDir()} }, "a", "b")
	c.topic("orders", "a", "b", "a", "b", "a", "b")
	req := &nodev1.ProduceRequest{Topic: "orders"}
	for i := range records {
		req.Records = append(req.Records, &nodev1.ProduceRecord{Key: fmt.Appendf(nil, "key-%d", i), Value: make([]byte, size)})
	}
	b.SetBytes(int64(records * size))
	b.SetParallelism(clients)
	var n atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.nodes["a"].client.Produce(b.Context(), req); err != nil {
				b.Error(err)
			}
			n.Add(int64(records))
		}
	})
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "accepted/s")
	eventually(b, "delivery", func() bool { r, _ := c.nodes["a"].svc.Depth(); return r == 0 })
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "delivered/s")
}

func BenchmarkProduceBulk(b *testing.B)   { benchProduce(b, 256, 4096, 4) }
func BenchmarkProduceSmall(b *testing.B)  { benchProduce(b, 100, 100, 8) }
func BenchmarkProduceSingle(b *testing.B) { benchProduce(b, 1, 100, 32) }
