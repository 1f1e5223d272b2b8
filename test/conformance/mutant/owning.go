package mutant

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core/driver"
)

var copies atomic.Int64

func owning() []Mutant {
	return []Mutant{
		{"no-drain-on-revoke", "gives partitions away without calling Revoke", []string{"C42", "C45", "C12"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				s.Revoke = func(context.Context, []string) {}
			}}
		})},
		{"epoch-reused", "keeps the epoch over a change of owner", []string{"C45", "C12", "C54", "C18"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				assigned := s.Assigned
				s.Assigned = func(a driver.Assignment) { a.Epoch = 7; assigned(a) }
			}, receive: func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
				got, err := c.Consumer.Receive(ctx, want)
				for i := range got {
					got[i].Receipt.Aux, got[i].Receipt.Epoch = int64(got[i].Receipt.Epoch), 7 //nolint:gosec // small
				}
				return got, err
			}, settle: func(ctx context.Context, c *consumer, batch []driver.Settlement) error {
				out := append([]driver.Settlement(nil), batch...)
				for i := range out {
					out[i].Receipt.Epoch = uint64(out[i].Receipt.Aux) //nolint:gosec // it was one
				}
				return c.Consumer.Settle(ctx, out)
			}}
		})},
		{"zombie", "learns neither that it lost a partition nor that a settle came too late", []string{"C28", "C45"}, mutate(func() hooks {
			h := staleAccepted()
			h.subscribe = func(s *driver.Subscription) { s.Revoke = func(context.Context, []string) {} }
			return h
		})},
		{"not-assigned", "returns messages of partitions it never assigned", []string{"C12", "C18", "C20"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				assigned := s.Assigned
				s.Assigned = func(a driver.Assignment) { a.Epoch += 1000; assigned(a) }
			}}
		})},
		{"copy-per-instance", "gives each member of a group every message", []string{"C12", "C42", "C30", "C59"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				if s.From.Shape != driver.Queue {
					s.Group = fmt.Sprintf("%s-%d", s.Group, copies.Add(1))
				}
			}}
		})},
		{"groups-merged", "lets all groups of a destination share one copy", []string{"C11", "C16", "C17"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				if s.From.Shape != driver.Queue {
					s.Group = "merged"
				}
			}}
		})},
		{"start-off-by-one", "starts one message after the position", []string{"C16", "C17"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				if s.Start.Kind == driver.At {
					s.Start.Offset++
				}
			}}
		})},
		{"latest-is-earliest", "starts a new group at the beginning when it was told latest", []string{"C16"}, mutate(func() hooks {
			return hooks{subscribe: func(s *driver.Subscription) {
				if s.Start.Kind == driver.Latest {
					s.Start.Kind = driver.Earliest
				}
			}}
		})},
		{"replay-one-short", "seeks one message too far", []string{"C17"}, mutate(func() hooks {
			return hooks{admin: func(a driver.Admin) driver.Admin { return shortAdmin{a} }}
		})},
		{"verify-creates", "creates what it should only verify", []string{"C61"}, mutate(func() hooks {
			return hooks{admin: func(a driver.Admin) driver.Admin { return eagerAdmin{a} }}
		})},
	}
}

// closing are the mutants of Close and of outages.
func closing() []Mutant {
	return []Mutant{
		{"close-hangs", "does not return from Close in time", []string{"C18", "C59"}, mutate(func() hooks {
			return hooks{closeIt: func(ctx context.Context, c *consumer) error {
				time.Sleep(14 * time.Second)
				return c.Consumer.Close(context.WithoutCancel(ctx))
			}}
		})},
		{"close-keeps-messages", "does not give back what it had when it closes", []string{"C57", "C58", "C59", "C19", "C14"}, mutate(func() hooks {
			return hooks{closeIt: func(ctx context.Context, c *consumer) error {
				_ = c
				return nil
			}}
		})},
		{"driver-open-after-close", "goes on publishing after Close", []string{"C59"}, mutate(func() hooks {
			return hooks{closeAll: func(context.Context, driver.Driver) error { return nil }}
		})},
		{"silent-outage", "hides an outage: waits instead of failing, and tells nobody", []string{"C55", "C60", "C54"}, mutate(func() hooks {
			return hooks{
				subscribe: func(s *driver.Subscription) { s.Notify = func(driver.Event) {} },
				receive: func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
					for {
						got, err := c.Consumer.Receive(ctx, want)
						if driver.ClassOf(err) != driver.Transient {
							return got, err
						}
						select {
						case <-ctx.Done():
							return nil, ctx.Err()
						case <-time.After(20 * time.Millisecond):
						}
					}
				},
			}
		})},
		{"deaf-after-reconnect", "receives nothing any more after an outage", []string{"C54", "C55", "C60"}, mutate(func() hooks {
			return hooks{receive: func(ctx context.Context, c *consumer, want driver.Demand) ([]driver.Received, error) {
				if c.n.Load() > 0 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				got, err := c.Consumer.Receive(ctx, want)
				if driver.ClassOf(err) == driver.Transient {
					c.n.Add(1)
				}
				return got, err
			}}
		})},
		{"stop-takes-others", "closes every consumer of the driver when one is closed", []string{"C14"}, mutate(func() hooks {
			return hooks{closeIt: func(ctx context.Context, c *consumer) error { return c.w.Driver.Close(ctx) }}
		})},
	}
}

type shortAdmin struct{ driver.Admin }

func (a shortAdmin) Seek(ctx context.Context, of driver.Resource, to driver.Position) error {
	to.Offset++
	return a.Admin.Seek(ctx, of, to)
}

type eagerAdmin struct{ driver.Admin }

func (a eagerAdmin) Apply(ctx context.Context, want []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	if mode == driver.Verify {
		mode = driver.Create
	}
	return a.Admin.Apply(ctx, want, mode)
}
