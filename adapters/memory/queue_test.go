package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestRoundTripKeepsEverythingAndSharesNothingWithThePublisher(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, k := subscribe(t, d, driver.Subscription{From: queue("q")})
	body := []byte{0, 0xff, 0xfe, 'x'}
	headers := []driver.Header{{Key: "a", Value: "1"}, {Key: "a", Value: ""}, {Key: "Ü", Value: "\xff"}}
	in := driver.Message{ID: "1", Key: "k", Type: "ordered", Headers: headers, Body: body, Time: time.Unix(7, 9), Priority: 3, TTL: time.Hour}
	publish(t, d, queue("q"), &in, &driver.Message{ID: "nil"}, &driver.Message{ID: "empty", Body: []byte{}})
	body[3], headers[0].Value = 'y', "changed"

	got := receive(t, c, 10)
	want(t, got, "1", "nil", "empty")
	m := got[0]
	if !bytes.Equal(m.Body, []byte{0, 0xff, 0xfe, 'x'}) || m.Headers[0].Value != "1" || len(m.Headers) != 3 || m.Headers[2].Value != "\xff" {
		t.Errorf("body or headers changed: %q %q", m.Body, m.Headers)
	}
	if m.Key != "k" || m.Type != "ordered" || !m.Time.Equal(time.Unix(7, 9)) || m.Priority != 3 || m.TTL != time.Hour {
		t.Errorf("fields changed: %+v", m.Message)
	}
	if got[1].Body != nil || got[2].Body == nil {
		t.Error("nil and empty bodies are not told apart")
	}
	if m.DeliveryCount != 1 || m.Offset != -1 || m.Deadline.IsZero() || !k.admits(&m) {
		t.Errorf("receipt: count %d, offset %d, deadline %v, epoch %d", m.DeliveryCount, m.Offset, m.Deadline, m.Receipt.Epoch)
	}
}

// The place of a settled message is used again; its receipt settles nothing all the same.
func TestOldReceiptTouchesNoNewMessage(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	publish(t, d, queue("q"), msg("old1"), msg("old2"), msg("old3"))
	old := receive(t, c, 3)
	settle(t, c, driver.Ack, old...)
	publish(t, d, queue("q"), msg("new1"), msg("new2"))
	for _, r := range old {
		wantClass(t, trySettle(c, driver.Ack, 0, r), driver.LeaseLost)
	}
	fresh := receive(t, c, 3)
	want(t, fresh, "new1", "new2")
	for _, r := range old {
		for _, how := range []driver.Disposition{driver.Ack, driver.Nack, driver.Extend, driver.Return} {
			wantClass(t, trySettle(c, how, 0, r), driver.LeaseLost)
		}
	}
	settle(t, c, driver.Ack, fresh...)
	nothing(t, c, 20*time.Millisecond)
}

func TestDispositions(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	publish(t, d, queue("q"), msg("ack"), msg("nack"), msg("return"), msg("reject"))
	got := receive(t, c, 10)
	settle(t, c, driver.Ack, got[0])
	settle(t, c, driver.Nack, got[1])
	settle(t, c, driver.Return, got[2])
	settle(t, c, driver.Reject, got[3])
	again := receive(t, c, 10)
	want(t, again, "nack", "return")
	if again[0].DeliveryCount != 2 || again[1].DeliveryCount != 1 {
		t.Errorf("counts %d and %d, want 2 after Nack, 1 after Return", again[0].DeliveryCount, again[1].DeliveryCount)
	}
	wantClass(t, trySettle(c, driver.Ack, 0, got[1]), driver.LeaseLost) // the receipt before the Nack
	settle(t, c, driver.Ack, again...)
	wantClass(t, trySettle(c, driver.Ack, 0, again[0]), driver.LeaseLost)
	wantClass(t, trySettle(c, 99, 0, got[0]), driver.LeaseLost)
	s, err := d.Admin().Stats(t.Context(), driver.Resource{Destination: queue("q")})
	if err != nil || s.Ready+s.InFlight+s.Delayed+s.Lag != 0 {
		t.Errorf("stats %+v, %v", s, err)
	}
}

func TestSettleAnswersEntryByEntry(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"), queue("other"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	o, _ := subscribe(t, d, driver.Subscription{From: queue("other")})
	publish(t, d, queue("q"), msg("1"), msg("2"))
	publish(t, d, queue("other"), msg("3"))
	got, foreign := receive(t, c, 10), receive(t, o, 10)
	err := trySettle(c, driver.Ack, 0, got[0], foreign[0], got[1])
	if driver.ResultAt(err, 0) != nil || driver.ResultAt(err, 2) != nil {
		t.Errorf("good entries failed: %v", err)
	}
	wantClass(t, driver.ResultAt(err, 1), driver.LeaseLost)
	settle(t, o, driver.Ack, foreign...)
	wantClass(t, trySettle(c, driver.Nack, 8*24*time.Hour, got[0]), driver.LeaseLost)
}

func TestLeaseEndsAndReceiptIsStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{Lease: 2 * time.Second}, queue("q"))
		a, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		b, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		publish(t, d, queue("q"), msg("1"))
		start := time.Now()
		first := receive(t, a, 10)
		if !first[0].Deadline.Equal(start.Add(2 * time.Second)) {
			t.Errorf("deadline %v after the start", first[0].Deadline.Sub(start))
		}
		second := receive(t, b, 10) // waits for the lease, by its own timer
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("came back after %v, want 2s", d)
		}
		if second[0].DeliveryCount != 2 {
			t.Errorf("count %d, want 2", second[0].DeliveryCount)
		}
		wantClass(t, trySettle(a, driver.Ack, 0, first...), driver.LeaseLost)
		wantClass(t, trySettle(a, driver.Ack, 0, second...), driver.LeaseLost) // of another consumer
		settle(t, b, driver.Ack, second...)
	})
}

func TestExtend(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{0, 2 * time.Second, 5 * time.Second, 300 * time.Millisecond} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := open(t, memory.Config{Lease: 2 * time.Second}, queue("q"))
				a, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
				b, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
				publish(t, d, queue("q"), msg("1"))
				got := receive(t, a, 1)
				for range 10 { // far longer than the lease
					time.Sleep(200 * time.Millisecond)
					if err := trySettle(a, driver.Extend, by, got...); err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				receive(t, b, 1)
				lease := by
				if by == 0 {
					lease = 2 * time.Second
				}
				if d := time.Since(start); d != lease {
					t.Errorf("came back %v after the last Extend, want %v", d, lease)
				}
			})
		})
	}
}

func TestExtendHasATotal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{Lease: time.Hour}, queue("q"))
		c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		publish(t, d, queue("q"), msg("1"))
		got := receive(t, c, 1)
		wantClass(t, trySettle(c, driver.Extend, 13*time.Hour, got...), driver.Unsupported)
		for range 22 {
			time.Sleep(30 * time.Minute)
			if err := trySettle(c, driver.Extend, 0, got...); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Minute)
		wantClass(t, trySettle(c, driver.Extend, 0, got...), driver.Unsupported)
		settle(t, c, driver.Ack, got...)
	})
}

func TestDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{}, queue("q"))
		c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		type result struct {
			id    string
			after time.Duration
		}
		start := time.Now()
		done := make(chan []result)
		go func() { // waits before there is anything
			var all []result
			for len(all) < 5 {
				got := receiveWithin(t, c, 10, 30*24*time.Hour)
				for _, r := range got {
					all = append(all, result{r.ID, time.Since(start)})
					how, delay := driver.Ack, time.Duration(0)
					if r.ID == "now" && r.DeliveryCount == 1 {
						how, delay = driver.Nack, 5*time.Second
					}
					if err := trySettle(c, how, delay, r); err != nil {
						t.Error(err)
					}
				}
			}
			done <- all
		}()
		synctest.Wait()
		publish(t, d, queue("q"), &driver.Message{ID: "week", Delay: 7 * 24 * time.Hour})
		synctest.Wait() // the consumer waits for the week now; what comes next must shorten that
		publish(t, d, queue("q"), &driver.Message{ID: "2s", Delay: 2 * time.Second})
		synctest.Wait()
		publish(t, d, queue("q"), &driver.Message{ID: "1s", Delay: time.Second})
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		publish(t, d, queue("q"), msg("now"))
		want := []result{
			{"1s", time.Second},
			{"now", 1500 * time.Millisecond},
			{"2s", 2 * time.Second},
			{"now", 6500 * time.Millisecond},
			{"week", 7 * 24 * time.Hour},
		}
		if got := <-done; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{MaxMessages: 200}, queue("q"))
		for range 20 { // many that nobody reads must not pile up
			for i := range 199 {
				publish(t, d, queue("q"), &driver.Message{ID: fmt.Sprint("x", i), TTL: time.Second})
			}
			time.Sleep(time.Second)
		}
		publish(t, d, queue("q"), msg("stays"), &driver.Message{ID: "short", TTL: time.Second}, &driver.Message{ID: "long", TTL: time.Hour},
			&driver.Message{ID: "late", TTL: time.Second, Delay: 2 * time.Second})
		c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		time.Sleep(3 * time.Second)
		got := receive(t, c, 10)
		want(t, got, "stays", "long")
		if s, err := d.Admin().Stats(t.Context(), driver.Resource{Destination: queue("q")}); err != nil || s.Ready != 0 || s.InFlight != 2 {
			t.Errorf("stats %+v, %v", s, err)
		}
		time.Sleep(time.Hour) // the lease is over, and so is the time of "long"
		want(t, receive(t, c, 10), "stays")
	})
}

