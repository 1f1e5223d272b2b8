package judge

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// Text writes a report for people. What comes from members is quoted where it does not
// print, so that a history cannot forge lines of the report.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	torn := ""
	if r.Torn {
		torn = ", the last line is torn"
	}
	fmt.Fprintf(&b, "%s: %d events%s: %s\n", plain(r.File), r.Events, torn, r.Outcome)
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "  not sound: %s\n", plain(p))
	}
	for _, v := range r.Verdicts {
		v.text(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (v *Verdict) text(b *strings.Builder) {
	fmt.Fprintf(b, "  %-4s %-13s", v.ID, map[check.Outcome]string{check.Broken: "BROKEN"}[v.Outcome]+held(v.Outcome))
	for _, t := range v.Trials {
		fmt.Fprintf(b, "%d of %d %s", t.Bad, t.N, t.Unit)
	}
	for _, k := range slices.Sorted(maps.Keys(v.Counts)) {
		fmt.Fprintf(b, " · %s %d", plain(k), v.Counts[k])
	}
	b.WriteByte('\n')
	if v.Outcome == check.Held {
		return
	}
	fmt.Fprintf(b, "       %s\n", plain(v.Why))
	if v.Outcome != check.Broken {
		return
	}
	fmt.Fprintf(b, "       rule: %s\n", v.Rule)
	for i := range v.Witness {
		fmt.Fprintf(b, "       %s\n", line(&v.Witness[i], v.Witness[0].T))
	}
}

func held(o check.Outcome) string {
	if o == check.Broken {
		return ""
	}
	return o.String()
}

// line shows one event; times count from the first of the witness.
func line(e *history.Event, from int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+12.3f ms  %s/%d %s", float64(e.T-from)/float64(time.Millisecond), plain(e.Proc), e.Gen, plain(string(e.Op)))
	word := func(label, s string) {
		if s != "" {
			b.WriteString(" " + label + plain(s))
		}
	}
	number := func(label string, n int) {
		if n != 0 {
			b.WriteString(" " + label + strconv.Itoa(n))
		}
	}
	word("", e.ID)
	word("key ", e.Key)
	number("n ", e.N)
	number("attempt ", e.Attempt)
	word("", e.Outcome)
	word("class ", e.Class)
	word("group ", e.Group)
	word("at ", e.Dest)
	word("partition ", e.Partition)
	word("position ", e.Position)
	return b.String()
}

func plain(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}
