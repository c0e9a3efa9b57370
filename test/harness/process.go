package harness

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Process is one daemon. It can be killed and started again with the same addresses and directories.
type Process struct {
	Name string
	// Address is what others dial, Listen what it binds.
	Address, Listen string
	DataDir         string
	// Spawn starts the command; nil is its Start.
	Spawn func(*exec.Cmd) error
	// Debug is where it serves profiles; empty when it does not.
	Debug string
	// Args are the command line after the binary.
	Args []string
	// Env is added to the environment.
	Env    []string
	Binary string
	// LogPath receives standard output and error of every run, appended.
	LogPath string

	mu struct {
		sync.Mutex
		cmd  *exec.Cmd
		done chan struct{}
		err  error
	}
}

// Start runs the process.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cmd != nil && !closed(p.mu.done) {
		return fmt.Errorf("start %s: it runs", p.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.LogPath), 0o755); err != nil {
		return err
	}
	logFile, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.Binary, p.Args...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// A process group of its own: Ctrl-C at the terminal is the harness's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	spawn := p.Spawn
	if spawn == nil {
		spawn = (*exec.Cmd).Start
	}
	if err := spawn(cmd); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.Name, err), logFile.Close())
	}
	done := make(chan struct{})
	p.mu.cmd, p.mu.done, p.mu.err = cmd, done, nil
	go func() {
		err := cmd.Wait()
		_ = logFile.Close()
		p.mu.Lock()
		p.mu.err = err
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Running reports whether the process runs.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.cmd != nil && !closed(p.mu.done)
}

// Signal sends a signal to the running process.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cmd == nil || closed(p.mu.done) {
		return fmt.Errorf("signal %s: it does not run", p.Name)
	}
	return p.mu.cmd.Process.Signal(sig)
}

// PID is the running process's id; zero when it does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cmd == nil || closed(p.mu.done) {
		return 0
	}
	return p.mu.cmd.Process.Pid
}

// Done is closed when the present run has ended.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.done == nil {
		c := make(chan struct{})
		close(c)
		return c
	}
	return p.mu.done
}

// Err is how the last run ended; nil after exit code 0 and while it runs.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.err
}

// Kill ends the process by SIGKILL and waits for its end.
func (p *Process) Kill() error {
	if !p.Running() {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && p.Running() {
		return err
	}
	<-p.Done()
	return nil
}

// Stop asks the process to end by SIGTERM, and kills it after a grace.
func (p *Process) Stop(grace time.Duration) error {
	if !p.Running() {
		return nil
	}
	_ = p.Signal(syscall.SIGCONT)
	if err := p.Signal(syscall.SIGTERM); err != nil && p.Running() {
		return err
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(grace):
		return errors.Join(fmt.Errorf("stop %s: it did not end within %s", p.Name, grace), p.Kill())
	}
}

// LogTail returns the last bytes of the log.
func (p *Process) LogTail(n int64) string {
	f, err := os.Open(p.LogPath)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-n), io.SeekStart)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

var ports struct {
	sync.Mutex
	given map[int]bool
}

// FreeAddress returns a loopback address whose port was free a moment ago and was not given out before.
func FreeAddress() (string, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		addr := l.Addr().(*net.TCPAddr)
		if err := l.Close(); err != nil {
			return "", err
		}
		if !ports.given[addr.Port] {
			ports.given[addr.Port] = true
			return addr.String(), nil
		}
	}
	return "", errors.New("no free port")
}
