package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/naradctl/naradctl-plane/test/faultfs"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// Run performs a run. The verdict is whole even when the run fails; the error says that it could not be carried out.
func Run(ctx context.Context, o Options) (v *Verdict, err error) {
	if o.Agents == 0 {
		o.Agents = 4
	}
	r := &run{Options: o, ledger: harness.NewLedger(), began: time.Now(), operators: make(chan func(context.Context), 4)}
	r.mu.disks, r.mu.performed = map[string]*faultfs.FS{}, map[Kind]int{}
	only, err := Only(o.Only)
	if err != nil {
		return nil, errors.Join(err, o.Network.Close())
	}
	steps := Plan(o.Seed, o.Duration, func(k Kind) bool { return only(k) && r.can(k) })
	life, end := context.WithCancel(ctx)
	defer func() {
		end()
		if r.owners != nil {
			r.owners.Wait()
		}
		err = errors.Join(err, r.stop())
	}()
	begin, cancel := context.WithTimeout(life, 60*time.Second)
	defer cancel()
	if err := r.start(begin, life); err != nil {
		return r.judge(), fmt.Errorf("start: %w", err)
	}
	consuming, stopConsumers := context.WithCancel(life)
	defer stopConsumers()
	r.traffic(consuming)
	r.sayf("cluster of %d controllers and %d agents over %s, %d steps", controllers, o.Agents, o.Network.Kind(), len(steps))
	r.perform(life, steps)
	if ctx.Err() == nil {
		r.settle(life)
	}
	stopConsumers()
	r.load.StopProducers()
	r.load.WaitConsumers()
	if ctx.Err() == nil && !o.SkipLeaks && len(r.violations()) == 0 {
		r.leaks(life)
	}
	return r.judge(), ctx.Err()
}

// can says which kinds this run is able to perform.
func (r *run) can(k Kind) bool {
	switch k {
	case DiskFull, DiskSlow, SyncFails:
		return r.Disks
	case Clock:
		return r.Clock
	}
	return true
}

func (r *run) violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.violations)
}

// due is an undoing to come.
type due struct {
	at   time.Duration
	undo func()
}

// perform begins each step at its time, ends it at its time, and tends daemons all the while. When it returns, all
// faults have ended and the operators have gone.
func (r *run) perform(ctx context.Context, steps []Step) {
	var office sync.WaitGroup
	office.Go(func() {
		for act := range r.operators {
			act(ctx)
		}
	})
	began := time.Now()
	var open []due
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(steps) > 0 || len(open) > 0 {
		r.tend()
		elapsed := time.Since(began)
		open = slices.DeleteFunc(open, func(d due) bool {
			if d.at <= elapsed {
				d.undo()
			}
			return d.at <= elapsed
		})
		for len(steps) > 0 && steps[0].At <= elapsed {
			if undo := r.begin(steps[0]); undo != nil {
				open = append(open, due{steps[0].At + steps[0].For, undo})
			}
			steps = steps[1:]
		}
		select {
		case <-ctx.Done():
			steps = nil
			for i := range open {
				open[i].at = 0
			}
		case <-tick.C:
		}
	}
	close(r.operators)
	done := make(chan struct{})
	go func() { office.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			r.tend()
		}
	}
}

// begin performs a step and returns how it ends; nil when nothing is left to end.
func (r *run) begin(s Step) func() {
	what, undo := r.act(s)
	if what == "" {
		return undo
	}
	r.mu.Lock()
	r.mu.performed[s.Kind]++
	r.mu.Unlock()
	r.sayf("%-10s %s", s.Kind, what)
	return undo
}

// act chooses by kind. An empty text says that the step found nothing to do.
func (r *run) act(s Step) (what string, undo func()) {
	switch s.Kind {
	case Kill, KillAll, Pause, Point, Clock:
		return r.processFault(s)
	case Split, Isolate, Deaf, Mute, Loss, Delay, Throttle:
		return r.linkFault(s)
	case DiskFull, DiskSlow, SyncFails:
		return r.diskFault(s)
	}
	return r.operator(s)
}

// pick chooses one of the daemons that run.
func (r *run) pick(n int, want func(*daemon) bool) *daemon {
	all := r.daemons(func(d *daemon) bool { return d.held == 0 && (want == nil || want(d)) })
	if len(all) == 0 {
		return nil
	}
	return all[n%len(all)]
}
