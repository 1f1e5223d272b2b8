package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// printer writes the progress lines and keeps the failures for the end.
type printer struct {
	mu     sync.Mutex
	out    io.Writer
	colour bool

	results  sync.Mutex // guards failures, and session.tally: two test runs may be under way
	failures []failure
}

type failure struct{ what, output string }

func newPrinter(out *os.File) *printer {
	return &printer{out: out, colour: term.IsTerminal(int(out.Fd())) && os.Getenv("NO_COLOR") == ""}
}

// Write lets other packages print their progress among ours.
func (p *printer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *printer) line(format string, args ...any) {
	_, _ = fmt.Fprintf(p, format+"\n", args...)
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
)

func (p *printer) paint(code, s string) string {
	if !p.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *printer) result(code, word, what string, took time.Duration, note string) {
	if note != "" {
		note = "  " + note
	}
	p.line("  %s %-52s %6.1fs%s", p.paint(code, fmt.Sprintf("%-4s", word)), what, took.Seconds(), note)
}

func (s *session) stage(st stage) {
	s.line("%s", s.paint(bold, "== "+st.name+": "+st.about))
	begun, before := time.Now(), s.tally
	st.run(s)
	done := tally{s.tally.passed - before.passed, s.tally.failed - before.failed, s.tally.skipped - before.skipped}
	s.line("-- %s: %s in %.1fs", st.name, done, time.Since(begun).Seconds())
}

func (s *session) pass(what string, took time.Duration, note string) {
	s.count(tally{passed: 1})
	s.result(green, "ok", what, took, note)
}

func (s *session) count(t tally) {
	s.results.Lock()
	defer s.results.Unlock()
	s.tally.add(t)
}

// failed keeps the output of a failure for the summary.
func (p *printer) failed(what, output string) {
	p.results.Lock()
	defer p.results.Unlock()
	p.failures = append(p.failures, failure{what, output})
}

// skip is loud: a check that did not run must not look like one that passed.
func (s *session) skip(what, why string) {
	s.count(tally{skipped: 1})
	s.line("  %s %s: %s", s.paint(yellow, "SKIP"), what, why)
}

func (s *session) fail(what, output string) {
	s.count(tally{failed: 1})
	s.failed(what, output)
	s.line("  %s %s", s.paint(red, "FAIL"), what)
}

// summary repeats every failure in full, at the end, where it is looked for.
func (s *session) summary(took time.Duration) {
	for _, f := range s.failures {
		s.line("\n%s\n%s", s.paint(red, "FAILED: "+f.what), strings.TrimRight(f.output, "\n"))
	}
	s.line("\nall stages in %s", took.Round(time.Second))
}
