package redis_test

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func TestRetentionTrimsWhatIsOlder(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 1} {
		t.Run(strconv.Itoa(partitions), func(t *testing.T) {
			t.Parallel()
			d, to := open(t), freshOf(t, driver.Destination{Shape: driver.Stream, Partitions: partitions}, "g")
			want := []driver.Resource{{Destination: to, Options: map[string]string{"retention": "500ms"}}}
			for i, mode := range []driver.Mode{driver.Verify, driver.Create, driver.Verify} {
				changes, err := d.Admin().Apply(within(t, 10*time.Second), want, mode)
				if err != nil || len(changes) != []int{1, 1, 0}[i] {
					t.Fatalf("%v: %v, %v", mode, changes, err)
				}
			}
			var told events
			c := subscribe(t, d, driver.Subscription{From: to, Group: "g", Notify: told.tell})
			publish(t, d, to, 0, 1000)
			out := receive(t, c, 10)
			kept := func() int64 { return stats(t, d, to).Ready }
			if n := kept(); n != 1000 {
				t.Fatalf("%d are kept, and none is old", n)
			}
			time.Sleep(600 * time.Millisecond) // they become old: the case
			publish(t, d, to, 1000, 1001)
			if n := kept(); n > 200 { // a node of the stream goes as a whole
				t.Errorf("%d are kept, and one is young", n)
			}
			mustSettle(t, c, driver.Ack, out[1:]...)
			if partitions == 0 { // its copy cannot be made
				if err := settle(c, driver.Settlement{Disposition: driver.Nack}, out[0]); !errors.Is(err, driver.LeaseLost) {
					t.Errorf("a nack of what is gone ended with %v", err)
				}
			} else if mustSettle(t, c, driver.Nack, out[0]); told.of(driver.Gone) != 1 {
				t.Error("nobody was told that a message is gone")
			}
			for got := []driver.Received(nil); !slices.ContainsFunc(got, func(r driver.Received) bool { return r.ID == message(1000).ID }); {
				got = receive(t, c, 1)
				mustSettle(t, c, driver.Ack, got...)
			}
		})
	}
}

func TestRetentionIsRefusedWhereItMeansNothing(t *testing.T) {
	t.Parallel()
	d := open(t)
	topic := fresh(t, driver.Topic, "g")
	for what, c := range map[string]struct {
		of    driver.Destination
		name  string
		value string
		want  driver.Class
	}{
		"of a queue":    {fresh(t, driver.Queue), "retention", "72h", driver.Unsupported},
		"of a group":    {topic.ForGroup("g"), "retention", "72h", driver.Unsupported},
		"not a time":    {topic, "retention", "three days", driver.Permanent},
		"nothing":       {topic, "retention", "0s", driver.Permanent},
		"another thing": {topic, "max_age", "72h", driver.Unsupported},
	} {
		for _, mode := range []driver.Mode{driver.Create, driver.Verify} {
			if _, err := d.Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: c.of, Options: map[string]string{c.name: c.value}}}, mode); driver.ClassOf(err) != c.want {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

func TestRetentionKeepsWhatIsYounger(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Stream)
	want := []driver.Resource{{Destination: to, Options: map[string]string{"retention": "1h"}}}
	if _, err := d.Admin().Apply(within(t, 10*time.Second), want, driver.Create); err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // each of them trims
		publish(t, d, to, 300*i, 300*i+300)
	}
	if n := stats(t, d, to).Ready; n != 1500 {
		t.Errorf("%d of 1500 are kept, and none is old", n)
	}
}
