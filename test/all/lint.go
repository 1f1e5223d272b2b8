package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

const (
	lintModule  = "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"
	lintVersion = "v2.15.0"
)

func (s *session) lint() {
	begun := time.Now()
	bin, err := s.linter()
	if err != nil {
		// On a plane there is no proxy to build it from; CI has no such excuse.
		if s.ci {
			s.fail("building golangci-lint", err.Error())
		} else {
			s.skip("lint", "golangci-lint could not be built: "+err.Error())
		}
		return
	}
	s.line("       golangci-lint %s is there after %.1fs", lintVersion, time.Since(begun).Seconds())
	s.step("golangci-lint run", s.root, nil, bin, "run", "--timeout=15m", "--color=never", "./...")
}

// formatCode rewrites the files the way the lint stage wants them.
func (s *session) formatCode() int {
	bin, err := s.linter()
	if err == nil {
		var out []byte
		out, err = s.command(s.ctx, s.root, nil, bin, "fmt", "./...").CombinedOutput()
		_, _ = s.Write(out)
	}
	if err != nil {
		s.line("fmt: %v", err)
		return 1
	}
	return 0
}

// linter builds the pinned version once per Go version: it must be built with a Go
// that is not older than the code it reads.
func (s *session) linter() (string, error) {
	dir := filepath.Join(cacheDir(), "golangci-lint-"+lintVersion+"-"+runtime.Version())
	bin := filepath.Join(dir, "golangci-lint")
	if runtime.GOOS == "windows" {
		bin += ".exe"
	}
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	s.line("       building golangci-lint %s (once, some minutes)", lintVersion)
	ctx, cancel := context.WithTimeout(s.ctx, 15*time.Minute)
	defer cancel()
	// Into a folder beside it first: a build that is cut must not leave half a binary.
	tmp := dir + ".tmp"
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return "", err
	}
	cmd := s.command(ctx, s.root, []string{"GOBIN=" + tmp, "GOFLAGS="}, "go", "install", lintModule+"@"+lintVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go install %s@%s: %w\n%s", lintModule, lintVersion, err, lastLines(string(out), 20))
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return bin, os.Rename(tmp, dir)
}
