package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

const (
	// attemptTimeout bounds one call to one address, so that a silent host does not use up the time
	// of the others.
	attemptTimeout = 5 * time.Second
	// leaderPause is the wait between two rounds over the addresses while there is no leader.
	leaderPause = 200 * time.Millisecond
)

// clients are the controllers' services at one address.
type clients struct {
	address string
	planev1connect.ClusterServiceClient
	planev1connect.TopicServiceClient
}

// connectTo returns a client for one address. Connections are kept for the life of the command.
func (a *app) connectTo(address string) *connect.Client {
	if a.http == nil {
		a.http = &http.Client{Transport: a.creds.http1(2*time.Second, 4)}
	}
	return connect.NewClient(connecthttp.NewTransport(a.http, a.creds.scheme()+"://"+address, connecthttp.WithReadMaxBytes(wire.MaxMessageBytes)))
}

func (a *app) newClients(address string) clients {
	c := a.connectTo(address)
	return clients{
		address:              address,
		ClusterServiceClient: planev1connect.NewClusterServiceClient(c),
		TopicServiceClient:   planev1connect.NewTopicServiceClient(c),
	}
}

func (a *app) newDataClient(address string) nodev1connect.DataServiceClient {
	return nodev1connect.NewDataServiceClient(a.connectTo(address))
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

// call asks the controllers, one address after the other, until one answers. An answer is a result or a
// domain error; an address that can't be reached is none, and "no leader" is asked again until ctx ends
// or --timeout has passed.
func call[T any](ctx context.Context, a *app, fn func(context.Context, clients) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return eachAddress(ctx, a.addrs, a.controllers(), func(ctx context.Context, address string) (T, error) {
		return fn(ctx, a.newClients(address))
	})
}

// party is whom a command asks, for its errors.
type party struct{ what, flag string }

func (a *app) controllers() party {
	if a.joining {
		return party{"controller", "--join"}
	}
	return party{"controller", "--addr"}
}

func eachAddress[T any](ctx context.Context, addrs []string, p party, fn func(context.Context, string) (T, error)) (T, error) {
	var zero T
	for {
		var noLeader error
		var failed []string
		for _, address := range addrs {
			attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
			result, err := fn(attempt, strings.TrimSpace(address))
			cancel()
			if err == nil {
				return result, nil
			}
			err = apierr.FromConnect(err)
			switch reason := cluster.ReasonOf(err); reason {
			case 0:
				failed = append(failed, fmt.Sprintf("%s: %v", address, shorten(err)))
			case cluster.ReasonNoLeader:
				noLeader = err
			default:
				return zero, err
			}
			if ctx.Err() != nil {
				break
			}
		}
		if noLeader == nil {
			return zero, unreachable(ctx, p, failed)
		}
		select {
		case <-ctx.Done():
			return zero, fmt.Errorf("%w (most of the controllers must run and reach each other; asked: %s)", noLeader, strings.Join(addrs, ", "))
		case <-time.After(leaderPause):
		}
	}
}

func unreachable(ctx context.Context, p party, failed []string) error {
	err := fmt.Errorf("no %s answers: %s (is it running? other addresses: %s)", p.what, strings.Join(failed, "; "), p.flag)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return withCode(codeTimeout, err)
	}
	return err
}

// shorten drops what a person does not need of a network error.
func shorten(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	var ce *connect.Error
	if errors.As(err, &ce) && ce.Code() == connect.CodeUnimplemented {
		return errors.New("something else listens there (controllers are asked by --addr, agents by --agent)")
	}
	if errors.As(err, &ce) && ce.Message() != "" {
		return errors.New(ce.Message())
	}
	return err
}
