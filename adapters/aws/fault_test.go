package aws_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// behind opens a driver behind a proxy, and a queue.
func behind(t *testing.T, partitions int, change ...func(*aws.Config)) (*proxy, driver.Driver, driver.Destination) {
	t.Helper()
	p := newProxy(t)
	return p, openAt(t, p.srv.URL, change...), fresh(t, driver.Queue, partitions)
}

func after(err error) time.Duration {
	e, _ := errors.AsType[*driver.Error](err)
	if e == nil {
		return 0
	}
	return e.After
}

func TestSendFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		rule   rule
		want   [3]driver.Class
		stored int
		after  time.Duration
	}{
		{"throttled as 403", rule{refuse: refusal(403, "RequestThrottled", "slow down")}, [3]driver.Class{driver.Transient, driver.Transient, driver.Transient}, 0, time.Second},
		{"throttled as 400", rule{refuse: refusal(400, "ThrottlingException", "slow down")}, [3]driver.Class{driver.Transient, driver.Transient, driver.Transient}, 0, time.Second},
		{"a server error", rule{refuse: refusal(500, "InternalError", "oops")}, [3]driver.Class{driver.Ambiguous, driver.Ambiguous, driver.Ambiguous}, 0, 0},
		{"the answer is lost", rule{after: lostAnswer}, [3]driver.Class{driver.Ambiguous, driver.Ambiguous, driver.Ambiguous}, 3, 0},
		{"denied", rule{refuse: refusal(403, "AccessDenied", "no")}, [3]driver.Class{driver.Denied, driver.Denied, driver.Denied}, 0, 0},
		{"unknown key", rule{refuse: refusal(403, "InvalidClientTokenId", "no")}, [3]driver.Class{driver.Denied, driver.Denied, driver.Denied}, 0, 0},
		{"an entry failed", rule{after: failedEntry{ID: "1", Code: "InternalError"}.fail}, [3]driver.Class{0, driver.Transient, 0}, 3, 0},
		{"an entry is throttled", rule{after: failedEntry{ID: "1", Code: "RequestThrottled"}.fail}, [3]driver.Class{0, driver.Transient, 0}, 3, time.Second},
		{"an entry is bad", rule{after: failedEntry{ID: "2", Code: "InvalidMessageContents", SenderFault: true}.fail}, [3]driver.Class{0, 0, driver.Permanent}, 3, 0},
		{"too long as a whole", rule{refuse: refusal(400, "AWS.SimpleQueueService.BatchRequestTooLong", "too long")}, [3]driver.Class{}, 3, 0},
		{"an entry is not mentioned", rule{after: failedEntry{ID: "1"}.silent}, [3]driver.Class{0, driver.Ambiguous, 0}, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, d, q := behind(t, 0)
			c.rule.action, c.rule.times = "SendMessageBatch", 1
			p.add(&c.rule)
			err := d.Publish(within(t, 10*time.Second), q, some(0, 3))
			for i, want := range c.want {
				res := driver.ResultAt(err, i)
				if driver.ClassOf(res) != want || want == driver.Transient && after(res) != c.after {
					t.Errorf("message %d: %v (after %v), want %v after %v", i, res, after(res), want, c.after)
				}
			}
			if p.seen(&c.rule) != 1 {
				t.Error("the fault did not happen")
			}
			got := map[string]bool{}
			consumer := subscribe(t, d, driver.Subscription{From: q})
			for _, r := range receive(t, consumer, c.stored) {
				got[r.ID] = true
			}
			if len(got) != c.stored {
				t.Errorf("%d messages are in the queue, want %d", len(got), c.stored)
			}
		})
	}
}

// TestThrottledSendsAreSpaced: three throttles in a row are one success in the end, each try
// a second after the one before.
func TestThrottledSendsAreSpaced(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	p.add(&rule{action: "SendMessageBatch", times: 3, refuse: refusal(403, "RequestThrottled", "slow down")})
	cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone})
	began := time.Now()
	if err := cl.Publish(within(t, 20*time.Second), q, message(1)); err != nil {
		t.Fatal(err)
	}
	if took, n := time.Since(began), p.count("SendMessageBatch"); took < 3*time.Second || n != 4 {
		t.Errorf("%d requests in %v", n, took)
	}
}

