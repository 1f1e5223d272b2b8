package soak

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// reporter takes what a member sees. begin returns before the attempt may run.
type reporter interface {
	// begin reports the start of an attempt; an error says that the member is dead, and must
	// not run it.
	begin(t ticket.Ticket) error
	// end reports the end of an attempt.
	end(t ticket.Ticket, o outcome)
	// lost reports that partitions are gone without having been handed over.
	lost()
}

// memberConfig is what a member has to know. It goes to a process as JSON.
type memberConfig struct {
	URL        string
	Prefix     string
	Run        uint64
	Payload    int
	Partitions int
	Workers    int
	Service    time.Duration
	Prefetch   int
	Seed       uint64
	Transient  float64
	Dead       float64
}

const (
	group     = "soak"
	drainFor  = 10 * time.Second
	closeIn   = 15 * time.Second
	panicEach = 50 // of the failing attempts, every so many panics
)

func source(partitions int) core.Destination { return core.Queue("soak").Keyed(partitions) }

func graves() core.Destination { return core.Queue("soak-dead") }

// strange is reported of a body that is not of this run: no session has this number.
var strange = ticket.Ticket{Session: 1<<32 - 1}

// open returns a client of the run.
func (c *memberConfig) open(ctx context.Context, wrap func(driver.Driver) driver.Driver) (*core.Client, error) {
	d, err := adapters.OpenDriver(ctx, adapters.Config{URL: c.URL})
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		d = wrap(d)
	}
	return core.NewClient(d, core.Options{Prefix: c.Prefix, Provision: core.ProvisionCreate, Logger: slog.New(slog.DiscardHandler)}), nil
}

// consume works messages off until ctx ends, then drains.
func (c *memberConfig) consume(ctx context.Context, r reporter, wrap func(driver.Driver) driver.Driver) error {
	client, err := c.open(ctx, func(d driver.Driver) driver.Driver {
		if wrap != nil {
			d = wrap(d)
		}
		return &witness{d, r}
	})
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // told to leave before it had begun
		}
		return err
	}
	err = client.Consume(ctx, core.Subscription{
		From: source(c.Partitions), Group: group, Start: core.Position{Kind: driver.Earliest},
	}, func(ctx context.Context, d *core.Delivery) error { return c.handle(ctx, d, r) },
		middleware.SessionOrder(c.Workers),
		middleware.Prefetch(c.Prefetch),
		middleware.Drain(drainFor),
		middleware.DeadLetter(graves()),
		middleware.Quarantine(-1), // members are killed, and no message is why
		middleware.Retry(middleware.Exponential{Base: time.Millisecond, Cap: 50 * time.Millisecond}))
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
	defer cancel()
	return errors.Join(err, client.Close(closing))
}

var (
	errTransient = errors.New("a transient fault of the handler")
	errForGood   = errors.New("a message that cannot be handled")
)

// handle is an attempt: what becomes of it is decided by the message, so that it is the
// same whoever has it.
func (c *memberConfig) handle(ctx context.Context, d *core.Delivery, r reporter) error {
	t, ok := ticket.Decode(d.Body, c.Run, c.Payload)
	if !ok {
		t = strange
	}
	if err := r.begin(t); err != nil {
		return err
	}
	o, panics := c.fate(t, d.Attempt)
	if !c.work(ctx) {
		o, panics = failed, false
	}
	r.end(t, o)
	switch {
	case o == dead:
		return core.Permanent(errForGood)
	case o == done:
		return nil
	case panics:
		panic(errTransient)
	}
	return errTransient
}

// work takes as long as an attempt does; false = it was cancelled.
func (c *memberConfig) work(ctx context.Context) bool {
	if c.Service > 0 {
		t := time.NewTimer(c.Service)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

func (c *memberConfig) fate(t ticket.Ticket, try int) (o outcome, panics bool) {
	if ticket.Chance(c.Seed+1, t.Session, t.N, 0) < c.Dead {
		return dead, false
	}
	if x := ticket.Chance(c.Seed, t.Session, t.N, try); x < c.Transient {
		return failed, x < c.Transient/panicEach
	}
	return done, false
}

// witness tells the reporter of partitions that are lost: before core is told, so before
// anything that follows from it.
type witness struct {
	driver.Driver
	r reporter
}

func (w *witness) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	revoke := sub.Revoke
	sub.Revoke = func(ctx context.Context, partitions []string) {
		if ctx.Err() != nil {
			w.r.lost()
		}
		revoke(ctx, partitions)
		if ctx.Err() != nil { // ownership ended while core was letting go
			w.r.lost()
		}
	}
	c, err := w.Driver.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	return &witnessed{c, w.r}, nil
}

// witnessed tells of a settlement that was not accepted, too: a member that stood still past
// its session and was told to leave meanwhile hears of it in no other way, and what it did
// comes again.
type witnessed struct {
	driver.Consumer
	r reporter
}

func (c *witnessed) Settle(ctx context.Context, batch []driver.Settlement) error {
	err := c.Consumer.Settle(ctx, batch)
	if err != nil {
		c.r.lost()
	}
	return err
}
