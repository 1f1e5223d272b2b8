package sessions

import "github.com/varal-go/varal/cmd/varal/internal/ticket"

// Event is one thing that happens to a message of session 0: "start", "fail", "end", or
// "revoke", of no message.
type Event struct {
	Kind string
	N    uint32
}

// Examine plays events of one session to the checker, and returns what it and the log at
// the end say of them, handed messages having been confirmed.
func Examine(handed uint32, events ...Event) (violations, lost, duplicates int64) {
	c := newChecker(1)
	for i, e := range events {
		switch e.Kind {
		case "start":
			c.begin(0, e.N)
		case "fail", "end":
			c.finish(ticket.Ticket{N: e.N}, e.Kind == "end", int64(i))
		case "revoke":
			c.revoked()
		}
	}
	c.lines[0].handed = handed
	a := c.verdict()
	return c.violations.Load(), a.lost, a.duplicates
}

// Judged is the log's account alone: overlaps and overtaken messages.
func Judged(handed uint32, events ...Event) (overlaps, overtaken int64) {
	var log []uint32
	for _, e := range events {
		kind, ok := map[string]uint32{"start": logStarted, "fail": logFailed, "end": logEnded}[e.Kind]
		if ok {
			log = append(log, e.N<<2|kind)
		}
	}
	a := judge(log, handed)
	return a.overlaps, a.overtaken
}

// Ceiling is the bound of the law.
func (o *Options) Ceiling() float64 { return o.ceiling() }

// Fails decides about one attempt.
func (o *Options) Fails(session, n uint32, try int) bool { return o.fails(session, n, try) }

// RoundTrip encodes and decodes a body.
func RoundTrip(session, n uint32, stamp int64, size int) (s, m uint32, at int64, ok bool) {
	b := ticket.Ticket{Session: session, N: n, Stamp: stamp}.Append([]byte("before"), 7, size)[len("before"):]
	t, ok := ticket.Decode(b, 7, size)
	_, foreign := ticket.Decode(b, 8, size)
	_, short := ticket.Decode(b[:len(b)-1], 7, size)
	return t.Session, t.N, t.Stamp, ok && !foreign && !short
}
