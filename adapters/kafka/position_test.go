package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

func startAt(p driver.Position) func(*driver.Subscription) {
	return func(s *driver.Subscription) { s.Start = p }
}

// Every kind of Start, for a group and for a stream without one.
func TestStart(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Stream, 1)
		batch := messages(10, 1)
		for i, m := range batch {
			m.Time = time.Now().Add(time.Duration(i-100) * time.Minute).Truncate(time.Millisecond)
		}
		publish(t, d, to, batch)
		for i, c := range []struct {
			at   driver.Position
			want string
		}{
			{driver.Position{Kind: driver.Earliest}, "m0"},
			{driver.Position{Kind: driver.At, Offset: 4}, "m4"},
			{driver.Position{Kind: driver.At, Offset: 5, Partition: to.Name + "/0"}, "m5"},
			{driver.Position{Kind: driver.Since, Time: batch[7].Time}, "m7"},
		} {
			for _, group := range []string{"", fmt.Sprint(to.Name, "-", i)} {
				k := consume(t, d, to, group, startAt(c.at))
				if got := k.collect(t, 1)[0].ID; got != c.want {
					t.Errorf("group %q from %v: first is %s, want %s", group, c.at.Kind, got, c.want)
				}
				shut(t, k)
			}
		}
		bare := consume(t, d, to, "")
		group := consume(t, d, to, to.Name+"-l", startAt(driver.Position{Kind: driver.Latest}))
		bare.owns(t, 1)
		group.owns(t, 1)
		publish(t, d, to, []*driver.Message{{ID: "new", Body: []byte("x"), Time: time.Now()}})
		for _, k := range []*desk{bare, group} {
			if got := k.collect(t, 1)[0].ID; got != "new" {
				t.Errorf("from the latest: first is %s", got)
			}
		}
		if err := bare.Settle(t.Context(), []driver.Settlement{{Receipt: driver.Receipt{Partition: to.Name + "/0", Epoch: bare.history[0].Epoch}, Disposition: driver.Ack}}); err != nil {
			t.Errorf("settle without a group: %v", err)
		}
	})
}

// A group that started at the latest and died before its first commit has not lost
// what came in between.
func TestLatestSticks(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Topic, 2)
		latest := startAt(driver.Position{Kind: driver.Latest})
		publish(t, d, to, messages(4, 4))
		k := consume(t, d, to, to.Name, latest)
		k.owns(t, 2)
		publish(t, d, to, messages(6, 6))
		k.collect(t, 6)
		shut(t, k) // nothing settled
		if got := consume(t, d, to, to.Name, latest).collect(t, 6); len(got) != 6 {
			t.Fatal(len(got))
		}
	})
}

func TestSeek(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		publish(t, d, to, messages(10, 1))
		of := driver.Resource{Destination: to}
		k := consume(t, d, to, "")
		k.ack(t, k.collect(t, 10), []byte("state"))
		wantClass(t, d.Admin().Seek(t.Context(), of, driver.Position{Kind: driver.Earliest}), driver.Conflict)
		shut(t, k)
		for _, c := range []struct {
			to   driver.Position
			want string
		}{
			{driver.Position{Kind: driver.Earliest}, "m0"},
			{driver.Position{Kind: driver.At, Offset: 3, Partition: to.Name + "/0"}, "m3"},
		} {
			if err := d.Admin().Seek(t.Context(), of, c.to); err != nil {
				t.Fatal(err)
			}
			k := consume(t, d, to, "")
			if got := k.collect(t, 1)[0].ID; got != c.want || k.history[0].State != nil {
				t.Errorf("after seek to %v: %s, state %q", c.to.Kind, got, k.history[0].State)
			}
			shut(t, k)
		}
		wantClass(t, d.Admin().Seek(t.Context(), driver.Resource{Destination: driver.Destination{Shape: driver.Queue, Name: "no-such-topic"}}, driver.Position{}), driver.NotFound)
		wantClass(t, d.Admin().Seek(t.Context(), driver.Resource{Destination: driver.Destination{Shape: driver.Stream, Name: to.Name}}, driver.Position{}), driver.Unsupported)
	})
}

// A position that is gone is an event; Reset decides, and nothing is skipped silently.
func TestOutOfRange(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		for _, c := range []struct {
			reset driver.PositionKind
			gone  string
			first string
		}{
			{driver.Default, "past the end", ""},
			{driver.Earliest, "past the end", "m0"},
			{driver.Latest, "past the end", "new"},
			{driver.Earliest, "trimmed", "m5"},
			{driver.Default, "trimmed", ""},
		} {
			t.Run(c.reset.String()+" "+c.gone, func(t *testing.T) {
				t.Parallel()
				to := topic(t, d, driver.Queue, 1)
				publish(t, d, to, messages(10, 1))
				if c.gone == "trimmed" {
					trim(t, b, to.Name, 5)
				} else if err := d.Admin().Seek(t.Context(), driver.Resource{Destination: to}, driver.Position{Kind: driver.At, Offset: 1000}); err != nil {
					t.Fatal(err)
				}
				if c.gone == "trimmed" {
					if err := d.Admin().Seek(t.Context(), driver.Resource{Destination: to}, driver.Position{Kind: driver.At, Offset: 2}); err != nil {
						t.Fatal(err)
					}
				}
				k := consume(t, d, to, "", func(s *driver.Subscription) { s.Reset = c.reset })
				told := func() bool {
					for _, e := range k.events {
						if e.Kind == driver.OutOfRange && e.Partition == to.Name+"/0" && e.Err != nil {
							return true
						}
					}
					return false
				}
				switch c.first {
				case "":
					k.quiet(t, 2*time.Second)
				case "new":
					k.quiet(t, 2*time.Second)
					publish(t, d, to, []*driver.Message{{ID: "new", Key: "key0", Body: []byte("x"), Time: time.Now()}})
				}
				if c.first != "" {
					if got := k.collect(t, 1)[0].ID; got != c.first {
						t.Errorf("goes on with %s, want %s", got, c.first)
					}
				}
				k.until(t, "the event OutOfRange", told)
			})
		}
	})
}

