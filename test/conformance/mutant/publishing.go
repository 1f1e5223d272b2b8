package mutant

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func publishing() []Mutant {
	result := func(f func(ctx context.Context, to driver.Destination, batch []*driver.Message, err error) error) func(driver.Driver) driver.Driver {
		return mutate(func() hooks {
			return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
				return f(ctx, to, batch, d.Publish(ctx, to, batch))
			}}
		})
	}
	return []Mutant{
		{"nil-before-confirm", "reports success while the message is still in a buffer", []string{"C04", "C08", "C09", "C10", "C54"}, mutate(lateSend)},
		{"nil-on-failure", "reports success when the broker could not be reached", []string{"C10", "C54", "C55", "C46", "C53"}, result(func(_ context.Context, _ driver.Destination, _ []*driver.Message, err error) error {
			if driver.ClassOf(err) == driver.Transient {
				return nil
			}
			return err
		})},
		{"no-answer-is-success", "reports success when the broker did not answer", []string{"C55"}, result(func(_ context.Context, _ driver.Destination, _ []*driver.Message, err error) error {
			if driver.ClassOf(err) == driver.Ambiguous {
				return nil
			}
			return err
		})},
		{"publish-twice", "stores every message twice", []string{"C08", "C39", "C57"}, mutate(func() hooks {
			return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
				_ = d.Publish(ctx, to, batch)
				return d.Publish(ctx, to, batch)
			}}
		})},
		{"unroutable-nil", "reports success for a destination that does not exist", []string{"C07"}, result(func(_ context.Context, _ driver.Destination, _ []*driver.Message, err error) error {
			if driver.ClassOf(err) == driver.NotFound {
				return nil
			}
			return err
		})},
		{"failed-but-stored", "reports as rejected what was stored", []string{"C05", "C08", "C09"}, mutate(func() hooks {
			var n atomic.Int64
			return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
				err := d.Publish(ctx, to, batch)
				if n.Add(1)%10 == 0 && err == nil {
					return driver.Errorf("publish", driver.Transient, "no answer")
				}
				return err
			}}
		})},
		{"batch-all-or-nothing", "fails a whole batch for one bad message although it stored the others", []string{"C05"}, result(func(_ context.Context, _ driver.Destination, _ []*driver.Message, err error) error {
			if b, ok := err.(*driver.BatchError); ok { //nolint:errorlint // the shape is what matters
				for _, e := range b.Errs {
					if e != nil {
						return e
					}
				}
			}
			return err
		})},
		{"batch-tail-dropped", "stores the first 100 messages of a batch and confirms all", []string{"C05", "C41", "C46"}, mutate(func() hooks {
			return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
				return d.Publish(ctx, to, batch[:min(len(batch), 100)])
			}}
		})},
		{"too-large-cut", "cuts a message that is too large and confirms it", []string{"C05", "C06", "C01"}, mutate(func() hooks {
			return hooks{
				caps: func(_ driver.Destination, c driver.Capabilities) driver.Capabilities { c.MaxBytes = 0; return c },
				publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
					out := make([]*driver.Message, len(batch))
					for i, m := range batch {
						m := *m
						m.Body = m.Body[:min(len(m.Body), 64<<10)]
						out[i] = &m
					}
					return d.Publish(ctx, to, out)
				},
			}
		})},
	}
}

// rewriting are the mutants that store something else than they were given.
func rewriting() []Mutant {
	return []Mutant{
		{"header-case-folded", "sends header keys in lower case", []string{"C02"}, mutate(onPublish(func(_ int, m *driver.Message) bool {
			out := make([]driver.Header, len(m.Headers))
			for i, h := range m.Headers {
				b := []byte(h.Key)
				for j := range b {
					if b[j] >= 'A' && b[j] <= 'Z' {
						b[j] += 'a' - 'A'
					}
				}
				out[i] = driver.Header{Key: string(b), Value: h.Value}
			}
			m.Headers = out
			return true
		}))},
		{"delay-ignored", "delivers a scheduled message at once", []string{"C62"}, mutate(onPublish(func(_ int, m *driver.Message) bool { m.Delay = 0; return true }))},
		{"ttl-ignored", "keeps a message past its TTL", []string{"C63"}, mutate(onPublish(func(_ int, m *driver.Message) bool { m.TTL = 0; return true }))},
		{"topic-leak", "sends what is for one destination to the one used before it, too", []string{"C13", "C14"}, mutate(leak)},
		{"publish-ignores-deadline", "waits for the broker as long as it takes", []string{"C10", "C53", "C08"}, mutate(patient)},
		{"hash-changes", "spreads a key over partitions", []string{"C41", "C42", "C44", "C46"}, mutate(scatter)},
		{"dead-letter-lost", "confirms a dead-letter copy and does not store it", []string{"C22", "C30", "C34", "C35", "C36"}, mutate(onPublish(func(_ int, m *driver.Message) bool {
			_, dead := m.Header(driver.HeaderFailureReason)
			return !dead
		}))},
		{"failure-record-dropped", "strips varal's own headers", []string{"C34", "C31"}, mutate(onPublish(func(_ int, m *driver.Message) bool {
			m.Headers = nil
			return true
		}))},
	}
}

// lateSend confirms first and stores 100 ms later, unless the process has died.
func lateSend() hooks {
	return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
		out := make([]*driver.Message, len(batch))
		for i, m := range batch {
			m := *m
			out[i] = &m
		}
		time.AfterFunc(100*time.Millisecond, func() { _ = d.Publish(context.WithoutCancel(ctx), to, out) })
		return nil
	}}
}

// leak remembers the destination of the publish before.
func leak() hooks {
	var last atomic.Pointer[driver.Destination]
	return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
		if before := last.Swap(&to); before != nil && before.Name != to.Name {
			_ = d.Publish(ctx, *before, batch)
		}
		return d.Publish(ctx, to, batch)
	}}
}

// patient retries by itself, whatever the caller's deadline.
func patient() hooks {
	return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
		for end := time.Now().Add(6 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := d.Publish(context.WithoutCancel(ctx), to, batch)
			if driver.ClassOf(err) != driver.Transient || time.Now().After(end) {
				return err
			}
		}
	}}
}

// scatter hides a changing part in the key on the way in and removes it on the way out.
func scatter() hooks {
	h := onPublish(func(i int, m *driver.Message) bool {
		if m.Key != "" {
			m.Key = strconv.Itoa(i%5) + "~" + m.Key
		}
		return true
	})()
	h.receive = func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
		got, err := c.Consumer.Receive(ctx, want)
		for i := range got {
			if _, key, ok := strings.Cut(got[i].Key, "~"); ok {
				got[i].Key = key
			}
		}
		return got, err
	}
	return h
}
