package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Scorecard is the record of runs: what README tables are generated from.
type Scorecard struct {
	// Runs, one for each adapter and broker; Mutants, of the suite itself.
	Runs    []RunResult    `json:"runs"`
	Mutants []MutantResult `json:"mutants,omitempty"`
	// Unproven cases have caught no mutant.
	Unproven []string `json:"unproven,omitempty"`
}

// RunResult is one run of the suite.
type RunResult struct {
	// Adapter and Broker are Harness.Name and Harness.Broker.
	Adapter string `json:"adapter"`
	Broker  string `json:"broker"`
	// Real: a broker of its own, not a fake inside the test process.
	Real bool `json:"real"`
	// Emulator: a stand-in for the service. Bulk is Harness.Bulk.
	Emulator bool `json:"emulator,omitempty"`
	Bulk     int  `json:"bulk,omitempty"`
	// Cases are in the order of the suite.
	Cases []CaseResult `json:"cases"`
}

// CaseResult is the outcome of one case over all its shapes.
type CaseResult struct {
	// ID names the case; Outcome is the worst of its shapes.
	ID      string  `json:"id"`
	Outcome Outcome `json:"outcome"`
	// Reason of an outcome that is not pass.
	Reason string `json:"reason,omitempty"`
	// Shapes: the outcome by shape (queue, topic, stream, keyed).
	Shapes map[string]Outcome `json:"shapes,omitempty"`
	// Unsteady: it failed beside other cases and passed by itself (Harness.SecondTry).
	Unsteady bool `json:"unsteady,omitempty"`

	rule, log string
}

// Rule is the sentence the case checks.
func (r CaseResult) Rule() string { return r.rule }

// Log is what the case wrote.
func (r CaseResult) Log() string { return r.log }

// MutantResult tells which cases caught an adapter that is broken on purpose.
type MutantResult struct {
	// ID names the mutant, CaughtBy the cases that failed on it.
	ID       string   `json:"id"`
	CaughtBy []string `json:"caught_by"`
}

// ReadScorecard reads a file; one that does not exist is an empty card.
func ReadScorecard(path string) (Scorecard, error) {
	var s Scorecard
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(b, &s)
	return s, err
}

// Merge replaces the run of the same adapter and broker, or adds it.
func (s *Scorecard) Merge(r RunResult) {
	s.Runs = slices.DeleteFunc(s.Runs, func(o RunResult) bool { return o.Adapter == r.Adapter && o.Broker == r.Broker })
	s.Runs = append(s.Runs, r)
	slices.SortFunc(s.Runs, func(a, b RunResult) int { return strings.Compare(a.Adapter+a.Broker, b.Adapter+b.Broker) })
}

// Write stores the card as JSON.
func (s Scorecard) Write(path string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// Update reads the file of VARAL_SCORECARD, applies change and writes it back. Without
// the variable it does nothing.
func Update(change func(*Scorecard)) error {
	path := os.Getenv("VARAL_SCORECARD")
	if path == "" {
		return nil
	}
	unlock, err := lockCard(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	s, err := ReadScorecard(path)
	if err != nil {
		return err
	}
	change(&s)
	return s.Write(path)
}

// lockCard keeps two test binaries that end at once from writing over each other's
// part. A lock older than a minute was left by one that was killed.
func lockCard(path string) (unlock func(), err error) {
	for range 600 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			return func() { _ = os.Remove(path) }, f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > time.Minute {
			_ = os.Remove(path)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, fmt.Errorf("%s is held by another run", path)
}

var marks = map[Outcome]string{Pass: "✓", Refused: "refused", NotExercised: "not exercised", Fail: "**fail**"}

// Markdown writes the table of cases × runs.
func (s Scorecard) Markdown(w io.Writer) error {
	head, rule := "| case | behaviour |", "|---|---|"
	for _, r := range s.Runs {
		kind := r.kind()
		head += fmt.Sprintf(" %s: %s (%s) |", r.Adapter, r.Broker, kind)
		rule += "---|"
	}
	lines := []string{head, rule}
	for _, c := range allCases() {
		line := "| " + c.ID + " | " + c.Rule + " |"
		for _, r := range s.Runs {
			line += " " + r.mark(c.ID) + " |"
		}
		lines = append(lines, line)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// kind says in a word or two what the broker of a run is.
func (r RunResult) kind() string {
	kind := "fake"
	switch {
	case r.Emulator:
		kind = "emulator"
	case r.Real:
		kind = "real"
	}
	if r.Bulk > 0 {
		kind += fmt.Sprintf(", at most %d messages a case", r.Bulk)
	}
	return kind
}

func (r RunResult) mark(id string) string {
	for _, c := range r.Cases {
		if c.ID == id {
			return marks[c.Outcome]
		}
	}
	return "–"
}

// Counts of outcomes.
func (r RunResult) Counts() map[Outcome]int {
	n := map[Outcome]int{}
	for _, c := range r.Cases {
		n[c.Outcome]++
	}
	return n
}

// String is the score card as Run prints it.
func (r RunResult) String() string {
	var b strings.Builder
	n := r.Counts()
	fmt.Fprintf(&b, "score card of %s on %s (%s): %d pass, %d refused, %d not exercised, %d fail\n",
		r.Adapter, r.Broker, r.kind(), n[Pass], n[Refused], n[NotExercised], n[Fail])
	for _, c := range r.Cases {
		var shapes []string
		for _, v := range shapesOf {
			if o, ok := c.Shapes[v.name]; ok {
				shapes = append(shapes, v.name+" "+string(o))
			}
		}
		fmt.Fprintf(&b, "  %s %-13s %s", c.ID, c.Outcome, strings.Join(shapes, ", "))
		if c.Reason != "" {
			fmt.Fprintf(&b, " — %s", c.Reason)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
