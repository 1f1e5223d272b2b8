package memory_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func apply(t testing.TB, d driver.Driver, mode driver.Mode, want ...driver.Resource) []driver.Change {
	t.Helper()
	changes, err := d.Admin().Apply(t.Context(), want, mode)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func TestApply(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{})
	r := driver.Resource{Destination: topic("t").Keyed(4).ForGroup("g"), Options: map[string]string{"max_messages": "7"}}
	for _, mode := range []driver.Mode{driver.Verify, driver.Plan} {
		if got := apply(t, d, mode, r); len(got) != 2 || got[0].Field != "exists" || got[0].Done || got[1].Subject != "topic t, group g" {
			t.Errorf("%s: %+v", mode, got)
		}
	}
	if got := apply(t, d, driver.Create, r); len(got) != 2 || !got[0].Done || !got[1].Done {
		t.Errorf("create: %+v", got)
	}
	if got := apply(t, d, driver.Create, r); len(got) != 0 {
		t.Errorf("create again: %+v", got)
	}
	r.Partitions, r.Options["max_messages"] = 5, "8"
	if got := apply(t, d, driver.Create, r); len(got) != 2 || got[0].Field != "partitions" || got[0].Have != "4" || got[0].Done || got[1].Field != "max_messages" {
		t.Errorf("create differently: %+v", got)
	}
	c, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "g"})
	_, err := d.Admin().Apply(t.Context(), []driver.Resource{{Destination: topic("t").ForGroup("g")}}, driver.Delete)
	wantClass(t, err, driver.Conflict)
	ended := make(chan error)
	go func() {
		_, err := c.Receive(t.Context(), demand(1))
		ended <- err
	}()
	whole := driver.Resource{Destination: topic("t")}
	if got := apply(t, d, driver.Delete, whole); len(got) != 1 || !got[0].Done {
		t.Errorf("delete: %+v", got)
	}
	wantClass(t, <-ended, driver.NotFound)
	if got := apply(t, d, driver.Delete, whole); len(got) != 0 {
		t.Errorf("delete again: %+v", got)
	}
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{})
	for class, r := range map[driver.Class]driver.Resource{
		driver.Unsupported: {Destination: queue("q"), Options: map[string]string{"exchange": "x"}},
		driver.Permanent:   {Destination: driver.Destination{Name: "q"}},
	} {
		// What is right beside it must not be done either.
		_, err := d.Admin().Apply(t.Context(), []driver.Resource{{Destination: queue("good")}, r}, driver.Create)
		wantClass(t, err, class)
	}
	wantClass(t, d.Publish(t.Context(), queue("good"), []*driver.Message{msg("1")}), driver.NotFound)
	for _, r := range []driver.Resource{
		{Destination: queue("")},
		{Destination: queue("q").Keyed(-1)},
		{Destination: queue("q"), Options: map[string]string{"max_stored": "0"}},
		{Destination: queue("q"), Options: map[string]string{"retention": "soon"}},
	} {
		_, err := d.Admin().Apply(t.Context(), []driver.Resource{r}, driver.Create)
		wantClass(t, err, driver.Permanent)
	}
	_, err := d.Admin().Apply(t.Context(), nil, 0)
	wantClass(t, err, driver.Permanent)
}

