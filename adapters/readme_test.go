package adapters_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeCompiles: what the README tells an author to write is Go that compiles
// against this tree.
func TestReadmeCompiles(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	harness := goBlock(t, string(b), "The test:")
	outside := goBlock(t, string(b), "## Outside this repository")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	vet := func(file string) {
		c := exec.CommandContext(t.Context(), "go", "vet", file)
		c.Dir = ".." // in the module
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	vet(write("harness_test.go", `package nats_test

import (
	"testing"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/conformance"
)

func open(testing.TB) driver.Driver { return nil }

func create(testing.TB, driver.Shape, int, []string) (d driver.Destination) { return d }

`+harness))
	vet(write("outside.go", `package shop

import (
	"context"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

type config struct{ URL string }

// nats stands for the author's package.
var nats = struct {
	Open   func(context.Context, config) (driver.Driver, error)
}{}

func run(ctx context.Context) error {
`+strings.ReplaceAll(outside, "nats.Config{", "config{")+`	return ctx.Err()
}

var _ = run
`))
}

func goBlock(t *testing.T, doc, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, after)
	_, rest, open := strings.Cut(rest, "```go\n")
	body, _, closed := strings.Cut(rest, "```")
	if !ok || !open || !closed {
		t.Fatalf("README has no Go block after %q", after)
	}
	return body
}
