package redis

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// optionRetention is the option of a stream or topic by which what is older is trimmed,
// read or not.
const optionRetention = "retention"

// serverClock knows how far the server's clock is ahead of ours, by the ids it has given to
// entries. Retention goes by that clock: a publisher whose own is fast would delete what
// others may still want to read.
type serverClock struct {
	ahead atomic.Int64 // ms
	told  atomic.Bool
}

// set takes the id of an entry that was just confirmed. The answer took its time, so the
// server's clock is at that id or later, and retention errs to keeping.
func (c *serverClock) set(id string) {
	if ms, _, ok := splitID(id); ok {
		c.ahead.Store(int64(ms) - time.Now().UnixMilli())
		c.told.Store(true)
	}
}

// before is the first id that is not older than age; "" until the server has told its time.
func (c *serverClock) before(age time.Duration) string {
	ms := time.Now().UnixMilli() + c.ahead.Load() - age.Milliseconds()
	if !c.told.Load() || ms <= 0 {
		return ""
	}
	return strconv.FormatInt(ms, 10) + "-0"
}

// oldest is the id before which the log of a destination is trimmed; "" = nowhere.
func (b *broker) oldest(to driver.Destination) string {
	to.Group = ""
	b.mu.Lock()
	age := b.known[to]
	b.mu.Unlock()
	if age <= 0 {
		return ""
	}
	return b.clock.before(age)
}

// readRetention takes it from the answer of meta; 0 = for ever.
func readRetention(meta []any) time.Duration {
	if len(meta) < 4 {
		return 0
	}
	ms, _ := strconv.ParseInt(text(meta[3]), 10, 64)
	return time.Duration(ms) * time.Millisecond
}

// wantedRetention is what the options of a resource ask for.
func wantedRetention(op string, r driver.Resource) (age time.Duration, asked bool, err error) {
	for name, value := range r.Options {
		age, err = time.ParseDuration(value)
		switch {
		case name != optionRetention:
			return 0, false, driver.Errorf(op, driver.Unsupported, "option %q is unknown: there is %s (a duration; of a stream or topic)", name, optionRetention)
		case r.Shape == driver.Queue:
			return 0, false, driver.Errorf(op, driver.Unsupported, "option %s: a queue keeps what nobody has done; use a topic or a stream", name)
		case r.Group != "":
			return 0, false, driver.Errorf(op, driver.Unsupported, "option %s is one of the whole %s and not of a group", name, r.Shape)
		case err != nil || age < time.Millisecond:
			return 0, false, driver.Errorf(op, driver.Permanent, "option %s is %q: want a duration such as 72h", name, value)
		}
		asked = true
	}
	return age, asked, nil
}

// retain compares the retention that is asked for with the one there is, and sets it in
// Create. Publishers learn of a change when they ask for the destination next, so at the
// latest when they are started anew.
func (a admin) retain(ctx context.Context, op string, r driver.Resource, set bool) ([]driver.Change, error) {
	age, asked, err := wantedRetention(op, r)
	if err != nil || !asked {
		return nil, err
	}
	vals, err := a.b.meta(ctx, r.Destination)
	if err != nil {
		return nil, err
	}
	have := readRetention(vals)
	if have == age {
		return nil, nil
	}
	change := driver.Change{Subject: r.Destination.String(), Field: optionRetention, Have: have.String(), Want: age.String()}
	if set {
		err = a.b.ctl.HSet(ctx, a.b.cfg.keys(r.Destination).meta, "retention", age.Milliseconds()).Err()
		change.Done = err == nil
		a.b.forget(r.Destination)
	}
	return []driver.Change{change}, err
}
