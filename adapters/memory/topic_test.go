package memory_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestTopicCopiesToEveryGroup(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, topic("t"))
	a, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "a"})
	b, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "b"})
	b2, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "b"})
	publish(t, d, topic("t"), msg("1"), msg("2"))
	got := receive(t, a, 10)
	want(t, got, "1", "2")
	want(t, receive(t, b, 1), "1")
	want(t, receive(t, b2, 9), "2")
	settle(t, a, driver.Reject, got[0])

	publish(t, d, topic("t").ForGroup("b"), msg("for b"))
	want(t, receive(t, b, 9), "for b")
	nothing(t, a, 10*time.Millisecond)
	wantClass(t, d.Publish(t.Context(), topic("t").ForGroup("nobody"), []*driver.Message{msg("x")}), driver.NotFound)
}

func TestTopicKeepsForGroupsToCome(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, topic("t"))
	publish(t, d, topic("t"), msg("1"), msg("2"))
	for _, kind := range []driver.PositionKind{driver.Default, driver.Earliest} {
		c, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: kind.String(), Start: driver.Position{Kind: kind}})
		want(t, receive(t, c, 9), "1", "2")
	}
	late, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "late", Start: driver.Position{Kind: driver.Latest}})
	made := driver.Resource{Destination: topic("t").ForGroup("made"), Start: driver.Position{Kind: driver.Latest}}
	if _, err := d.Admin().Apply(t.Context(), []driver.Resource{made}, driver.Create); err != nil {
		t.Fatal(err)
	}
	publish(t, d, topic("t"), msg("3"))
	want(t, receive(t, late, 9), "3")
	c, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "made"}) // has its position
	want(t, receive(t, c, 9), "3")
	_, err := d.Subscribe(t.Context(), driver.Subscription{From: topic("t"), Group: "x", Start: driver.Position{Kind: driver.Since}})
	wantClass(t, err, driver.Unsupported)
	_, err = d.Subscribe(t.Context(), driver.Subscription{From: topic("t")})
	wantClass(t, err, driver.Permanent)
	_, err = d.Subscribe(t.Context(), driver.Subscription{From: topic("none"), Group: "x"})
	wantClass(t, err, driver.NotFound)
}

func TestTopicGroupOutlivesItsConsumers(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, topic("t"))
	c, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "g"})
	closeNow(t, c)
	publish(t, d, topic("t"), msg("1"))
	c, _ = subscribe(t, d, driver.Subscription{From: topic("t"), Group: "g"})
	want(t, receive(t, c, 9), "1")
}

func TestTemporaryGroupEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, topic("t"), queue("q"))
	sub := driver.Subscription{From: topic("t"), Group: "mine", Temporary: true}
	c, _ := subscribe(t, d, sub)
	_, err := d.Subscribe(t.Context(), sub)
	wantClass(t, err, driver.Conflict)
	publish(t, d, topic("t").ForGroup("mine"), msg("reply"))
	want(t, receive(t, c, 9), "reply")
	closeNow(t, c)
	wantClass(t, d.Publish(t.Context(), topic("t").ForGroup("mine"), []*driver.Message{msg("late")}), driver.NotFound)
	c, _ = subscribe(t, d, sub)
	nothing(t, c, 10*time.Millisecond) // the copies were for the old one alone
	_, err = d.Subscribe(t.Context(), driver.Subscription{From: queue("q"), Temporary: true})
	wantClass(t, err, driver.Unsupported)
}

func TestTopicRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{MaxMessages: 3, Retention: time.Minute}, topic("t"))
		for i := range 5 {
			publish(t, d, topic("t"), msg(fmt.Sprint(i)))
		}
		c, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "count"})
		want(t, receive(t, c, 9), "2", "3", "4")
		time.Sleep(time.Minute)
		c, _ = subscribe(t, d, driver.Subscription{From: topic("t"), Group: "age"})
		nothing(t, c, time.Second)
	})
}

// One slow group makes publishing wait rather than lose: and no group gets more than another.
func TestTopicIsFullWhenOneGroupIs(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{MaxMessages: 2}, topic("t"))
	slow, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "slow"})
	fast, _ := subscribe(t, d, driver.Subscription{From: topic("t"), Group: "fast"})
	publish(t, d, topic("t"), msg("1"))
	settle(t, fast, driver.Ack, receive(t, fast, 9)...)
	err := d.Publish(t.Context(), topic("t"), []*driver.Message{msg("2"), msg("3")})
	if driver.ResultAt(err, 0) != nil || driver.ClassOf(driver.ResultAt(err, 1)) != driver.Transient {
		t.Fatalf("publish: %v", err)
	}
	want(t, receive(t, fast, 9), "2")
	want(t, receive(t, slow, 9), "1", "2")
}

func TestTopicKeepsLessOnceItHasAGroup(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, topic("t"))
	batch := make([]*driver.Message, 1000)
	for i := range batch {
		batch[i] = msg("x")
	}
	ready := func(group string) int64 {
		of := driver.Resource{Destination: topic("t").ForGroup(group)}
		apply(t, d, driver.Create, of)
		s, err := d.Admin().Stats(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		return s.Ready
	}
	for range 70 {
		publish(t, d, topic("t"), batch...)
	}
	if n := ready("first"); n != 70_000 {
		t.Errorf("the first group has %d of 70,000 messages", n)
	}
	publish(t, d, topic("t"), msg("y"))
	if n := ready("second"); n != 1<<16 {
		t.Errorf("the second group has %d messages", n)
	}
}
