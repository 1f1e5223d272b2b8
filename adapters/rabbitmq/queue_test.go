package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	in := []*driver.Message{
		{ID: "plain", Body: []byte("x"), Time: time.Now()},
		{ID: "empty", Time: time.Now()},
		{ID: strings.Repeat("i", 300), Type: strings.Repeat("t", 300), Key: "kéy", Body: []byte{0, 255, 1}, Time: time.Unix(1e9, 0)},
		{ID: "headers", Time: time.Now(), TTL: time.Hour, Headers: []driver.Header{
			{Key: "b", Value: "2"},
			{Key: "a", Value: ""},
			{Key: "b", Value: "3"},
			{Key: "Ünï", Value: "\xff\x00raw"},
			{Key: "x-mine", Value: "kept"},
			{Key: "CC", Value: "somewhere"},
			{Key: "BCC", Value: "else"},
			{Key: "b", Value: "2"},
			{Key: "varal-due", Value: "later"},
		}},
		{ID: "sorted", Type: "order.placed", Time: time.Now(), Headers: []driver.Header{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}}},
		{ID: "big", Body: bytes.Repeat([]byte("abcdefgh"), 200_000), Time: time.Now()},
	}
	if err := d.Publish(within(t, 20*time.Second), q, in); err != nil {
		t.Fatal(err)
	}
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, len(in), 100)
	for i, m := range in {
		r := got[i]
		if r.ID != m.ID || r.Type != m.Type || r.Key != m.Key || !bytes.Equal(r.Body, m.Body) || !r.Time.Equal(m.Time) || r.TTL != m.TTL {
			t.Errorf("%s: got id %.20q type %.20q key %q time %v ttl %v, %d bytes", m.ID, r.ID, r.Type, r.Key, r.Time, r.TTL, len(r.Body))
		}
		if !slices.Equal(r.Headers, m.Headers) {
			t.Errorf("%s: headers %q, want %q", m.ID, r.Headers, m.Headers)
		}
		if r.DeliveryCount != 1 || r.Offset != -1 {
			t.Errorf("%s: count %d offset %d", m.ID, r.DeliveryCount, r.Offset)
		}
	}
	settle(t, c, driver.Ack, got...)
	quiet(t, c, 100, 200*time.Millisecond)
}

func TestRefusedBeforeTheNetwork(t *testing.T) {
	t.Parallel()
	d := open(t, func(c *rabbitmq.Config) { c.MaxBytes = 1000 })
	q := fresh(t, d, driver.Queue, 0)
	big := strings.Repeat("h", 300)
	batch := []*driver.Message{
		{ID: "ok1", Key: "k"},
		{ID: "large", Key: "k", Body: make([]byte, 1001)},
		{ID: "ok2", Key: "k"},
		{ID: "delay", Delay: time.Second},
		{ID: "priority", Priority: 1},
		{ID: "key", Headers: []driver.Header{{Key: big}}},
		{ID: "reserved", Headers: []driver.Header{{Key: driver.HeaderKey, Value: "k"}}},
		{ID: "nokey", Headers: []driver.Header{{}}},
	}
	err := d.Publish(within(t, 10*time.Second), q, batch)
	want := []driver.Class{0, driver.TooLarge, 0, driver.Unsupported, driver.Unsupported, driver.Permanent, driver.Permanent, driver.Permanent}
	for i := range batch {
		if got := driver.ClassOf(driver.ResultAt(err, i)); got != want[i] {
			t.Errorf("%s: class %v, want %v", batch[i].ID, got, want[i])
		}
	}
	c := subscribe(t, d, driver.Subscription{From: q})
	if got := receive(t, c, 2, 10); got[0].ID != "ok1" || got[1].ID != "ok2" {
		t.Errorf("stored %q %q", got[0].ID, got[1].ID)
	}
	wide := open(t)
	hs := make([]driver.Header, 600)
	for i := range hs {
		hs[i] = driver.Header{Key: fmt.Sprintf("h%04d", i), Value: strings.Repeat("v", 255)}
	}
	if err := wide.Publish(within(t, 10*time.Second), q, []*driver.Message{{ID: "headers", Headers: hs}}); !errors.Is(err, driver.TooLarge) {
		t.Errorf("150 KiB of headers: %v, want too large", err)
	}
	if err := wide.Publish(within(t, 10*time.Second), q, []*driver.Message{{ID: "headers", Headers: hs[:400]}}); err != nil {
		t.Errorf("100 KiB of headers: %v", err)
	}
}

