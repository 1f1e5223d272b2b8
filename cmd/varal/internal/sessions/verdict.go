package sessions

import "math"

// account is what a log proves.
type account struct{ overlaps, overtaken, duplicates, lost int64 }

func (a *account) add(b account) {
	a.overlaps += b.overlaps
	a.overtaken += b.overtaken
	a.duplicates += b.duplicates
	a.lost += b.lost
}

// judge reads the whole log of one session, of which handed messages were confirmed. It
// shares nothing with checker: message m was overtaken if any later one started before m
// ended for the first time, which is one comparison with the earliest start behind m.
func judge(log []uint32, handed uint32) (a account) {
	const never = math.MaxInt
	var highest uint32
	for _, e := range log {
		highest = max(highest, e>>2)
	}
	highest = max(highest, handed)
	started, ended := make([]int, highest+2), make([]int, highest+2)
	for i := range started {
		started[i], ended[i] = never, never
	}
	running := 0
	for at, e := range log {
		n := e >> 2
		switch e & 3 {
		case logStarted:
			if running++; running > 1 {
				a.overlaps++
			}
			started[n] = min(started[n], at)
		case logFailed:
			running--
		case logEnded:
			running--
			if ended[n] != never {
				a.duplicates++
				continue
			}
			ended[n] = at
		}
	}
	behind := never
	for m := highest; m >= 1; m-- {
		if behind < ended[m] {
			a.overtaken++
		}
		if ended[m] == never && m <= handed {
			a.lost++
		}
		behind = min(behind, started[m])
	}
	return a
}

// verdict judges all logs, once nothing runs any more, and holds the result against what
// was seen while the round ran.
func (c *checker) verdict() (a account) {
	for i := range c.lines {
		l := &c.lines[i]
		l.mu.Lock()
		one := judge(l.log, l.handed)
		if one.lost > 0 {
			c.note("session %d: %d of %d messages never came to their end", i, one.lost, l.handed)
		}
		l.mu.Unlock()
		a.add(one)
	}
	if seen := c.violations.Load(); a.overlaps+a.overtaken > seen || a.duplicates != c.duplicates.Load() {
		c.violation("the log shows %d overlaps, %d overtaken and %d duplicates; while it ran there were %d violations and %d duplicates",
			a.overlaps, a.overtaken, a.duplicates, seen, c.duplicates.Load())
	}
	return a
}
