package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var verdictLine = regexp.MustCompile(`(?m)^verdict: (PASS|FAIL) acknowledged=(\d+) delivered=(\d+) lost=(\d+) duplicates=\d+ moves=\d+ ` +
	`freeze_p50_ms=[\d.]+ freeze_p99_ms=[\d.]+ produce_p99_ms=[\d.]+ produce_max_ms=[\d.]+ consume_gap_max_ms=[\d.]+\n\z`)

// demoBinaries builds the three binaries, or takes the product's two from the environment (make cluster sets it).
func demoBinaries(t *testing.T) (demo, release, faults string) {
	t.Helper()
	dir := t.TempDir()
	build := func(name, tags, pkg string) string {
		t.Helper()
		out := filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-tags", tags, "-o", out, "github.com/naradctl/naradctl-plane/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, text)
		}
		return out
	}
	release, faults = os.Getenv("CLUSTER_TEST_RELEASE"), os.Getenv("CLUSTER_TEST_FAULTS")
	if release == "" || faults == "" {
		release, faults = build("release", "", "cmd/naradctl-plane"), build("faults", "faults", "cmd/naradctl-plane")
	}
	return build("demo", "", "test/demo"), release, faults
}

// TestVerdict: the demo says PASS when all is well, and FAIL when one acknowledged record is dropped from a log, and when a
// kill is left out. Its exit code says the same, and its directory is gone.
func TestVerdict(t *testing.T) {
	demo, release, faults := demoBinaries(t)
	for _, c := range []struct {
		sabotage, want, says string
	}{
		{"", "PASS", ""},
		{sabotageDropRecord, "FAIL", "failed: 1 acknowledged records were not delivered: returns: "},
		{sabotageSkipKill, "FAIL", "failed: the kill of agent-2 did not hit handoff.frozen"},
	} {
		t.Run("sabotage="+c.sabotage, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "demo")
			cmd := exec.Command(demo, "--release", release, "--faults", faults, "--dir", dir, "--load-mib", "32", "--min-records", "10000",
				"--sabotage", c.sabotage)
			out, err := cmd.CombinedOutput()
			m := verdictLine.FindStringSubmatch(string(out))
			if m == nil {
				t.Fatalf("no verdict as the last line (%v):\n%s", err, out)
			}
			if m[1] != c.want || (err == nil) != (c.want == "PASS") || !strings.Contains(string(out), c.says) {
				t.Errorf("verdict %s, error %v; want %s saying %q:\n%s", m[1], err, c.want, c.says, out)
			}
			if n := strings.Count(string(out), "failed: "); c.want == "FAIL" && n != 1 {
				t.Errorf("%d reasons, want the one that was made:\n%s", n, out)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the directory is left: %v", err)
			}
		})
	}
}
