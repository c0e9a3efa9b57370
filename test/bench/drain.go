package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// drain takes agent-2 away while it owns half of n partitions that were never written: what a move costs beside its bytes. It
// comes last, since one agent remains.
func (b *bench) drain(ctx context.Context, n uint32) error {
	if _, err := b.cluster.API.CreateTopic(ctx, "drained", n, ""); err != nil {
		return err
	}
	if err := b.cluster.API.AwaitOpen(ctx, "drained"); err != nil {
		return err
	}
	members, err := b.cluster.API.Members(ctx)
	if err != nil {
		return err
	}
	moves := members["agent-2"].GetOwned()
	running := false
	after := durationpb.New(cluster.DefaultSettings().ReclaimAfter)
	if err := b.cluster.API.UpdateSettings(ctx, &planev1.Settings{RebalancePaused: &running, ReclaimAfter: after}); err != nil {
		return err
	}
	began := time.Now()
	_, err = harness.Call(ctx, b.cluster.API, func(ctx context.Context, c harness.Clients) (*planev1.DecommissionResponse, error) {
		return c.Decommission(ctx, &planev1.DecommissionRequest{Id: "agent-2"})
	})
	if err != nil {
		return err
	}
	err = harness.Poll(ctx, "agent-2 owns nothing", func() error {
		members, err := b.cluster.API.Members(ctx)
		if err == nil && members["agent-2"].GetOwned() > 0 {
			err = fmt.Errorf("it owns %d", members["agent-2"].GetOwned())
		}
		return err
	})
	took := time.Since(began)
	fmt.Fprintf(b.w, "\ndrain of empty partitions\tmoves\ttook\tmoves/s\t\n\t%d\t%s\t%.0f\t\n", moves, took.Round(time.Millisecond), float64(moves)/took.Seconds())
	_ = b.w.Flush()
	return err
}
