package aws_test

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func TestTopicReachesEveryGroup(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 1} {
		d, to := open(t), fresh(t, driver.Topic, partitions, "one", "two")
		want := someKeyed(25, 3)
		want[3].Headers = []driver.Header{{Key: "h", Value: "\x00"}, {Key: "h", Value: ""}}
		want[4].Body = []byte("\x00\xff")
		publish(t, d, to, want...)
		for _, g := range []string{"one", "two"} {
			c := subscribe(t, d, driver.Subscription{From: to, Group: g})
			var got []driver.Received
			for len(got) < len(want) {
				some := receive(t, c, min(5, len(want)-len(got)))
				mustSettle(t, c, driver.Ack, some...)
				got = append(got, some...)
			}
			if partitions > 0 {
				inOrder(t, got)
			}
			slices.SortFunc(got, func(a, b driver.Received) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
			for i, m := range got {
				if m.ID != want[i].ID || m.Key != want[i].Key || !bytes.Equal(m.Body, want[i].Body) || !slices.Equal(m.Headers, want[i].Headers) {
					t.Errorf("group %s: sent %+v, got %+v", g, want[i], m.Message)
				}
			}
			quiet(t, c, time.Second)
		}
	}
}

// TestOneGroupOfATopic: a retry or redrive reaches its group and no other.
func TestOneGroupOfATopic(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic, 0, "one", "two")
	again := message(1)
	again.Delay = time.Second // through the queue, which delays; the topic would not
	publish(t, d, to.ForGroup("one"), again)
	if got := receive(t, subscribe(t, d, driver.Subscription{From: to, Group: "one"}), 1); got[0].ID != again.ID {
		t.Error(ids(got))
	}
	quiet(t, subscribe(t, d, driver.Subscription{From: to, Group: "two"}), 2*time.Second)
}

func TestFilterPolicy(t *testing.T) {
	t.Parallel()
	to := fresh(t, driver.Topic, 0)
	d := openAttributes(t, "tenant")
	filtered := driver.Resource{Destination: to.ForGroup("red"), Options: map[string]string{"FilterPolicy": `{"tenant":["red"]}`}}
	changes, err := d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{filtered}, driver.Create)
	if err != nil || len(changes) != 3 {
		t.Fatalf("%+v, %v", changes, err)
	}
	red, blue := message(1), message(2)
	red.Headers, blue.Headers = []driver.Header{{Key: "tenant", Value: "red"}}, []driver.Header{{Key: "tenant", Value: "blue"}}
	publish(t, d, to, blue, red)
	c := subscribe(t, d, driver.Subscription{From: to, Group: "red"})
	if got := receive(t, c, 1); got[0].ID != red.ID {
		t.Error(ids(got))
	}
	quiet(t, c, time.Second)
	if changes, err = d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{filtered}, driver.Verify); err != nil || len(changes) != 0 {
		t.Errorf("what was just made differs: %+v, %v", changes, err)
	}
	filtered.Options["FilterPolicy"] = `{"tenant":["green"]}`
	changes, err = d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{filtered}, driver.Create)
	if err != nil || len(changes) != 1 || changes[0].Field != "FilterPolicy" || changes[0].Done {
		t.Errorf("another filter: %+v, %v", changes, err)
	}
}

func TestTopologyOfATopic(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic, 0)
	adm, ctx := d.Admin(), within(t, 30*time.Second)
	g := driver.Resource{Destination: to.ForGroup("late")}
	nowhere := driver.Destination{Shape: driver.Topic, Name: to.Name + "-nowhere"}
	if _, err := d.Subscribe(ctx, driver.Subscription{From: nowhere, Group: "late"}); driver.ClassOf(err) != driver.NotFound {
		t.Errorf("a group of no topic: %v", err)
	}
	own := subscribe(t, d, driver.Subscription{From: to, Group: "own"}) // made by its consumer
	publish(t, d, to, message(0))
	mustSettle(t, own, driver.Ack, receive(t, own, 1)...)
	changes, err := adm.Apply(ctx, []driver.Resource{g}, driver.Plan)
	if err != nil || len(changes) != 1 || changes[0].Field != "exists" || changes[0].Done {
		t.Errorf("plan: %+v, %v", changes, err)
	}
	var wg sync.WaitGroup
	for range 4 { // all at once
		wg.Go(func() {
			if _, err := adm.Apply(ctx, []driver.Resource{g}, driver.Create); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	publish(t, d, to, message(1))
	c := subscribe(t, d, driver.Subscription{From: to, Group: "late"})
	receive(t, c, 1)
	s, err := adm.Stats(ctx, driver.Resource{Destination: to})
	if err != nil || s.Ready+s.InFlight != 2 {
		t.Errorf("the sum over two groups: %+v, %v", s, err)
	}
	quiet(t, c, time.Second) // four Applies made one subscription
	if changes, err = adm.Apply(ctx, []driver.Resource{g}, driver.Delete); err != nil || len(changes) != 1 || !changes[0].Done {
		t.Errorf("delete: %+v, %v", changes, err)
	}
	publish(t, d, to, message(2))
}

func TestTemporaryGroup(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic, 0)
	c := subscribe(t, d, driver.Subscription{From: to, Temporary: true})
	publish(t, d, to, message(1))
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
	if err := c.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	s, err := d.Admin().Stats(within(t, 5*time.Second), driver.Resource{Destination: to})
	if err != nil || s.Lag != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := d.Subscribe(within(t, 5*time.Second), driver.Subscription{From: to}); driver.ClassOf(err) != driver.Permanent {
		t.Errorf("no group and not temporary: %v", err)
	}
}

func TestTopicFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rule  rule
		want  driver.Class
		after time.Duration
	}{
		{"throttled", rule{refuse: refusal(400, "Throttled", "slow down")}, driver.Transient, time.Second},
		{"not authorized", rule{refuse: refusal(403, "AuthorizationError", "no")}, driver.Denied, 0},
		{"deleted", rule{refuse: refusal(404, "NotFound", "Topic does not exist")}, driver.NotFound, 0},
		{"too long", rule{refuse: refusal(400, "InvalidParameter", "Invalid parameter: Message too long")}, driver.TooLarge, 0},
		{"a server error", rule{refuse: refusal(500, "InternalError", "oops")}, driver.Ambiguous, 0},
		{"the answer is lost", rule{after: lostAnswer}, driver.Ambiguous, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			d, to := openAt(t, p.srv.URL), fresh(t, driver.Topic, 0)
			c.rule.action, c.rule.times = "PublishBatch", 1
			p.add(&c.rule)
			err := driver.ResultAt(d.Publish(within(t, 10*time.Second), to, some(0, 1)), 0)
			if driver.ClassOf(err) != c.want || after(err) != c.after || p.seen(&c.rule) != 1 {
				t.Errorf("%v (after %v), want %v after %v", err, after(err), c.want, c.after)
			}
			publish(t, d, to, message(1))
		})
	}
}
