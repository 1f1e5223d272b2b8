package aws_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/smithy-go"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

func TestQueueRoundTrip(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	want := []*driver.Message{
		{ID: "1", Body: []byte("plain"), Time: time.Now(), Type: "kind", Key: "the key", Headers: []driver.Header{{Key: "b", Value: "2"}, {Key: "a", Value: ""}, {Key: "a", Value: "\x00"}}},
		{ID: "2", Body: all, Time: time.Now()},
		{ID: "3", Body: []byte{}, Time: time.Now()},
		{ID: "4", Body: []byte("a\x0bb\ufffe"), Time: time.Now()},
		{ID: "5", Body: []byte("🍕"), Time: time.Now()},
	}
	for i := range 20 { // more headers than a message has attributes
		want[4].Headers = append(want[4].Headers, driver.Header{Key: strings.Repeat("h", i+1), Value: "v"})
	}
	publish(t, d, q, want...)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, len(want))
	slices.SortFunc(got, func(a, b driver.Received) int { return strings.Compare(a.ID, b.ID) })
	for i, g := range got {
		w := want[i]
		if g.ID != w.ID || g.Key != w.Key || g.Type != w.Type || !bytes.Equal(g.Body, w.Body) || !slices.Equal(g.Headers, w.Headers) || !g.Time.Equal(w.Time) {
			t.Errorf("sent %+v, got %+v", w, g.Message)
		}
		if g.DeliveryCount != 1 || g.NativeID == "" || g.Offset != -1 || g.Deadline.Before(time.Now()) || g.Err != nil {
			t.Errorf("%+v", g)
		}
	}
	mustSettle(t, c, driver.Ack, got...)
	quiet(t, c, lease+time.Second)
}

func TestSettling(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	c := subscribe(t, d, driver.Subscription{From: q})
	publish(t, d, q, some(0, 5)...)
	got := receive(t, c, 5)
	var batch []driver.Settlement
	for i, what := range []driver.Disposition{driver.Ack, driver.Reject, driver.Return, driver.Nack, driver.Extend} {
		batch = append(batch, driver.Settlement{Receipt: got[i].Receipt, Disposition: what})
	}
	batch[3].Delay = 1200 * time.Millisecond
	batch[4].Delay = 10 * time.Second
	began := time.Now()
	if err := c.Settle(within(t, 5*time.Second), batch); err != nil {
		t.Fatal(err)
	}
	returned := receive(t, c, 1)
	if returned[0].ID != got[2].ID || returned[0].DeliveryCount != 2 || time.Since(began) > time.Second {
		t.Errorf("returned %s, got %+v after %v", got[2].ID, returned[0], time.Since(began))
	}
	mustSettle(t, c, driver.Ack, returned...)
	nacked := receive(t, c, 1)
	if waited := time.Since(began); nacked[0].ID != got[3].ID || waited < 1200*time.Millisecond {
		t.Errorf("nacked %s, got %s after %v", got[3].ID, nacked[0].ID, waited)
	}
	mustSettle(t, c, driver.Ack, nacked[0], got[4])
	quiet(t, c, lease+time.Second)
	for _, again := range []driver.Disposition{driver.Ack, driver.Nack, driver.Extend} {
		if err := settle(c, driver.Settlement{Disposition: again}, got[0]); driver.ClassOf(err) != driver.LeaseLost {
			t.Errorf("%s of what was acked: %v", again, err)
		}
	}
	if err := settle(c, driver.Settlement{Disposition: driver.Hold}, got[0]); err == nil {
		t.Error("Hold was taken")
	}
}

// TestLeaseEnds: past its lease a delivery is not ours, whoever has it now.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	publish(t, d, q, some(0, 2)...)
	c, other := subscribe(t, d, driver.Subscription{From: q}), subscribe(t, open(t), driver.Subscription{From: q})
	got := receive(t, c, 2)
	again := receive(t, other, 2)
	if again[0].DeliveryCount != 2 || time.Now().Before(got[0].Deadline.Add(-200*time.Millisecond)) {
		t.Errorf("%+v, before its lease ended", again[0])
	}
	for _, what := range []driver.Disposition{driver.Ack, driver.Nack, driver.Return, driver.Extend} {
		if err := settle(c, driver.Settlement{Disposition: what}, got[0]); driver.ClassOf(err) != driver.LeaseLost {
			t.Errorf("%s past the lease: %v", what, err)
		}
	}
	mustSettle(t, other, driver.Ack, again...)
}

