package arch

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pureFiles says which files hold decisions: the same input gives the same output, always. In fsm those are
// the files that apply commands; opening, snapshots and watches do I/O.
func pureFile(f goFile) bool {
	if f.test() || f.generated() {
		return false
	}
	switch path.Dir(f.path) {
	case "planner", "transfer/move", "transfer/handoff":
		return true
	case "fsm":
		return slices.Contains([]string{"codec.go", "keys.go", "state.go", "topic.go", "move.go", "node.go", "member.go"}, path.Base(f.path))
	}
	return false
}

var impureImports = []string{
	"os", "net", "net/http", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand", "context", "go.uber.org/zap",
	"github.com/google/uuid",
}

var impureTime = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}

// TestPurePackages: no clock, chance, I/O, lock, goroutine or channel where decisions are made.
func TestPurePackages(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range loadFiles(t) {
		if !pureFile(f) {
			continue
		}
		seen[path.Dir(f.path)] = true
		for _, v := range impurities(f) {
			t.Errorf("%s in a pure file", v)
		}
	}
	for _, dir := range []string{"planner", "transfer/move", "transfer/handoff", "fsm"} {
		if !seen[dir] {
			t.Errorf("no pure file was found in %s", dir)
		}
	}
}

func impurities(f goFile) []string {
	var out []string
	for _, spec := range f.tree.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err == nil && slices.Contains(impureImports, name) {
			out = append(out, f.position(spec)+": import of "+name)
		}
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			out = append(out, f.position(n)+": go statement")
		case *ast.ChanType:
			out = append(out, f.position(n)+": channel")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(impureTime, n.Sel.Name) {
				out = append(out, f.position(n)+": time."+n.Sel.Name)
			}
		case *ast.BasicLit:
			if n.Kind == token.FLOAT && path.Dir(f.path) == "planner" {
				out = append(out, f.position(n)+": floating point")
			}
		}
		return true
	})
	return out
}

// TestPurityCheckCanFail runs it on a file with every kind of fault.
func TestPurityCheckCanFail(t *testing.T) {
	f, err := parseFile("testdata/impure.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	f.path = "planner/impure.go"
	got := strings.Join(impurities(f), "\n")
	for _, want := range []string{"import of sync", "go statement", "channel", "time.Now", "floating point"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q among:\n%s", want, got)
		}
	}
}
