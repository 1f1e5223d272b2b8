package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func quiet(t *testing.T) (*session, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	return &session{printer: &printer{out: &out}, ctx: t.Context(), env: os.Environ(), root: t.TempDir()}, &out
}

// A module with a package of each fate; the counts and the output must tell them apart.
func TestGoTestIsCountedFromItsEvents(t *testing.T) {
	t.Parallel()
	s, out := quiet(t)
	for name, content := range map[string]string{
		"go.mod": "module example.test\n\ngo 1.26.0\n",
		"good/a_test.go": `package good
import "testing"
func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) {}) }
func TestB(t *testing.T) { t.Skip("VARAL_X_URL is unset") }
`,
		"bad/a_test.go": `package bad
import "testing"
func TestFine(t *testing.T) {}
func TestBroken(t *testing.T) { t.Error("the pizza is cold") }
`,
		"panics/a_test.go": `package panics
import "testing"
func TestBoom(t *testing.T) { panic("oven on fire") }
`,
		"typo/a_test.go": "package typo\nfunc f() { undefinedName() }\n",
		"none/a.go":      "package none\n",
		"main/a_test.go": `package main_test
import ("os"; "testing")
func TestMain(m *testing.M) { m.Run(); os.Exit(3) }
func TestOK(t *testing.T) {}
`,
	} {
		path := filepath.Join(s.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(s.env, "GOFLAGS=-vet=off", "GOWORK=off")
	s.test([]string{"./..."}, "", nil)
	// good 2 and 1 skipped; bad 1 and 1; panics, typo and main fail as packages, main
	// beside a test that passed.
	if want := (tally{passed: 4, failed: 4, skipped: 1}); s.tally != want {
		t.Errorf("counted %s, want %s\n%s", s.tally, want, out)
	}
	s.summary(time.Second)
	for _, want := range []string{"the pizza is cold", "oven on fire", "undefinedName", "skipped 1: VARAL_X_URL is unset"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

func TestClosingLine(t *testing.T) {
	t.Parallel()
	if got, want := (tally{12, 3, 4}).String(), "12 passed, 3 failed, 4 skipped"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStagesAreChosenByName(t *testing.T) {
	t.Parallel()
	if _, err := choose([]string{"unti"}, nil); err == nil || !strings.Contains(err.Error(), "unit") {
		t.Errorf("a typo gives %v, want an error that lists the stages", err)
	}
	got, err := choose([]string{"unit", "build"}, []string{"build"})
	if err != nil || len(got) != 1 || got[0].name != "unit" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestReasonIsWhatTheTestSaid(t *testing.T) {
	t.Parallel()
	out := "=== RUN   TestX\n    x_test.go:12: VARAL_KAFKA_URL is unset: start it\n--- SKIP: TestX (0.00s)\n"
	if got, want := reason(out), "VARAL_KAFKA_URL is unset: start it"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A line that is no event must not end the reading.
func TestStrayLinesAreKept(t *testing.T) {
	t.Parallel()
	s, _ := quiet(t)
	e := newEvents(s)
	line, _ := json.Marshal(event{Action: "pass", Package: "p", Test: "T"})
	e.read(strings.NewReader("not json\n" + string(line) + "\n" + `{"Action":"pass","Package":"p"}`))
	if e.tally.passed != 1 || e.stray.String() != "not json\n" {
		t.Errorf("passed %d, stray %q", e.tally.passed, e.stray.String())
	}
}

// A race fails the tests that run, and its report may stand under one that passes.
func TestARaceIsPrintedWhereverItStands(t *testing.T) {
	t.Parallel()
	s, out := quiet(t)
	e := newEvents(s)
	for _, ev := range []event{
		{Action: "output", Package: "p", Test: "Passes", Output: "==================\n"},
		{Action: "output", Package: "p", Test: "Passes", Output: "WARNING: DATA RACE\n"},
		{Action: "output", Package: "p", Test: "Passes", Output: "Write at 0x01 by goroutine 7\n"},
		{Action: "pass", Package: "p", Test: "Passes"},
		{Action: "output", Package: "p", Test: "Fails", Output: "race detected during execution of test\n"},
		{Action: "fail", Package: "p", Test: "Fails"},
		{Action: "fail", Package: "p"},
	} {
		line, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		e.read(bytes.NewReader(append(line, '\n')))
	}
	s.summary(time.Second)
	if !strings.Contains(out.String(), "Write at 0x01 by goroutine 7") {
		t.Errorf("the report is lost:\n%s", out)
	}
	if e.tally != (tally{passed: 1, failed: 1}) {
		t.Errorf("counted %s", e.tally)
	}
}

// A crash of the race detector is no failure of ours, once.
func TestACrashOfTheRaceDetectorIsTriedAgain(t *testing.T) {
	t.Parallel()
	play := func(last bool) (*events, string) {
		s, out := quiet(t)
		e := newEvents(s)
		e.last = last
		for _, ev := range []event{
			{Action: "pass", Package: "p", Test: "Fine"},
			{Action: "output", Package: "p", Test: "Runs", Output: "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346\n"},
			{Action: "fail", Package: "p"},
		} {
			line, err := json.Marshal(ev)
			if err != nil {
				t.Fatal(err)
			}
			e.read(bytes.NewReader(append(line, '\n')))
		}
		s.summary(time.Second)
		return e, out.String()
	}
	if e, out := play(false); len(e.crashed) != 1 || e.tally != (tally{}) || strings.Contains(out, "FAIL") {
		t.Errorf("crashed %v, counted %s, %s", e.crashed, e.tally, out)
	}
	if e, out := play(true); len(e.crashed) != 0 || e.tally.failed != 1 || !strings.Contains(out, "tsan_rtl") {
		t.Errorf("crashed %v, counted %s, %s", e.crashed, e.tally, out)
	}
}