// TestPublishEndsWithItsContext: a service that says nothing is not waited for, and the
// outcome is unknown.
func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	publish(t, d, q, message(0))
	release := make(chan struct{})
	p.add(&rule{action: "SendMessageBatch", times: 1, before: func() { <-release }})
	began := time.Now()
	err := d.Publish(within(t, 300*time.Millisecond), q, some(1, 2))
	close(release)
	if took := time.Since(began); driver.ClassOf(driver.ResultAt(err, 0)) != driver.Ambiguous || !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

func TestDeleteFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rule  rule
		first driver.Class
	}{
		{"throttled", rule{refuse: refusal(403, "RequestThrottled", "slow down")}, driver.Transient},
		{"the answer is lost", rule{after: lostAnswer}, driver.Ambiguous},
		{"a server error", rule{refuse: refusal(500, "InternalError", "oops")}, driver.Ambiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, d, q := behind(t, 0)
			publish(t, d, q, some(0, 3)...)
			consumer := subscribe(t, d, driver.Subscription{From: q})
			got := receive(t, consumer, 3)
			c.rule.action, c.rule.times = "DeleteMessageBatch", 1
			p.add(&c.rule)
			err := settle(consumer, driver.Settlement{Disposition: driver.Ack}, got...)
			if driver.ClassOf(driver.ResultAt(err, 1)) != c.first {
				t.Errorf("first %v, want %v", err, c.first)
			}
			mustSettle(t, consumer, driver.Ack, got...) // as core does
			quiet(t, consumer, lease+time.Second)
		})
	}
}

// TestOneDeleteFails: the entry that failed is told, and no other.
func TestOneDeleteFails(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	publish(t, d, q, some(0, 5)...)
	c := subscribe(t, d, driver.Subscription{From: q})
	got := receive(t, c, 5)
	p.add(&rule{action: "DeleteMessageBatch", times: 1, after: failedEntry{ID: "3", Code: "InternalError"}.fail})
	err := settle(c, driver.Settlement{Disposition: driver.Ack}, got...)
	for i := range got {
		if want := map[bool]driver.Class{true: driver.Transient}[i == 3]; driver.ClassOf(driver.ResultAt(err, i)) != want {
			t.Errorf("entry %d: %v", i, driver.ResultAt(err, i))
		}
	}
}

// TestLeaseLostCancelsTheHandler: an extension that the service refuses ends the handler,
// and its ack is dropped.
func TestLeaseLostCancelsTheHandler(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	publish(t, d, q, message(1))
	p.add(&rule{action: "ChangeMessageVisibilityBatch", times: 1, after: failedEntry{ID: "0", Code: "InvalidParameterValue", SenderFault: true}.lost})
	cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone, Logger: slog.New(slog.DiscardHandler)})
	causes := make(chan error, 10)
	s, err := cl.Start(context.Background(), core.Subscription{From: q}, func(ctx context.Context, d *core.Delivery) error {
		if d.Attempt > 1 {
			causes <- nil
			return nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if cause := <-causes; !errors.Is(cause, core.ErrLeaseLost) {
		t.Errorf("the handler ended with %v", cause)
	}
	if again := <-causes; again != nil { // it comes again when the lease is over
		t.Errorf("%v", again)
	}
	if err := s.Drain(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	if n := p.count("DeleteMessageBatch"); n != 1 {
		t.Errorf("%d deletes for one success", n)
	}
}

// lost is what SQS says about a message that is with somebody else.
func (f failedEntry) lost(request, answer []byte) ([]byte, bool) {
	out, _ := f.fail(request, answer)
	return bytes.Replace(out, []byte("made up"), []byte("Value x for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change."), 1), true
}

// silent leaves the entry out of the answer.
func (f failedEntry) silent(request, answer []byte) ([]byte, bool) {
	out, _ := f.fail(request, answer)
	var doc map[string]any
	_ = json.Unmarshal(out, &doc)
	delete(doc, "Failed")
	out, _ = json.Marshal(doc)
	return out, true
}

func TestReceiveFaults(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]struct {
		status int
		class  driver.Class
		after  time.Duration
	}{
		"RequestThrottled": {403, driver.Transient, time.Second},
		"OverLimit":        {403, driver.Transient, time.Second},
		"InternalError":    {500, driver.Transient, 0},
		"AccessDenied":     {403, driver.Denied, 0},
		"AWS.SimpleQueueService.NonExistentQueue": {400, driver.NotFound, 0},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			p, d, q := behind(t, 0)
			c := subscribe(t, d, driver.Subscription{From: q})
			p.add(&rule{action: "ReceiveMessage", times: 1, refuse: refusal(want.status, code, "made up")})
			_, err := c.Receive(within(t, 5*time.Second), demand(10))
			if driver.ClassOf(err) != want.class || after(err) != want.after {
				t.Errorf("%v (after %v), want %v after %v", err, after(err), want.class, want.after)
			}
			publish(t, d, q, message(1))
			mustSettle(t, c, driver.Ack, receive(t, c, 1)...) // and it goes on
		})
	}
}

