// Command etcd-bench is the bench's client for etcd. It lives in a module of its own, so that the product does not depend on
// etcd's client.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"
)

const (
	// valueBytes is about the size of a command that agents propose.
	valueBytes = 100
	keys       = 256
	watchedKey = "bench/watched"
	// streamsPerConnection is what the bench's own client puts on a connection.
	streamsPerConnection = 200
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "etcd-bench:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return errors.New("wants put, watch or trigger")
	}
	fs := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	list := fs.String("endpoints", "", "comma-separated `urls`")
	clients := fs.Int("clients", 1, "clients that put")
	d := fs.Duration("for", time.Second, "how long they put")
	streams := fs.Int("streams", 1, "watch streams")
	if err := fs.Parse(os.Args[2:]); err != nil {
		return err
	}
	endpoints := strings.Split(*list, ",")
	ctx := context.Background()
	switch os.Args[1] {
	case "put":
		return put(ctx, endpoints, *clients, *d)
	case "watch":
		return watch(ctx, endpoints, *streams)
	case "trigger":
		return trigger(ctx, endpoints)
	}
	return fmt.Errorf("%q is none of put, watch, trigger", os.Args[1])
}

func dial(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 30 * time.Second, Logger: zap.NewNop()})
}

// leader waits for one and returns its endpoint.
func leader(ctx context.Context, endpoints []string) (string, error) {
	c, err := dial(endpoints...)
	if err != nil {
		return "", err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		for _, e := range endpoints {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			st, err := c.Status(attempt, e)
			cancel()
			if err == nil && st.Leader != 0 && st.Leader == st.Header.MemberId {
				return e, nil
			}
			last = err
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return "", fmt.Errorf("no leader: %w", errors.Join(ctx.Err(), last))
}

func value() string {
	b := make([]byte, valueBytes)
	for i := range b {
		b[i] = byte('a' + rand.IntN(26))
	}
	return string(b)
}

// put asks the leader, as the bench asks the product's.
func put(ctx context.Context, endpoints []string, clients int, d time.Duration) error {
	e, err := leader(ctx, endpoints)
	if err != nil {
		return err
	}
	c, err := dial(e)
	if err != nil {
		return err
	}
	defer c.Close()
	v := value()
	if _, err := c.Put(ctx, "bench/first", v); err != nil {
		return err
	}
	took := make([][]time.Duration, clients)
	errs := make([]error, clients)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			for n := i; time.Since(began) < d; n++ {
				start := time.Now()
				if _, err := c.Put(ctx, fmt.Sprintf("bench/%08d", n%keys), v); err != nil {
					errs[i] = err
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	at := func(q float64) float64 { return float64(all[min(len(all)-1, int(q*float64(len(all))))]) / 1e6 }
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"per_second": float64(len(all)) / elapsed.Seconds(), "p50_ms": at(0.5), "p99_ms": at(0.99),
	})
}

// watch opens a stream for each watcher: the client shares one among those of one context metadata.
func watch(ctx context.Context, endpoints []string, n int) error {
	var mu sync.Mutex
	open, have := 0, map[int64]int{}
	failed := make(chan error, n+1)
	var c *clientv3.Client
	for i := range n {
		if i%streamsPerConnection == 0 {
			var err error
			if c, err = dial(endpoints[i/streamsPerConnection%len(endpoints)]); err != nil {
				return err
			}
		}
		own := metadata.AppendToOutgoingContext(ctx, "stream", fmt.Sprint(i))
		events := c.Watch(own, watchedKey, clientv3.WithCreatedNotify())
		go func() {
			for r := range events {
				now := time.Now()
				if err := r.Err(); err != nil {
					failed <- err
					return
				}
				mu.Lock()
				if r.Created {
					if open++; open == n {
						fmt.Println("open")
					}
				}
				for _, ev := range r.Events {
					if have[ev.Kv.ModRevision]++; have[ev.Kv.ModRevision] == n {
						fmt.Println(ev.Kv.ModRevision, now.UnixNano())
						delete(have, ev.Kv.ModRevision)
					}
				}
				mu.Unlock()
			}
		}()
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		failed <- nil
	}()
	return <-failed
}

// trigger puts the watched key for each line of its input, and prints the revision.
func trigger(ctx context.Context, endpoints []string) error {
	e, err := leader(ctx, endpoints)
	if err != nil {
		return err
	}
	c, err := dial(e)
	if err != nil {
		return err
	}
	defer c.Close()
	v := value()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		r, err := c.Put(ctx, watchedKey, v)
		if err != nil {
			return err
		}
		fmt.Println(r.Header.Revision)
	}
	return in.Err()
}
