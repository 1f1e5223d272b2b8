// Package judge reads histories and tells the verdicts of the sequence oracle, V1–V7,
// each broken one with the few events that show it.
package judge

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// IDs are the checks of the oracle.
func IDs() []string { return []string{"V1", "V2", "V3", "V4", "V5", "V6", "V7"} }

// Trials is what a check put at risk, and how much of it went wrong.
type Trials struct {
	Unit string `json:"unit"`
	N    int    `json:"n"`
	Bad  int    `json:"bad"`
}

// Verdict of one check over one history.
type Verdict struct {
	ID      string          `json:"id"`
	Rule    string          `json:"rule"`
	Outcome check.Outcome   `json:"outcome"`
	Why     string          `json:"why,omitempty"`
	Trials  []Trials        `json:"trials"`
	Counts  map[string]int  `json:"counts,omitempty"`
	Accused []string        `json:"accused,omitempty"` // message ids, the first few
	Witness []history.Event `json:"witness,omitempty"` // minimal: the events of the first accusation, in their order
}

// Report is all verdicts over one history.
type Report struct {
	File     string        `json:"file"`
	Events   int           `json:"events"`
	Torn     bool          `json:"torn,omitempty"`     // the last line is cut
	Problems []string      `json:"problems,omitempty"` // why nothing may be concluded
	Outcome  check.Outcome `json:"outcome"`            // broken before inconclusive before held
	Verdicts []Verdict     `json:"verdicts"`
}

// Verdict returns the verdict of one check; the zero one when it was not asked for.
func (r *Report) Verdict(id string) Verdict {
	for _, v := range r.Verdicts {
		if v.ID == id {
			return v
		}
	}
	return Verdict{}
}

// Broken lists the checks that are.
func (r *Report) Broken() []string {
	var out []string
	for _, v := range r.Verdicts {
		if v.Outcome == check.Broken {
			out = append(out, v.ID)
		}
	}
	return out
}

// File judges one file: the log of an oracle, or any history on one clock.
func File(path string, p check.Params, ids ...string) (Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return Report{}, fmt.Errorf("oracle: %w", err)
	}
	defer f.Close()
	return Read(path, f, p, ids...)
}

// Read judges what r holds, with the checks named, or all of IDs. The whole history is
// kept in memory, about 250 bytes an event.
func Read(name string, r io.Reader, p check.Params, ids ...string) (Report, error) {
	if len(ids) == 0 {
		ids = IDs()
	}
	var events []history.Event
	read, err := history.Read(r, func(e history.Event) error {
		events = append(events, e)
		return nil
	})
	if err != nil {
		return Report{}, fmt.Errorf("%s: %w", name, err)
	}
	h := history.New(events)
	if read.Bad > 0 {
		h.Problems = append([]string{fmt.Sprintf("%d lines are no events, the first is line %d", read.Bad, read.First)}, h.Problems...)
	}
	out := Report{File: name, Events: len(events), Torn: read.Torn, Problems: h.Problems, Outcome: check.Held, Verdicts: []Verdict{}}
	for _, c := range check.Named(ids...) {
		v := verdict(h, c, c.Fn(h, p))
		out.Verdicts = append(out.Verdicts, v)
		out.Outcome = worse(out.Outcome, v.Outcome)
	}
	if len(out.Verdicts) == 0 {
		out.Outcome = check.Inconclusive
	}
	return out, nil
}

// worse of two outcomes: broken, then inconclusive, then held.
func worse(a, b check.Outcome) check.Outcome {
	rank := func(o check.Outcome) int {
		return slices.Index([]check.Outcome{check.Held, check.Inconclusive, check.Broken}, o)
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

func verdict(h *history.History, c check.Check, r check.Result) Verdict {
	v := Verdict{ID: c.ID, Rule: c.Rule, Outcome: r.Outcome, Why: r.Why, Counts: r.Counts, Trials: []Trials{}}
	for _, t := range r.Trials {
		v.Trials = append(v.Trials, Trials{t.Unit, t.N, t.Bad})
	}
	if r.Outcome != check.Broken {
		return v // an unsound history accuses nobody
	}
	v.Accused = r.IDs
	w := slices.Clone(r.Witness)
	slices.SortFunc(w, cmp.Compare[int])
	for _, i := range slices.Compact(w) {
		v.Witness = append(v.Witness, h.Events[i])
	}
	return v
}
