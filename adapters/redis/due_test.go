package redis_test

import (
	"slices"
	"testing"
	"time"

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
	slices.Sort(late)
	return late
}

// TestWhatIsDueDoesNotWaitForTheServersCron: a server without other clients ends a read
// whose time is over up to 100 ms late.
func TestWhatIsDueDoesNotWaitForTheServersCron(t *testing.T) {
	t.Parallel()
	late := lateness(t, private(t), 17, 300*time.Millisecond, 137*time.Millisecond)
	t.Logf("median %v, last %v", late[len(late)/2], late[len(late)-1])
	if median := late[len(late)/2]; median > 25*time.Millisecond {
		t.Errorf("half of %d messages came more than %v late", len(late), median)
	}
}