// TestConsumerNeedsNoRightToLook: to read the attributes of its queue may be denied.
func TestConsumerNeedsNoRightToLook(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	for _, name := range []string{"GetQueueAttributes"} {
		p.add(&rule{action: name, times: 100, refuse: refusal(403, "AccessDenied", "made up")})
	}
	publish(t, d, q, message(1))
	c := subscribe(t, d, driver.Subscription{From: q})
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
}

// TestAccountNeedsNoLookup: with the account known, neither a queue nor a topic is looked
// up.
func TestAccountNeedsNoLookup(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0, func(c *aws.Config) { c.AccountID = "000000000000" })
	to := fresh(t, driver.Topic, 0, "g")
	publish(t, d, q, message(1))
	publish(t, d, to, message(2))
	c := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
	if n := p.count("GetQueueUrl", "ListTopics"); n != 0 {
		t.Errorf("%d look-ups", n)
	}
}

// TestOnlyTheEndpointIsDialled: the URL of a queue names the emulator, and yet every request
// goes to the endpoint of the Config.
func TestOnlyTheEndpointIsDialled(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	publish(t, d, q, message(1))
	c := subscribe(t, d, driver.Subscription{From: q})
	mustSettle(t, c, driver.Ack, receive(t, c, 1)...)
	for _, name := range []string{"GetQueueUrl", "SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"} {
		if p.count(name) == 0 {
			t.Errorf("%s went another way", name)
		}
	}
}

// TestALateAnswer: of an answer that came later than it can have been given nobody knows
// when its leases began. They count from when the request left, and what is over is not
// handed out.
func TestALateAnswer(t *testing.T) {
	t.Parallel()
	for _, long := range []time.Duration{lease, 20 * time.Second} {
		p, d, q := behind(t, 0, func(c *aws.Config) { c.Lease, c.Wait = long, time.Second })
		publish(t, d, q, message(1))
		c := subscribe(t, d, driver.Subscription{From: q})
		p.add(&rule{action: "ReceiveMessage", times: 1, after: func(_, answer []byte) ([]byte, bool) {
			<-time.After(2500 * time.Millisecond) // the load of the test: a network that stands still
			return answer, true
		}})
		began := time.Now()
		got := receive(t, c, 1)
		switch wantCount := map[bool]int{true: 2, false: 1}[long == lease]; {
		case got[0].DeliveryCount != wantCount:
			t.Errorf("lease %v: hand-out %d was returned, want %d", long, got[0].DeliveryCount, wantCount)
		case long > lease && got[0].Deadline.After(began.Add(long+200*time.Millisecond)):
			t.Errorf("the lease of %v ends %v after the request left", long, got[0].Deadline.Sub(began))
		}
		mustSettle(t, c, driver.Ack, got...)
	}
}

