package fabric

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

const isolatedEnv = "FABRIC_ISOLATED"

// Isolated reports whether Isolate started this process.
func Isolated() bool { return os.Getenv(isolatedEnv) != "" }

// Isolate runs this program again with network and mounts of its own, waits for it, and returns its exit code. What it
// makes there is gone when it ends, however it ends. An error means that it could not be started.
func Isolate(args ...string) (int, error) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), isolatedEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start in namespaces of its own: %w", err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}
