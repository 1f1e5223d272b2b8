package examples_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

// block returns the first fenced block of a language after a text.
func block(t *testing.T, doc, after, language string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, after)
	if !ok {
		t.Fatalf("README has no %q", after)
	}
	_, rest, ok = strings.Cut(rest, "```"+language+"\n")
	body, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("README has no %s block after %q", language, after)
	}
	return body
}

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// goRun runs Go from the module's root, on memory.
func goRun(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", append([]string{"run"}, args...)...)
	c.Dir = ".."
	c.Env = append(os.Environ(), "VARAL_URL=", "VARAL_BROKER=")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("go run %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestReadmeCode builds and runs the first screen.
func TestReadmeCode(t *testing.T) {
	t.Parallel()
	code := block(t, readme(t), "# varal", "go")
	if n := strings.Count(code, "\n"); n != 12 {
		t.Errorf("the first screen has %d lines of Go, not twelve", n)
	}
	program := `package main

import (
	"context"
	"fmt"
	"os"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

var done context.CancelFunc

func cook(_ context.Context, d *core.Delivery) error {
	fmt.Printf("%s for %s\n", d.Body, d.Key)
	done()
	return nil
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	done = cancel
	if err := run(ctx); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
` + code + "}\n"
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := goRun(t, file); out != "margherita for table-7\n" {
		t.Errorf("it printed %q", out)
	}
}

// TestReadmeDemo compares what the README shows with what the command prints: heading,
// destinations, and every figure that a seed fixes.
func TestReadmeDemo(t *testing.T) {
	t.Parallel()
	shown := strings.Split(strings.TrimSpace(block(t, readme(t), "differ from run to run:", "")), "\n")
	printed := strings.Split(goRun(t, "./cmd/varal", "demo"), "\n")
	for i := range shown {
		got, want := strings.Fields(printed[i]), strings.Fields(shown[i])
		if i > 0 { // a walk-out moves the attempts, and on a busy machine the duplicates
			for _, f := range [][]string{got, want} {
				f[len(f)-5], f[len(f)-3] = "", ""
			}
		}
		if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w {
			t.Errorf("README line %d\nshows  %s\nprints %s", i+1, w, g)
		}
	}
}

// TestReadmeRefusal: the refusal it quotes is the one that is returned.
func TestReadmeRefusal(t *testing.T) {
	t.Parallel()
	c, err := adapters.Open(t.Context(), adapters.Config{URL: "memory:"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	_, err = c.DescribeSubscription(core.Subscription{From: core.Queue("tickets"), Group: "kitchen"}, middleware.SessionOrder(16))
	quoted := strings.TrimSpace(block(t, readme(t), "is refused with", ""))
	if err == nil || !strings.Contains(err.Error(), quoted) {
		t.Errorf("README quotes %q, and it is %v", quoted, err)
	}
}

// TestMainsAreShort: a lesson fits on a page.
func TestMainsAreShort(t *testing.T) {
	t.Parallel()
	mains, err := filepath.Glob("*/main.go")
	if err != nil || len(mains) < 7 {
		t.Fatalf("%v, %v", mains, err)
	}
	list, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mains {
		b, err := os.ReadFile(m)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), "\n"); n > 80 {
			t.Errorf("%s has %d lines, more than 80", m, n)
		}
		if !strings.Contains(string(b), "signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)") {
			t.Errorf("%s does not end gracefully on SIGTERM, which is how a scheduler ends it", m)
		}
		if !strings.Contains(string(list), "("+m+")") {
			t.Errorf("examples/README.md does not name %s", m)
		}
	}
}

// TestSIGTERM: it ends a lesson in the middle, in good order.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "hot-key")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./07-hot-key")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, exe)
	c.Env = append(os.Environ(), "VARAL_URL=")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() { // the other tables are served: some 100 of the hot one's are left
		t.Error("it printed nothing")
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		t.Errorf("it went on: %s", lines.Text())
	}
	if err := c.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
