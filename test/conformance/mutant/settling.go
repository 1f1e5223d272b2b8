package mutant

import (
	"context"

	"github.com/varal-go/varal/core/driver"
)

// ackAll settles everything at once, whatever becomes of it.
func ackAll(c *consumer, got []driver.Received) []driver.Received {
	batch := make([]driver.Settlement, len(got))
	for i := range got {
		batch[i] = driver.Settlement{Receipt: got[i].Receipt, Disposition: driver.Ack}
	}
	_ = c.Consumer.Settle(context.Background(), batch)
	return got
}

func earlyAck() hooks {
	h := onReceive(ackAll)()
	h.settle = func(context.Context, *consumer, []driver.Settlement) error { return nil }
	return h
}

// passGap commits what was handed out last instead of what is finished.
func passGap() hooks {
	h := onReceive(func(c *consumer, got []driver.Received) []driver.Received {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.held = append(c.held, got...)
		return got
	})()
	h.settle = func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
		if c.caps.Settle != driver.UpTo {
			return c.Consumer.Settle(ctx, batch)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		out := append([]driver.Settlement(nil), batch...)
		for i := range out {
			for _, r := range c.held {
				if r.Receipt.Partition == out[i].Receipt.Partition && r.Receipt.Epoch == out[i].Receipt.Epoch && r.Receipt.Seq > out[i].Receipt.Seq {
					out[i].Receipt = r.Receipt
				}
			}
		}
		return c.Consumer.Settle(ctx, out)
	}
	return h
}

// nackReturnsAll gives back everything that is out when one is nacked.
func nackReturnsAll() hooks {
	h := onReceive(func(c *consumer, got []driver.Received) []driver.Received {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.held = append(c.held, got...)
		return got
	})()
	h.settle = func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
		err := c.Consumer.Settle(ctx, batch)
		for i := range batch {
			if batch[i].Disposition != driver.Nack {
				continue
			}
			c.mu.Lock()
			var back []driver.Settlement
			for _, r := range c.held {
				back = append(back, driver.Settlement{Receipt: r.Receipt, Disposition: driver.Return})
			}
			c.held = nil
			c.mu.Unlock()
			_ = c.Consumer.Settle(ctx, back)
		}
		return err
	}
	return h
}

// staleAccepted reports every settle of what is no longer ours as done.
func staleAccepted() hooks {
	return hooks{settle: func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
		err := c.Consumer.Settle(ctx, batch)
		errs := make([]error, len(batch))
		for i := range batch {
			if e := driver.ResultAt(err, i); driver.ClassOf(e) != driver.LeaseLost {
				errs[i] = e
			}
		}
		return driver.Batch(errs)
	}}
}

func settling() []Mutant {
	swap := func(from, to driver.Disposition) func(driver.Driver) driver.Driver {
		return mutate(onSettle(func(_ *consumer, s *driver.Settlement) bool {
			if s.Disposition == from {
				s.Disposition = to
			}
			return true
		}))
	}
	return []Mutant{
		{"early-ack", "settles a message when it is received", []string{"C19", "C20", "C24", "C25", "C30", "C35", "C57", "C58"}, mutate(earlyAck)},
		{"commit-past-gap", "commits the last message handed out instead of the last one finished", []string{"C24", "C25", "C35"}, mutate(passGap)},
		{"nack-is-ack", "acks what was nacked", []string{"C03", "C20", "C21", "C29", "C30", "C31", "C32", "C33"}, swap(driver.Nack, driver.Ack)},
		{"nack-returns-all", "gives back everything in flight when one is nacked", []string{"C20", "C22", "C29"}, mutate(nackReturnsAll)},
		{"nack-at-once", "ignores the delay of a nack", []string{"C21", "C33", "C32"}, mutate(onSettle(func(_ *consumer, s *driver.Settlement) bool {
			if s.Disposition == driver.Nack {
				s.Delay = 0
			}
			return true
		}))},
		{"ack-lost", "reports acks as done and sends none", []string{"C18", "C26", "C57", "C59"}, mutate(onSettle(func(_ *consumer, s *driver.Settlement) bool { return s.Disposition != driver.Ack }))},
		{"reject-is-return", "returns what was rejected", []string{"C22", "C36", "C34"}, swap(driver.Reject, driver.Return)},
		{"return-is-nack", "counts a returned message as failed", []string{"C57", "C58", "C51"}, swap(driver.Return, driver.Nack)},
		{"return-is-ack", "acks what was returned", []string{"C57", "C58"}, swap(driver.Return, driver.Ack)},
		{"stale-ack-accepted", "reports a settle after the lease was lost as done", []string{"C23", "C45"}, mutate(staleAccepted)},
		{"no-lease-extension", "reports extensions as done and sends none", []string{"C26", "C27", "C52"}, mutate(onSettle(func(_ *consumer, s *driver.Settlement) bool { return s.Disposition != driver.Extend }))},
		{"double-settle", "sends every settlement twice and reports the second answer", []string{"C18", "C20", "C23", "C47"}, mutate(func() hooks {
			return hooks{settle: func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
				_ = c.Consumer.Settle(ctx, batch)
				return c.Consumer.Settle(ctx, batch)
			}}
		})},
	}
}
