package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

const maxLines = 600

// TestFilesAreShort: what grows past the limit is two things.
func TestFilesAreShort(t *testing.T) {
	for _, f := range loadFiles(t) {
		if f.generated() {
			continue
		}
		if n := bytes.Count(f.text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, the limit is %d", f.path, n, maxLines)
		}
	}
}

// TestPackageComments: each package says what it is for, in a comment that go doc shows.
func TestPackageComments(t *testing.T) {
	for _, p := range load(t) {
		if strings.HasPrefix(p.name(), "proto/") {
			continue
		}
		if len(p.GoFiles) == 0 {
			// A package of tests alone still needs its comment somewhere.
			if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && !testPackageComment(t, p) {
				t.Errorf("%s has no package comment", p.name())
			}
			continue
		}
		// A command's comment begins with its name, or with "Command".
		if p.Doc == "" || (p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" ")) {
			t.Errorf("%s: the package comment should begin with \"Package %s\", is %q", p.name(), p.Name, p.Doc)
		}
	}
}

func testPackageComment(t *testing.T, p pkg) bool {
	for _, f := range loadFiles(t) {
		if path.Dir(f.path) == p.name() && f.tree.Doc != nil {
			return true
		}
	}
	return false
}

// TestNoSleepInTests: a test waits for a condition, not for time.
func TestNoSleepInTests(t *testing.T) {
	for _, f := range loadFiles(t) {
		if !f.test() {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch x.Name + "." + s.Sel.Name {
			case "time.Sleep":
				t.Errorf("%s: time.Sleep in a test", f.position(n))
			case "t.Skip", "t.Skipf", "t.SkipNow":
				t.Errorf("%s: a test that is skipped tests nothing", f.position(n))
			}
			return true
		})
	}
}

// TestNoUnfinishedWork: what is not done is in nobody's comments.
func TestNoUnfinishedWork(t *testing.T) {
	pattern := regexp.MustCompile(`\b(` + "TO" + `DO|FIX` + `ME|X` + `XX)\b`)
	for _, f := range loadFiles(t) {
		if f.generated() {
			continue
		}
		for _, group := range f.tree.Comments {
			if m := pattern.FindString(group.Text()); m != "" {
				t.Errorf("%s: %s", f.position(group), m)
			}
		}
	}
}

// TestEveryInvariantHasATest: a test function is named after each of I1 to I10.
func TestEveryInvariantHasATest(t *testing.T) {
	tested := map[string]bool{}
	pattern := regexp.MustCompile(`I(10|[1-9])(?:[^0-9]|$)`)
	for _, f := range loadFiles(t) {
		if !f.test() {
			continue
		}
		for _, d := range f.tree.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			for _, m := range pattern.FindAllStringSubmatch(fn.Name.Name, -1) {
				tested["I"+m[1]] = true
			}
		}
	}
	for i := 1; i <= 10; i++ {
		if name := fmt.Sprintf("I%d", i); !tested[name] {
			t.Errorf("no test is named after invariant %s", name)
		}
	}
}

// TestEveryReasonIsMapped: each error reason is in the schema, in internal/apierr, and in the operators' table.
func TestEveryReasonIsMapped(t *testing.T) {
	schema := read(t, "proto/naradplane/v1/error.proto")
	mapping := read(t, "internal/apierr/apierr.go")
	manual := read(t, "docs/operations.md")
	constants := reasonConstants(t)
	for _, r := range cluster.Reasons() {
		if !strings.Contains(schema, "ERROR_REASON_"+r.String()+" = ") {
			t.Errorf("%s is not in proto/naradplane/v1/error.proto", r)
		}
		if !strings.Contains(mapping, "planev1.ErrorReason_ERROR_REASON_"+r.String()) {
			t.Errorf("%s has no row in internal/apierr", r)
		}
		if !strings.Contains(manual, "`"+r.String()+"`") {
			t.Errorf("%s is not explained in docs/operations.md", r)
		}
	}
	if len(constants) != len(cluster.Reasons()) {
		t.Errorf("internal/cluster declares %d reasons (%s), Reasons returns %d", len(constants), strings.Join(constants, ", "), len(cluster.Reasons()))
	}
}

func reasonConstants(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, f := range loadFiles(t) {
		if f.path != "internal/cluster/errors.go" {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					if strings.HasPrefix(name.Name, "Reason") {
						out = append(out, name.Name)
					}
				}
			}
			return true
		})
	}
	return out
}

// TestTheTestsOfTheInvariantTableExist: docs/architecture.md and docs/testing.md name tests; they must be there.
func TestTheTestsOfTheInvariantTableExist(t *testing.T) {
	names := map[string]bool{}
	for _, f := range loadFiles(t) {
		for _, d := range f.tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				names[fn.Name.Name] = true
			}
		}
	}
	for _, doc := range []string{"docs/architecture.md", "docs/testing.md"} {
		found := regexp.MustCompile("`(Test[A-Za-z0-9_]+)[`/]").FindAllStringSubmatch(read(t, doc), -1)
		if len(found) < 10 {
			t.Errorf("%s names %d tests, want at least one for each row", doc, len(found))
		}
		for _, m := range found {
			if !names[m[1]] {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
}

// TestEveryNumberedTestIsListed: docs/testing.md has a row for each number that a test is named after.
func TestEveryNumberedTestIsListed(t *testing.T) {
	table := read(t, "docs/testing.md")
	pattern := regexp.MustCompile(`C[0-9]{2}`)
	for _, f := range loadFiles(t) {
		if !f.test() {
			continue
		}
		for _, d := range f.tree.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "TestC") {
				continue
			}
			for _, c := range pattern.FindAllString(fn.Name.Name, -1) {
				if !strings.Contains(table, "| "+c+" |") {
					t.Errorf("%s: %s, but docs/testing.md has no row %s", f.position(fn), fn.Name.Name, c)
				}
			}
		}
	}
}

// TestLinksInDocumentsLead: a relative link names a file that is there.
func TestLinksInDocumentsLead(t *testing.T) {
	docs, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	docs = append(docs, root+"/README.md", root+"/CONTRIBUTING.md", root+"/CHANGELOG.md")
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", doc, m[1])
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
