package core

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/varal-go/varal/core/driver"
)

const (
	maxErrorText = 1 << 10
	maxStackText = 4 << 10
	cutMark      = "…[cut]"
)

// deadLetter publishes the dead-letter copy of a flight and waits for its confirm.
// The original is settled only after it returned nil.
func (s *Consumer) deadLetter(f *flight) error {
	to := s.p.DeadLetter
	limit := s.c.Capabilities(to).MaxBytes
	m := s.deadLetterCopy(f, limit)
	err := s.c.publish(s.pctx, to, []*Message{m}, false)
	if errors.Is(err, ErrTooLarge) && limit == 0 {
		// The broker takes less than it declares: cut to the record alone rather than
		// try a copy for ever that can never be stored.
		fit(m, m.Size()/2)
		err = s.c.publish(s.pctx, to, []*Message{m}, false)
	}
	return err
}

// deadLettered ends the flight after a confirmed copy, or tries again later.
func (s *Consumer) deadLettered(f *flight, err error) {
	switch {
	case f.asg.closed || f.lost:
		s.finishLocked(f, driver.Settlement{})
	case err == nil:
		s.counts.DeadLettered++
		s.blockKey(f)
		s.later(func() { s.signalled(SignalDeadLettered, f.rec.Receipt.Partition, f.rec.ID, 1, f.past().cause) })
		s.finishLocked(f, driver.Settlement{Disposition: driver.Reject, Reason: f.past().cause})
	default:
		cause := f.past().cause
		s.later(func() { s.signalled(SignalDeadLetterFailed, f.rec.Receipt.Partition, f.rec.ID, f.past().tries+1, err) })
		s.again(f, 0, err)
		f.trouble().cause = cause // the record tells why the message failed, not why its copy did
	}
}

// deadLetterCopy builds the record: the message as it came, and how it failed.
func (s *Consumer) deadLetterCopy(f *flight, limit int) *Message {
	r := &f.rec
	m := &Message{ID: r.ID, Key: r.Key, Type: r.Type, Body: r.Body, Time: r.Time}
	m.Headers = without(r.Headers, 16, func(key string) bool { return failureHeaders[key] })
	m.Headers = append(m.Headers, s.failureRecord(f)...)
	if limit > 0 {
		fit(m, limit)
	}
	return m
}

// failureHeaders are replaced by a new failure, and dropped by a redrive.
var failureHeaders = map[string]bool{
	driver.HeaderSource: true, driver.HeaderSourceGroup: true, driver.HeaderSourcePart: true, driver.HeaderSourceOffset: true,
	driver.HeaderFirstFailure: true, driver.HeaderLastFailure: true, driver.HeaderAttempts: true,
	driver.HeaderFailureReason: true, driver.HeaderErrorClass: true, driver.HeaderError: true, driver.HeaderStack: true,
	driver.HeaderTruncated: true, driver.HeaderBlockedBy: true, driver.HeaderAttempt: true, driver.HeaderDue: true, driver.HeaderGroup: true,
}

// failureRecord is the table of core/DESIGN.md.
func (s *Consumer) failureRecord(f *flight) []Header {
	t := f.past()
	place := f.rec.NativeID
	if f.rec.Offset >= 0 {
		place = strconv.FormatInt(f.rec.Offset, 10)
	}
	class := driver.ClassOf(t.cause)
	className := "unclassified"
	switch {
	case class != 0:
		className = class.String()
	case errors.Is(t.cause, ErrPermanent):
		className = driver.Permanent.String()
	}
	attempts := f.base + f.failures - 1
	if t.reason == reasonUndecodable || t.reason == reasonTooLarge || t.reason == reasonBlocked {
		attempts = 0
	}
	out := []Header{
		{Key: driver.HeaderSource, Value: s.from.Shape.String() + " " + s.sub.From.Name},
		{Key: driver.HeaderSourceGroup, Value: s.sub.Group},
		{Key: driver.HeaderSourcePart, Value: f.rec.Receipt.Partition},
		{Key: driver.HeaderSourceOffset, Value: place},
		{Key: driver.HeaderFirstFailure, Value: rfc3339(t.first)},
		{Key: driver.HeaderLastFailure, Value: rfc3339(t.last)},
		{Key: driver.HeaderAttempts, Value: strconv.Itoa(attempts)},
		{Key: driver.HeaderFailureReason, Value: t.reason},
		{Key: driver.HeaderErrorClass, Value: className},
		{Key: driver.HeaderError, Value: clean(errText(t.cause), maxErrorText)},
	}
	if t.blocker != "" {
		out = append(out, Header{Key: driver.HeaderBlockedBy, Value: clean(t.blocker, maxErrorText)})
	}
	if len(t.stack) > 0 {
		out = append(out, Header{Key: driver.HeaderStack, Value: clean(string(t.stack), maxStackText)})
	}
	return out
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// clean makes text fit for a header: valid UTF-8, one line, at most limit bytes.
func clean(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			b.WriteString(`\x` + strconv.FormatInt(int64(r)+0x100, 16)[1:])
		default:
			b.WriteRune(r)
		}
		if b.Len() > limit {
			break
		}
	}
	return cut(b.String(), limit)
}

// cut shortens text to limit bytes at a rune's edge, and says so.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := max(limit-len(cutMark), 0)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cutMark
}

// fit shortens a dead-letter copy to limit bytes: first the stack, then the
// application's headers, then the body. What was cut is named in a header.
func fit(m *Message, limit int) {
	if m.Size() <= limit {
		return
	}
	var what []string
	drop := func(name string, remove func(key string) bool) {
		n := len(m.Headers)
		if m.Headers = without(m.Headers, 1, remove); len(m.Headers) < n {
			what = append(what, name)
		}
	}
	const note = 64 // room for the header that names what was cut
	if m.Size()+note > limit {
		drop("stack", func(k string) bool { return k == driver.HeaderStack })
	}
	if m.Size()+note > limit {
		drop("headers", func(k string) bool { return !failureHeaders[k] })
	}
	if over := m.Size() + note - limit; over > 0 && len(m.Body) > 0 {
		m.Body = m.Body[:max(len(m.Body)-over, 0)]
		what = append(what, "body")
	}
	m.Headers = append(m.Headers, Header{Key: driver.HeaderTruncated, Value: strings.Join(what, ",")})
}

// sendOn publishes a message that came before it is due, with the rest of its delay,
// to this group alone.
func (s *Consumer) sendOn(f *flight) error {
	r := &f.rec
	due := readHeaders(r.Headers).due
	m := &Message{ID: r.ID, Key: r.Key, Type: r.Type, Headers: r.Headers, Body: r.Body, Time: r.Time}
	m.Delay, m.Priority = max(time.Until(due), 0), r.Priority
	if r.TTL > 0 && !r.Time.IsZero() { // counted from its own publishing, not from this hop
		m.TTL = max(time.Until(r.Time.Add(r.TTL)), time.Millisecond)
	}
	m.Headers = without(r.Headers, 1, func(k string) bool { return k == driver.HeaderDue })
	to := s.sub.From
	if s.from.Shape == driver.Topic {
		to.Group = s.sub.Group
	}
	return s.c.publish(s.pctx, to, []*Message{m}, false)
}

// sentOn acks after a confirmed hop.
func (s *Consumer) sentOn(f *flight, err error) {
	switch {
	case f.asg.closed || f.lost:
		s.finishLocked(f, driver.Settlement{})
	case err == nil:
		s.finishLocked(f, driver.Settlement{Disposition: driver.Ack})
	default:
		s.again(f, 0, err)
	}
}