// TestTheBufferKeepsItsLease: what a request brought after its Receive was cancelled is
// renewed for as long as core does not come back, and is there when it does.
func TestTheBufferKeepsItsLease(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 1} {
		p := newProxy(t)
		d, q := openAt(t, p.srv.URL), fresh(t, driver.Queue, partitions)
		c := subscribe(t, d, driver.Subscription{From: q})
		quiet(t, c, 100*time.Millisecond) // cancels a Receive; its request is open
		publish(t, d, q, someKeyed(5, 5)...)
		<-time.After(3 * lease) // the load of the test: core has no room
		got := receive(t, c, 1)
		if left := time.Until(got[0].Deadline); got[0].DeliveryCount != 1 || left < lease/4 {
			t.Errorf("hand-out %d, %v of the lease are left", got[0].DeliveryCount, left)
		}
		if n := p.count("ChangeMessageVisibilityBatch"); n < 2 {
			t.Errorf("%d renewals in three leases", n)
		}
		mustSettle(t, c, driver.Ack, got...)
	}
}

// TestCloseGivesBack: what nobody settled is with another consumer at once, without waiting
// for a lease.
func TestCloseGivesBack(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 1} {
		d, q := open(t), fresh(t, driver.Queue, partitions)
		publish(t, d, q, someKeyed(8, 2)...)
		c := subscribe(t, d, driver.Subscription{From: q})
		got := receive(t, c, 8)
		mustSettle(t, c, driver.Extend, got...) // the lease is fresh
		began := time.Now()
		if err := c.Close(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		again := receive(t, subscribe(t, d, driver.Subscription{From: q}), 8)
		if took := time.Since(began); took > lease {
			t.Errorf("it took %v, a lease is %v", took, lease)
		}
		if partitions > 0 {
			inOrder(t, again)
		}
		if err := settle(c, driver.Settlement{Disposition: driver.Ack}, got[0]); driver.ClassOf(err) != driver.Closed {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Receive(t.Context(), demand(1)); driver.ClassOf(err) != driver.Closed {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestCloseInAHurry: a Close whose context has ended still asks to give back what is out,
// and ends soon, whatever comes of it.
func TestCloseInAHurry(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0, func(c *aws.Config) { c.Lease, c.Wait = 30*time.Second, 10*time.Second })
	publish(t, d, q, some(0, 3)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	receive(t, c, 3)
	quiet(t, c, 50*time.Millisecond) // a request is open
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	_ = c.Close(ctx)
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %v", took)
	}
	if n := p.count("ChangeMessageVisibilityBatch"); n != 1 {
		t.Errorf("%d requests to give back", n)
	}
}

// TestAForeignReceipt settles nothing, although its handle would.
func TestAForeignReceipt(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	publish(t, d, q, message(1))
	c, other := subscribe(t, d, driver.Subscription{From: q}), subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 1)
	if err := settle(other, driver.Settlement{Disposition: driver.Ack}, got...); driver.ClassOf(err) != driver.LeaseLost {
		t.Errorf("%v", err)
	}
	mustSettle(t, c, driver.Ack, got...)
}

func TestDelay(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	later := message(1)
	later.Delay = 1300 * time.Millisecond
	began := time.Now()
	publish(t, d, q, later, message(2))
	got := receive(t, subscribe(t, d, driver.Subscription{From: q}), 2)
	if took := time.Since(began); got[0].ID != "m-000002" || took < later.Delay {
		t.Errorf("%v after %v", ids(got), took)
	}
}

func TestPublishRefuses(t *testing.T) {
	t.Parallel()
	d, q, f := open(t), fresh(t, driver.Queue, 0), fresh(t, driver.Queue, 1)
	limit := d.Capabilities(q).MaxBytes
	for _, c := range []struct {
		to    driver.Destination
		alter func(*driver.Message)
		class driver.Class
		name  string
	}{
		{q, func(m *driver.Message) { m.Body = make([]byte, limit+1) }, driver.TooLarge, "783360"},
		{q, func(m *driver.Message) { m.Priority = 1 }, driver.Unsupported, "priority"},
		{q, func(m *driver.Message) { m.TTL = time.Second }, driver.Unsupported, "ttl"},
		{q, func(m *driver.Message) { m.Delay = 901 * time.Second }, driver.Unsupported, "schedule"},
		{f, func(m *driver.Message) { m.Delay = time.Second }, driver.Unsupported, "schedule"},
		{q, func(m *driver.Message) { m.Delay = -1 }, driver.Permanent, "negative"},
		{driver.Destination{Shape: driver.Stream, Name: "log"}, func(*driver.Message) {}, driver.Unsupported, "stream"},
		{driver.Destination{Shape: driver.Queue, Name: "nowhere-at-all"}, func(*driver.Message) {}, driver.NotFound, "topology apply"},
		{driver.Destination{Shape: driver.Topic, Name: "nowhere-at-all"}, func(*driver.Message) {}, driver.NotFound, "topology apply"},
		{driver.Destination{Shape: driver.Queue, Name: "a b"}, func(*driver.Message) {}, driver.Permanent, "letters"},
		{driver.Destination{Shape: driver.Queue}, func(*driver.Message) {}, driver.Permanent, "Name is empty"},
		{driver.Destination{Name: "x"}, func(*driver.Message) {}, driver.Permanent, "Shape is not set"},
	} {
		bad := message(2)
		c.alter(bad)
		err := d.Publish(within(t, 5*time.Second), c.to, []*driver.Message{message(1), bad, message(3)})
		if res := driver.ResultAt(err, 1); driver.ClassOf(res) != c.class || !strings.Contains(res.Error(), c.name) {
			t.Errorf("%v, want class %v naming %q", res, c.class, c.name)
		}
	}
	c := subscribe(t, d, driver.Subscription{From: q})
	if got := receive(t, c, 10); len(got) != 10 { // the good ones of five batches
		t.Error(len(got))
	}
}

// TestLargeBatch: the sum of a request has a limit, too.
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	batch := some(0, 10)
	for _, m := range batch {
		m.Body = bytes.Repeat([]byte("x"), 300<<10)
	}
	publish(t, d, q, batch...)
	got := receive(t, subscribe(t, d, driver.Subscription{From: q}), 10)
	if !slices.Equal(sorted(ids(got)), idsOf(batch)) {
		t.Error(ids(got))
	}
}

func TestMissingAndDeleted(t *testing.T) {
	t.Parallel()
	d := open(t)
	_, err := d.Subscribe(within(t, 5*time.Second), driver.Subscription{From: driver.Destination{Shape: driver.Queue, Name: "nowhere"}})
	if driver.ClassOf(err) != driver.NotFound {
		t.Errorf("%v", err)
	}
	q := fresh(t, driver.Queue, 0)
	publish(t, d, q, message(1))
	if _, err := open(t).Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: q}}, driver.Delete); err != nil {
		t.Fatal(err)
	}
	err = d.Publish(within(t, 5*time.Second), q, some(1, 2))
	if driver.ClassOf(driver.ResultAt(err, 0)) != driver.NotFound {
		t.Errorf("publish to a deleted queue: %v", err)
	}
	if _, err := d.Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: q}}, driver.Create); err != nil {
		t.Fatal(err)
	}
	publish(t, d, q, message(2)) // what was known of the old one is forgotten
}

