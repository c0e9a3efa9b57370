package sim

import (
	"context"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	leading "github.com/naradctl/naradctl-plane/internal/controller"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

const (
	leaseTTL  = 2 * time.Second
	deadAfter = 5 * time.Second
)

// config is the real controller's. Its time-outs are the backend's here, which counts virtual time.
func (c *controller) config() leading.Config {
	cfg := leading.DefaultConfig()
	cfg.Name, cfg.ClusterID = cluster.ControllerName(c.host), "sim"
	cfg.LeaseTTL, cfg.HeartbeatInterval, cfg.DeadAfter = leaseTTL, heartbeatEvery, deadAfter
	cfg.ProposeTimeout, cfg.BarrierTimeout = time.Hour, time.Hour
	cfg.Start = func(propose func(context.Context)) { c.life.spawn(func(p *proc) { propose(p.ctx()) }) }
	cfg.Now = func() time.Time { return time.Unix(0, int64(c.clk.now())) }
	return cfg
}

// rounds is the real leader's loop but for what wakes it: a round comes a few times in a second.
func (c *controller) rounds(p *proc) {
	for {
		p.sleep(p.w.between(150*time.Millisecond, 350*time.Millisecond))
		if c.leads() {
			// An error ends the round; the next one begins from the state.
			_ = c.exclusive(p, func(ctx context.Context) error { _, err := c.lead.Round(ctx); return err })
		}
	}
}

// exclusive runs what takes the controller's own lock. Procs share one goroutine, so they have to wait outside.
func (c *controller) exclusive(p *proc, fn func(context.Context) error) error {
	for c.turn != nil {
		p.sleep(10 * time.Millisecond)
	}
	c.turn = p
	defer func() { c.turn = nil }()
	return fn(p.ctx())
}

// do is Propose with refusals as errors.
func (c *controller) do(p *proc, cmd *storagev1.Command) (fsm.Result, error) {
	r, err := c.lead.Propose(p.ctx(), cmd)
	if err == nil && r.Err != nil {
		err = r.Err
	}
	return r, err
}

func refOf(p cluster.PartitionID) *storagev1.PartitionRef {
	return &storagev1.PartitionRef{TopicId: uint64(p.Topic), Index: p.Index}
}
