package aws

import (
	"time"

	"github.com/varal-go/varal/core/driver"
)

// What the tests look at from outside.
var (
	LegalText   = legalText
	MergePolicy = mergePolicy
	MaxReceives = maxReceives
	WaitFor     = waitFor
)

// Attribute is one attribute as it travels.
type Attribute struct {
	Name, Text string
	Raw        []byte
}

// Encode returns body, attributes and size of a message on the wire.
func Encode(m *driver.Message, promoted []string, keyTold bool) (body string, attrs []Attribute, size int) {
	r := encode(m, promoted, keyTold)
	for _, a := range r.attrs {
		attrs = append(attrs, Attribute{a.name, a.text, a.raw})
	}
	return r.body, attrs, r.size
}

// Decode reads what Encode wrote, or what somebody else did.
func Decode(body string, attrs []Attribute, native, group string, sent time.Time) (driver.Message, error) {
	in := incoming{body: body, native: native, group: group, sent: sent}
	for _, a := range attrs {
		in.attrs = append(in.attrs, attribute{name: a.Name, binary: a.Raw != nil, text: a.Text, raw: a.Raw})
	}
	return decode(&in)
}

// Group returns the message group of a message, and whether it says what the key is.
func Group(m *driver.Message) (string, bool) { return groupOf(m) }

// ClassOfCode returns the class of an answer.
func ClassOfCode(code, message string, status int) (driver.Class, time.Duration) {
	return classOfCode(code, message, status)
}

// WireName is the name of a queue.
func WireName(c Config, d driver.Destination, group string) (string, error) {
	return c.queueName("test", d, group)
}

// Polls plays the pollers of one consumer.
type Polls struct{ p polls }

// NewPolls returns one with at most so many requests.
func NewPolls(most int) *Polls { return &Polls{polls{most: most, target: 1}} }

// Ask begins a request if there is room.
func (p *Polls) Ask(room int, now time.Time) int { return p.p.ask(room, now) }

// Answered ends one.
func (p *Polls) Answered(n, got int, early bool, now time.Time) { p.p.answered(n, got, early, now) }

// Open is how many there are.
func (p *Polls) Open() int { return p.p.open }

// Extend returns the visibility timeout that renews a delivery which has been out for so
// long.
func Extend(lease, out, by time.Duration) (int32, error) {
	now := time.Now()
	s := settling{c: &consumer{lease: lease, ledger: newLedger()}, now: now, seen: map[*delivery]int{}}
	d := &delivery{id: "x", from: now.Add(-out), deadline: now.Add(time.Second)}
	if err := s.extend(0, d, by); err != nil {
		return 0, err
	}
	return s.changes[0].seconds, nil
}

// HideAfter returns text as an error prints it once so many credentials were fetched.
func HideAfter(c *Config, fetched []string, text string) string {
	s := newSecrets(c)
	for _, f := range fetched {
		s.add(f)
	}
	return s.hidden(text)
}
