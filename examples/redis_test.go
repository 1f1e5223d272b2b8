package examples_test

import (
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
)

// TestOnRedis runs every lesson on a real broker by its URL alone: it prints what it
// prints in memory.
func TestOnRedis(t *testing.T) {
	t.Parallel()
	url := os.Getenv("VARAL_REDIS_URL")
	if url == "" {
		if strings.Contains(os.Getenv("VARAL_REQUIRE"), "redis") {
			t.Fatal("VARAL_REQUIRE names redis and VARAL_REDIS_URL is not set")
		}
		t.Skip("VARAL_REDIS_URL is not set: no redis to run on")
	}
	lessons, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	dir, namespace := t.TempDir(), "examples-"+strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() { forget(t, url, namespace) })
	for _, main := range lessons {
		lesson := filepath.Dir(main)
		t.Run(lesson, func(t *testing.T) {
			exe := filepath.Join(dir, lesson)
			build := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./"+lesson)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			run := exec.CommandContext(ctx, exe)
			run.Env = append(os.Environ(), "VARAL_URL="+url+"?namespace="+namespace, "VARAL_BROKER=")
			out, err := run.Output()
			if err != nil {
				exit, _ := errors.AsType[*exec.ExitError](err)
				t.Fatalf("%v\n%s%s", err, out, exit.Stderr)
			}
			if got, want := lines(string(out)), lines(expected(t, lesson)); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", out, strings.Join(want, "\n"))
			}
		})
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
