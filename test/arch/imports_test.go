package arch

import (
	"slices"
	"strings"
	"testing"
)

const (
	planev1   = "proto/naradplane/v1"
	planeRPC  = "proto/naradplane/v1/planev1connect"
	nodev1    = "proto/naradnode/v1"
	nodeRPC   = "proto/naradnode/v1/nodev1connect"
	raftv1    = "proto/naradplane/raft/v1"
	storagev1 = "proto/naradplane/storage/v1"
)

// allowed says which packages of the module each package may import. A key ending in "/..." covers a folder.
// Every package must be covered.
var allowed = map[string][]string{
	// The vocabulary, and what stands on nothing.
	"internal/cluster":   {},
	"internal/faults":    {},
	"consensus":          {},
	"internal/config":    {"internal/cluster"},
	"internal/telemetry": {},

	// Pure decisions.
	"planner":          {"internal/cluster"},
	"transfer/move":    {"internal/cluster"},
	"transfer/handoff": {"internal/cluster"},

	// State and consensus do not know each other; cmd wires them.
	"fsm":                             {"internal/cluster", "internal/faults", storagev1},
	"consensus/etcdraft":              {"consensus", "internal/faults", raftv1},
	"consensus/memory":                {"consensus"},
	"consensus/consensustest":         {"consensus"},
	"consensus/etcdraft/logstoretest": {"consensus", "consensus/etcdraft", raftv1},

	// Moving and storing.
	"transfer/store":           {"internal/cluster"},
	"transfer/store/storetest": {"internal/cluster", "transfer/store"},
	"transfer":                 {"internal/cluster", "internal/faults", "transfer/move", "transfer/handoff", "transfer/store", nodev1, nodeRPC},
	"nodeagent/partitionlog":   {"internal/cluster", "internal/faults", "transfer/store"},
	"nodeagent/dataplane":      {"internal/cluster", "internal/faults", "nodeagent/partitionlog", "transfer/store", nodev1, nodeRPC},
	"nodeagent": {"internal/cluster", "internal/faults", "internal/wire", "internal/apierr", "transfer", "transfer/store", "transfer/move",
		"transfer/handoff", planev1, planeRPC, nodev1, nodeRPC},

	// Controllers.
	"internal/wire":       {"internal/cluster", planev1},
	"internal/apierr":     {"internal/cluster", "internal/wire", planev1},
	"internal/controller": {"internal/cluster", "internal/faults", "planner", "fsm", "consensus", storagev1},
	"internal/rest":       {"internal/cluster", "internal/apierr", planev1, "proto/openapi"},
	"internal/api": {"internal/cluster", "internal/faults", "internal/wire", "internal/apierr", "internal/rest", "internal/controller", "fsm", "consensus",
		"planner", storagev1, planev1, planeRPC},

	// What other programs import: it stands on the contract alone.
	"client": {planev1, planeRPC, nodev1, nodeRPC},

	// Generated.
	planev1:   {},
	nodev1:    {planev1},
	raftv1:    {},
	storagev1: {planev1},
	planeRPC:  {planev1},
	// The generated document, embedded.
	"proto/openapi": {},
	nodeRPC:         {nodev1},

	// Wiring and tests see everything but each other.
	"cmd/...":  {"*"},
	"test/...": {"*"},
}

// allowedFor returns the row of a package.
func allowedFor(name string) ([]string, bool) {
	if row, ok := allowed[name]; ok {
		return row, true
	}
	for k, row := range allowed {
		if prefix, ok := strings.CutSuffix(k, "..."); ok && strings.HasPrefix(name, prefix) {
			return row, true
		}
	}
	return nil, false
}

// TestImportsFollowTheTable: arrows between packages only as listed.
func TestImportsFollowTheTable(t *testing.T) {
	for _, p := range load(t) {
		row, ok := allowedFor(p.name())
		if !ok {
			t.Errorf("package %s is not in the import table", p.name())
			continue
		}
		for _, imp := range p.Imports {
			if name, ok := strings.CutPrefix(imp, module+"/"); ok && !permits(row, name) {
				t.Errorf("%s must not import %s", p.name(), name)
			}
		}
	}
}

func permits(row []string, name string) bool {
	if strings.HasPrefix(name, "cmd/") {
		return false // nobody imports a command
	}
	return slices.Contains(row, name) || slices.Contains(row, "*")
}

// TestTheTableCanFail: the check itself refuses what it should.
func TestTheTableCanFail(t *testing.T) {
	for _, tc := range []struct{ from, to string }{
		{"fsm", "consensus"}, {"consensus/etcdraft", "fsm"}, {"planner", "fsm"}, {"internal/cluster", "internal/wire"},
		{"transfer/move", "transfer"}, {"test/cluster", "cmd/naradctl-plane"}, {"internal/config", "nodeagent"},
	} {
		row, ok := allowedFor(tc.from)
		if !ok || permits(row, tc.to) {
			t.Errorf("the table lets %s import %s", tc.from, tc.to)
		}
	}
}

// owners are the packages that alone may import a library.
var owners = map[string][]string{
	"github.com/spf13/viper":        {"internal/config"},
	"github.com/spf13/cobra":        {"cmd/naradctl-plane"},
	"go.etcd.io/raft/v3":            {"consensus/etcdraft", "consensus/etcdraft/logstoretest"},
	"go.etcd.io/etcd/server/v3":     {"consensus/etcdraft"},
	"github.com/cockroachdb/pebble": {"fsm", "nodeagent", "nodeagent/partitionlog", "nodeagent/dataplane", "cmd/naradctl-plane"},
}

// TestLibrariesHaveOneHome: a library that shapes a package does not leak out of it.
func TestLibrariesHaveOneHome(t *testing.T) {
	for _, p := range load(t) {
		if strings.HasPrefix(p.name(), "test/") {
			continue
		}
		for _, imp := range p.Imports {
			for lib, homes := range owners {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !slices.Contains(homes, p.name()) {
					t.Errorf("%s must not import %s; its home is %s", p.name(), imp, strings.Join(homes, ", "))
				}
			}
		}
	}
}