// TestCloseDrainsTheOpenRequest: a message that an open request is handed while its consumer
// stops is with another at once. A request that was cut would hide it for a lease.
func TestCloseDrainsTheOpenRequest(t *testing.T) {
	t.Parallel()
	long := func(c *aws.Config) { c.Lease, c.Wait = 30*time.Second, 3*time.Second }
	p, d, q := behind(t, 0, long)
	c := subscribe(t, d, driver.Subscription{From: q})
	quiet(t, c, 300*time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- c.Close(within(t, 10*time.Second)) }()
	publish(t, d, q, message(1))
	began := time.Now()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	got := receive(t, subscribe(t, d, driver.Subscription{From: q}), 1)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if p.count("ReceiveMessage") < 2 || got[0].ID != "m-000001" {
		t.Error(ids(got))
	}
}

// TestCloseIsNotHeldUp: with an open request of three seconds and a budget of one, Close
// ends by the budget.
func TestCloseIsNotHeldUp(t *testing.T) {
	t.Parallel()
	_, d, q := behind(t, 0, func(c *aws.Config) { c.Lease, c.Wait = 30*time.Second, 10*time.Second })
	c := subscribe(t, d, driver.Subscription{From: q})
	quiet(t, c, 100*time.Millisecond)
	began := time.Now()
	_ = c.Close(within(t, time.Second))
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("Close took %v with a budget of 1 s", took)
	}
}

// TestEmptyAnswersAreNotALoop: a server that answers empty before its time is asked ten
// times a second and no more.
func TestEmptyAnswersAreNotALoop(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	c := subscribe(t, d, driver.Subscription{From: q})
	p.add(&rule{action: "ReceiveMessage", times: 1000, refuse: func([]byte) (int, string, string) { return 200, "", "" }})
	quiet(t, c, time.Second)
	if n := p.count("ReceiveMessage"); n < 5 || n > 12 {
		t.Errorf("%d requests in a second", n)
	}
}

// TestANewerHandOutReplacesTheOlder: the older receipt of a message that came twice settles
// nothing, and is not renewed.
func TestANewerHandOutReplacesTheOlder(t *testing.T) {
	t.Parallel()
	_, d, q := behind(t, 0)
	publish(t, d, q, message(1))
	c := subscribe(t, d, driver.Subscription{From: q})
	old := receive(t, c, 1)
	fresh := receive(t, c, 1) // its lease has run out
	if err := settle(c, driver.Settlement{Disposition: driver.Extend}, old[0]); driver.ClassOf(err) != driver.LeaseLost {
		t.Errorf("the older: %v", err)
	}
	mustSettle(t, c, driver.Extend, fresh...)
	mustSettle(t, c, driver.Ack, fresh...)
}

// TestHop: a delay past 15 minutes goes in hops; whoever receives the message before it is
// due sends it on.
func TestHop(t *testing.T) {
	t.Parallel()
	p, d, q := behind(t, 0)
	var delays []float64
	note := &rule{action: "SendMessageBatch", times: 2, before: func() {}}
	note.after = func(request, answer []byte) ([]byte, bool) {
		var in struct {
			Entries []struct{ DelaySeconds float64 }
		}
		_ = json.Unmarshal(request, &in)
		delays = append(delays, in.Entries[0].DelaySeconds)
		return answer, true
	}
	p.add(note)
	cl := core.NewClient(d, core.Options{Provision: core.ProvisionNone})
	far := message(1)
	far.Delay = 20 * time.Minute
	if err := cl.Publish(within(t, 5*time.Second), q, far); err != nil {
		t.Fatal(err)
	}
	near := message(2) // as a hop leaves the queue
	due := time.Now().Add(2 * time.Second)
	near.Headers = []driver.Header{{Key: driver.HeaderDue, Value: due.UTC().Format(time.RFC3339Nano)}}
	publish(t, d, q, near)
	handled := make(chan time.Time, 2)
	s, err := cl.Start(context.Background(), core.Subscription{From: q}, func(_ context.Context, d *core.Delivery) error {
		if d.ID == near.ID {
			handled <- time.Now()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if at := <-handled; at.Before(due) || at.After(due.Add(3*time.Second)) {
		t.Errorf("due %v, handled %v later", due, at.Sub(due))
	}
	if err := s.Drain(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	if !slices.Equal(delays, []float64{900, 0}) {
		t.Errorf("delays on the wire: %v", delays)
	}
}
