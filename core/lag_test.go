package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// measured is a fake whose broker answers with stats.
type measured struct {
	*fake
	stats driver.Stats
	err   error
}

func (m *measured) Admin() driver.Admin { return asked{of: m} }

type asked struct {
	driver.Admin // its other methods are not called
	of           *measured
}

func (a asked) Apply(context.Context, []driver.Resource, driver.Mode) ([]driver.Change, error) {
	return nil, nil
}

func (a asked) Stats(context.Context, driver.Resource) (driver.Stats, error) {
	return a.of.stats, a.of.err
}

// TestLag: what a broker says, what it does not say, and what cannot be said.
func TestLag(t *testing.T) {
	t.Parallel()
	unknown := driver.Stats{Ready: -1, InFlight: -1, Delayed: -1, Lag: -1, Oldest: -1}
	log, counts, ready := unknown, unknown, unknown
	log.Lag = 70
	counts.Ready, counts.InFlight, counts.Delayed = 5, 7, 2
	ready.Ready = 5
	denied := driver.Errorf("stats", driver.Denied, "no")
	for name, tc := range map[string]struct {
		stats    driver.Stats
		err      error
		messages int64
		atLeast  bool
	}{
		"a log":        {log, nil, 70, false},
		"counts all":   {counts, nil, 14, false},
		"counts ready": {ready, nil, 8, true},
		"says nothing": {unknown, nil, -1, false},
		"may not look": {unknown, denied, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &measured{fake: newFake(driver.Each), stats: tc.stats, err: tc.err}
			c := core.NewClient(m, core.Options{Logger: quiet})
			s, err := c.Start(t.Context(), in, func(ctx context.Context, _ *core.Delivery) error { <-ctx.Done(); return ctx.Err() },
				edit("drain", func(p *core.Policy) { p.DrainTimeout = -1 }))
			if err != nil {
				t.Fatal(err)
			}
			m.push(msg("m1", "a"), msg("m2", "a"), msg("m3", "a"))
			for end := time.Now().Add(10 * time.Second); s.Status().InFlight < 3 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			l, err := s.Lag(t.Context())
			if !errors.Is(err, tc.err) || tc.err == nil && (l.Messages != tc.messages || l.AtLeast != tc.atLeast || l.Oldest <= 0) {
				t.Errorf("%+v, %v", l, err)
			}
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
