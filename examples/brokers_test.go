package examples_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// TestOnRedis runs every lesson on a real broker by its URL alone: it prints what it
// prints in memory.
func TestOnRedis(t *testing.T) {
	t.Parallel()
	url, namespace := brokerURL(t, "redis"), "examples-"+strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() { forget(t, url, namespace) })
	dir := t.TempDir()
	for _, lesson := range lessons(t) {
		t.Run(lesson, func(t *testing.T) { printsTheSame(t, dir, lesson, url+"?namespace="+namespace) })
	}
}

// TestOnSQS: the same, except that the lesson of streams says that there are none.
func TestOnSQS(t *testing.T) {
	t.Parallel()
	endpoint, prefix := brokerURL(t, "sqs"), "examples-"+strings.ToLower(rand.Text()[:8])+"-"
	url := "sqs://test:test@us-east-1?wait=1s&prefix=" + prefix + "&endpoint=" + endpoint
	dir := t.TempDir()
	for _, lesson := range lessons(t) {
		t.Run(lesson, func(t *testing.T) {
			if lesson != "03-stream" {
				t.Cleanup(func() { deleteOnSQS(t, url, lesson) })
				printsTheSame(t, dir, lesson, url)
				return
			}
			code, out, errs := runLesson(t, dir, lesson, url)
			if code != 1 || out != "" || !strings.Contains(errs, "SQS and SNS have no stream") {
				t.Errorf("exit status %d, %q, %q", code, out, errs)
			}
		})
	}
}

// brokerURL is that of a broker, or the test ends as the house rules say.
func brokerURL(t *testing.T, broker string) string {
	t.Helper()
	variable := "VARAL_" + strings.ToUpper(broker) + "_URL"
	url := os.Getenv(variable)
	if url == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), broker) {
			t.Fatalf("VARAL_REQUIRE names %s and %s is not set", broker, variable)
		}
		t.Skipf("%s is not set: no %s to run on", variable, broker)
	}
	return url
}

func lessons(t *testing.T) (names []string) {
	t.Helper()
	mains, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, main := range mains {
		names = append(names, filepath.Dir(main))
	}
	return names
}

// runLesson builds a lesson and runs it on a broker.
func runLesson(t *testing.T, dir, lesson, url string) (code int, out, errs string) {
	t.Helper()
	exe := filepath.Join(dir, lesson)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./"+lesson)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, exe)
	run.Env = append(os.Environ(), "VARAL_URL="+url, "VARAL_BROKER=")
	var stdout, stderr bytes.Buffer
	run.Stdout, run.Stderr = &stdout, &stderr
	err := run.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, stdout.String(), stderr.String()
}

func printsTheSame(t *testing.T, dir, lesson, url string) {
	t.Helper()
	code, out, errs := runLesson(t, dir, lesson, url)
	if code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, out, errs)
	}
	if got, want := lines(out), lines(expected(t, lesson)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", out, strings.Join(want, "\n"))
	}
}

// lines are sorted: who of two groups comes first is nobody's promise. The order that a
// lesson promises is in the text of its lines.
func lines(text string) []string {
	out := strings.Split(strings.TrimSpace(text), "\n")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	slices.Sort(out)
	return out
}

// expected is what the lesson's own test wants it to print in memory.
func expected(t *testing.T, lesson string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(lesson, "main_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(strings.ToLower(string(b)), "output:\n")
	if !ok {
		t.Fatalf("the test of %s has no output", lesson)
	}
	text = string(b)[len(b)-len(text):]
	text, _, _ = strings.Cut(text, "\n}")
	return strings.ReplaceAll(text, "// ", "")
}

// forget deletes what the run has left.
func forget(t *testing.T, url, namespace string) {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Error(err)
		return
	}
	c := redis.NewClient(opts)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	keys := c.Scan(ctx, 0, namespace+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := c.Unlink(ctx, keys.Val()).Err(); err != nil {
			t.Error(err)
		}
	}
	if err := keys.Err(); err != nil {
		t.Error(err)
	}
}

// deleteOnSQS deletes what a lesson with a name of its own has left. What the others make
// under the name of one run stays: an emulator forgets it when it is stopped.
func deleteOnSQS(t *testing.T, url, lesson string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := adapters.Open(ctx, adapters.Config{URL: url, Prefix: "example-" + lesson[:2] + "-"})
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = client.Close(ctx) }()
	for _, d := range []core.Destination{core.Queue("tickets").Keyed(4), core.Queue("tickets.dlq"), core.Topic("pizzas")} {
		_, err := client.Admin().Apply(ctx, []driver.Resource{{Destination: d}}, driver.Delete)
		if err != nil && !errors.Is(err, core.ErrNotFound) {
			t.Error(err)
		}
	}
}