func TestApplyRaces(t *testing.T) {
	t.Parallel()
	b := memory.NewBroker()
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 16 {
		d := open(t, memory.Config{Broker: b})
		wg.Go(func() {
			n := len(apply(t, d, driver.Create, driver.Resource{Destination: topic("t").ForGroup("g")}))
			publish(t, d, topic("t"), msg("1"))
			mu.Lock()
			defer mu.Unlock()
			made += n
		})
	}
	wg.Wait()
	if made != 2 {
		t.Errorf("%d changes in all, want one for the topic and one for the group", made)
	}
	d := open(t, memory.Config{Broker: b})
	s, err := d.Admin().Stats(t.Context(), driver.Resource{Destination: topic("t").ForGroup("g")})
	if err != nil || s.Ready != 16 {
		t.Errorf("stats %+v, %v", s, err)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shards := queue("k").Keyed(2)
		d := open(t, memory.Config{}, queue("q"), shards, stream("s").Keyed(2), topic("t"))
		stats := func(of driver.Destination) driver.Stats {
			t.Helper()
			s, err := d.Admin().Stats(t.Context(), driver.Resource{Destination: of})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		late := &driver.Message{ID: "late", Delay: time.Hour}
		publish(t, d, queue("q"), msg("1"), msg("2"), late)
		time.Sleep(3 * time.Second)
		c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		receive(t, c, 1)
		if s := stats(queue("q")); s.Ready != 1 || s.InFlight != 1 || s.Delayed != 1 || s.Lag != 2 || s.Oldest != 3*time.Second || s.Partitions != nil {
			t.Errorf("queue: %+v", s)
		}
		publish(t, d, shards, msg("1"), msg("2"), msg("3"), late)
		c, _ = subscribe(t, d, driver.Subscription{From: shards})
		receive(t, c, 1)
		s := stats(shards)
		p0, p1 := s.Partitions["0"], s.Partitions["1"]
		if s.Ready != 2 || s.InFlight != 1 || s.Delayed != 1 || p0.Ready+p1.Ready != 2 || p0.InFlight+p1.InFlight != 1 || p1.Delayed != 1 {
			t.Errorf("shards: %+v", s)
		}
		publish(t, d, stream("s"), msg("1"), msg("2"), msg("3"))
		c, _ = subscribe(t, d, driver.Subscription{From: stream("s"), Group: "g"})
		got := receive(t, c, 2)
		settle(t, c, driver.Ack, got[0])
		if s := stats(stream("s").ForGroup("g")); s.Lag != 2 || s.InFlight != 1 || s.Ready != 1 || len(s.Partitions) != 2 {
			t.Errorf("stream group: %+v", s)
		}
		if s := stats(stream("s")); s.Ready != 3 || s.Lag != -1 {
			t.Errorf("stream: %+v", s)
		}
		_, err := d.Admin().Stats(t.Context(), driver.Resource{Destination: topic("t").ForGroup("none")})
		wantClass(t, err, driver.NotFound)
		_, err = d.Admin().Stats(t.Context(), driver.Resource{Destination: topic("none")})
		wantClass(t, err, driver.NotFound)
	})
}

func TestInspect(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{MaxMessages: 10}, queue("q"))
	rules := func(r driver.Resource) (out []string) {
		found, err := d.Admin().Inspect(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Subject == "" || f.Seen == "" || f.Wanted == "" || f.Fix == "" || !f.Inspected {
				t.Errorf("finding %+v", f)
			}
			out = append(out, f.Rule)
		}
		return out
	}
	if got := rules(driver.Resource{Destination: queue("q")}); len(got) != 1 || got[0] != "DM01" {
		t.Errorf("findings %v", got)
	}
	for range 9 {
		publish(t, d, queue("q"), msg("1"))
	}
	if got := rules(driver.Resource{Destination: queue("q").Keyed(3)}); len(got) != 3 {
		t.Errorf("findings %v, want not durable, partitions, nearly full", got)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{MaxBytes: 77})
	q, k, s := d.Capabilities(queue("q")), d.Capabilities(queue("q").Keyed(2)), d.Capabilities(stream("s"))
	for need, has := range map[driver.Need][3]bool{
		driver.NeedDurable: {}, driver.NeedDedup: {}, driver.NeedDeadLetter: {}, driver.NeedTransactions: {},
		driver.NeedReplay: {false, false, true}, driver.NeedOrdered: {false, true, true},
		driver.NeedSchedule: {true, true, false}, driver.NeedDelayNack: {true, false, false},
		driver.NeedLease: {true, true, false}, driver.NeedCounts: {true, true, false},
		driver.NeedTTL: {true, true, false}, driver.NeedPriority: {true, false, false},
	} {
		if got := [3]bool{q.Has(need), k.Has(need), s.Has(need)}; got != has {
			t.Errorf("%s: queue, shards, stream have %v, want %v", need, got, has)
		}
	}
	if q.MaxBytes != 77 || q.Settle != driver.Each || s.Settle != driver.UpTo || s.StateBytes != 64<<10 {
		t.Errorf("capabilities %+v %+v", q, s)
	}
}
