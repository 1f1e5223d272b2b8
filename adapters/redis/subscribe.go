package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"strconv"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Subscribe implements driver.Driver. Groups of topics and streams are made as needed.
func (b *broker) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	op := "subscribe " + sub.From.String()
	if b.isClosed() {
		return nil, errClosed(op)
	}
	if err := validate(op, sub.From, sub.Group); err != nil {
		return nil, err
	}
	if err := checkGroup(op, &sub); err != nil {
		return nil, err
	}
	b.forget(sub.From) // ask again: another process may have deleted it
	if err := b.exists(ctx, op, sub.From); err != nil {
		return nil, err
	}
	if sub.From.Partitions > 0 {
		return b.subscribeKeyed(ctx, op, sub)
	}
	c := newConsumer(b, sub)
	// Held as by a Receive, so that a Close of the driver waits: it would otherwise revoke
	// what Assigned below has not opened yet.
	c.busy <- struct{}{}
	defer c.exit()
	if err := c.createGroup(ctx, op, sub.Temporary); err != nil {
		c.rd.close()
		return nil, err
	}
	if !b.add(c) {
		c.rd.close()
		return nil, errClosed(op)
	}
	b.wakes.enlist(c)
	if sub.Assigned != nil {
		sub.Assigned(driver.Assignment{Epoch: c.epoch.Load()})
	}
	return c, nil
}

// checkGroup refuses what the shape does not have and gives a private group its name.
func checkGroup(op string, sub *driver.Subscription) error {
	if g := sub.From.Group; g != "" {
		if sub.Group != "" && sub.Group != g {
			return driver.Errorf(op, driver.Permanent, "From.Group is %q and Group %q: use one", g, sub.Group)
		}
		sub.Group = g
	}
	if err := checkStart(op, sub.From, sub.Start); err != nil {
		return err
	}
	switch {
	case sub.From.Shape == driver.Queue && sub.Temporary:
		return driver.Errorf(op, driver.Unsupported, "Temporary: a queue has no groups, use a topic")
	case sub.From.Shape == driver.Topic && sub.Group == "" && !sub.Temporary:
		return driver.Errorf(op, driver.Permanent, "Group is empty: a topic needs a group, or Temporary")
	case sub.Group == "" && sub.From.Shape != driver.Queue:
		// A reader without a group has one of its own that ends with it.
		if sub.From.Shape == driver.Stream && sub.Start.Kind == driver.Default {
			sub.Start.Kind = driver.Latest
		}
		sub.Group, sub.Temporary = "temporary-"+unique(), true
	}
	return nil
}

// unique is a name that nobody else has.
func unique() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// checkStart refuses positions that a queue or topic does not have.
func checkStart(op string, of driver.Destination, start driver.Position) error {
	shape := of.Shape
	switch k := start.Kind; {
	case k == driver.Default, k == driver.Earliest, k == driver.Latest && shape == driver.Topic:
		return nil
	case shape != driver.Stream && k == driver.Latest:
		return driver.Errorf(op, driver.Unsupported, "position: a %s cannot start at %q; only a topic's group or a stream can", shape, k)
	case shape != driver.Stream:
		return driver.Errorf(op, driver.Unsupported, "position: a %s cannot start at %q; only a stream can", shape, k)
	case start.Partition == "":
	case of.Partitions == 0:
		return driver.Errorf(op, driver.NotFound, "position: partition %q: this stream has none", start.Partition)
	case !isPartition(start.Partition, of.Partitions):
		return driver.Errorf(op, driver.NotFound, "position: partition %q: this stream has 0 to %d", start.Partition, of.Partitions-1)
	}
	_, err := startID(op, start)
	return err
}

func isPartition(label string, n int) bool {
	i, err := strconv.Atoi(label)
	return err == nil && i >= 0 && i < n && strconv.Itoa(i) == label
}

// startIn is startID of one shard: a position in another one says nothing about it.
func startIn(op string, p driver.Position, s *shard) (string, error) {
	if p.Partition != "" && p.Partition != s.label {
		p = driver.Position{}
	}
	return startID(op, p)
}

// startID is the id after which a group begins to read.
func startID(op string, p driver.Position) (string, error) {
	switch p.Kind {
	case driver.Default, driver.Earliest:
		return "0-0", nil
	case driver.Latest:
		return "$", nil
	case driver.At:
		id := p.ID
		if id == "" {
			if p.Offset < 0 {
				return "", driver.Errorf(op, driver.Permanent, "position: offset %d is negative", p.Offset)
			}
			id = idOf(p.Offset)
		}
		ms, seq, ok := splitID(id)
		if !ok {
			return "", driver.Errorf(op, driver.Permanent, "position: %q is not the id of an entry", id)
		}
		return before(ms, seq), nil
	case driver.Since:
		ms := p.Time.UnixMilli()
		if p.Time.Nanosecond()%int(time.Millisecond) > 0 && ms < math.MaxInt64 {
			ms++ // ids count whole milliseconds, and what was before p.Time must not come
		}
		return before(uint64(max(0, ms)), 0), nil
	}
	return "", driver.Errorf(op, driver.Permanent, "position: kind %d is invalid", p.Kind)
}
