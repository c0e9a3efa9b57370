// Command planted shows that the simulator can fail: it builds the simulation with one known bug at a time, from
// the patches beside it by way of go test -overlay, and counts how many seeds it takes to be caught.
//
// A patch is a unified diff under a line that says what is wrong. It is applied to copies; the sources stay clean.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	seeds := flag.Int("seeds", 400, "how many seeds a bug may take")
	only := flag.String("only", "", "the names of patches to run, separated by commas; empty runs all")
	daily := flag.Int("daily", 0, "run so many of the patches, others each day; 0 runs all")
	flag.Parse()
	if err := run(*seeds, *only, *daily); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(seeds int, only string, daily int) error {
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	patches, err := filepath.Glob("test/sim/planted/*.patch")
	if err != nil {
		return err
	}
	slices.Sort(patches)
	if only != "" {
		patches = slices.DeleteFunc(patches, func(p string) bool { return !slices.Contains(strings.Split(only, ","), name(p)) })
	}
	if n := len(patches); daily > 0 && n > 0 {
		first := time.Now().YearDay() * daily
		all := patches
		patches = nil
		for i := range min(daily, n) {
			patches = append(patches, all[(first+i)%n])
		}
	}
	tmp, err := os.MkdirTemp("", "planted")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	fmt.Printf("%-30s %-10s %-12s %-8s %s\n", "bug", "caught", "invariant", "time", "what is wrong")
	caught := 0
	for _, p := range patches {
		start := time.Now()
		what, seed, invariant, err := plant(root, tmp, p, seeds)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		after := "no"
		if seed > 0 {
			caught++
			after = "seed " + strconv.Itoa(seed)
		}
		fmt.Printf("%-30s %-10s %-12s %-8s %s\n", name(p), after, invariant, time.Since(start).Round(time.Second/10), what)
	}
	fmt.Printf("planted: caught=%d of=%d\n", caught, len(patches))
	if caught < len(patches) || len(patches) == 0 {
		return errors.New("a planted bug was not caught")
	}
	return nil
}

func name(patch string) string { return strings.TrimSuffix(filepath.Base(patch), ".patch") }

var verdict = regexp.MustCompile(`seed (\d+) at commit \S+ (?:(\S+) violated|two runs)`)

// plant builds and runs the simulation with one bug. seed is zero when it was not caught.
func plant(root, tmp, patch string, seeds int) (what string, seed int, invariant string, err error) {
	text, err := os.ReadFile(patch)
	if err != nil {
		return "", 0, "", err
	}
	what, diff, _ := strings.Cut(string(text), "\n")
	replace := map[string]string{}
	for i, part := range strings.Split("\n"+diff, "\n--- a/")[1:] {
		file, hunks, _ := strings.Cut(part, "\n")
		b, err := os.ReadFile(file)
		if err != nil {
			return what, 0, "", err
		}
		bad, err := apply(string(b), hunks)
		if err != nil {
			return what, 0, "", fmt.Errorf("%s: %w", file, err)
		}
		to := filepath.Join(tmp, fmt.Sprintf("%s-%d.go", name(patch), i))
		if err := os.WriteFile(to, []byte(bad), 0o600); err != nil {
			return what, 0, "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	overlay, binary := filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "sim.test")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(overlay, b, 0o600)
	}
	if err != nil {
		return what, 0, "", err
	}
	build := exec.Command("go", "test", "-vet=off", "-overlay", overlay, "-c", "-o", binary, "./test/sim")
	if out, err := build.CombinedOutput(); err != nil {
		return what, 0, "", fmt.Errorf("build: %w\n%s", err, out)
	}
	test := exec.Command(binary, "-test.run", "HoldInSimulation", "-sim.n", strconv.Itoa(seeds), "-sim.once", "-sim.stop")
	test.Dir = filepath.Join(root, "test/sim")
	out, err := test.CombinedOutput()
	m := verdict.FindSubmatch(out)
	switch {
	case m != nil:
		seed, _ = strconv.Atoi(string(m[1]))
		return what, seed, string(m[2]), nil
	case err != nil:
		return what, 0, "", fmt.Errorf("the simulation ended without a verdict: %w\n%s", err, bytes.TrimSpace(out[max(0, len(out)-2000):]))
	}
	return what, 0, "", nil
}

// apply replaces each hunk's old lines by its new ones; the old ones must be there exactly once.
func apply(text, hunks string) (string, error) {
	for _, h := range strings.Split("\n"+hunks, "\n@@ ")[1:] {
		_, body, _ := strings.Cut(h, "\n")
		var before, after []string
		for _, l := range strings.Split(strings.TrimSuffix(body, "\n"), "\n") {
			kind, line := byte(' '), ""
			if l != "" {
				kind, line = l[0], l[1:]
			}
			if kind != '+' {
				before = append(before, line)
			}
			if kind != '-' {
				after = append(after, line)
			}
		}
		was := strings.Join(before, "\n")
		if n := strings.Count(text, was); n != 1 {
			return "", fmt.Errorf("the patch does not apply: its old lines are there %d times", n)
		}
		text = strings.Replace(text, was, strings.Join(after, "\n"), 1)
	}
	return text, nil
}
