package clients_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const typescript = "../../clients/typescript"

// npm runs a command of Node.js in the TypeScript client's folder.
func npm(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = typescript
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// built compiles the TypeScript client once, with the packages that its lock file names.
var built = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	if text, err := npm(ctx, nil, "npm", "ci", "--no-audit", "--no-fund"); err != nil {
		return "Node.js 20 or later and npm are needed:\n" + text, err
	}
	return npm(ctx, nil, "npx", "tsc")
})

// TestTypeScript runs the TypeScript client's tests against the live cluster.
func TestTypeScript(t *testing.T) {
	if text, err := built(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cut := newLink(t, live.cluster.Controllers[0].Address, 300*time.Millisecond, 0)
	lossy := newLossy(t, live.cluster.Controllers[0].Address, "/CreateTopic")
	text, err := npm(within(t, 3*time.Minute), []string{
		"CLUSTER_TEST_CONTROLLERS=" + strings.Join(live.cluster.ControllerAddresses(), ","),
		"CLUSTER_TEST_CUT=" + cut.address, "CLUSTER_TEST_LOSSY=" + lossy.address,
	}, "node", "--test", "dist/test/")
	if err != nil || !strings.Contains(text, "# pass 5") {
		t.Errorf("%v\n%s", err, text)
	}
	if n := cut.connections.Load(); n < 3 {
		t.Errorf("the watch took %d connections: it was not cut", n)
	}
}