// A basic.return carries no delivery tag, and the callers share a channel.
func TestReturnsReachTheirCaller(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	missing := driver.Destination{Shape: driver.Queue, Name: "test.missing"}
	ctx := within(t, 20*time.Second)
	var wg sync.WaitGroup
	errs := make([]error, 200)
	for i := range errs {
		wg.Go(func() {
			to := q
			if i%2 == 1 {
				to = missing
			}
			errs[i] = d.Publish(ctx, to, []*driver.Message{message(i, "")})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if want := i%2 == 1; want != errors.Is(err, driver.NotFound) || (!want && err != nil) {
			t.Errorf("publish %d: %v", i, err)
		}
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	d := open(t)
	ctx := within(t, 20*time.Second)
	for _, shape := range []driver.Shape{driver.Queue, driver.Topic, driver.Stream} {
		to := driver.Destination{Shape: shape, Name: "test.nothing"}
		if err := d.Publish(ctx, to, []*driver.Message{message(1, "")}); !errors.Is(err, driver.NotFound) {
			t.Errorf("publish to %v: %v", to, err)
		}
		if _, err := d.Subscribe(ctx, driver.Subscription{From: to, Group: "g"}); !errors.Is(err, driver.NotFound) {
			t.Errorf("subscribe to %v: %v", to, err)
		}
	}
}

func TestDispositions(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	publish(t, d, q, 0, 6, nil)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 6, 10)
	batch := []driver.Settlement{
		{Receipt: got[0].Receipt, Disposition: driver.Ack},
		{Receipt: got[1].Receipt, Disposition: driver.Nack},
		{Receipt: got[2].Receipt, Disposition: driver.Return},
		{Receipt: got[3].Receipt, Disposition: driver.Reject},
		{Receipt: got[4].Receipt, Disposition: driver.Extend},
		{Receipt: got[5].Receipt, Disposition: driver.Ack},
	}
	if err := c.Settle(within(t, 5*time.Second), batch); err != nil {
		t.Fatal(err)
	}
	again := receive(t, c, 2, 10)
	ids := []string{again[0].ID, again[1].ID}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{got[1].ID, got[2].ID}) || again[0].DeliveryCount != 2 {
		t.Errorf("came back: %v, count %d", ids, again[0].DeliveryCount)
	}
	settle(t, c, driver.Ack, append(again, got[4])...)
	if err := c.Settle(within(t, 5*time.Second), batch[:1]); !errors.Is(err, driver.LeaseLost) {
		t.Errorf("second settle: %v", err)
	}
	quiet(t, c, 10, 200*time.Millisecond)
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := c.Settle(within(t, 5*time.Second), batch[:1]); !errors.Is(err, driver.Closed) {
		t.Errorf("settle after close: %v", err)
	}
	if _, err := c.Receive(within(t, 5*time.Second), demand(1, 1)); !errors.Is(err, driver.Closed) {
		t.Errorf("receive after close: %v", err)
	}
	eventually(t, "queue empty", 5*time.Second, func() bool { return ready(t, d, q) == 0 })
}

func ready(t *testing.T, d driver.Driver, q driver.Destination) int64 {
	t.Helper()
	s, err := d.Admin().Stats(within(t, 10*time.Second), driver.Resource{Destination: q})
	if err != nil {
		t.Fatal(err)
	}
	return s.Ready
}

// Tags start again with each channel: an old receipt must not name a new message.
func TestStaleAckAfterACut(t *testing.T) {
	t.Parallel()
	cut := &cutter{}
	d := open(t, func(c *rabbitmq.Config) { c.Dial = cut.Dial })
	q := fresh(t, d, driver.Queue, 0)
	publish(t, d, q, 0, 2, nil)
	var a assignments
	c := subscribe(t, d, a.sub(driver.Subscription{From: q}))
	old := receive(t, c, 2, 10)
	cut.Cut()
	publish2 := open(t)
	publish(t, publish2, q, 2, 3, nil)
	again := receive(t, c, 3, 10)
	err := c.Settle(within(t, 5*time.Second), []driver.Settlement{
		{Receipt: old[0].Receipt, Disposition: driver.Ack}, {Receipt: old[1].Receipt, Disposition: driver.Ack},
	})
	for i := range old {
		if !errors.Is(driver.ResultAt(err, i), driver.LeaseLost) {
			t.Errorf("old receipt %d: %v", i, err)
		}
	}
	if len(a.all) != 2 || a.revoked != 1 || a.all[1].Epoch == a.all[0].Epoch {
		t.Errorf("assignments %+v, %d revoked", a.all, a.revoked)
	}
	settle(t, c, driver.Return, again...)
	settle(t, c, driver.Ack, receive(t, c, 3, 10)...)
	quiet(t, c, 10, 200*time.Millisecond)
}

func TestCutsLoseNothing(t *testing.T) {
	t.Parallel()
	cut := &cutter{}
	d := open(t, func(c *rabbitmq.Config) { c.Dial = cut.Dial })
	q := fresh(t, d, driver.Queue, 0)
	const n = 3000
	var wg sync.WaitGroup
	var mu sync.Mutex
	confirmed := map[string]bool{}
	ctx := within(t, 60*time.Second)
	wg.Go(func() {
		for i := 0; i < n; i += 50 {
			var batch []*driver.Message
			for j := i; j < i+50; j++ {
				batch = append(batch, message(j, ""))
			}
			err := d.Publish(ctx, q, batch)
			mu.Lock()
			for j, m := range batch {
				if driver.ResultAt(err, j) == nil {
					confirmed[m.ID] = true
				}
			}
			mu.Unlock()
			if err != nil && driver.ClassOf(driver.ResultAt(err, 49)) != driver.Ambiguous && driver.ClassOf(driver.ResultAt(err, 49)) != driver.Transient {
				t.Errorf("publish: %v", err)
			}
			if i%1000 == 500 {
				cut.Cut()
			}
		}
	})
	var a assignments
	c := subscribe(t, d, a.sub(driver.Subscription{From: q}))
	seen := map[string]bool{}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		got, err := c.Receive(rctx, demand(100, 100))
		cancel()
		if err != nil {
			select {
			case <-done:
			default:
				continue
			}
			mu.Lock()
			missing := 0
			for id := range confirmed {
				if !seen[id] {
					missing++
				}
			}
			mu.Unlock()
			if missing == 0 {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%d of %d confirmed messages missing", missing, len(confirmed))
			}
			continue
		}
		var batch []driver.Settlement
		for _, r := range got {
			batch = append(batch, driver.Settlement{Receipt: r.Receipt, Disposition: driver.Ack})
		}
		err = c.Settle(ctx, batch)
		for i, r := range got {
			if driver.ResultAt(err, i) == nil {
				seen[r.ID] = true
			}
		}
	}
	if len(confirmed) < n/2 {
		t.Errorf("only %d confirmed", len(confirmed))
	}
}

