package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// repoRules holds the tests about the repository itself; the imports stage runs it.
const repoRules = "github.com/varal-go/varal/test/repo"

const (
	module         = "github.com/varal-go/varal"
	packageTimeout = "20m" // of one test binary
	unitTimeout    = 70 * time.Minute
)

// Tests that restart brokers or measure times run after all others: the restarts would
// break whoever else is at work on the same pair, and a lease of a second ends early on a
// machine that compiles beside it.
const (
	conformanceTests = module + "/test/conformance/all"
	faultTests       = module + "/test/chaos/faults"
	sessionTests     = module + "/test/chaos/sessions"
)

// restartTests are the tests of an adapter that hurt its broker, and so every neighbour.
var restartTests = []struct{ broker, pkg, test string }{
	{"rabbitmq", module + "/adapters/rabbitmq", "TestBrokerRestart"},
	{"redis", module + "/adapters/redis", "TestWithoutMemory"},
}

// onRealBrokers are the conformance tests that wait most of the time: two lines run side
// by side, what stands in one line one after the other. With a line for each broker, four
// of them restarting on two processors, a Kafka was not back after 90 s.
var onRealBrokers = [][]string{{"TestKafka", "TestSQS"}, {"TestRabbitMQ", "TestRedis|TestRedisUnkeyed"}}

func (s *session) unit() {
	race, why := s.raceFlag()
	if why != "" {
		s.line("  %s the race detector: %s", s.paint(yellow, "without"), why)
	}
	out, err := s.command(s.ctx, s.root, nil, append([]string{"go", "list", "-e"}, s.pkgs...)...).Output()
	if err != nil {
		s.fail("go list", err.Error())
		return
	}
	pkgs := strings.Fields(string(out))
	conformance := slices.Contains(pkgs, conformanceTests)
	var alone []string // one after the other
	pkgs = slices.DeleteFunc(pkgs, func(p string) bool {
		if p == faultTests || p == sessionTests {
			alone = append(alone, p)
			return true
		}
		return p == repoRules || p == conformanceTests
	})
	if len(pkgs) > 0 {
		s.test(pkgs, race, nil)
	}
	if conformance {
		s.conformance(race, "VARAL_SCORECARD="+filepath.Join(s.root, "test", "conformance", "scorecard.json"))
	}
	for _, r := range restartTests {
		if conformance && slices.Contains(s.started, r.broker) {
			s.test([]string{r.pkg}, race, []string{"VARAL_RESTART=" + r.broker}, "-run=^"+r.test+"$")
		}
	}
	for _, p := range alone {
		s.test([]string{p}, race, nil)
	}
}

// conformance runs the suite by itself: in process first, then on the real brokers.
func (s *session) conformance(race, scores string) {
	s.line("  the conformance suite, by itself: it measures times, and restarts the brokers that this run started")
	s.test([]string{conformanceTests}, race, []string{scores}, "-skip=^("+strings.Join(slices.Concat(onRealBrokers...), "|")+")$")
	restart := "VARAL_RESTART=" + strings.Join(s.started, ",")
	var wg sync.WaitGroup
	for _, line := range onRealBrokers {
		wg.Go(func() {
			for _, name := range line {
				s.test([]string{conformanceTests}, race, []string{scores, restart}, "-run=^("+name+")$")
			}
		})
	}
	wg.Wait()
}

// test runs go test and counts from its JSON. A package in which the race detector itself
// has crashed says nothing about ours, and gets one more run.
func (s *session) test(pkgs []string, race string, env []string, flags ...string) {
	crashed := s.testOnce(pkgs, race, env, false, flags...)
	if len(crashed) > 0 {
		s.line("  the race detector crashed in %s; once more", strings.Join(crashed, ", "))
		s.testOnce(crashed, race, env, true, flags...)
	}
}

// testOnce returns the packages in which the race detector has crashed; last = that counts
// as a failure.
func (s *session) testOnce(pkgs []string, race string, env []string, last bool, flags ...string) (crashed []string) {
	ctx, cancel := context.WithTimeout(s.ctx, unitTimeout)
	defer cancel()
	argv := []string{"go", "test", "-json", "-count=1", "-shuffle=on", "-p=2", "-timeout=" + packageTimeout}
	if race != "" {
		argv = append(argv, race)
	}
	argv = append(append(argv, flags...), pkgs...)
	cmd := s.command(ctx, s.root, env, argv...)
	pipe, err := cmd.StdoutPipe()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.fail("go test", err.Error())
		return nil
	}
	e := newEvents(s)
	e.last = last
	e.read(pipe)
	err = cmd.Wait()
	s.count(e.tally)
	e.skips()
	if err != nil && e.tally.failed == 0 && len(e.crashed) == 0 {
		// Nothing of what was read explains it: a bad flag, a broken go.mod, a timeout.
		s.fail("go test", fmt.Sprintf("%v (%v)\n%s%s", err, context.Cause(ctx), stderr.String(), e.stray.String()))
	}
	return e.crashed
}

// raceCrash is what the race detector says when a check of its own state fails.
const raceCrash = "ThreadSanitizer: CHECK failed"

// event is one line of go test -json.
type event struct {
	Action, Package, Test, Output string
	ImportPath, FailedBuild       string
	Elapsed                       float64
}

