package soak

import (
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/cmd/varal/internal/ticket"
)

// script plays events at a judge: "b1 3" is member 1 that begins message 3 of the one
// session, "d", "f" and "x" its end, "kill1", "lose1", "wait" the time of hindsight.
func script(events ...string) *judge {
	j := newJudge(1)
	for range 4 {
		j.join()
	}
	now := time.Duration(0)
	for _, e := range events {
		now += time.Millisecond
		word, number, _ := strings.Cut(e, " ")
		member := int(word[len(word)-1] - '0')
		t := ticket.Ticket{}
		for _, c := range number {
			t.N = t.N*10 + uint32(c-'0')
		}
		switch {
		case word == "wait":
			now += hindsight + 1
			j.sweep(now, false)
		case strings.HasPrefix(word, "kill"):
			j.buried(member)
		case strings.HasPrefix(word, "lose"):
			j.lostAll(member)
		case word[0] == 'b':
			j.begin(member, t, now)
		case word[0] == 'd':
			j.end(member, t, done)
		case word[0] == 'x':
			j.end(member, t, dead)
		case word[0] == 'f':
			j.end(member, t, failed)
		}
	}
	j.sweep(now, true)
	return j
}

func TestTheJudge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events     string
		violations int64
		lost       int64 // of 3
		duplicates int64
		why        string
	}{
		"in order":                               {events: "b1 1,f1 1,b1 1,d1 1,b1 2,x1 2,b2 3,d2 3"},
		"none came":                              {lost: 3},
		"one is missing":                         {"b1 1,d1 1,b1 3,d1 3", 1, 1, 0, "before 2 had ended"},
		"one comes late":                         {"b1 1,d1 1,b1 3,d1 3,b1 2,d1 2", 1, 0, 0, "before 2 had ended"},
		"overtaken while it runs":                {"b1 1,b1 2,d1 2,d1 1,b1 3,d1 3", 2, 0, 0, "while 1 ran"},
		"overtaken while it waits for its retry": {"b1 1,f1 1,b1 2,d1 2,b1 1,d1 1,b1 3,d1 3", 1, 0, 0, "before 1 had ended"},
		"again for no reason":                    {"b1 1,d1 1,b2 1,d2 1,b2 2,d2 2,b2 3,d2 3", 1, 0, 1, "started again"},
		"again at the same member":               {"b1 1,d1 1,b1 1,d1 1,b1 2,d1 2,b1 3,d1 3", 1, 0, 1, "started again"},
		"again after a kill":                     {events: "b1 1,d1 1,b1 2,d1 2,kill1,b2 1,d2 1,b2 2,d2 2,b2 3,d2 3", duplicates: 2},
		"again after another's kill":             {"b1 1,d1 1,kill3,b2 1,d2 1,b2 2,d2 2,b2 3,d2 3", 1, 0, 1, "after member 1 had ended it"},
		"again after the kill of one before":     {"b1 1,d1 1,kill1,b2 1,d2 1,b3 1,d3 1,b3 2,d3 2,b3 3,d3 3", 1, 0, 2, "after member 2 had ended it"},
		"back again behind what it did again":    {"b1 1,d1 1,b1 2,d1 2,kill1,b2 1,d2 1,b2 2,d2 2,b2 1,d2 1,b2 3,d2 3", 1, 0, 3, "started again"},
		"a dead one's attempt goes on":           {events: "b1 1,kill1,b2 1,d2 1,b2 2,d2 2,b2 3,d2 3"},
		"beside one that lives":                  {"b1 1,b2 1,d2 1,d1 1,b2 2,d2 2,b2 3,d2 3", 1, 0, 1, "while 1 ran at member 1"},
		"beside one that had lost its session":   {events: "b1 1,lose1,b2 1,d2 1,d1 1,b2 2,d2 2,b2 3,d2 3", duplicates: 1},
		"beside one that finds out later":        {events: "b1 1,b2 1,d2 1,lose1,f1 1,b2 2,d2 2,b2 3,d2 3"},
		"beside one that is killed later":        {"b1 1,b2 1,d2 1,kill1,b2 2,d2 2,b2 3,d2 3", 1, 0, 0, "while 1 ran"},
		"again before its kill":                  {"b1 1,d1 1,b2 1,d2 1,kill1,b2 2,d2 2,b2 3,d2 3", 1, 0, 1, "after member 1 had ended it"},
		"beside one that finds out too late":     {"b1 1,b2 1,d2 1,wait,lose1,f1 1,b2 2,d2 2,b2 3,d2 3", 1, 0, 0, "while 1 ran"},
		"behind what the next did":               {"b1 1,d1 1,b1 2,kill1,b2 3,d2 3", 1, 1, 0, "before 2 had ended"},
		"nobody published it":                    {"b1 1,d1 1,b1 2,d1 2,b1 3,d1 3,b1 4,d1 4", 1, 0, 0, "4 ended, and 3 were published"},
		"number zero":                            {"b1 0,b1 1,d1 1,b1 2,d1 2,b1 3,d1 3", 1, 0, 0, "nobody published it"},
	} {
		var events []string
		if c.events != "" {
			events = strings.Split(c.events, ",")
		}
		j := script(events...)
		lost := j.lost([]uint32{3})
		violations, notes := j.verdict()
		if violations != c.violations || lost != c.lost || j.duplicates.Load() != c.duplicates {
			t.Errorf("%s: %d violations, %d lost, %d done again: %q", name, violations, lost, j.duplicates.Load(), notes)
		}
		if c.why != "" && !strings.Contains(strings.Join(notes, "\n"), c.why) {
			t.Errorf("%s: %q, want %q", name, notes, c.why)
		}
	}
}

func TestDeadLettersAreOwed(t *testing.T) {
	t.Parallel()
	j := script("b1 1", "x1 1", "b1 2", "x1 2", "kill1", "b2 2", "x2 2", "b2 3", "d2 3")
	if j.due() != 2 {
		t.Errorf("%d are owed, want 2", j.due())
	}
	j.letter(ticket.Ticket{N: 2, Stamp: 7})
	j.letter(ticket.Ticket{N: 2}) // a second copy is lawful: the first one's sender was killed
	if j.due() != 1 || j.letters.Load() != 2 {
		t.Errorf("%d are owed, want 1", j.due())
	}
}

// Many owners, one after the other: what is kept of a session stays small, and the latest
// is known.
func TestWhatIsKeptOfASession(t *testing.T) {
	t.Parallel()
	j := newJudge(1)
	for n := range uint32(1000) {
		m := j.join()
		j.begin(m, ticket.Ticket{N: n + 1}, 0)
		j.end(m, ticket.Ticket{N: n + 1}, done)
	}
	if n := len(j.lines[0].ended); n != maxSpans {
		t.Errorf("%d spans are kept", n)
	}
	j.buried(999)
	m := j.join()
	j.begin(m, ticket.Ticket{N: 1000}, 0)
	j.end(m, ticket.Ticket{N: 1000}, done)
	j.sweep(0, true)
	if v, notes := j.verdict(); v != 0 || j.duplicates.Load() != 1 {
		t.Errorf("%d violations: %q", v, notes)
	}
}
