package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/naradctl/naradctl-plane"

// root is the module's directory, seen from this package.
const root = "../.."

// pkg is what go list says of a package.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Doc          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// name is the path inside the module.
func (p pkg) name() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

var packages = sync.OnceValues(func() ([]pkg, error) {
	var out, errs bytes.Buffer
	// -e: a package that does not compile is the compiler's business.
	cmd := exec.Command("go", "list", "-e", "-json", "./...")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(err, errors.New(errs.String()))
	}
	var list []pkg
	for d := json.NewDecoder(&out); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
})

func load(t *testing.T) []pkg {
	t.Helper()
	list, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatal("go list found no package")
	}
	return list
}

// goFile is a Go file of the module, by its path inside it.
type goFile struct {
	path string
	fset *token.FileSet
	tree *ast.File
	text []byte
}

func (f goFile) generated() bool { return ast.IsGenerated(f.tree) }
func (f goFile) test() bool      { return strings.HasSuffix(f.path, "_test.go") }

// position is where a node is, for messages.
func (f goFile) position(n ast.Node) string {
	p := f.fset.Position(n.Pos())
	return f.path + ":" + strconv.Itoa(p.Line)
}

var files = sync.OnceValues(func() ([]goFile, error) {
	var out []goFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "bin" || n == "testdata" || n == "third_party" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parseFile(path)
		if err != nil {
			return err
		}
		out = append(out, f)
		return nil
	})
	return out, err
})

func parseFile(path string) (goFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return goFile{}, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return goFile{}, err
	}
	base, err := filepath.Abs(root)
	if err != nil {
		return goFile{}, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return goFile{}, err
	}
	rel, err := filepath.Rel(base, abs)
	if err != nil {
		return goFile{}, err
	}
	return goFile{path: filepath.ToSlash(rel), fset: fset, tree: tree, text: text}, nil
}

func loadFiles(t *testing.T) []goFile {
	t.Helper()
	list, err := files()
	if err != nil {
		t.Fatal(err)
	}
	return list
}
