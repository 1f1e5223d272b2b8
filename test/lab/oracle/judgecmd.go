package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/oracle/judge"
)

// schema names the shape of judge --json; inside /1 only additions.
const schema = "varal-oracle/1"

// runJudge judges each file by itself: the clocks of two files are not the same.
func runJudge(args []string, out io.Writer) (int, error) {
	set := flag.NewFlagSet("oracle judge", flag.ContinueOnError)
	asJSON := set.Bool("json", false, "write one JSON object instead of text")
	only := set.String("only", "", "`IDS` of the checks, separated by commas; empty = V1 to V7")
	groups := set.String("groups", "", "`NAMES` of the groups that each owe every message; empty = a queue, anyone may handle it")
	var p check.Params
	set.IntVar(&p.Attempts, "attempts", 0, "most attempts of a message, 0 = not limited")
	set.IntVar(&p.Growth, "growth", 0, "how much a resource may grow (V7)")
	if err := set.Parse(args); err != nil {
		return exitUsage, err
	}
	p.Groups = list(*groups)
	ids, err := known(list(*only))
	if err != nil {
		return exitUsage, err
	}
	if set.NArg() == 0 {
		return exitUsage, fmt.Errorf("%w: oracle judge [--json] [--only V1,V2] FILE…", errUsage)
	}
	var reports []judge.Report
	for _, path := range set.Args() {
		r, err := judge.File(path, p, ids...)
		if err != nil {
			return exitUsage, err
		}
		reports = append(reports, r)
	}
	return exitOf(reports), show(out, reports, *asJSON)
}

func show(out io.Writer, reports []judge.Report, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Schema string         `json:"schema"`
			Files  []judge.Report `json:"files"`
		}{schema, reports})
	}
	for i := range reports {
		if err := reports[i].Text(out); err != nil {
			return err
		}
	}
	return nil
}

func exitOf(reports []judge.Report) int {
	code := exitOK
	for _, r := range reports {
		switch r.Outcome {
		case check.Broken:
			return exitBroken
		case check.Inconclusive:
			code = exitInconclusive
		}
	}
	return code
}

// known refuses an ID that no check has: a typo would judge nothing, and say held.
func known(ids []string) ([]string, error) {
	for _, id := range ids {
		if len(check.Named(id)) == 0 {
			var all []string
			for _, c := range check.All() {
				all = append(all, c.ID)
			}
			slices.Sort(all)
			return nil, fmt.Errorf("%w: --only %q: there is no such check, there are %s", errUsage, id, strings.Join(all, " "))
		}
	}
	return ids, nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