func TestChangedLimit(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	const n = 2000
	publish(t, d, q, 0, n, nil)
	c := subscribe(t, d, driver.Subscription{From: q})
	limits := []int{100, 8, 60, 400}
	seen := map[string]int{}
	for len(seen) < n {
		limit := limits[len(seen)/(n/4+1)]
		got, err := c.Receive(within(t, 10*time.Second), demand(7, limit))
		if err != nil {
			t.Fatal(len(seen), err)
		}
		for _, r := range got {
			seen[r.ID]++
			if seen[r.ID] > 1 { // not DeliveryCount: a cancel counts for what is on its way inside the broker
				t.Fatalf("%s received %d times", r.ID, seen[r.ID])
			}
		}
		settle(t, c, driver.Ack, got...)
	}
	// A lowered limit with everything out: nothing more until there is room again.
	quiet(t, c, 50, 300*time.Millisecond)
	publish(t, d, q, n, n+100, nil)
	got := receive(t, c, 50, 50)
	quiet(t, c, 10, 300*time.Millisecond)
	settle(t, c, driver.Ack, got...)
	settle(t, c, driver.Ack, receive(t, c, 50, 10)...)
}

func TestCancelledReceiveLosesNothing(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	c := subscribe(t, d, driver.Subscription{From: q})
	const n = 300
	go func() {
		for i := range n {
			_ = d.Publish(context.Background(), q, []*driver.Message{message(i, "")})
		}
	}()
	seen := 0
	for end := time.Now().Add(30 * time.Second); seen < n && time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seen%5)*time.Millisecond)
		began := time.Now()
		got, err := c.Receive(ctx, demand(3, 20))
		cancel()
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("cancelled Receive took %v", took)
		}
		if err == nil {
			seen += len(got)
			for _, r := range got {
				if r.DeliveryCount != 1 {
					t.Errorf("%s handed out %d times", r.ID, r.DeliveryCount)
				}
			}
			settle(t, c, driver.Ack, got...)
		} else {
			seen += 0
		}
	}
	if seen != n {
		t.Fatalf("%d of %d", seen, n)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	var batch []*driver.Message
	for i := range 6 {
		m := message(i, "")
		m.Body = make([]byte, 400)
		batch = append(batch, m)
	}
	batch[3].Body = make([]byte, 5000)
	if err := d.Publish(within(t, 10*time.Second), q, batch); err != nil {
		t.Fatal(err)
	}
	c := subscribe(t, d, driver.Subscription{From: q})
	for n := 0; n < 6; {
		got, err := c.Receive(within(t, 10*time.Second), driver.Demand{Records: 10, Bytes: 1000, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for i, r := range got {
			if total += r.Size(); r.ID != batch[n+i].ID {
				t.Errorf("message %d is %s", n+i, r.ID)
			}
		}
		if total > 1000 && len(got) > 1 {
			t.Errorf("%d messages of %d bytes", len(got), total)
		}
		n += len(got)
	}
}

func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	c := subscribe(t, d, driver.Subscription{From: q})
	quiet(t, c, 10, 300*time.Millisecond)
	if _, err := d.Admin().Apply(within(t, 10*time.Second), []driver.Resource{{Destination: q}}, driver.Delete); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 20*time.Second)
	for {
		got, err := c.Receive(ctx, demand(10, 10))
		if err == nil {
			t.Fatalf("phantom: %+v", got[0])
		}
		if errors.Is(err, driver.NotFound) {
			return
		}
		if !errors.Is(err, driver.Transient) {
			t.Fatal(err)
		}
	}
}

func TestCloseGivesBack(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 0)
	publish(t, d, q, 0, 100, nil)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 10, 50)
	settle(t, c, driver.Ack, got[:5]...)
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Error("second close:", err)
	}
	c2 := subscribe(t, d, driver.Subscription{From: q})
	settle(t, c2, driver.Ack, receive(t, c2, 95, 200)...)
	quiet(t, c2, 200, 200*time.Millisecond)
}

func TestPriorities(t *testing.T) {
	t.Parallel()
	d := open(t, func(c *rabbitmq.Config) { c.Classic, c.Priorities = true, 5 })
	q := fresh(t, d, driver.Queue, 0)
	caps := d.Capabilities(q)
	if caps.Priorities != 5 || caps.Counts {
		t.Errorf("%+v", caps)
	}
	for i := range 4 {
		m := message(i, "")
		m.Priority = i
		if err := d.Publish(within(t, 10*time.Second), q, []*driver.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 4, 10)
	for i, r := range got {
		if r.Priority != 3-i || r.DeliveryCount != 0 {
			t.Errorf("message %d: priority %d, count %d", i, r.Priority, r.DeliveryCount)
		}
	}
	settle(t, c, driver.Ack, got...)
}
