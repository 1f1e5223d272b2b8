package mutant

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// every calls f for each n-th message of a consumer.
func every(n int64, f func(c *consumer, got []driver.Received, i int) []driver.Received) func(c *consumer, got []driver.Received) []driver.Received {
	return func(c *consumer, got []driver.Received) []driver.Received {
		for i := 0; i < len(got); i++ {
			if c.n.Add(1)%n == 0 {
				got = f(c, got, i)
			}
		}
		return got
	}
}

// swapKey exchanges two messages of one key that follow each other, with their places.
func swapKey(_ *consumer, got []driver.Received) []driver.Received {
	before := map[string]int{}
	for i := range got {
		key := got[i].Key
		if at, ok := before[key]; ok && key != "" {
			got[at].Message, got[i].Message = got[i].Message, got[at].Message
			delete(before, key)
			continue
		}
		before[key] = i
	}
	return got
}

// greedy asks for more than core wants.
func greedy(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
	want.Records, want.Bytes, want.Limit = want.Records+5, want.Bytes+1<<20, want.Limit+5
	return c.Consumer.Receive(ctx, want)
}

// deaf does not end when its context does.
func deaf(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
	defer cancel()
	got, err := c.Consumer.Receive(end, want)
	if err != nil && end.Err() != nil {
		err = driver.Errorf("receive", driver.Transient, "nothing came")
	}
	return got, err
}

// forgetful takes messages and drops them when its context ends.
func forgetful(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
	got, err := c.Consumer.Receive(ctx, want)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(got) > 0 && c.n.Add(1)%4 == 0 {
		ackAll(c, got)
		return nil, driver.Errorf("receive", driver.Transient, "the buffer was lost")
	}
	return got, err
}

func delivering() []Mutant {
	change := func(f func(m *driver.Received)) func(driver.Driver) driver.Driver {
		return mutate(onReceive(func(_ *consumer, got []driver.Received) []driver.Received {
			for i := range got {
				f(&got[i])
			}
			return got
		}))
	}
	return []Mutant{
		{"lost-message", "drops every 40th message after it was received", []string{"C05", "C09", "C12", "C41", "C47"}, mutate(onReceive(every(40, func(c *consumer, got []driver.Received, i int) []driver.Received {
			ackAll(c, got[i:i+1])
			return append(got[:i], got[i+1:]...)
		})))},
		{"duplicate", "delivers every 20th message twice, the second time under another receipt", []string{"C05", "C09", "C11", "C12", "C13", "C18", "C41"}, mutate(func() hooks {
			var n atomic.Int64
			return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
				err := d.Publish(ctx, to, batch)
				for _, m := range batch {
					if n.Add(1)%20 == 0 && err == nil {
						_ = d.Publish(ctx, to, []*driver.Message{m})
					}
				}
				return err
			}}
		})},
		{"swap", "exchanges neighbours of one key", []string{"C41", "C42", "C44", "C45", "C46"}, mutate(onReceive(swapKey))},
		{"body-changed", "trims bodies that end in a zero or are not UTF-8", []string{"C01", "C34", "C36"}, change(func(r *driver.Received) {
			r.Body = []byte(string([]rune(string(r.Body))))
		})},
		{"header-dropped", "drops headers without a value", []string{"C02", "C34", "C38"}, change(func(r *driver.Received) {
			var kept []driver.Header
			for _, h := range r.Headers {
				if h.Value != "" {
					kept = append(kept, h)
				}
			}
			r.Headers = kept
		})},
		{"id-per-delivery", "gives a message a new id with each delivery", []string{"C03", "C20", "C30", "C64"}, change(func(r *driver.Received) {
			if r.DeliveryCount > 1 {
				r.ID += "-again"
			}
		})},
		{"key-dropped", "forgets the key", []string{"C03", "C34", "C41"}, change(func(r *driver.Received) { r.Key = "" })},
		{"attempt-resets", "says every delivery is the first", []string{"C03", "C20", "C30", "C31"}, change(func(r *driver.Received) { r.DeliveryCount = min(r.DeliveryCount, 1) })},
		{"unreadable-swallowed", "drops what is not valid JSON", []string{"C36", "C01"}, mutate(onReceive(func(c *consumer, got []driver.Received) []driver.Received {
			var kept []driver.Received
			for i := range got {
				if b := got[i].Body; len(b) > 0 && b[0] == '{' && b[len(b)-1] != '}' {
					ackAll(c, got[i:i+1])
					continue
				}
				kept = append(kept, got[i])
			}
			return kept
		}))},
	}
}

// buffering are the mutants of demand and of what an adapter holds back.
func buffering() []Mutant {
	return []Mutant{
		{"over-demand", "returns more than was asked for", []string{"C12", "C47", "C48", "C49"}, mutate(func() hooks { return hooks{receive: greedy} })},
		{"receive-ignores-cancel", "does not end a Receive whose context ended", []string{"C50", "C57", "C18"}, mutate(func() hooks { return hooks{receive: deaf} })},
		{"reconnect-drops-buffer", "settles what it had fetched when it reconnects", []string{"C09", "C12", "C54"}, mutate(func() hooks { return hooks{receive: forgetful} })},
		{"redelivery-marked", "writes its mark into a message that it delivers again", []string{"C38", "C34"}, mutate(func() hooks {
			seen := map[string]bool{}
			return onReceive(func(_ *consumer, got []driver.Received) []driver.Received {
				for i := range got {
					if seen[got[i].ID] {
						got[i].Body = append(append([]byte(nil), got[i].Body...), " (again)"...)
					}
					seen[got[i].ID] = true
				}
				return got
			})()
		})},
		{"one-at-a-time", "takes the next message only when the one before is settled", []string{"C20", "C43", "C49"}, mutate(func() hooks { return hooks{receive: single, settle: noteSingle} })},
		{"pause-ignored", "goes on delivering from paused partitions", []string{"C50"}, mutate(func() hooks {
			return hooks{receive: func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
				want.Paused = nil
				return c.Consumer.Receive(ctx, want)
			}}
		})},
		{"hoards", "takes ten times its limit from the broker and hands it out bit by bit", []string{"C47", "C48", "C51", "C57", "C49"}, mutate(func() hooks { return hooks{receive: hoard} })},
		{"starves-a-partition", "never returns anything of partition 2", []string{"C51", "C41", "C12", "C42"}, mutate(func() hooks {
			return hooks{receive: func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
				want.Paused = append(append([]string(nil), want.Paused...), "2")
				return c.Consumer.Receive(ctx, want)
			}}
		})},
	}
}

// single waits until everything it handed out is settled, and takes one.
func single(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
	for c.n.Load() > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	want.Records = 1
	got, err := c.Consumer.Receive(ctx, want)
	c.n.Add(int64(len(got)))
	return got, err
}

func noteSingle(ctx context.Context, c *consumer, batch []driver.Settlement) error {
	for i := range batch {
		if batch[i].Disposition != driver.Extend {
			c.n.Add(-1)
		}
	}
	return c.Consumer.Settle(ctx, batch)
}

// hoard keeps a buffer of its own beyond the Demand.
func hoard(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
	if len(c.held) == 0 {
		more := want
		more.Records, more.Limit, more.Bytes = want.Records*10+100, want.Limit*10+100, 64<<20
		got, err := c.Consumer.Receive(ctx, more)
		if err != nil {
			return nil, err
		}
		c.held = append([]driver.Received(nil), got...)
	}
	n := min(len(c.held), want.Records)
	out := c.held[:n]
	c.held = c.held[n:]
	return out, nil
}
