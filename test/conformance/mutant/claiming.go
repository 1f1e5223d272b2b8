package mutant

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

var asked atomic.Int64

// claiming are the adapters that lie about what they can do.
func claiming() []Mutant {
	claim := func(f func(c *driver.Capabilities)) func(driver.Driver) driver.Driver {
		return mutate(func() hooks {
			return hooks{caps: func(_ driver.Destination, c driver.Capabilities) driver.Capabilities { f(&c); return c }}
		})
	}
	return []Mutant{
		{"claims-order", "declares order per key for competing consumers", []string{"C41", "C42", "C43", "C44", "C45"}, claim(func(c *driver.Capabilities) {
			if c.Order == driver.NoOrder {
				c.Order = driver.PerKey
			}
		})},
		{"claims-schedule", "declares Delay and delivers at once", []string{"C62"}, mutate(func() hooks {
			h := onPublish(func(_ int, m *driver.Message) bool { m.Delay = 0; return true })()
			h.caps = func(_ driver.Destination, c driver.Capabilities) driver.Capabilities { c.Delay = time.Hour; return c }
			return h
		})},
		{"claims-ttl", "declares TTL and never expires", []string{"C63"}, mutate(func() hooks {
			h := onPublish(func(_ int, m *driver.Message) bool { m.TTL = 0; return true })()
			h.caps = func(_ driver.Destination, c driver.Capabilities) driver.Capabilities { c.TTL = true; return c }
			return h
		})},
		{"claims-dedup", "declares a window for repeated ids and drops none", []string{"C64"}, claim(func(c *driver.Capabilities) { c.Dedup = time.Hour })},
		{"claims-position", "declares positions where there are none, and ignores them", []string{"C16", "C17"}, mutate(func() hooks {
			return hooks{
				caps: func(_ driver.Destination, c driver.Capabilities) driver.Capabilities { c.Replay = true; return c },
				subscribe: func(s *driver.Subscription) {
					if s.From.Shape != driver.Stream {
						s.Start = driver.Position{}
					}
				},
			}
		})},
		{"claims-limit", "declares twice the size the broker takes", []string{"C01", "C05", "C06"}, claim(func(c *driver.Capabilities) { c.MaxBytes *= 2 })},
		{"claims-durable", "declares durability and loses what waits for a group", []string{"C15"}, mutate(func() hooks {
			return hooks{
				caps: func(_ driver.Destination, c driver.Capabilities) driver.Capabilities { c.Durable = true; return c },
				subscribe: func(s *driver.Subscription) {
					if s.From.Shape == driver.Topic {
						s.Group, s.Start.Kind = "", driver.Latest
						s.Temporary = true
					}
				},
			}
		})},
		{"claims-vary", "declares something else each time it is asked", []string{"X01"}, mutate(func() hooks {
			return hooks{caps: func(_ driver.Destination, c driver.Capabilities) driver.Capabilities {
				c.TTL = asked.Add(1)%2 == 0
				return c
			}}
		})},
		{"denied-as-transient", "reports every refusal of the destination as something to try again", []string{"C07"}, mutate(func() hooks {
			return hooks{publish: func(ctx context.Context, d driver.Driver, to driver.Destination, batch []*driver.Message) error {
				err := d.Publish(ctx, to, batch)
				if driver.ClassOf(err) == driver.NotFound {
					return driver.Errorf("publish", driver.Transient, "%w", err)
				}
				return err
			}}
		})},
	}
}
