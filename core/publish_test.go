package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func batchOf(keys ...string) (out []*core.Message) {
	for i, k := range keys {
		out = append(out, &core.Message{Key: k, Body: fmt.Append(nil, i)})
	}
	return out
}

func TestPublishFillsIDAndTime(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	msgs := batchOf("a", "b", "a")
	msgs[1].ID = "mine"
	if err := client(f).Publish(t.Context(), core.Queue("q"), msgs...); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, m := range f.sent("q") {
		if m.ID == "" || seen[m.ID] || m.Time.IsZero() {
			t.Errorf("message %d: id %q, time %v", i, m.ID, m.Time)
		}
		if m.ID != msgs[i].ID {
			t.Errorf("message %d went out as %q, the caller sees %q", i, m.ID, msgs[i].ID)
		}
		seen[m.ID] = true
	}
	if msgs[1].ID != "mine" {
		t.Errorf("id replaced by %q", msgs[1].ID)
	}
}

func TestPublishRefusesBadMessagesOneByOne(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.MaxBytes, f.caps.Priorities = 1000, 3
	header := func(k, v string) *core.Message {
		return &core.Message{Headers: []core.Header{{Key: k, Value: v}}}
	}
	many := &core.Message{}
	for range 65 {
		many.Headers = append(many.Headers, core.Header{Key: "k"})
	}
	cases := []struct {
		m    *core.Message
		is   error
		text string
	}{
		{&core.Message{Body: []byte("good")}, nil, ""},
		{&core.Message{Body: make([]byte, 1001)}, core.ErrTooLarge, "1001 bytes; the broker takes 1000"},
		{nil, core.ErrPermanent, "nil"},
		{header("", "v"), core.ErrPermanent, "empty"},
		{header("a b", "v"), core.ErrPermanent, `"a b"`},
		{header("a\nb", "v"), core.ErrPermanent, `"a\nb"`},
		{header("varal-id", "v"), core.ErrPermanent, "Delivery.Forward"},
		{header(strings.Repeat("k", 129), "v"), core.ErrTooLarge, "Limits.HeaderKey"},
		{header("k", strings.Repeat("v", 4097)), core.ErrTooLarge, "Limits.HeaderValue"},
		{many, core.ErrTooLarge, "Limits.Headers"},
		{&core.Message{Key: strings.Repeat("k", 257)}, core.ErrTooLarge, "Limits.Key"},
		{&core.Message{Delay: time.Second}, core.ErrUnsupported, "schedule"},
		{&core.Message{TTL: time.Second}, core.ErrUnsupported, "ttl"},
		{&core.Message{Priority: 3}, core.ErrUnsupported, "priority"},
		{&core.Message{Priority: 2, Body: []byte("good")}, nil, ""},
		{&core.Message{Delay: -1}, core.ErrPermanent, "negative"},
	}
	msgs := make([]*core.Message, len(cases))
	for i, c := range cases {
		msgs[i] = c.m
	}
	err := client(f).Publish(t.Context(), core.Queue("q"), msgs...)
	for i, c := range cases {
		got := driver.ResultAt(err, i)
		if c.is == nil && got != nil || c.is != nil && (!errors.Is(got, c.is) || !strings.Contains(got.Error(), c.text)) {
			t.Errorf("case %d: %v, want %v with %q", i, got, c.is, c.text)
		}
	}
	if n := len(f.sent("q")); n != 2 {
		t.Errorf("%d stored, want the 2 good ones", n)
	}
}

func TestPublishOfAnEndedContextSendsNothing(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := client(f).Publish(ctx, core.Queue("q"), batchOf("a")...)
	if !errors.Is(err, core.ErrTransient) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(f.sent("q")) != 0 {
		t.Error("something was sent")
	}
}

func TestPublishTriesTransientAgainAndNeverAmbiguous(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(driver.Each)
		calls := 0
		f.onPublish = func(_ driver.Destination, batch []*driver.Message) error {
			calls++
			if calls > 1 {
				return nil
			}
			errs := make([]error, len(batch))
			errs[1] = driver.Errorf("p", driver.Transient, "busy")
			errs[2] = driver.Errorf("p", driver.Ambiguous, "cut off")
			errs[4] = driver.Errorf("p", driver.Transient, "not sent: an earlier message of its key failed")
			errs[5] = errors.New("an adapter that does not classify")
			return driver.Batch(errs)
		}
		msgs := batchOf("a", "b", "c", "d", "c", "e")
		err := client(f).Publish(t.Context(), core.Queue("q"), msgs...)
		want := []error{nil, nil, core.ErrIndeterminate, nil, core.ErrTransient, core.ErrIndeterminate}
		for i, w := range want {
			got := driver.ResultAt(err, i)
			if w == nil && got != nil || w != nil && !errors.Is(got, w) {
				t.Errorf("message %d: %v, want %v", i, got, w)
			}
		}
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
		again := f.sent("q") // the fake records what a call without an error stored
		if len(again) != 1 || again[0].Key != "b" {
			t.Errorf("sent again: %d messages, want b alone", len(again))
		}
	})
}

