package redis_test

import (
	"slices"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// lateness publishes messages that become due one after the other, far enough apart for the
// server to have nothing else to do, and returns how late each came.
func lateness(t *testing.T, s *server, n int, first, apart time.Duration) (late []time.Duration) {
	t.Helper()
	to := s.make(driver.Queue, 0)
	d := open(t, s.config)
	c := subscribe(t, d, driver.Subscription{From: to})
	due := map[string]time.Time{}
	for i := range n {
		m := message(i)
		m.Delay = first + time.Duration(i)*apart
		due[m.ID] = time.Now().Add(m.Delay)
		if err := d.Publish(within(t, 10*time.Second), to, []*driver.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		r := receive(t, c, 1)[0]
		d := time.Since(due[r.ID])
		if d < 0 {
			t.Errorf("%s came %v early", r.ID, -d)
		}
		late = append(late, d)
		mustSettle(t, c, driver.Ack, r)
	}
	return late
}

// lazy is a server that looks once a second whose time is over, where others do it ten
// times: what waits for that look is told from what a busy machine makes late.
func lazy(t *testing.T) *server {
	t.Helper()
	s := private(t)
	if err := s.client().ConfigSet(t.Context(), "hz", "1").Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

// onTime fails where half of the messages came as late as by the server's look.
func onTime(t *testing.T, late []time.Duration) {
	t.Helper()
	slices.Sort(late)
	median := late[len(late)/2]
	t.Logf("median %v, last %v", median, late[len(late)-1])
	if median > 250*time.Millisecond {
		t.Errorf("half of %d messages came more than %v late", len(late), median)
	}
}

// TestWhatIsDueDoesNotWaitForTheServersCron: a server without other clients ends a read
// whose time is over only when it looks.
func TestWhatIsDueDoesNotWaitForTheServersCron(t *testing.T) {
	t.Parallel()
	onTime(t, lateness(t, lazy(t), 17, 300*time.Millisecond, 137*time.Millisecond))
}

// awaited returns when a consumer waits for one message. The channel is closed without one
// if none comes.
func awaited(t *testing.T, c driver.Consumer) <-chan driver.Received {
	t.Helper()
	got := make(chan driver.Received, 1)
	ctx := within(t, 15*time.Second)
	go func() {
		defer close(got)
		if rs, err := c.Receive(ctx, demand(1)); err == nil && len(rs) == 1 {
			got <- rs[0]
		}
	}()
	time.Sleep(150 * time.Millisecond) // the load of the test: the consumer waits
	return got
}

// TestWhatIsDueFirstWakesWhoWaits: a consumer that knows of nothing, or of something later,
// learns of what another process puts aside before it is due.
func TestWhatIsDueFirstWakesWhoWaits(t *testing.T) {
	t.Parallel()
	s := lazy(t)
	to := s.make(driver.Queue, 0)
	c := subscribe(t, open(t, s.config), driver.Subscription{From: to})
	other := open(t, s.config)
	var late []time.Duration
	for i := range 9 {
		got := awaited(t, c)
		m := message(i)
		m.Delay = 40 * time.Millisecond
		due := time.Now().Add(m.Delay)
		if err := other.Publish(within(t, 10*time.Second), to, []*driver.Message{m}); err != nil {
			t.Fatal(err)
		}
		r, ok := <-got
		if !ok {
			t.Fatal("it did not come")
		}
		late = append(late, time.Since(due))
		mustSettle(t, c, driver.Ack, r)
	}
	onTime(t, late)
}

// TestANackWithADelayWakesWhoWaits: likewise what a group is to have again.
func TestANackWithADelayWakesWhoWaits(t *testing.T) {
	t.Parallel()
	s := lazy(t)
	to := s.make(driver.Queue, 0)
	d := open(t, s.config)
	c := subscribe(t, d, driver.Subscription{From: to})
	publish(t, d, to, 0, 1)
	r := receive(t, c, 1)[0]
	var late []time.Duration
	for range 5 {
		got := awaited(t, c)
		const delay = 50 * time.Millisecond
		due := time.Now().Add(delay)
		if err := settle(c, driver.Settlement{Disposition: driver.Nack, Delay: delay}, r); err != nil {
			t.Fatal(err)
		}
		var ok bool
		if r, ok = <-got; !ok {
			t.Fatal("it did not come")
		}
		late = append(late, time.Since(due))
	}
	mustSettle(t, c, driver.Ack, r)
	onTime(t, late)
}

// TestWakeUpsComeAgainAfterTheirConnectionBroke: and until then a consumer looks by itself.
func TestWakeUpsComeAgainAfterTheirConnectionBroke(t *testing.T) {
	t.Parallel()
	s := private(t)
	to := s.make(driver.Queue, 0)
	c := subscribe(t, open(t, s.config), driver.Subscription{From: to})
	cl := s.client()
	listeners := func() int64 {
		n, err := cl.PubSubNumSub(t.Context(), "varal:{own}:z").Result()
		if err != nil {
			t.Fatal(err)
		}
		return n["varal:{own}:z"]
	}
	eventually(t, "a listener", 10*time.Second, func() bool { return listeners() == 1 })
	if err := cl.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a listener again", 10*time.Second, func() bool { return listeners() == 1 })
	if err := c.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no listener without a consumer", 10*time.Second, func() bool { return listeners() == 0 })
}

// TestListenerFollowsConsumersThatComeAndGo: the last one to come is told, however quickly
// it follows the one before.
func TestListenerFollowsConsumersThatComeAndGo(t *testing.T) {
	t.Parallel()
	s := private(t)
	to := s.make(driver.Queue, 0)
	d, cl := open(t, s.config), s.client()
	first := subscribe(t, d, driver.Subscription{From: to})
	for range 100 {
		next := subscribe(t, d, driver.Subscription{From: to})
		if err := first.Close(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := next.Close(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		first = subscribe(t, d, driver.Subscription{From: to})
	}
	listeners := func() int64 {
		n, err := cl.PubSubNumSub(t.Context(), "varal:{own}:z").Result()
		if err != nil {
			t.Fatal(err)
		}
		return n["varal:{own}:z"]
	}
	settled := 0
	eventually(t, "the last one's listener, to stay", 10*time.Second, func() bool {
		if settled++; listeners() != 1 {
			settled = 0
		}
		return settled > 20
	})
}

// TestDelayWithoutChannels: a login that may neither publish nor subscribe still delays.
func TestDelayWithoutChannels(t *testing.T) {
	t.Parallel()
	s := private(t)
	to := s.make(driver.Queue, 0)
	if err := s.client().Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">pizza", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	d := open(t, s.config, func(c *redis.Config) { c.User, c.Password = "mute", "pizza" })
	c := subscribe(t, d, driver.Subscription{From: to})
	m := message(0)
	m.Delay = 50 * time.Millisecond
	if err := d.Publish(within(t, 10*time.Second), to, []*driver.Message{m}); err != nil {
		t.Fatal(err)
	}
	r := receive(t, c, 1)[0]
	if err := settle(c, driver.Settlement{Disposition: driver.Nack, Delay: 50 * time.Millisecond}, r); err != nil {
		t.Fatal(err)
	}
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
}
