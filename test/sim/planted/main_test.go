package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPatchesApply: a patch that does not fit the code any more plants nothing.
func TestPatchesApply(t *testing.T) {
	patches, err := filepath.Glob("*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("%d patches, %v", len(patches), err)
	}
	for _, p := range patches {
		cmd := exec.Command("git", "apply", "--check", filepath.Join("test/sim/planted", p))
		cmd.Dir = "../../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: make it anew against the present code: %v\n%s", p, err, out)
		}
	}
}