// TestPaused: with its one partition paused a consumer returns nothing, and what an open
// request brings goes to others.
func TestPaused(t *testing.T) {
	t.Parallel()
	d, q := open(t), fresh(t, driver.Queue, 0)
	c := subscribe(t, d, driver.Subscription{From: q})
	quiet(t, c, 200*time.Millisecond) // leaves a request open
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		want := demand(10)
		want.Paused = []string{""}
		if got, err := c.Receive(ctx, want); len(got) > 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("paused: %v, %v", ids(got), err)
		}
	})
	publish(t, d, q, some(0, 3)...)
	got := receive(t, subscribe(t, open(t), driver.Subscription{From: q}), 3)
	if !slices.Equal(sorted(ids(got)), []string{"m-000000", "m-000001", "m-000002"}) {
		t.Error(ids(got))
	}
	wg.Wait()
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	d := open(t)
	adm, ctx := d.Admin(), within(t, 30*time.Second)
	q := fresh(t, driver.Queue, 0)
	publish(t, d, q, some(0, 3)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	receive(t, c, 1)
	s, err := adm.Stats(ctx, driver.Resource{Destination: q})
	if err != nil || s.Ready+s.InFlight != 3 || s.InFlight < 1 || s.Lag != 3 || s.Oldest != -1 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := adm.Seek(ctx, driver.Resource{Destination: q}, driver.Position{Kind: driver.Earliest}); driver.ClassOf(err) != driver.Unsupported {
		t.Errorf("seek: %v", err)
	}
	with := driver.Resource{Destination: q, Options: map[string]string{"MessageRetentionPeriod": "86400"}}
	changes, err := adm.Apply(ctx, []driver.Resource{with}, driver.Create)
	if err != nil || len(changes) != 1 || changes[0].Field != "MessageRetentionPeriod" || changes[0].Done {
		t.Errorf("a difference in what exists: %+v, %v", changes, err)
	}
	found, err := adm.Inspect(ctx, driver.Resource{Destination: q})
	if err != nil || len(found) != 1 || found[0].Rule != "DA02" {
		t.Errorf("a queue without redrive policy: %+v, %v", found, err)
	}
	for _, wrong := range []driver.Resource{
		{Destination: q, Options: map[string]string{"colour": "red"}},
		{Destination: driver.Destination{Shape: driver.Stream, Name: "log"}},
		{Destination: q, Start: driver.Position{Kind: driver.At}},
	} {
		if _, err := adm.Apply(ctx, []driver.Resource{wrong}, driver.Create); driver.ClassOf(err) != driver.Unsupported {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

func TestClosedAndUnreachable(t *testing.T) {
	t.Parallel()
	down := openAt(t, "http://127.0.0.1:1")
	err := down.Publish(within(t, 5*time.Second), driver.Destination{Shape: driver.Queue, Name: "x"}, some(0, 1))
	if driver.ClassOf(err) != driver.Transient {
		t.Errorf("nobody answers: %v", err)
	}
	if err := down.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	err = down.Publish(t.Context(), driver.Destination{Shape: driver.Queue, Name: "x"}, some(0, 1))
	if driver.ClassOf(err) != driver.Closed {
		t.Errorf("after Close: %v", err)
	}
	if _, err := down.Subscribe(t.Context(), driver.Subscription{From: driver.Destination{Shape: driver.Queue, Name: "x"}}); driver.ClassOf(err) != driver.Closed {
		t.Errorf("after Close: %v", err)
	}
}

// TestSDKErrorIsReached: errors.As finds what the SDK said.
func TestSDKErrorIsReached(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d, q := openAt(t, p.srv.URL), fresh(t, driver.Queue, 0)
	p.add(&rule{action: "SendMessageBatch", times: 1, refuse: refusal(403, "AccessDenied", "no")})
	err := d.Publish(within(t, 5*time.Second), q, some(0, 1))
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok || api.ErrorCode() != "AccessDenied" || driver.ClassOf(driver.ResultAt(err, 0)) != driver.Denied {
		t.Errorf("%v", err)
	}
}

func inOrder(t *testing.T, got []driver.Received) {
	t.Helper()
	last := map[string]string{}
	for _, g := range got {
		if g.ID <= last[g.Key] {
			t.Errorf("key %s: %s came behind %s", g.Key, g.ID, last[g.Key])
		}
		last[g.Key] = g.ID
	}
}
