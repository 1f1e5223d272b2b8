package core

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/varal-go/varal/core/driver"
)

// Limits of messages, on the way out (a breach is an error) and on the way in (what
// breaches them is flagged, or the message is dead-lettered).
type Limits struct {
	// Headers is the most header fields. 0 = 64.
	Headers int
	// HeaderKey is the most bytes of a header key. 0 = 128.
	HeaderKey int
	// HeaderValue is the most bytes of a header value. 0 = 4 KiB.
	HeaderValue int
	// HeaderBytes is the most bytes of all header keys and values. 0 = 16 KiB.
	HeaderBytes int
	// Body is the most bytes of a body. 0 = what the broker takes.
	Body int
	// Key is the most bytes of a key. 0 = 256.
	Key int
}

func (l *Limits) setDefaults() {
	setDefault(&l.Headers, 64)
	setDefault(&l.HeaderKey, 128)
	setDefault(&l.HeaderValue, 4<<10)
	setDefault(&l.HeaderBytes, 16<<10)
	setDefault(&l.Key, 256)
}

// maxName is the longest name any of the brokers takes.
const maxName = 255

// checkName refuses a destination's or group's name that no broker takes, before it
// reaches one, or a log.
func checkName(verb string, to Destination, field, name string) error {
	if len(name) > maxName {
		return driver.Errorf(verb+to.String(), driver.Permanent, "%s has %d bytes; the longest that any broker takes is %d", field, len(name), maxName)
	}
	for _, r := range name {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return driver.Errorf(verb+to.String(), driver.Permanent, "%s %q holds a character that does not print", field, name)
		}
	}
	return nil
}

// publishOp names the call in an error. It is only put together once there is one.
func publishOp(to Destination) string { return "publish " + to.String() }

// reserved reports whether a header name is varal's own.
func reserved(key string) bool { return strings.HasPrefix(key, driver.HeaderPrefix) }

// check refuses a message that may not be published. The text names the field and
// the limit.
func (l *Limits) check(to Destination, m *Message, maxBytes int) error {
	switch {
	case len(m.Headers) > l.Headers:
		return driver.Errorf(publishOp(to), driver.TooLarge, "%d headers; the limit is %d (Limits.Headers)", len(m.Headers), l.Headers)
	case len(m.Key) > l.Key:
		return driver.Errorf(publishOp(to), driver.TooLarge, "key of %d bytes; the limit is %d (Limits.Key)", len(m.Key), l.Key)
	case l.Body > 0 && len(m.Body) > l.Body:
		return driver.Errorf(publishOp(to), driver.TooLarge, "body of %d bytes; the limit is %d (Limits.Body)", len(m.Body), l.Body)
	case m.Delay < 0:
		return driver.Errorf(publishOp(to), driver.Permanent, "Message.Delay is negative: %v", m.Delay)
	case m.TTL < 0:
		return driver.Errorf(publishOp(to), driver.Permanent, "Message.TTL is negative: %v", m.TTL)
	case m.Priority < 0:
		return driver.Errorf(publishOp(to), driver.Permanent, "Message.Priority is negative: %d", m.Priority)
	}
	total := 0
	for i := range m.Headers {
		h := &m.Headers[i]
		total += len(h.Key) + len(h.Value)
		if err := l.checkHeader(to, h); err != nil {
			return err
		}
	}
	if total > l.HeaderBytes {
		return driver.Errorf(publishOp(to), driver.TooLarge, "headers of %d bytes; the limit is %d (Limits.HeaderBytes)", total, l.HeaderBytes)
	}
	if maxBytes > 0 && total+len(m.Body)+len(m.Key) > maxBytes {
		return driver.Errorf(publishOp(to), driver.TooLarge, "message of %d bytes; the broker takes %d", total+len(m.Body)+len(m.Key), maxBytes)
	}
	return nil
}

func (l *Limits) checkHeader(to Destination, h *Header) error {
	switch {
	case h.Key == "":
		return driver.Errorf(publishOp(to), driver.Permanent, "a header key is empty")
	case len(h.Key) > l.HeaderKey:
		return driver.Errorf(publishOp(to), driver.TooLarge, "header key of %d bytes; the limit is %d (Limits.HeaderKey)", len(h.Key), l.HeaderKey)
	case len(h.Value) > l.HeaderValue:
		return driver.Errorf(publishOp(to), driver.TooLarge, "header %q of %d bytes; the limit is %d (Limits.HeaderValue)", h.Key, len(h.Value), l.HeaderValue)
	case reserved(h.Key) && !sequenced(h):
		return driver.Errorf(publishOp(to), driver.Permanent, "header %q: names that start with %q are varal's own; to publish a received message again use Delivery.Forward", h.Key, driver.HeaderPrefix)
	}
	for i := range len(h.Key) {
		if c := h.Key[i]; !isHeaderByte(c) {
			return driver.Errorf(publishOp(to), driver.Permanent, "header %q: a key may hold A-Z a-z 0-9 . _ - only", h.Key)
		}
	}
	return nil
}

// sequenced tells the one header of ours that comes to Client.Publish from outside: an
// OrderedPublisher wrote it, maybe with other Publishers in between.
func sequenced(h *Header) bool {
	if h.Key != driver.HeaderSeq {
		return false
	}
	_, ok := parseSequence(h.Value)
	return ok
}

func isHeaderByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// incoming applies the header limits to a received message: it keeps ours and the
// first others that fit, in a fresh slice, and reports how many were dropped.
func (l *Limits) incoming(headers []Header) ([]Header, int) {
	total := 0
	for i := range headers {
		total += len(headers[i].Key) + len(headers[i].Value)
	}
	if len(headers) <= l.Headers && total <= l.HeaderBytes {
		return headers, 0
	}
	kept, bytes, others, ours := make([]Header, 0, min(len(headers), l.Headers)), 0, 0, 0
	for _, h := range headers {
		if reserved(h.Key) && ours < l.Headers && len(h.Value) <= l.HeaderBytes {
			ours++
			kept = append(kept, h)
			continue
		}
		if others < l.Headers && bytes+len(h.Key)+len(h.Value) <= l.HeaderBytes {
			kept = append(kept, h)
			others++
			bytes += len(h.Key) + len(h.Value)
		}
	}
	return kept, len(headers) - len(kept)
}