func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(driver.Each)
		f.onPublish = func(driver.Destination, []*driver.Message) error {
			return driver.Errorf("p", driver.Transient, "down")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		err := client(f).Publish(ctx, core.Queue("q"), batchOf("a")...)
		if took := time.Since(start); took > 3500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if !errors.Is(err, core.ErrTransient) {
			t.Errorf("error %v", err)
		}
	})
}

func TestPublishSplitsAtTheBrokersBatch(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.MaxBatch = 10
	var sizes []int
	f.onPublish = func(_ driver.Destination, batch []*driver.Message) error {
		sizes = append(sizes, len(batch))
		return nil
	}
	if err := client(f).Publish(t.Context(), core.Queue("q"), batchOf(make([]string, 25)...)...); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(sizes) != "[10 10 5]" {
		t.Errorf("batches %v", sizes)
	}
}

func TestDelayPastTheBrokersGoesInHops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(driver.Each)
		f.caps.Delay = 15 * time.Minute
		m := &core.Message{Body: []byte("x"), Delay: time.Hour}
		c := client(f)
		if err := c.Publish(t.Context(), core.Queue("in"), m); err != nil {
			t.Fatal(err)
		}
		first := f.sent("in")[0]
		due, _ := first.Header(driver.HeaderDue)
		if first.Delay != 15*time.Minute || due != time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano) {
			t.Errorf("first hop: delay %v, due %q", first.Delay, due)
		}
		// It arrives after its first hop and must be sent on, unseen.
		time.Sleep(15 * time.Minute)
		s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error {
			t.Error("handled before it was due")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f.push(driver.Received{Message: *first})
		time.Sleep(time.Second)
		hops := f.sent("in")
		if len(hops) != 2 || hops[1].ID != first.ID || hops[1].Delay != 15*time.Minute {
			t.Fatalf("hops %d: %+v", len(hops), hops[len(hops)-1])
		}
		if final, _ := f.settlements(); len(final) != 1 || final[0].Disposition != driver.Ack {
			t.Errorf("settled %v", final)
		}
		_ = s.Drain(context.Background())
	})
}

func TestUseAfterClose(t *testing.T) {
	t.Parallel()
	c := client(newFake(driver.Each))
	if err := errors.Join(c.Close(t.Context()), c.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(t.Context(), core.Queue("q"), batchOf("a")...); !errors.Is(err, core.ErrClosed) {
		t.Errorf("publish: %v", err)
	}
	if _, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { return nil }); !errors.Is(err, core.ErrClosed) {
		t.Errorf("start: %v", err)
	}
}

func TestHeldPublishesDoNotShareTheCallersSlice(t *testing.T) {
	t.Parallel()
	d := core.NewDelivery(core.Queue("in"), core.Message{})
	var buf []*core.Message
	for _, id := range []string{"a", "b"} {
		buf = append(buf[:0], &core.Message{ID: id})
		d.Publish(core.Queue("out"), buf...)
	}
	got := ""
	for _, m := range d.Held {
		got += m.ID
	}
	if got != "ab" {
		t.Errorf("held %q", got)
	}
}

// A message whose key has one of unknown outcome in front of it waits for the caller,
// also where the two go out in different calls of the driver.
func TestNothingOvertakesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3} {
		f := newFake(driver.Each)
		f.caps.MaxBatch = size
		calls := 0
		f.onPublish = func(_ driver.Destination, batch []*driver.Message) error {
			if calls++; calls > 1 {
				return nil
			}
			errs := make([]error, len(batch))
			errs[0] = driver.Errorf("p", driver.Ambiguous, "cut off")
			for i, m := range batch {
				if i > 0 && m.Key == "a" {
					errs[i] = driver.Errorf("p", driver.Transient, "behind")
				}
			}
			return driver.Batch(errs)
		}
		err := client(f).Publish(t.Context(), core.Queue("q"), batchOf("a", "b", "a", "", "c", "a")...)
		for i, want := range []error{core.ErrIndeterminate, nil, core.ErrTransient, nil, nil, core.ErrTransient} {
			if got := driver.ResultAt(err, i); !errors.Is(got, want) {
				t.Errorf("batches of %d: message %d: %v, want %v", size, i, got, want)
			}
		}
		for _, m := range f.sent("q") {
			if m.Key == "a" {
				t.Errorf("batches of %d: a later message of the key was stored", size)
			}
		}
	}
}

func TestAHopKeepsPriorityAndLife(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	f.caps.Delay, f.caps.Priorities, f.caps.TTL = time.Minute, 10, true
	bubble(t, f, func(context.Context, *core.Delivery) error { return nil }, func(*core.Consumer) {
		m := msg("m1", "")
		m.Priority, m.Time, m.TTL = 7, time.Now().Add(-time.Minute), time.Hour
		m.Headers = []core.Header{{Key: driver.HeaderDue, Value: time.Now().Add(30 * time.Minute).Format(time.RFC3339Nano)}}
		f.push(m)
		time.Sleep(time.Second)
	})
	hops := f.sent("in")
	if len(hops) != 1 || hops[0].Priority != 7 || hops[0].TTL != 59*time.Minute {
		t.Errorf("sent on as %+v", hops)
	}
}