// events turns the stream into counts, one line per package, and failures in full.
type events struct {
	s       *session
	tally   tally
	perPkg  map[string]*tally
	output  map[string]*strings.Builder // by package and test
	failed  map[string][]string         // tests of a package, in order
	builds  map[string]*strings.Builder // compiler output by import path
	reasons map[string]int
	races   map[string]string // by package; whichever test they were found under
	crashed []string          // packages that end so are run again
	last    bool              // unless this is that run
	stray   strings.Builder
}

func newEvents(s *session) *events {
	return &events{
		s: s, perPkg: map[string]*tally{}, output: map[string]*strings.Builder{}, failed: map[string][]string{},
		builds: map[string]*strings.Builder{}, reasons: map[string]int{}, races: map[string]string{},
	}
}

func (e *events) read(r io.Reader) {
	b := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := b.ReadBytes('\n')
		var ev event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &ev) != nil:
			e.stray.Write(line)
		default:
			e.take(ev)
		}
		if err != nil {
			return
		}
	}
}

func (e *events) take(ev event) {
	switch {
	case ev.Action == "build-output":
		text(e.builds, ev.ImportPath).WriteString(ev.Output)
	case ev.Action == "output":
		text(e.output, ev.Package+" "+ev.Test).WriteString(ev.Output)
	case ev.Action != "pass" && ev.Action != "fail" && ev.Action != "skip":
	case ev.Test == "":
		e.pkg(ev)
	default:
		e.one(ev)
	}
}

func text(m map[string]*strings.Builder, key string) *strings.Builder {
	if m[key] == nil {
		m[key] = &strings.Builder{}
	}
	return m[key]
}

// one counts a test or a subtest.
func (e *events) one(ev event) {
	if e.perPkg[ev.Package] == nil {
		e.perPkg[ev.Package] = &tally{}
	}
	t, key := e.perPkg[ev.Package], ev.Package+" "+ev.Test
	switch ev.Action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
		e.reasons[reason(text(e.output, key).String())]++
	case "fail":
		t.failed++
		e.failed[ev.Package] = append(e.failed[ev.Package], ev.Test)
		return // the output is wanted
	}
	e.race(ev.Package, text(e.output, key).String())
	delete(e.output, key)
}

// race keeps a report of the race detector. It fails every test that runs at the time, and
// is printed wherever output last came from, which may be a test that passes.
func (e *events) race(pkg, out string) {
	if _, report, ok := strings.Cut(out, "WARNING: DATA RACE"); ok && e.races[pkg] == "" {
		e.races[pkg] = firstLines(report, 80)
	}
}

// pkg ends a package: its line, and the output of what failed in it.
func (e *events) pkg(ev event) {
	t := e.perPkg[ev.Package]
	if t == nil {
		t = &tally{}
	}
	name := strings.TrimPrefix(strings.TrimPrefix(ev.Package, module), "/")
	took := time.Duration(ev.Elapsed * float64(time.Second))
	switch {
	case ev.Action == "fail":
		e.broken(ev, name, t)
	case t.passed+t.skipped > 0:
		e.s.result(green, "ok", name, took, t.String())
	}
	e.tally.add(*t)
	delete(e.output, ev.Package+" ")
}

func (e *events) broken(ev event, name string, t *tally) {
	if t.failed == 0 { // it did not compile, or ended outside a test
		out := text(e.output, ev.Package+" ").String()
		if ev.FailedBuild != "" {
			out = text(e.builds, ev.FailedBuild).String() + out
		}
		for key, b := range e.output { // tests that were running when it ended
			if strings.HasPrefix(key, ev.Package+" ") && key != ev.Package+" " {
				out += b.String()
			}
		}
		if strings.Contains(out, raceCrash) && !e.last {
			e.crashed = append(e.crashed, ev.Package)
			*t = tally{} // its tests run again
			return
		}
		t.failed++
		e.s.failed(name, out)
	}
	for _, test := range e.failed[ev.Package] {
		e.s.failed(name+" "+test, text(e.output, ev.Package+" "+test).String())
	}
	e.race(ev.Package, text(e.output, ev.Package+" ").String())
	if report := e.races[ev.Package]; report != "" {
		e.s.failed(name+": a data race", report)
	}
	e.s.result(red, "FAIL", name, time.Duration(ev.Elapsed*float64(time.Second)), t.String())
}

// reason is the last line that the test itself printed.
func reason(out string) string {
	last := "no reason given"
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		last = line
	}
	if _, after, ok := strings.Cut(last, ".go:"); ok {
		if _, msg, ok := strings.Cut(after, ": "); ok {
			last = msg
		}
	}
	return last
}

// skips says why tests were skipped, most frequent first.
func (e *events) skips() {
	var reasons []string
	for r := range e.reasons {
		reasons = append(reasons, r)
	}
	slices.SortFunc(reasons, func(a, b string) int {
		if d := e.reasons[b] - e.reasons[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, r := range reasons {
		e.s.line("  %s %d: %s", e.s.paint(yellow, "skipped"), e.reasons[r], r)
	}
}

func firstLines(s string, n int) string {
	all := strings.SplitN(s, "\n", n+1)
	return strings.Join(all[:min(len(all), n)], "\n")
}

func lastLines(s string, n int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
