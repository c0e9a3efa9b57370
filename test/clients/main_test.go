// Package clients_test runs clients against one cluster of real processes: the Go client, real gRPC, the OpenAPI document,
// the TypeScript client, and what docs/client-guide.md shows.
package clients_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/client"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// live is the cluster of all tests of this package: three controllers and three agents.
var live struct {
	binary  string
	cluster *harness.Cluster
}

func TestMain(m *testing.M) { os.Exit(startAndRun(m)) }

func startAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "naradctl-plane-clients-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = startCluster(dir)
	}
	if live.cluster != nil {
		defer live.cluster.KillAll()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func startCluster(dir string) error {
	live.binary = os.Getenv("CLUSTER_TEST_RELEASE")
	if live.binary == "" {
		live.binary = filepath.Join(dir, "naradctl-plane")
		cmd := exec.Command("go", "build", "-o", live.binary, "github.com/naradctl/naradctl-plane/cmd/naradctl-plane")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w\n%s", err, text)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	live.cluster, err = harness.New(harness.Options{Dir: dir, Release: live.binary})
	if err != nil {
		return err
	}
	if err := live.cluster.Start(ctx); err != nil {
		return err
	}
	for i := range 3 {
		if _, err := live.cluster.AddAgent(ctx, fmt.Sprintf("agent-%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// within bounds a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// dial returns a client of the live cluster, or of what o says.
func dial(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	if len(o.Controllers) == 0 {
		o.Controllers = live.cluster.ControllerAddresses()
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