func TestPriorities(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	for i, p := range []int{0, 9, 5, 9, 0} {
		publish(t, d, queue("q"), &driver.Message{ID: fmt.Sprint(p, "-", i), Priority: p})
	}
	want(t, receive(t, c, 3), "9-1", "9-3", "5-2")
	want(t, receive(t, c, 9), "0-0", "0-4")
	wantClass(t, d.Publish(t.Context(), queue("q"), []*driver.Message{{ID: "x", Priority: 10}}), driver.Unsupported)
}

func TestPublishRefusesEntryByEntry(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{MaxBytes: 100}, queue("q"), queue("keyed").Keyed(2), stream("s"))
	err := d.Publish(t.Context(), queue("q"), []*driver.Message{
		keyed("k", "a"),
		{ID: "big", Key: "k", Body: make([]byte, 100)},
		keyed("k", "b"),
		{ID: "limit", Body: make([]byte, 100)},
		{ID: "delay", Delay: 8 * 24 * time.Hour},
	})
	for i, class := range []driver.Class{0, driver.TooLarge, 0, 0, driver.Unsupported} {
		if got := driver.ClassOf(driver.ResultAt(err, i)); got != class {
			t.Errorf("entry %d: class %v, want %v", i, got, class)
		}
	}
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	want(t, receive(t, c, 10), "a", "b", "limit")

	for _, to := range []driver.Destination{queue("keyed"), stream("s")} {
		wantClass(t, d.Publish(t.Context(), to, []*driver.Message{{ID: "p", Priority: 1}}), driver.Unsupported)
	}
	wantClass(t, d.Publish(t.Context(), stream("s"), []*driver.Message{{ID: "d", Delay: 1}}), driver.Unsupported)
	wantClass(t, d.Publish(t.Context(), stream("s"), []*driver.Message{{ID: "t", TTL: 1}}), driver.Unsupported)
	wantClass(t, d.Publish(t.Context(), stream("s").ForGroup("g"), []*driver.Message{msg("g")}), driver.Unsupported)
	wantClass(t, d.Publish(t.Context(), queue("missing"), []*driver.Message{msg("1")}), driver.NotFound)
	wantClass(t, d.Publish(t.Context(), queue("keyed").Keyed(3), []*driver.Message{msg("1")}), driver.Conflict)
	publish(t, d, queue("keyed"), msg("whatever it has"))
}

func TestFullDestinationStoresAPrefix(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{MaxMessages: 3, MaxStored: 50}, queue("q"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	err := d.Publish(t.Context(), queue("q"), []*driver.Message{msg("1"), msg("2"), msg("3"), msg("4"), msg("5")})
	for i, class := range []driver.Class{0, 0, 0, driver.Transient, driver.Transient} {
		if got := driver.ClassOf(driver.ResultAt(err, i)); got != class {
			t.Errorf("entry %d: class %v, want %v", i, got, class)
		}
	}
	got := receive(t, c, 10) // out still counts as kept
	wantClass(t, d.Publish(t.Context(), queue("q"), []*driver.Message{msg("4")}), driver.Transient)
	settle(t, c, driver.Ack, got...)
	publish(t, d, queue("q"), msg("4"))
	wantClass(t, d.Publish(t.Context(), queue("q"), []*driver.Message{{ID: "b", Body: make([]byte, 50)}}), driver.Transient)
}

func TestDemandIsRespected(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	for i := range 20 {
		publish(t, d, queue("q"), &driver.Message{ID: fmt.Sprint(i), Body: make([]byte, 10)})
	}
	publish(t, d, queue("q"), &driver.Message{ID: "large", Body: make([]byte, 1000)}, msg("last"))
	get := func(w driver.Demand) []driver.Received {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		got, err := c.Receive(ctx, w)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return slices.Clone(got)
	}
	if got := get(driver.Demand{Records: 3, Bytes: 1 << 20, Limit: 100}); len(got) != 3 {
		t.Errorf("Records 3: %d", len(got))
	}
	if got := get(driver.Demand{Records: 30, Bytes: 55, Limit: 100}); len(got) != 5 {
		t.Errorf("Bytes 55: %d", len(got))
	}
	got := get(driver.Demand{Records: 30, Bytes: 1 << 20, Limit: 10})
	if len(got) != 2 {
		t.Errorf("Limit 10 with 8 out: %d", len(got))
	}
	if got := get(driver.Demand{Records: 30, Bytes: 1 << 20, Limit: 10}); len(got) != 0 {
		t.Errorf("Limit reached: %d", len(got))
	}
	if got := get(driver.Demand{Records: 30, Bytes: 1 << 20, Limit: 100, Paused: []string{""}}); len(got) != 0 {
		t.Errorf("paused: %d", len(got))
	}
	if got := get(driver.Demand{Records: 30, Bytes: 500, Limit: 100}); len(got) != 10 {
		t.Errorf("before the large one: %d", len(got))
	}
	want(t, get(driver.Demand{Records: 30, Bytes: 500, Limit: 100}), "large")
	want(t, get(driver.Demand{Records: 30, Bytes: 500, Limit: 100}), "last")
}
