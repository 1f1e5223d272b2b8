package memory

import (
	"time"

	"github.com/varal-go/varal/core/driver"
)

// log keeps messages within limits; the oldest go first. Guarded by the destination's
// lock.
type log struct {
	ring   ring[stored]
	first  int64 // offset of the oldest kept
	bytes  int64
	limits limits
}

func newLog(l limits) *log { return &log{limits: l} }

// next is the offset of the next message written.
func (l *log) next() int64 { return l.first + int64(l.ring.len()) }

func (l *log) append(m *stored) {
	l.ring.push(m)
	l.bytes += m.size
}

func (l *log) stale(now int64) bool {
	switch {
	case l.ring.len() == 0:
		return false
	case l.ring.len() > l.limits.messages, l.bytes > l.limits.bytes && l.ring.len() > 1:
		return true
	}
	return l.limits.age > 0 && l.ring.at(0).at+int64(l.limits.age) <= now
}

func (l *log) trim(now int64) {
	for l.stale(now) {
		l.bytes -= l.ring.pop().size
		l.first++
	}
}

// since is the offset of the first message at or after t.
func (l *log) since(t time.Time) int64 {
	for i := range l.ring.len() {
		if !l.ring.at(i).Time.Before(t) {
			return l.first + int64(i)
		}
	}
	return l.next()
}

// resolve turns a position into an offset.
func (l *log) resolve(p driver.Position) int64 {
	switch p.Kind {
	case driver.Latest:
		return l.next()
	case driver.At:
		return p.Offset
	case driver.Since:
		return l.since(p.Time)
	}
	return l.first
}
