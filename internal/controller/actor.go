package controller

import (
	"context"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

type actorKey struct{}

// WithActor says on whose behalf the commands of ctx are proposed. Without it they are the leader's own.
func WithActor(ctx context.Context, a cluster.Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorOf returns what WithActor said; false when it said nothing.
func ActorOf(ctx context.Context) (cluster.Actor, bool) {
	a, ok := ctx.Value(actorKey{}).(cluster.Actor)
	return a, ok
}

func (c *Controller) actor(ctx context.Context) cluster.Actor {
	if a, ok := ActorOf(ctx); ok {
		return a
	}
	return cluster.Actor{Kind: cluster.ActorLeader, Name: string(c.cfg.Name)}
}
