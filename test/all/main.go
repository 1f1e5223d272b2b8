// Command all runs every check of the repository: what CI runs, and what a
// contributor runs before sending a change.
//
//	go run ./test/all
//	go run ./test/all --only build,unit
//
// Its last line is `N passed, N failed, N skipped`; it exits with 1 if anything failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/varal-go/varal/test/internal/brokers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// session is one run: what it may do, and what it has counted.
type session struct {
	*printer
	ctx     context.Context
	root    string
	ci      bool
	install bool
	servers []string // brokers to bring up
	started []string // brokers that this run started, and may restart
	keep    bool
	format  bool
	pkgs    []string
	env     []string // of every command; grows with the brokers
	tally   tally
	release []func()
}

type tally struct{ passed, failed, skipped int }

func (t *tally) add(o tally) {
	t.passed, t.failed, t.skipped = t.passed+o.passed, t.failed+o.failed, t.skipped+o.skipped
}

func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

type stage struct {
	name, about string
	run         func(*session)
}

func stages() []stage {
	return []stage{
		{"build", "compile everything, for Linux, Windows and macOS", (*session).build},
		{"vet", "go vet", (*session).vet},
		{"tidy", "go.mod and go.sum hold what is needed and no more", (*session).tidy},
		{"imports", "who may import whom, sizes, doc comments, compose file, go.mod", (*session).imports},
		{"lint", "golangci-lint " + lintVersion, (*session).lint},
		{"brokers", "bring the real brokers up", (*session).brokers},
		{"unit", "every test, with the race detector", (*session).unit},
		{"soak", "millions of messages amid kills, every one checked", (*session).soak},
		{"modules", "build and vet the nested modules", (*session).modules},
	}
}

func run(ctx context.Context, args []string) int {
	s, chosen, err := parse(ctx, args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "all:", err)
		return 2
	}
	if s.format {
		return s.formatCode()
	}
	begun := time.Now()
	for _, st := range chosen {
		s.stage(st)
		if ctx.Err() != nil {
			s.fail(st.name, "interrupted")
			break
		}
	}
	for _, f := range slices.Backward(s.release) {
		f()
	}
	s.summary(time.Since(begun))
	fmt.Println(s.tally)
	if s.tally.failed > 0 {
		return 1
	}
	return 0
}

func parse(ctx context.Context, args []string) (*session, []stage, error) {
	s := &session{printer: newPrinter(os.Stdout), ctx: ctx, ci: brokers.InCI(), env: os.Environ()}
	var only, skip, servers, pkgs string
	f := flag.NewFlagSet("all", flag.ContinueOnError)
	f.BoolVar(&s.install, "install", s.ci, "install missing servers (implied by CI=true)")
	f.BoolVar(&s.format, "fmt", false, "format the code with the pinned linter, and do nothing else")
	f.BoolVar(&s.keep, "keep", false, "leave the brokers up that this run started")
	f.StringVar(&only, "only", "", "run these `stages`, separated by commas")
	f.StringVar(&skip, "skip", "", "do not run these `stages`")
	f.StringVar(&servers, "brokers", strings.Join(required, ","), "bring these brokers up")
	f.StringVar(&pkgs, "packages", "./...", "packages of the unit stage, separated by commas")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "Usage: go run ./test/all [flags]\n\nStages:")
		for _, st := range stages() {
			fmt.Fprintf(f.Output(), "  %-8s  %s\n", st.name, st.about)
		}
		fmt.Fprintln(f.Output(), "\nFlags:")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, nil, err
	}
	if f.NArg() > 0 {
		return nil, nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	s.servers, s.pkgs = list(servers), list(pkgs)
	var err error
	if s.root, err = moduleRoot(); err != nil {
		return nil, nil, err
	}
	chosen, err := choose(list(only), list(skip))
	return s, chosen, err
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func choose(only, skip []string) ([]stage, error) {
	var names []string
	var out []stage
	for _, st := range stages() {
		names = append(names, st.name)
		if (len(only) == 0 || slices.Contains(only, st.name)) && !slices.Contains(skip, st.name) {
			out = append(out, st)
		}
	}
	for _, n := range append(only, skip...) {
		if !slices.Contains(names, n) {
			return nil, fmt.Errorf("there is no stage %q; the stages are %s", n, strings.Join(names, ", "))
		}
	}
	return out, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module github.com/varal-go/varal\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("run it inside the repository")
		}
	}
}
