package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options configure a cluster. Zero values are defaults.
type Options struct {
	// Dir holds everything.
	Dir string
	// Release and Faults are the two binaries. Faults may be empty when no fault point is used.
	Release, Faults string
	// Controllers is how many there are; zero is 3.
	Controllers int
	// ControllerArgs and AgentArgs are added to every command line.
	ControllerArgs, AgentArgs []string
	// Debug makes each daemon serve profiles at its Process.Debug.
	Debug bool
	// FaultsFor says which processes run the binary with fault points; nil is none.
	FaultsFor func(name string) bool
	// Place says where a process runs; nil is a free loopback address and a folder of Dir.
	Place func(name string) (Placement, error)
}

// Placement is where a daemon runs.
type Placement struct {
	// Listen is what it binds and Advertise what others dial.
	Listen, Advertise string
	DataDir           string
	// Start starts its process; nil is the plain way.
	Start func(*exec.Cmd) error
}

// Cluster is a set of daemons.
type Cluster struct {
	Options
	Controllers []*Process
	Agents      []*Process
	API         *API
}

// New prepares the controllers of a cluster; Start runs them.
func New(opts Options) (*Cluster, error) {
	if opts.Controllers == 0 {
		opts.Controllers = 3
	}
	c := &Cluster{Options: opts}
	var peers []string
	for i := range opts.Controllers {
		p, err := c.process(fmt.Sprintf("ctl-%d", i+1))
		if err != nil {
			return nil, err
		}
		peers = append(peers, p.Name+"="+p.Address)
		c.Controllers = append(c.Controllers, p)
	}
	for _, p := range c.Controllers {
		p.Args = c.controllerArgs(p, "--peers", strings.Join(peers, ","))
	}
	c.API = NewAPI(c.ControllerAddresses())
	return c, nil
}

func (c *Cluster) process(name string) (*Process, error) {
	place, err := c.place(name)
	if err != nil {
		return nil, err
	}
	p := &Process{Name: name, Address: place.Advertise, Listen: place.Listen, DataDir: place.DataDir, Spawn: place.Start,
		Binary: c.Release, LogPath: filepath.Join(c.Dir, "logs", name+".log")}
	if c.FaultsFor != nil && c.FaultsFor(name) {
		p.Binary = c.Faults
	}
	if c.Debug {
		p.Debug, err = FreeAddress()
	}
	return p, err
}

func (c *Cluster) place(name string) (Placement, error) {
	if c.Place != nil {
		return c.Place(name)
	}
	addr, err := FreeAddress()
	return Placement{Listen: addr, Advertise: addr, DataDir: filepath.Join(c.Dir, name)}, err
}

// where are the arguments that say where a daemon runs.
func where(p *Process) []string {
	args := []string{"--listen", p.Listen, "--data-dir", p.DataDir}
	if p.Listen != p.Address {
		args = append(args, "--advertise", p.Address)
	}
	if p.Debug != "" {
		args = append(args, "--debug-listen", p.Debug)
	}
	return args
}

func (c *Cluster) controllerArgs(p *Process, extra ...string) []string {
	return slices.Concat([]string{"controller", "--name", p.Name}, where(p), extra, c.ControllerArgs)
}

// ControllerAddresses lists the controllers' addresses.
func (c *Cluster) ControllerAddresses() []string {
	var out []string
	for _, p := range c.Controllers {
		out = append(out, p.Address)
	}
	return out
}

// AgentAddresses lists the agents' addresses.
func (c *Cluster) AgentAddresses() []string {
	var out []string
	for _, p := range c.Agents {
		out = append(out, p.Address)
	}
	return out
}

// Start runs all controllers and waits until one leads.
func (c *Cluster) Start(ctx context.Context) error {
	for _, p := range c.Controllers {
		if err := p.Start(); err != nil {
			return err
		}
	}
	return Poll(ctx, "a controller leads", func() error {
		for _, p := range c.Controllers {
			if !p.Running() {
				return Fatal(fmt.Errorf("%s ended: %v\n%s", p.Name, p.Err(), p.LogTail(2000)))
			}
		}
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		s, err := c.API.Status(attempt)
		if err == nil && s.GetLeader() == "" {
			err = errors.New("no leader")
		}
		return err
	})
}

// AddController prepares and starts a controller that joins.
func (c *Cluster) AddController(name string) (*Process, error) {
	p, err := c.process(name)
	if err != nil {
		return nil, err
	}
	p.Args = c.controllerArgs(p, "--join", strings.Join(c.ControllerAddresses(), ","))
	c.Controllers = append(c.Controllers, p)
	c.API.SetAddresses(c.ControllerAddresses())
	return p, p.Start()
}

// AddAgent prepares and starts an agent, and waits until it is a living member.
func (c *Cluster) AddAgent(ctx context.Context, name string, extra ...string) (*Process, error) {
	p, err := c.process(name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(extra, "--controllers") {
		extra = append(extra, "--controllers", strings.Join(c.ControllerAddresses(), ","))
	}
	p.Args = slices.Concat([]string{"agent", "--node-id", name}, where(p), extra, c.AgentArgs)
	c.Agents = append(c.Agents, p)
	if err := p.Start(); err != nil {
		return nil, err
	}
	return p, c.WaitReady(ctx, p)
}

// WaitReady waits until a daemon's /readyz answers 200.
func (c *Cluster) WaitReady(ctx context.Context, p *Process) error {
	return Poll(ctx, p.Name+" is ready", func() error {
		if !p.Running() {
			return Fatal(fmt.Errorf("it ended: %v\n%s", p.Err(), p.LogTail(2000)))
		}
		w := present.Load()
		resp, err := w.brief.Get(w.scheme + "://" + p.Address + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz answers %s", resp.Status)
		}
		return nil
	})
}

// Process returns a daemon by its name; nil when there is none.
func (c *Cluster) Process(name string) *Process {
	for _, p := range slices.Concat(c.Controllers, c.Agents) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Stop ends all daemons: agents first. It returns what did not end in time.
func (c *Cluster) Stop() error {
	var errs []error
	for _, list := range [][]*Process{c.Agents, c.Controllers} {
		results := make(chan error, len(list))
		for _, p := range list {
			go func() { results <- p.Stop(15 * time.Second) }()
		}
		for range list {
			errs = append(errs, <-results)
		}
	}
	return errors.Join(errs...)
}

// KillAll ends all daemons at once.
func (c *Cluster) KillAll() {
	for _, p := range slices.Concat(c.Agents, c.Controllers) {
		_ = p.Kill()
	}
}

type fatalError struct{ error }

// Fatal marks an error that polling can't mend.
func Fatal(err error) error { return fatalError{err} }

// Poll calls fn until it returns nil, a Fatal error, or ctx ends; then the last error tells why.
func Poll(ctx context.Context, what string, fn func() error) error {
	for {
		err := fn()
		var fatal fatalError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &fatal):
			return fmt.Errorf("%s: %w", what, fatal.error)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
