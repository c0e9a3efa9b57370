// Chaos runs a cluster under a schedule of faults and prints a verdict. Run it by `make chaos D=10m SEED=n`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/test/chaos"
	"github.com/naradctl/naradctl-plane/test/fabric"
	"github.com/naradctl/naradctl-plane/test/faultfs"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 1
	}
	os.Exit(code)
}

func run() (int, error) {
	var o chaos.Options
	var network, only string
	var plan bool
	flag.Uint64Var(&o.Seed, "seed", 0, "makes the schedule; 0 draws one")
	flag.DurationVar(&o.Duration, "d", 10*time.Minute, "how long faults go on")
	flag.StringVar(&o.Binary, "binary", "bin/naradctl-plane-faults", "the `binary`, built with fault points")
	flag.BoolVar(&o.Clock, "clock", false, "the binary has a clock that jumps")
	flag.IntVar(&o.Agents, "agents", 4, "agents at first")
	flag.StringVar(&o.Dir, "dir", "", "work `directory`, kept; empty makes one that is removed after a pass")
	flag.StringVar(&network, "network", "auto", "namespaces, proxies, or auto: the former where they can be made")
	flag.StringVar(&only, "only", "", "kinds of faults, separated by commas; all when empty")
	flag.BoolVar(&plan, "plan", false, "only print the schedule")
	flag.Parse()
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	if only != "" {
		o.Only = strings.Split(only, ",")
	}
	if plan {
		can, err := chaos.Only(o.Only)
		for _, s := range chaos.Plan(o.Seed, o.Duration, can) {
			fmt.Println(s)
		}
		return 0, err
	}
	if network != "proxies" && !fabric.Isolated() {
		// The seed is drawn once, so that the repetition has the same.
		code, err := fabric.Isolate(append(os.Args[1:], fmt.Sprintf("-seed=%d", o.Seed))...)
		if (err == nil && code != noNamespaces) || network == "namespaces" {
			return code, err
		}
		if err != nil {
			fmt.Printf("no namespaces: %v\n", err)
		}
		network = "proxies"
	}
	return perform(o, network)
}

// noNamespaces is the exit code of the isolated process that can't make a network.
const noNamespaces = 100

func perform(o chaos.Options, network string) (int, error) {
	var err error
	if network == "proxies" {
		o.Network = fabric.NewProxies(o.Seed)
	} else if o.Network, err = fabric.NewNamespaces(o.Seed); err != nil {
		fmt.Printf("no namespaces: %v\n", err)
		return noNamespaces, nil
	}
	keep := o.Dir != ""
	if !keep {
		if o.Dir, err = os.MkdirTemp("", "naradctl-plane-chaos-"); err != nil {
			return 1, err
		}
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return 1, err
	}
	if o.Binary, err = filepath.Abs(o.Binary); err != nil {
		return 1, err
	}
	if why := faultfs.Unavailable(); why != nil {
		fmt.Printf("no faults of disks: %v\n", why)
	} else {
		o.Disks = true
	}
	o.Say = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	v, err := chaos.Run(ctx, o)
	if v == nil {
		return 1, err
	}
	if err != nil {
		v.Violations = append(v.Violations, err.Error())
	}
	for _, s := range v.Violations {
		fmt.Println("failed:", s)
	}
	if !v.Pass() {
		fmt.Printf("logs: %s\nrepeat: make chaos SEED=%d D=%s\n", filepath.Join(o.Dir, "logs"), v.Seed, o.Duration)
	}
	fmt.Println(v)
	if !v.Pass() {
		return 1, nil
	}
	if !keep {
		return 0, os.RemoveAll(o.Dir)
	}
	return 0, nil
}
