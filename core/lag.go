package core

import (
	"context"
	"fmt"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// Lag is how far a subscription is behind: the signal to scale by.
type Lag struct {
	// Messages the group has still to settle, those in flight included; -1 = the broker
	// does not say.
	Messages int64 `json:"messages"`
	// AtLeast: the broker does not count what it has handed out (RabbitMQ), so Messages is
	// what it still has and what is in flight here. Missing are what other members hold and
	// what has been fetched and not received: up to the limit in flight for each member.
	AtLeast bool `json:"at_least,omitempty"`
	// Oldest is the age of the oldest of them: by the broker where it says, at least that of
	// what is in flight here.
	Oldest time.Duration `json:"oldest_ns"`
	// HottestKey has most of what is in flight here, HottestShare of it (0 to 1). "" and 0
	// without order by key, or with nothing in flight.
	HottestKey   string  `json:"hottest_key,omitempty"`
	HottestShare float64 `json:"hottest_share,omitempty"`
	// FewKeys: fewer keys than handlers hold what is in flight, so more consumers will not
	// make it faster.
	FewKeys bool `json:"few_keys,omitempty"`
}

// Lag asks the broker how far the group is behind. It is as fresh while the subscription
// is paused or its room is full, since it does not come with the messages; do not ask
// more often than every few seconds. ErrDenied where the user may not look, ErrUnsupported
// where the broker cannot say.
func (s *Consumer) Lag(ctx context.Context) (Lag, error) {
	admin := s.c.d.Admin()
	if admin == nil {
		return Lag{}, driver.Errorf("lag of "+s.name, driver.Unsupported, "the broker cannot be asked")
	}
	group := s.c.prefixedGroup(s.sub.Group)
	st, err := admin.Stats(ctx, driver.Resource{Destination: s.from.ForGroup(group)})
	if err != nil {
		return Lag{}, fmt.Errorf("lag of %s: %w", s.name, err)
	}
	l := Lag{Messages: st.Lag, Oldest: max(st.Oldest, 0)}
	if l.Messages < 0 && st.Ready >= 0 {
		out := st.InFlight
		if out < 0 {
			here, _ := s.inFlight()
			out, l.AtLeast = int64(here), true
		}
		l.Messages = st.Ready + out + max(st.Delayed, 0)
	}
	s.hottest(&l)
	return l, nil
}

func (s *Consumer) inFlight() (records int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.InUse()
}

// hottest fills in what is known here.
func (s *Consumer) hottest(l *Lag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights.head; f != nil {
		l.Oldest = max(l.Oldest, time.Since(s.arrival(f)))
	}
	if s.p.Order != ByKey {
		return
	}
	byKey, total := map[string]int{}, 0
	for f := s.flights.head; f != nil; f = f.next {
		if f.rec.Key != "" && f.state != stateSettling && f.state != stateGone {
			byKey[f.rec.Key]++
			total++
		}
	}
	most := 0
	for key, n := range byKey {
		if n > most || n == most && key < l.HottestKey {
			most, l.HottestKey = n, key
		}
	}
	if total > 0 {
		l.HottestShare = float64(most) / float64(total)
	}
	l.FewKeys = total > s.slots() && len(byKey) < s.slots()
}
