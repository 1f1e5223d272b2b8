package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/varal-go/varal/core/driver"
)

// Sabotages are the bugs that can be planted under core, by name: what each does must
// be caught by the account at the end, or the account proves nothing.
var Sabotages = map[string]string{
	"early-ack": "acknowledge at receive; the cook who walks out takes tickets with him",
	"swap":      "store two tickets of a table in the wrong order",
	"drop":      "confirm a ticket and not store it",
}

// sabotage wraps a driver with a planted bug; "" plants none. It touches only the
// queue called name.
func sabotage(d driver.Driver, bug, name string) (driver.Driver, error) {
	switch bug {
	case "":
		return d, nil
	case "early-ack":
		return &earlyAck{d, name}, nil
	case "swap":
		return &tampered{Driver: d, name: name, tamper: swapped}, nil
	case "drop":
		return &tampered{Driver: d, name: name, tamper: dropped}, nil
	}
	return nil, fmt.Errorf("there is no sabotage %q: there are early-ack, swap and drop", bug)
}

// earlyAck settles what it receives before anybody has handled it: the most common
// way to lose messages.
type earlyAck struct {
	driver.Driver
	name string
}

func (e *earlyAck) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c, err := e.Driver.Subscribe(ctx, sub)
	if err != nil || sub.From.Name != e.name {
		return c, err
	}
	return &ackedConsumer{c}, nil
}

type ackedConsumer struct{ driver.Consumer }

func (c *ackedConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	got, err := c.Consumer.Receive(ctx, want)
	if len(got) == 0 {
		return got, err
	}
	acks := make([]driver.Settlement, len(got))
	for i := range got {
		acks[i] = driver.Settlement{Receipt: got[i].Receipt, Disposition: driver.Ack}
	}
	// Detached: core cancels ctx to change its demand, which must not undo the bug.
	return got, errors.Join(err, c.Consumer.Settle(context.WithoutCancel(ctx), acks))
}

// Settle has nothing left to say.
func (c *ackedConsumer) Settle(context.Context, []driver.Settlement) error { return nil }

// tampered alters what is stored behind the back of the publisher.
type tampered struct {
	driver.Driver
	name   string
	tamper func(batch []*driver.Message) (stored []*driver.Message, at []int)
}

func (t *tampered) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	if to.Name != t.name {
		return t.Driver.Publish(ctx, to, batch)
	}
	stored, at := t.tamper(batch)
	if len(stored) == 0 {
		return nil
	}
	err := t.Driver.Publish(ctx, to, stored)
	errs := make([]error, len(batch))
	for i := range stored {
		errs[at[i]] = driver.ResultAt(err, i)
	}
	return driver.Batch(errs)
}

// swapped exchanges two neighbours of each key.
func swapped(batch []*driver.Message) (stored []*driver.Message, at []int) {
	stored = append(stored, batch...)
	for i := range batch {
		at = append(at, i)
	}
	seen := map[string]int{}
	for i, m := range batch {
		first, ok := seen[m.Key]
		if !ok {
			seen[m.Key] = i
			continue
		}
		if first >= 0 {
			stored[first], stored[i] = stored[i], stored[first]
			at[first], at[i] = at[i], at[first]
			seen[m.Key] = -1 // one pair per key and batch is plenty
		}
	}
	return stored, at
}

// dropped leaves out the first message.
func dropped(batch []*driver.Message) (stored []*driver.Message, at []int) {
	for i := 1; i < len(batch); i++ {
		stored, at = append(stored, batch[i]), append(at, i)
	}
	return stored, at
}
