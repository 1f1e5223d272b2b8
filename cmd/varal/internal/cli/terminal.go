package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

func isTerminal(w any) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// The colours of a terminal.
const (
	red   = "31"
	green = "32"
	dim   = "2"
	bold  = "1"
)

func (s *session) paint(colour, text string) string {
	if !s.screen || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// status shows one line of progress in place of the last one, on a terminal only.
func (s *session) status(format string, args ...any) {
	if s.live {
		_, _ = fmt.Fprintf(s.err, "\r\x1b[K"+format, args...) // a closed stderr shows nothing
	}
}

// clearStatus removes the line of progress.
func (s *session) clearStatus() { s.status("") }

// printJSON writes v on one line.
func (s *session) printJSON(v any) error {
	e := json.NewEncoder(s.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table writes rows in columns; numbers tells which columns are numbers. A cell may be
// painted after its width is known.
func (s *session) table(w io.Writer, rows [][]string, numbers func(col int) bool, colour func(row, col int) string) error {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for r, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if c := colour(r, i); c != "" {
				cell = s.paint(c, cell)
			}
			switch {
			case numbers(i):
				b.WriteString(pad + cell)
			case i == len(row)-1:
				b.WriteString(cell)
			default:
				b.WriteString(cell + pad)
			}
			if i < len(row)-1 {
				b.WriteString("  ")
			}
		}
		out.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// report prints what a run found, and returns errFound unless it is clean.
func (s *session) report(v any, clean, asJSON bool, table func() error) error {
	var err error
	if asJSON {
		err = s.printJSON(v)
	} else {
		err = table()
	}
	if !clean {
		return &coded{Failed, errFound} // a closed pipe must not turn a loss into success
	}
	return err
}
