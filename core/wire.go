package core

import (
	"strconv"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// ours is what varal's own headers say about a received message. Headers are
// untrusted: what does not parse counts as absent.
type ours struct {
	attempts int       // made before this copy
	group    string    // the one group it is for
	due      time.Time // not before
}

func readHeaders(headers []Header) (o ours) {
	for i := range headers {
		if !reserved(headers[i].Key) {
			continue
		}
		switch v := headers[i].Value; headers[i].Key {
		case driver.HeaderAttempt:
			if n, err := strconv.Atoi(v); err == nil && n > 0 && n <= maxAttempts {
				o.attempts = n
			}
		case driver.HeaderGroup:
			o.group = v
		case driver.HeaderDue:
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil && t.Before(time.Now().Add(366*24*time.Hour)) {
				o.due = t
			}
		}
	}
	return o
}

// without returns headers less those that remove says, in a fresh slice with room
// for extra more.
func without(headers []Header, extra int, remove func(key string) bool) []Header {
	out := make([]Header, 0, len(headers)+extra)
	for _, h := range headers {
		if !remove(h.Key) {
			out = append(out, h)
		}
	}
	return out
}

// rfc3339 is how varal writes a time into a header.
func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
