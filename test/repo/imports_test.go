package repo_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/varal-go/varal"

// rule says what the packages of one layer may import, tests aside. Paths are below
// the module; a pattern that ends in /... holds for the folder and all below.
type rule struct {
	of     []string
	ours   []string // of ours
	others []string // third-party modules; "*" = any
}

// rules is the table of core/DESIGN.md, first match first. A package with no row is an error, so that
// a new folder is a decision.
var rules = []rule{
	{of: []string{"core/driver"}},
	{of: []string{"core/internal/..."}, ours: []string{"core/internal/..."}},
	{of: []string{"core"}, ours: []string{"core/driver", "core/internal/..."}},
	{of: []string{"adapters/internal/..."}, ours: []string{"core/driver", "adapters/internal/..."}, others: []string{"*"}},
	{of: []string{"adapters/memory/..."}, ours: []string{"core/driver", "adapters/internal/...", "adapters/memory/..."}},
	{of: []string{"adapters/kafka/..."}, ours: []string{"core/driver", "adapters/internal/...", "adapters/kafka/..."}, others: []string{"github.com/twmb/franz-go"}},
	{of: []string{"adapters/rabbitmq/..."}, ours: []string{"core/driver", "adapters/internal/...", "adapters/rabbitmq/..."}, others: []string{"github.com/rabbitmq/amqp091-go"}},
	{of: []string{"adapters/aws/..."}, ours: []string{"core/driver", "adapters/internal/...", "adapters/aws/..."}, others: []string{"github.com/aws"}},
	{of: []string{"adapters/redis/..."}, ours: []string{"core/driver", "adapters/internal/...", "adapters/redis/..."}, others: []string{"github.com/redis/go-redis"}},
	{of: []string{"adapters/watermill/..."}, ours: []string{"core/driver", "adapters/internal/...", "adapters/watermill/..."}, others: []string{"github.com/ThreeDotsLabs"}},
	{of: []string{"adapters"}, ours: []string{"core", "core/driver", "adapters/..."}, others: []string{"github.com/goccy/go-yaml"}},
	{of: []string{"middleware"}, ours: []string{"core"}},
	{of: []string{"middleware/..."}, ours: []string{"core", "middleware/..."}, others: []string{"*"}},
	{of: []string{"patterns/..."}, ours: []string{"core", "middleware/...", "patterns/..."}, others: []string{"*"}},
	{of: []string{"test/conformance/...", "test/storetest/..."}, ours: []string{"core", "core/driver", "patterns/store", "test/conformance/...", "test/storetest/..."}, others: []string{"go.uber.org/goleak"}},
	{of: []string{"cmd/...", "examples/...", "test/..."}, ours: []string{"..."}, others: []string{"*"}},
}

// testsOnly brings package testing with it, which no program should have.
const testsOnly = module + "/adapters/internal/adaptertest"

func (r rule) allows(path string) bool {
	if path == testsOnly {
		return false
	}
	if own, ok := strings.CutPrefix(path, module+"/"); ok {
		return matches(r.ours, own)
	}
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	return slices.ContainsFunc(r.others, func(o string) bool { return o == "*" || path == o || strings.HasPrefix(path, o+"/") })
}

func matches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, all := strings.CutSuffix(p, "...")
		if !all {
			return p == path
		}
		return strings.HasPrefix(path+"/", prefix)
	})
}

type listed struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestWhoMayImportWhom(t *testing.T) {
	t.Parallel()
	all := packages(t)
	if len(all) < 3 {
		t.Fatalf("go list found %d packages only", len(all))
	}
	for _, p := range all {
		own := strings.TrimPrefix(p.ImportPath, module+"/")
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.of, own) })
		if i < 0 {
			t.Errorf("%s: no row of the table is about it; add one to rules and to core/DESIGN.md", own)
			continue
		}
		for _, imp := range p.Imports {
			if !rules[i].allows(imp) {
				t.Errorf("%s must not import %s (its row allows %v of ours and %v of others)", own, imp, rules[i].ours, rules[i].others)
			}
		}
	}
}

// The checker must be able to fail.
func TestRulesCatchWhatTheyForbid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"core/driver", module + "/core", false},
		{"core/driver", "net/http", true},
		{"core", "github.com/goccy/go-yaml", false},
		{"core", module + "/core/internal/batch", true},
		{"core/internal/batch", module + "/core/driver", false},
		{"adapters/kafka", module + "/core", false},
		{"adapters/kafka", module + "/adapters/memory", false},
		{"adapters/kafka", "github.com/twmb/franz-go/pkg/kgo", true},
		{"adapters/kafka", "github.com/twmb/franz-gone", false},
		{"adapters/kafka", module + "/adapters/internal/deadline", true},
		{"adapters/kafka", testsOnly, false},
		{"adapters", module + "/middleware", false},
		{"middleware", module + "/core/driver", false},
		{"patterns/outbox", module + "/adapters/kafka", false},
		{"test/conformance", module + "/adapters/memory", false},
		{"adapters/memory", module + "/test/conformance", false},
		{"cmd/varal", module + "/adapters/kafka", true},
	} {
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.of, c.from) })
		if i < 0 {
			t.Fatalf("no rule for %s", c.from)
		}
		if got := rules[i].allows(c.to); got != c.ok {
			t.Errorf("%s importing %s: allowed = %v, want %v", c.from, c.to, got, c.ok)
		}
	}
}
