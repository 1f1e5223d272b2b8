package conformance

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
)

// Outcome of a case.
type Outcome string

// The outcomes.
const (
	Pass         Outcome = "pass"
	Refused      Outcome = "refused"
	NotExercised Outcome = "not_exercised"
	Fail         Outcome = "fail"
)

// probe is the testing.TB of one case on one shape. It collects instead of failing
// the test around it, so that a mutant's failure is a result and not a red test.
type probe struct {
	testing.TB // of the test around it: Helper, Setenv and the like
	name       string

	mu       sync.Mutex
	lines    []string
	outcome  Outcome
	reason   string
	cleanups []func()
	ctx      context.Context //nolint:containedctx // testing.TB has Context
	cancel   context.CancelFunc
	dirs     []string
}

func newProbe(t testing.TB, name string) *probe {
	p := &probe{TB: t, name: name, outcome: Pass}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// run calls f and then the cleanups, the latest first, each on a goroutine of its own
// since FailNow ends the goroutine.
func (p *probe) run(f func()) {
	p.guard(f)
	p.cancel()
	for {
		p.mu.Lock()
		n := len(p.cleanups)
		if n == 0 {
			p.mu.Unlock()
			break
		}
		last := p.cleanups[n-1]
		p.cleanups = p.cleanups[:n-1]
		p.mu.Unlock()
		p.guard(last)
	}
	for _, d := range p.dirs {
		_ = os.RemoveAll(d)
	}
}

func (p *probe) guard(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				p.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		f()
	}()
	<-done
}

// end sets an outcome that is not a failure; a failure before it stays.
func (p *probe) end(o Outcome, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outcome != Fail {
		p.outcome, p.reason = o, reason
	}
}

func (p *probe) result() (Outcome, string, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outcome, p.reason, strings.Join(p.lines, "\n")
}

func (p *probe) Name() string             { return p.name }
func (p *probe) Helper()                  {}
func (p *probe) Context() context.Context { return p.ctx }

func (p *probe) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *probe) Fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outcome = Fail
}

func (p *probe) FailNow() {
	p.Fail()
	runtime.Goexit()
}

func (p *probe) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outcome == Fail
}

func (p *probe) log(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) < 60 { // the first words of a failure tell the most
		p.lines = append(p.lines, s)
	}
}

func (p *probe) Log(args ...any)                 { p.log(fmt.Sprint(args...)) }
func (p *probe) Logf(format string, args ...any) { p.log(fmt.Sprintf(format, args...)) }
func (p *probe) Error(args ...any)               { p.Log(args...); p.Fail() }
func (p *probe) Errorf(format string, a ...any)  { p.Logf(format, a...); p.Fail() }
func (p *probe) Fatal(args ...any)               { p.Log(args...); p.FailNow() }
func (p *probe) Fatalf(format string, a ...any)  { p.Logf(format, a...); p.FailNow() }
func (p *probe) Skip(args ...any)                { p.end(NotExercised, fmt.Sprint(args...)); runtime.Goexit() }
func (p *probe) Skipf(format string, a ...any)   { p.Skip(fmt.Sprintf(format, a...)) }
func (p *probe) SkipNow()                        { p.Skip("skipped") }

func (p *probe) Skipped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outcome == NotExercised
}

func (p *probe) TempDir() string {
	d, err := os.MkdirTemp("", "conformance")
	if err != nil {
		p.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirs = append(p.dirs, d)
	return d
}
