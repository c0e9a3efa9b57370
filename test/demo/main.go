// Demo shows the product at work on real parts and judges it: separate processes on loopback, real disks, kills by
// SIGKILL at named points inside moves, and a ledger of every record. `make demo` builds the two binaries and
// runs it; see the usage for its flags.
//
// Files: main.go (flags, signals), run.go (the stages), kills.go (kills and their evidence), verdict.go (the
// table and the verdict), sabotage.go (ways to make it fail, for its own test).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() { os.Exit(run()) }

type flags struct {
	release, faults string
	keep            bool
	dir             string
	loadMiB         int
	minRecords      int
	sabotage        string
}

func parse() (flags, error) {
	var f flags
	flag.StringVar(&f.release, "release", "bin/naradctl-plane", "the release `binary`")
	flag.StringVar(&f.faults, "faults", "bin/naradctl-plane-faults", "the `binary` with fault points")
	flag.BoolVar(&f.keep, "keep", false, "keep the directory, with data and logs, for a look")
	flag.StringVar(&f.dir, "dir", "", "work in `directory` instead of a temporary one; it must not exist")
	flag.IntVar(&f.loadMiB, "load-mib", 544, "how much is loaded before anything moves; a quarter of it goes to one partition")
	flag.IntVar(&f.minRecords, "min-records", 200_000, "how many records must be acknowledged for a PASS")
	flag.StringVar(&f.sabotage, "sabotage", "", "make it fail: drop-record loses one acknowledged record from a log, skip-kill leaves a kill out")
	flag.Parse()
	if f.sabotage != "" && f.sabotage != sabotageDropRecord && f.sabotage != sabotageSkipKill {
		return f, fmt.Errorf("--sabotage: %q is neither %s nor %s", f.sabotage, sabotageDropRecord, sabotageSkipKill)
	}
	var err error
	for _, p := range []*string{&f.release, &f.faults} {
		if *p, err = filepath.Abs(*p); err != nil {
			return f, err
		}
		if _, err := os.Stat(*p); err != nil {
			return f, fmt.Errorf("%w (make build build-faults makes it)", err)
		}
	}
	return f, nil
}

func run() int {
	f, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if f.dir == "" {
		f.dir, err = os.MkdirTemp("", "naradctl-plane-demo-")
	} else {
		err = os.Mkdir(f.dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := newDemo(f)
	verdict, err := d.run(ctx)
	interrupted := ctx.Err() != nil
	d.killAll()
	if f.keep {
		d.sayf("kept: %s (logs in %s)", f.dir, filepath.Join(f.dir, "logs"))
	} else if rm := os.RemoveAll(f.dir); rm != nil {
		err = errors.Join(err, rm)
	}
	if interrupted {
		fmt.Fprintln(os.Stderr, "interrupted: all processes have ended")
		return 130
	}
	if err != nil {
		verdict.fail("%v", err)
	}
	fmt.Println(verdict)
	if !verdict.pass() {
		return 1
	}
	return 0
}
