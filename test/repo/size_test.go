package repo_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The house budget. A file or function over it is split, not excused.
const (
	maxFile     = 500 // lines
	maxFunction = 80
	maxExample  = 80 // the whole main.go of an example, which is read in one sitting
)

// documented are the packages that somebody outside of this repository may import.
var documented = []string{"core", "core/driver", "adapters", "adapters/...", "middleware/...", "test/varaltest", "test/conformance"}

// source is one Go file of the repository.
type source struct {
	path  string // below the root, with slashes
	lines int
	*ast.File
	set *token.FileSet
}

func (s *source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s *source) line(p token.Pos) int { return s.set.Position(p).Line }

func parse(t *testing.T, path string, src any) *source {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	last := set.File(f.FileStart)
	lines := last.LineCount()
	if last.Size() > 0 && last.Offset(last.LineStart(lines)) == last.Size() {
		lines-- // the end of the last line begins no other
	}
	return &source{path: path, lines: lines, File: f, set: set}
}

// sources are all Go files but the generated ones and testdata, nested modules included.
func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		s := parse(t, path, nil)
		if ast.IsGenerated(s.File) {
			return nil
		}
		below, err := filepath.Rel(top, path)
		s.path = filepath.ToSlash(below)
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("%d Go files found only", len(all))
	}
	return all
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		for _, complaint := range s.oversize() {
			t.Error(complaint)
		}
	}
}

func TestExportedIsDocumented(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.ToSlash(filepath.Dir(s.path))
		if s.test() || !matches(documented, dir) || strings.Contains(dir, "internal") {
			continue
		}
		seen[dir] = true
		for _, complaint := range s.undocumented() {
			t.Error(complaint)
		}
	}
	for _, dir := range []string{"core", "core/driver", "adapters", "adapters/memory", "middleware", "test/varaltest", "test/conformance"} {
		if !seen[dir] {
			t.Errorf("no file of %s was looked at", dir)
		}
	}
}

// The checkers must be able to fail.
func TestCheckersFindWhatTheyForbid(t *testing.T) {
	t.Parallel()
	long := "package p\n\n// F is long.\nfunc F() {\n" + strings.Repeat("\tF()\n", maxFunction-1) + "}\n"
	fits := strings.Replace(long, "\tF()\n", "", 1)
	for _, c := range []struct {
		name, path, src string
		want            int
	}{
		{"a function of 81 lines", "p/p.go", long, 1},
		{"a function of 80 lines", "p/p.go", fits, 0},
		{"500 lines", "p/p.go", "package p\n" + strings.Repeat("\n", maxFile-1), 0},
		{"501 lines", "p/p.go", "package p\n" + strings.Repeat("\n", maxFile), 1},
		{"an example of 81 lines", "examples/01/main.go", "package p\n" + strings.Repeat("\n", maxExample), 1},
	} {
		if got := parse(t, c.path, c.src).oversize(); len(got) != c.want {
			t.Errorf("%s: %q, want %d complaints", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		src  string
		want int
	}{
		{"func F() {}", 1},
		{"// F is.\nfunc F() {}", 0},
		{"//go:noinline\nfunc F() {}", 1},
		{"func f() {}", 0},
		{"type t int\nfunc (t) M() {}", 0},
		{"// T is.\ntype T[P any] int\n\nfunc (*T[P]) M() {}", 1},
		{"// Those.\nconst (\n\tA = 1\n\tB = 2\n)", 0},
		{"const (\n\tA = 1 // one\n\tB = 2\n)", 1},
		{"var V int", 1},
		{"type T struct{ f int }", 1},
		{"// T has A and B.\ntype T struct{ A, B, C int }", 1},
		{"// T is.\ntype T struct {\n\t// A or B is it.\n\tA int\n\tB int\n\n\tC int\n}", 1},
		{"// I is.\ntype I interface{ M() }", 1},
	} {
		if got := parse(t, "p/p.go", "package p\n\n"+c.src+"\n").undocumented(); len(got) != c.want {
			t.Errorf("%s\n%q, want %d complaints", c.src, got, c.want)
		}
	}
}
