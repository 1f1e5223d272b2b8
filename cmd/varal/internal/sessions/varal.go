package sessions

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/cmd/varal/internal/ticket"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

// ours is varal: a client that publishes and a subscription in session order.
type ours struct {
	r      *round
	c      *core.Client
	sub    *core.Consumer
	to     core.Destination
	prefix string
	keys   []string
}

const group = "sessions"

func openVaral(ctx context.Context, r *round) (system, error) {
	r.side = "varal"
	o := r.o
	d, err := adapters.OpenDriver(ctx, o.Broker)
	if err != nil {
		return nil, err
	}
	if o.Wrap != nil {
		d = o.Wrap(d)
	}
	v := &ours{
		r: r, to: core.Queue("sessions").Keyed(o.Partitions), keys: keyNames(o.Sessions),
		prefix: "bench-" + strings.ToLower(rand.Text()[:8]) + "-",
	}
	v.c = core.NewClient(&ownership{d, r.check}, core.Options{
		Prefix: v.prefix, Provision: core.ProvisionCreate, Logger: slog.New(slog.DiscardHandler),
	})
	v.sub, err = v.c.Start(context.WithoutCancel(ctx), core.Subscription{From: v.to, Group: group}, v.handle,
		middleware.SessionOrder(o.Workers),
		middleware.Prefetch(o.Prefetch),
		// 1 ns: a base of 0 would be the default.
		middleware.Retry(core.RetryPolicy{Base: max(o.Backoff, 1), Cap: maxBackoff, Jitter: o.Jitter}))
	if err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "session-" + strconv.Itoa(i)
	}
	return keys
}

func (v *ours) handle(_ context.Context, d *core.Delivery) error {
	t, ok := ticket.Decode(d.Body, v.r.id, v.r.o.Payload)
	if !ok {
		v.r.check.violation("a message of %d bytes with key %.40q that nobody of this run published", len(d.Body), d.Key)
		return nil
	}
	if !v.r.check.knows(t) {
		return nil
	}
	return v.r.attempt(t)
}

func (v *ours) hand(ctx context.Context, batch []ticket.Ticket) error {
	size := v.r.o.Payload
	bodies := make([]byte, 0, size*len(batch))
	slab, msgs := make([]core.Message, len(batch)), make([]*core.Message, len(batch))
	for i, t := range batch {
		from := len(bodies)
		bodies = t.Append(bodies, v.r.id, size)
		slab[i].Key, slab[i].Body = v.keys[t.Session], bodies[from:len(bodies):len(bodies)]
		msgs[i] = &slab[i]
	}
	return v.c.Publish(ctx, v.to, msgs...)
}

func (v *ours) done() <-chan struct{} { return v.sub.Done() }

// close drains, deletes what the round created, and closes the client.
func (v *ours) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var err error
	if v.sub != nil {
		err = v.sub.Drain(ctx)
	}
	if admin := v.c.Admin(); admin != nil {
		d := v.to
		d.Name = v.prefix + d.Name
		// A group of a log is deleted by itself; elsewhere it goes with the queue. What a
		// broker keeps all the same is an empty queue.
		_, _ = admin.Apply(ctx, []driver.Resource{{Destination: d.ForGroup(v.prefix + group)}}, driver.Delete)
		_, _ = admin.Apply(ctx, []driver.Resource{{Destination: d}}, driver.Delete)
	}
	return errors.Join(err, v.c.Close(ctx))
}

// ownership tells the checker when partitions change hands: only then may a message come
// again.
type ownership struct {
	driver.Driver
	check *checker
}

func (o *ownership) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	revoke := sub.Revoke
	sub.Revoke = func(ctx context.Context, partitions []string) {
		if len(partitions) > 0 {
			o.check.revoked()
		}
		revoke(ctx, partitions)
	}
	return o.Driver.Subscribe(ctx, sub)
}
