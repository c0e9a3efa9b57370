package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// group is a set of rows that are measured together.
type group struct {
	name string
	what string
	run  func(context.Context, *env) error
}

// groups are all there are, in the order in which they run.
var groups = []group{
	{"parts", "a synced write, a commit", parts},
	{"copy", "copying 2 GiB: one partition, eight at once, with TLS", copies},
	{"rsync", "the same against rsync", rsync},
	{"freeze", "how long a partition is frozen, by size and write rate", freezes},
	{"client", "what clients see of a drain", clients},
	{"propose", "proposals against etcd", proposals},
	{"watch", "watch fan-out against etcd", watches},
	{"heartbeat", "heartbeats of many agents", heartbeats},
	{"restart", "restart, snapshot and restore with a million partitions", restarts},
	{"drain", "empty partitions drained off a node", drains},
	{"leader", "a killed leader", leaders},
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "client" {
		if err := watchClient(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench client:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	e := &env{}
	only := flag.String("only", "", "comma-separated `names` of groups; all when empty")
	asJSON := flag.Bool("json", false, "print one JSON object for each row")
	list := flag.Bool("list", false, "list the groups and end")
	flag.StringVar(&e.release, "release", "bin/naradctl-plane", "the release `binary`")
	flag.StringVar(&e.etcd, "etcd", "bin/etcd", "the etcd `binary`; its rows are skipped when it is not there")
	flag.StringVar(&e.etcdClient, "etcd-client", "bin/etcd-bench", "the client `binary` for etcd")
	flag.StringVar(&e.work, "dir", os.TempDir(), "`directory` to work in; its disk is what is measured")
	flag.StringVar(&e.profiles, "profiles", "", "`directory` for CPU and allocation profiles of the daemons; none when empty")
	flag.IntVar(&e.sizeMiB, "size", 2048, "`MiB` of the copied partitions")
	flag.IntVar(&e.moves, "moves", 20, "moves of each partition whose freezes are measured")
	flag.IntVar(&e.drained, "drain", 10_000, "empty partitions to drain")
	flag.IntVar(&e.assignments, "assignments", 1_000_000, "assignments of the restart")
	flag.IntVar(&e.agents, "agents", 10_000, "agents of the watches and heartbeats, at most")
	flag.DurationVar(&e.round, "round", 3*time.Second, "how long each round of proposals or heartbeats takes")
	flag.Parse()
	if *list {
		for _, g := range groups {
			fmt.Printf("%-10s %s\n", g.name, g.what)
		}
		return nil
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if e.release, err = filepath.Abs(e.release); err != nil {
		return err
	}
	e.sink = &table{w: os.Stdout}
	if *asJSON {
		e.sink = lines{json.NewEncoder(os.Stdout)}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var errs []error
	for _, g := range chosen {
		errs = append(errs, e.group(ctx, g))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(errs, e.sink.end())...)
}

// choose returns the groups that are named, in their own order.
func choose(only string) ([]group, error) {
	if only == "" {
		return groups, nil
	}
	names := strings.Split(only, ",")
	var out []group
	for _, g := range groups {
		if i := slices.Index(names, g.name); i >= 0 {
			out = append(out, g)
			names = slices.Delete(names, i, i+1)
		}
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("-only: no group is named %q; -list shows them", names)
	}
	return out, nil
}
