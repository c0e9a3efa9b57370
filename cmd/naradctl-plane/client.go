package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/google/uuid"

	"github.com/naradctl/naradctl-plane/client"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// clients are the controllers' services, whichever controller answers.
type clients struct {
	planev1connect.ClusterServiceClient
	planev1connect.TopicServiceClient
	planev1connect.NodeServiceClient
}

// connect returns the client of the cluster, or of the agents that are given. It is kept for the life of the command.
func (a *app) connect(agents []string) (*client.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	o := client.Options{TLS: a.creds.client(), User: userName()}
	for _, address := range a.addrs {
		o.Controllers = append(o.Controllers, strings.TrimSpace(address))
	}
	for _, address := range agents {
		o.Agents = append(o.Agents, strings.TrimSpace(address))
	}
	c, err := client.New(o)
	if err != nil {
		return nil, withCode(codeUsage, err)
	}
	a.client = c
	return c, nil
}

// connectOne returns a client of one controller, for a stream. The caller closes it.
func (a *app) connectOne(address string) (*client.Client, error) {
	c, err := client.New(client.Options{TLS: a.creds.client(), User: userName(), Controllers: []string{strings.TrimSpace(address)}})
	if err != nil {
		return nil, withCode(codeUsage, err)
	}
	return c, nil
}

// userName is user@host; empty when neither is known.
func userName() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	host, err := os.Hostname()
	if err != nil {
		return u.Username
	}
	return u.Username + "@" + host
}

// requestID names a mutation, so that repeating it elsewhere after an unknown outcome does nothing twice.
func requestID() string { return uuid.NewString() }

// limit returns ctx bounded by --timeout. Commands that wait are unbounded unless it was given.
func (a *app) limit(ctx context.Context, waits bool) (context.Context, context.CancelFunc) {
	if waits && !a.timeoutSet {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

// call asks the controllers until one answers with a result or a refusal, or --timeout has passed.
func call[T any](ctx context.Context, a *app, fn func(context.Context, clients) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	c, err := a.connect(nil)
	if err != nil {
		var zero T
		return zero, err
	}
	v, err := fn(ctx, clients{c.Cluster(), c.Topics(), c.Nodes()})
	return v, a.explain(err)
}

// explain returns the refusal that err carries, or says what to do when nobody answered.
func (a *app) explain(err error) error {
	if err == nil {
		return nil
	}
	var nobody *client.UnreachableError
	if errors.As(err, &nobody) {
		flag := "--addr"
		switch {
		case a.joining:
			flag = "--join"
		case nobody.Party == "agent":
			flag = "--agent"
		}
		said := fmt.Errorf("%w (is it running? other addresses: %s)", err, flag)
		if errors.Is(err, context.DeadlineExceeded) {
			return withCode(codeTimeout, said)
		}
		return said
	}
	if errors.Is(err, client.ErrOutcomeUnknown) {
		return err
	}
	answer := apierr.FromConnect(err)
	if cluster.ReasonOf(answer) == cluster.ReasonNoLeader {
		return fmt.Errorf("%w (most of the controllers must run and reach each other; asked: %s)", answer, strings.Join(a.addrs, ", "))
	}
	return answer
}