func trim(t *testing.T, b broker, topic string, to int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.conf.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	offsets := make(kadm.Offsets)
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: to})
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), offsets); err != nil {
		t.Fatal(err)
	}
}

// A temporary group ends with its consumer.
func TestTemporaryGroup(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Topic, 1)
		publish(t, d, to, messages(3, 1))
		k := consume(t, d, to, to.Name, func(s *driver.Subscription) { s.Temporary = true })
		k.ack(t, k.collect(t, 3), nil)
		shut(t, k)
		s, err := d.Admin().Stats(t.Context(), driver.Resource{Destination: driver.Destination{Shape: driver.Topic, Name: to.Name, Group: to.Name}})
		if err != nil || s.Lag != 3 {
			t.Errorf("lag %d (%v), want 3: the group should be gone", s.Lag, err)
		}
	})
}

func TestAdmin(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		a := d.Admin()
		of := driver.Destination{Shape: driver.Topic, Name: fmt.Sprint("admin-", time.Now().UnixNano()), Partitions: 3}
		want := []driver.Resource{{Destination: of, Options: map[string]string{"retention.ms": "86400000"}}}
		apply := func(r []driver.Resource, mode driver.Mode) []driver.Change {
			t.Helper()
			c, err := a.Apply(t.Context(), r, mode)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, mode := range []driver.Mode{driver.Verify, driver.Plan} {
			if c := apply(want, mode); len(c) != 1 || c[0].Field != "exists" || c[0].Done {
				t.Errorf("%v of what is missing: %+v", mode, c)
			}
		}
		if c := apply(want, driver.Create); len(c) != 1 || !c[0].Done {
			t.Errorf("create: %+v", c)
		}
		for _, mode := range []driver.Mode{driver.Create, driver.Verify} {
			if c := apply(want, mode); len(c) != 0 {
				t.Errorf("%v again: %+v", mode, c)
			}
		}
		other := want[0]
		other.Partitions, other.Options = 5, map[string]string{"retention.ms": "1"}
		if c := apply([]driver.Resource{other}, driver.Create); len(c) != 2 || c[0].Field != "partitions" || c[0].Done || c[1].Field != "retention.ms" {
			t.Errorf("differences: %+v", c)
		}
		other.Options = map[string]string{"x-pizza": "1"}
		_, err := a.Apply(t.Context(), []driver.Resource{other}, driver.Create)
		wantClass(t, err, driver.Unsupported)

		publish(t, d, of, messages(30, 30))
		group := want[0]
		group.Group, group.Start = of.Name+"-g", driver.Position{Kind: driver.Latest}
		if c := apply([]driver.Resource{group}, driver.Create); len(c) != 1 || !c[0].Done {
			t.Errorf("create a group: %+v", c)
		}
		if c := apply([]driver.Resource{group}, driver.Create); len(c) != 0 {
			t.Errorf("create a group again: %+v", c)
		}
		publish(t, d, of, messages(12, 12))
		s, err := a.Stats(t.Context(), group)
		if err != nil || s.Lag != 12 || s.Ready != 12 || s.InFlight != -1 || len(s.Partitions) != 3 {
			t.Errorf("stats %+v, %v", s, err)
		}
		if s, err := a.Stats(t.Context(), want[0]); err != nil || s.Ready != 42 || s.Lag != -1 {
			t.Errorf("stats of the topic %+v, %v", s, err)
		}
		_, err = a.Stats(t.Context(), driver.Resource{Destination: driver.Destination{Shape: driver.Queue, Name: "no-such-topic"}})
		wantClass(t, err, driver.NotFound)
		found, err := a.Inspect(t.Context(), want[0])
		rules := make(map[string]bool)
		for _, f := range found {
			rules[f.Rule] = f.Inspected
		}
		if err != nil || !rules["replication"] || !rules["min-isr"] || !rules["retention"] {
			t.Errorf("findings %+v, %v", found, err)
		}
		if c := apply([]driver.Resource{group}, driver.Delete); len(c) != 1 || !c[0].Done {
			t.Errorf("delete a group: %+v", c)
		}
		if c := apply(want, driver.Delete); len(c) != 1 || !c[0].Done {
			t.Errorf("delete: %+v", c)
		}
		if c := apply(want, driver.Delete); len(c) != 0 {
			t.Errorf("delete again: %+v", c)
		}
	})
}

// Connections that are cut come back by themselves, and both is told.
func TestReconnect(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		var w wire
		d := b.open(t, func(c *kafka.Config) { c.Dial = w.dial })
		to := topic(t, d, driver.Queue, 2)
		k := consume(t, d, to, "")
		k.owns(t, 2)
		publish(t, d, to, messages(10, 5))
		k.collect(t, 10)
		w.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for d.Publish(ctx, to, []*driver.Message{{ID: "after", Body: []byte("x"), Time: time.Now()}}) != nil {
			if ctx.Err() != nil {
				t.Fatal("no publish after the cut")
			}
		}
		for k.collect(t, 1)[0].ID != "after" {
		}
		k.until(t, "Disconnected, then Connected", func() bool {
			down := false
			for _, e := range k.events {
				down = down || e.Kind == driver.Disconnected
				if down && e.Kind == driver.Connected {
					return true
				}
			}
			return false
		})
	})
}
