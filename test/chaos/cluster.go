package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/fabric"
	"github.com/naradctl/naradctl-plane/test/faultfs"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// Options configure a run.
type Options struct {
	Seed     uint64
	Duration time.Duration
	// Only permits these kinds of faults; all when empty.
	Only []string
	// Dir holds everything and is not removed.
	Dir string
	// Binary has fault points. Clock says that it has a clock that jumps, too.
	Binary string
	Clock  bool
	// Network connects the daemons. The run closes it.
	Network fabric.Network
	// Disks puts file systems with faults below the daemons.
	Disks bool
	// Agents is how many there are at first; zero is 4.
	Agents int
	// SkipLeaks leaves out the last check, which starts every daemon again.
	SkipLeaks bool
	// Say prints a line.
	Say func(format string, args ...any)
}

// Load and timings. The lease is short, so that verdicts, promotions and fences happen; it is not as short as a test's on
// a quiet machine, so that not every slow moment is one.
const (
	controllers = 3
	orders      = 12
	single      = 1
	recordSize  = 200
)

var (
	controllerArgs = []string{"--insecure", "--lease-ttl", "2s", "--dead-after", "5s", "--tick", "100ms", "--plan-interval", "1s"}
	agentArgs      = []string{"--insecure", "--heartbeat-interval", "400ms", "--min-disk-free", "1048576", "--segment-bytes", "262144"}
)

// daemon is a process and what the run does to it.
type daemon struct {
	*harness.Process
	agent bool
	disk  *faultfs.FS // nil without faults of disks

	// The rest is guarded by the run's mutex.

	// held counts the faults that keep it down; it is not started again while one does.
	held int
	// leaving says that an operator wants it to end by itself.
	leaving bool
	// mayEndUntil is until when a failing disk excuses its end.
	mayEndUntil time.Time
	// startAt is when a daemon that has ended is started again.
	startAt time.Time
}

// run is a run under way.
type run struct {
	Options
	cluster *harness.Cluster
	ledger  *harness.Ledger
	load    *harness.Load
	owners  *harness.Owners
	began   time.Time

	operators chan func(context.Context)
	mu        struct {
		sync.Mutex
		daemons    []*daemon
		disks      map[string]*faultfs.FS
		violations []string
		performed  map[Kind]int
		names      int
	}
}

func (r *run) sayf(format string, args ...any) {
	r.Say("%7.1fs  %s", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *run) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.mu.violations = append(r.mu.violations, text)
	r.mu.Unlock()
	r.sayf("VIOLATION %s", text)
}

// place gives a daemon a host and a disk of its own.
func (r *run) place(name string) (harness.Placement, error) {
	at, err := r.Network.Add(name)
	if err != nil {
		return harness.Placement{}, err
	}
	p := harness.Placement{Listen: at.Listen, Advertise: at.Advertise, Start: at.Start, DataDir: filepath.Join(r.Dir, "data", name)}
	if err := os.MkdirAll(p.DataDir, 0o755); err != nil {
		return p, err
	}
	if !r.Disks {
		return p, nil
	}
	mount := filepath.Join(r.Dir, "mnt", name)
	disk, err := faultfs.Mount(p.DataDir, mount)
	if err != nil {
		return p, err
	}
	r.mu.Lock()
	r.mu.disks[name] = disk
	r.mu.Unlock()
	p.DataDir = mount
	return p, nil
}

// admit begins to treat a process as part of the run.
func (r *run) admit(p *harness.Process, agent bool) *daemon {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &daemon{Process: p, agent: agent, disk: r.mu.disks[p.Name]}
	r.mu.daemons = append(r.mu.daemons, d)
	return d
}

// retire forgets a daemon that has left.
func (r *run) retire(d *daemon) {
	r.mu.Lock()
	r.mu.daemons = slices.DeleteFunc(r.mu.daemons, func(x *daemon) bool { return x == d })
	r.mu.Unlock()
	r.addresses()
}

// daemons lists what runs, or should.
func (r *run) daemons(want func(*daemon) bool) []*daemon {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*daemon
	for _, d := range r.mu.daemons {
		if want == nil || want(d) {
			out = append(out, d)
		}
	}
	return out
}

func isAgent(d *daemon) bool      { return d.agent }
func isController(d *daemon) bool { return !d.agent }

// addresses tells the clients who is there.
func (r *run) addresses() {
	var agents, ctls []string
	for _, d := range r.daemons(nil) {
		if d.agent {
			agents = append(agents, d.Address)
		} else {
			ctls = append(ctls, d.Address)
		}
	}
	r.load.SetAgents(agents)
	r.cluster.API.SetAddresses(ctls)
}

// name makes a name that nobody had.
func (r *run) name(role string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.names++
	return fmt.Sprintf("%s-%d", role, r.mu.names+10)
}

// start brings the cluster up, with topics and load. ctx bounds the start, life what is begun.
func (r *run) start(ctx, life context.Context) error {
	var err error
	r.cluster, err = harness.New(harness.Options{
		Dir: r.Dir, Release: r.Binary, Controllers: controllers, ControllerArgs: controllerArgs, AgentArgs: agentArgs, Place: r.place,
	})
	if err != nil {
		return err
	}
	if err := r.cluster.Start(ctx); err != nil {
		return err
	}
	for _, p := range r.cluster.Controllers {
		r.admit(p, false)
	}
	for i := range r.Agents {
		p, err := r.cluster.AddAgent(ctx, fmt.Sprintf("agent-%d", i+1))
		if err != nil {
			return err
		}
		r.admit(p, true)
	}
	r.load = harness.NewLoad(r.ledger, r.cluster.AgentAddresses())
	r.owners = harness.WatchOwners(life, r.cluster.ControllerAddresses())
	if err := r.cluster.API.UpdateSettings(ctx, usual()); err != nil {
		return err
	}
	for name, n := range map[string]uint32{"orders": orders, "single": single} {
		if _, err := r.cluster.API.CreateTopic(ctx, name, n, ""); err != nil {
			return err
		}
	}
	return nil
}

// usual are the settings of a run, and those that it ends with.
func usual() *planev1.Settings {
	off, inFlight, perNode, lag, rate := false, uint32(8), uint32(4), uint64(4<<20), uint64(0)
	return &planev1.Settings{
		RebalancePaused: &off, MaxInFlightMoves: &inFlight, MaxMovesPerNode: &perNode, LagBytes: &lag, CopyRatePerNode: &rate,
		RebalanceDelay: durationpb.New(500 * time.Millisecond), ReclaimAfter: durationpb.New(500 * time.Millisecond),
		HandoffTtl: durationpb.New(3 * time.Second), ForcePromoteAfter: durationpb.New(2 * time.Second),
		FreezeBudget: durationpb.New(50 * time.Millisecond),
	}
}

// traffic runs producers and consumers until life ends, or the load is stopped.
func (r *run) traffic(life context.Context) {
	for i, topic := range []string{"orders", "orders", "single"} {
		r.load.Consume(life, topic, "chaos", i)
		r.load.Produce(life, harness.Producer{Topic: topic, Batch: 8, Size: recordSize, Pause: 15 * time.Millisecond, Start: i,
			Key: func(seq uint64) []byte { return fmt.Appendf(nil, "key-%d", seq%257) }})
	}
}

// stop ends all processes, and what they stand on.
func (r *run) stop() error {
	if r.cluster != nil {
		r.cluster.KillAll()
	}
	errs := []error{r.Network.Close()}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.mu.disks {
		errs = append(errs, d.Unmount())
	}
	return errors.Join(errs...)
}
