package clients_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestGuide runs every snippet of docs/client-guide.md, in order.
func TestGuide(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	text, err := os.ReadFile("../../docs/client-guide.md")
	must(t, err)
	blocks := regexp.MustCompile("(?s)```([a-z]+)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	ran := map[string]int{}
	for i, b := range blocks {
		kind := b[1]
		code := strings.NewReplacer("localhost:7400", live.cluster.Controllers[0].Address, "localhost:7500", live.cluster.Agents[0].Address).Replace(b[2])
		dir, want := t.TempDir(), ""
		var cmd *exec.Cmd
		switch kind {
		case "sh":
			cmd = exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", code)
		case "go":
			file := filepath.Join(dir, "main.go")
			must(t, os.WriteFile(file, []byte(code), 0o644))
			cmd, want = exec.CommandContext(ctx, "go", "run", file), "guide-go/2 is at"
		case "ts":
			if text, err := built(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			// The snippets have no types of their own, so that Node.js runs them as they are; beside the package, they find it.
			file := filepath.Join(typescript, "dist", fmt.Sprintf("guide-%d.mjs", i))
			must(t, os.WriteFile(file, []byte(code), 0o644))
			cmd, want = exec.CommandContext(ctx, "node", file), "guide-ts/2 is at"
		default:
			t.Fatalf("snippet %d is %s: no test runs it", i, kind)
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || (want != "" && !strings.Contains(string(out), "hello")) {
			t.Errorf("snippet %d (%s): %v\n%s\n--- printed, want %q\n%s", i, kind, err, code, want, out)
		}
		ran[kind]++
	}
	if ran["sh"] < 3 || ran["go"] < 1 || ran["ts"] < 1 {
		t.Errorf("ran %v", ran)
	}
}
