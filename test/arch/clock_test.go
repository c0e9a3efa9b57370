package arch

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// wallCalls make a time that has lost its monotonic reading, so that comparing it follows steps of the wall clock.
var wallCalls = []string{"UTC", "Local", "In", "Round", "Truncate", "Unix", "UnixMicro", "UnixMilli", "UnixNano", "AsTime"}

// wallUses are the calls that show or store a time, or go by the records' own; none takes part in a lease, a freeze, a verdict
// or a back-off. Those of other types have the same name by chance.
var wallUses = map[string][]string{
	"consensus/etcdraft/datadir.go":         {"Truncate"},                // of a file
	"fsm/codec.go":                          {"UnixNano", "Unix", "UTC"}, // what records show
	"internal/api/health.go":                {"Round"},                   // of a duration
	"internal/controller/controller.go":     {"Round"},                   // of the leader
	"internal/controller/propose.go":        {"UnixNano"},                // what records show
	"internal/controller/status.go":         {"Round"},                   // of a duration
	"internal/wire/wire.go":                 {"AsTime"},                  // what records show
	"nodeagent/dataplane/owned.go":          {"UnixMilli"},               // a record's time
	"nodeagent/dataplane/produce.go":        {"UnixMilli"},               // a record's time
	"nodeagent/partitionlog/files.go":       {"Truncate"},                // of a file
	"nodeagent/partitionlog/retention.go":   {"UnixMilli"},               // retention goes by the records' times
	"transfer/pull.go":                      {"Truncate"},                // of a staged file
	"transfer/reconcile.go":                 {"Truncate"},                // of a staged file
	"transfer/store/storetest/serve.go":     {"UnixMilli"},
	"transfer/store/storetest/staging.go":   {"Truncate"},
	"transfer/store/storetest/storetest.go": {"UnixMilli"},
}

// TestC54NoDecisionByTheWallClock: where leases, freezes, verdicts and retries are timed, no time loses its monotonic reading,
// so a clock that is set by an hour neither thaws early nor declares anybody dead.
func TestC54NoDecisionByTheWallClock(t *testing.T) {
	used := map[string]bool{}
	for _, f := range loadFiles(t) {
		if f.test() || f.generated() || !timed(f.path) {
			continue
		}
		for _, c := range wallTimes(f) {
			used[f.path+" "+c.name] = true
			if !slices.Contains(wallUses[f.path], c.name) {
				t.Errorf("%s: .%s() drops the monotonic reading of a time; if nothing is decided by it, say so in wallUses", f.position(c.at), c.name)
			}
		}
	}
	for file, names := range wallUses {
		for _, n := range names {
			if !used[file+" "+n] {
				t.Errorf("wallUses permits .%s() in %s, which has none", n, file)
			}
		}
	}
}

func timed(file string) bool {
	for _, dir := range []string{"consensus", "fsm", "internal/api", "internal/controller", "internal/wire", "nodeagent", "planner", "transfer"} {
		if strings.HasPrefix(path.Dir(file)+"/", dir+"/") {
			return true
		}
	}
	return false
}

type wallTime struct {
	name string
	at   ast.Node
}

func wallTimes(f goFile) (out []wallTime) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if s, ok := c.Fun.(*ast.SelectorExpr); ok && slices.Contains(wallCalls, s.Sel.Name) {
				out = append(out, wallTime{s.Sel.Name, c})
			}
		}
		return true
	})
	return out
}

// TestEveryFaultPointIsStruck: a fault point that no test arms shows nothing.
func TestEveryFaultPointIsStruck(t *testing.T) {
	armed := map[string]bool{}
	var points []string
	for _, f := range loadFiles(t) {
		switch {
		case f.path == "internal/faults/faults.go":
			ast.Inspect(f.tree, func(n ast.Node) bool {
				if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
					points = append(points, v.Names[0].Name)
				}
				return true
			})
		case path.Dir(f.path) == "test/cluster":
			ast.Inspect(f.tree, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "faults" {
						armed[s.Sel.Name] = true
					}
				}
				return true
			})
		}
	}
	if len(points) < 20 {
		t.Fatalf("only %d fault points were found", len(points))
	}
	for _, p := range points {
		if !armed[p] {
			t.Errorf("no test in test/cluster arms faults.%s", p)
		}
	}
}
