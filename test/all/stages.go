package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/varal-go/varal/test/internal/brokers"
)

// required are the brokers without which CI proves too little.
var required = []string{"kafka", "rabbitmq", "redis", "sqs"}

// command is one in the repository, with the environment of this run.
func (s *session) command(ctx context.Context, dir string, env []string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(slices.Clone(s.env), env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// step runs one command that is a check by itself.
func (s *session) step(what, dir string, env []string, argv ...string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Minute)
	defer cancel()
	begun := time.Now()
	out, err := s.command(ctx, dir, env, argv...).CombinedOutput()
	if err != nil {
		s.fail(what, fmt.Sprintf("%s: %v\n%s", strings.Join(argv, " "), err, out))
		return false
	}
	s.pass(what, time.Since(begun), "")
	return true
}

func (s *session) build() {
	s.step("go build ./...", s.root, nil, "go", "build", "./...")
	for _, system := range []string{"windows", "darwin", "linux"} {
		if system != runtime.GOOS {
			s.step("go build ./... for "+system, s.root, []string{"GOOS=" + system, "CGO_ENABLED=0"}, "go", "build", "./...")
		}
	}
}

func (s *session) vet() { s.step("go vet ./...", s.root, nil, "go", "vet", "./...") }

func (s *session) tidy() {
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	defer cancel()
	begun := time.Now()
	out, err := s.command(ctx, s.root, nil, "go", "mod", "tidy", "-diff").CombinedOutput()
	switch {
	case err == nil:
		s.pass("go mod tidy -diff", time.Since(begun), "")
	case s.ci || bytes.Contains(out, []byte("diff current/")):
		s.fail("go mod tidy -diff", fmt.Sprintf("%v: run go mod tidy\n%s", err, out))
	default: // it asks for modules that a build does not need, so it may need the network
		s.skip("go mod tidy -diff", lastLines(string(out), 1))
	}
}

func (s *session) imports() { s.test([]string{repoRules}, "", nil) }

// brokers brings the servers up and says of each whether the tests have it.
func (s *session) brokers() {
	o := brokers.Options{PortBase: brokers.PortBase(), Install: s.install, Progress: s.printer}
	release, err := brokers.Hold(o)
	if err != nil {
		s.fail("brokers", err.Error())
		return
	}
	reports, err := brokers.Up(s.ctx, o, s.servers...)
	if err != nil {
		release()
		s.fail("brokers", err.Error())
		return
	}
	for _, r := range reports {
		s.broker(r)
		if r.Started {
			s.started = append(s.started, r.Broker)
		}
		for k, v := range r.Env {
			s.env = append(s.env, k+"="+v)
		}
	}
	if s.ci {
		s.env = append(s.env, "VARAL_REQUIRE="+strings.Join(required, ","))
	}
	for _, name := range brokers.Known() {
		if !slices.Contains(s.servers, name) {
			s.line("       %s: not used, because it was not asked for; get it by --brokers %s", name, name)
		}
	}
	s.release = append(s.release, func() {
		release()
		s.stopServers(o, s.started)
	})
}

func (s *session) broker(r brokers.Report) {
	switch {
	case r.Used():
		s.count(tally{passed: 1})
		s.line("  %s   %s", s.paint(green, "ok"), r)
	case s.ci && slices.Contains(required, r.Broker):
		s.fail("broker "+r.Broker, r.String())
	default:
		s.skip("broker "+r.Broker, r.String())
	}
}

// stopServers takes down what this run started, unless another run uses it by now.
func (s *session) stopServers(o brokers.Options, started []string) {
	if len(started) == 0 || s.keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 2*time.Minute)
	defer cancel()
	stopped, err := brokers.DownIfUnused(ctx, o, started...)
	switch {
	case err != nil:
		s.line("brokers could not be stopped: %v", err)
	case !stopped:
		s.line("brokers stay up: another run uses them")
	}
}

// modules checks the folders with a go.mod of their own.
func (s *session) modules() {
	var dirs []string
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != s.root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.Name() == "go.mod" && filepath.Dir(path) != s.root {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		s.fail("looking for modules", err.Error())
	}
	if len(dirs) == 0 {
		s.line("       there is none")
	}
	for _, dir := range dirs {
		name, _ := filepath.Rel(s.root, dir)
		if s.step(name+": go build ./...", dir, nil, "go", "build", "./...") {
			s.step(name+": go vet ./...", dir, nil, "go", "vet", "./...")
		}
		if name == filepath.Join("test", "compose") {
			s.step("docker-compose.yml, as docker compose reads it", dir, nil, "go", "run", ".", filepath.Join(s.root, "docker-compose.yml"))
		}
	}
}

// raceFlag is -race where it can work, or the reason why it can't.
func (s *session) raceFlag() (flag, why string) {
	out, err := s.command(s.ctx, s.root, nil, "go", "env", "CGO_ENABLED", "CC").Output()
	if err != nil {
		return "", err.Error()
	}
	f := strings.Fields(string(bytes.TrimSpace(out)))
	if len(f) < 2 || f[0] != "1" {
		return "", "cgo is off"
	}
	if _, err := exec.LookPath(f[1]); errors.Is(err, exec.ErrNotFound) {
		return "", "there is no C compiler (" + f[1] + ")"
	}
	return "-race", ""
}

// cacheDir is where tools are kept between runs.
func cacheDir() string {
	c, err := os.UserCacheDir()
	if err != nil {
		c = filepath.Join(os.TempDir(), "varal-cache")
	}
	return filepath.Join(c, "varal-tools")
}
