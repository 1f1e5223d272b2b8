package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware"
)

const (
	cooks  = 3
	atOnce = 16 // handlers of a cook
)

// kitchen is the cooks, each with a client of its own, as separate services would be.
type kitchen struct {
	stop  [cooks]context.CancelFunc
	cooks [cooks]*core.Consumer
	gone  [cooks]atomic.Bool
}

// openKitchen starts the cooks.
func (r *run) openKitchen(ctx context.Context) (*kitchen, error) {
	k := &kitchen{}
	order := middleware.SessionOrder(atOnce)
	if !r.ordered(r.queue) {
		order = middleware.Concurrency(atOnce)
	}
	sub := core.Subscription{From: r.queue, Group: r.prefix + "kitchen", Name: "kitchen", Start: core.Position{Kind: core.Earliest}}
	for i := range cooks {
		c, err := r.open(ctx)
		if err != nil {
			return nil, err
		}
		cctx, cancel := context.WithCancel(ctx)
		k.stop[i] = cancel
		k.cooks[i], err = c.Start(cctx, sub, r.cook(i),
			order,
			middleware.Prefetch(256),
			middleware.Retry(middleware.Exponential{Base: 5 * time.Millisecond, Cap: 50 * time.Millisecond, Attempts: 5}),
			middleware.DeadLetter(dlq),
			middleware.Drain(0), // a cook who walks out drops everything
		)
		if err != nil {
			cancel()
			return nil, err
		}
	}
	r.closes = append(r.closes, func(context.Context) error {
		for _, stop := range k.stop {
			stop()
		}
		return nil
	})
	return k, nil
}

// walkOut stops a cook in the middle of what he does: handlers are cancelled, nothing
// is finished. What he held must come to another.
func (k *kitchen) walkOut(cook int) {
	k.gone[cook].Store(true)
	k.stop[cook]()
}

// failed returns the error of a cook who stopped by himself.
func (k *kitchen) failed() error {
	for i, c := range k.cooks {
		select {
		case <-c.Done():
			if err := c.Wait(); err != nil && !k.gone[i].Load() {
				return fmt.Errorf("cook %d: %w", i+1, err)
			}
		default:
		}
	}
	return nil
}

// crash aims at a message: the cook who takes the first ticket after a third of them
// holds it until he is stopped. A stop at a random moment would mostly hit nobody.
type crash struct {
	after int
	held  chan int // cap 1: the cook who holds a ticket
	fired *atomic.Bool
}

func newCrash(messages int) crash {
	return crash{after: messages / 3, held: make(chan int, 1), fired: &atomic.Bool{}}
}

// hold blocks the handler it picks until ctx ends; the others pass.
func (c *crash) hold(ctx context.Context, done, cook int) error {
	if done < c.after || !c.fired.CompareAndSwap(false, true) {
		return nil
	}
	c.held <- cook
	<-ctx.Done()
	return context.Cause(ctx)
}

var errOven = errors.New("the oven is too cold")

// cook is the handler of cook number i.
func (r *run) cook(i int) core.Handler {
	return func(ctx context.Context, d *core.Delivery) error {
		var t ticket
		if err := json.Unmarshal(d.Body, &t); err != nil || !r.ledger.start(t) {
			return core.Permanent(fmt.Errorf("this is no ticket of ours: %w", err))
		}
		if err := r.crash.hold(ctx, r.ledger.progress(0).Done, i); err != nil {
			return err
		}
		dice := r.dice(t)
		select { // 1 to 4 ms in the oven
		case <-time.After(time.Millisecond + time.Duration(dice%3000)*time.Microsecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case dice%100 == 0:
			r.ledger.reject(t)
			return core.Permanent(errors.New("no such pizza on the menu"))
		case dice%10 == 1 && d.Attempt <= 1+int(dice/100%3):
			r.ledger.retry(t)
			return errOven
		}
		d.Publish(pizzas, t.message())
		if r.keepsDiary() {
			d.Publish(r.pages, t.message())
		}
		r.ledger.finish(t)
		return nil
	}
}

// dice is the fate of a ticket: the same in every run with the same seed.
func (r *run) dice(t ticket) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d/%d/%d", r.o.Seed, t.Table, t.Seq) // a hash takes everything
	v := h.Sum64()
	return v ^ v>>32
}

// openHouse starts billing, the screen, and whoever reads the dead letters. It comes
// before the first pizza: a group that does not exist yet gets nothing.
func (r *run) openHouse(ctx context.Context) error {
	note := map[string]func(ticket){"manager": r.ledger.deadLettered, "billing": r.ledger.billed, "screen": r.ledger.screened}
	from := map[string]core.Destination{"manager": dlq, "billing": pizzas, "screen": pizzas}
	for _, g := range r.groups() {
		if note[g.name] == nil {
			continue
		}
		sub := core.Subscription{From: from[g.name], Group: g.group, Name: g.name, Start: core.Position{Kind: core.Earliest}}
		if _, err := r.house.Start(ctx, sub, reader(note[g.name])); err != nil {
			return err
		}
	}
	return nil
}

// reader is a handler that notes each ticket.
func reader(note func(ticket)) core.Handler {
	return core.Typed(core.JSON[ticket]{}, func(_ context.Context, t ticket, _ *core.Delivery) error {
		note(t)
		return nil
	})
}

// replay reads the diary from its first page, as nobody who reads it along the way
// could.
func (r *run) replay(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub := core.Subscription{From: r.pages, Name: "diary", Start: core.Position{Kind: core.Earliest}}
	c, err := r.house.Start(ctx, sub, reader(r.ledger.wrote), middleware.Concurrency(1))
	if err != nil {
		return err
	}
	last, moved := Progress{}, time.Now()
	for p := last; p.DiaryRead < p.Done || p.events == 0; p = r.ledger.progress(r.o.Messages) {
		if p.events != last.events {
			last, moved = p, time.Now()
		}
		if r.o.Watch != nil {
			r.o.Watch(p)
		}
		if time.Since(moved) > r.o.Patience {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.Done():
			return c.Wait()
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	return c.Wait()
}
