package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// A slow Revoke holds up neither a cancelled Receive nor the settles of its drain.
func TestReceiveDuringRevoke(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 2)
		publish(t, d, to, messages(20, 10))
		inside, leave := make(chan context.Context, 1), make(chan struct{})
		k := join(t, d, func(k *desk) driver.Subscription {
			k.onRevoke = func(ctx context.Context, _ []string) {
				select {
				case inside <- ctx:
					<-leave
				default:
				}
			}
			return k.subscription(to, "")
		})
		got := k.collect(t, 20)
		second := consume(t, d, to, "")
		ctx := <-inside
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > time.Minute {
			t.Errorf("Revoke's ctx ends %v, %v", end, ok)
		}
		start := time.Now()
		k.quiet(t, 50*time.Millisecond)
		if took := time.Since(start); took > 550*time.Millisecond {
			t.Errorf("Receive cancelled during Revoke took %v", took)
		}
		k.ack(t, got, nil)
		close(leave)
		second.owns(t, 1)
		for _, a := range second.open {
			if a.Committed.Offset != a.High.Offset {
				t.Errorf("the new owner starts at %d of %d: the settle during Revoke did not count", a.Committed.Offset, a.High.Offset)
			}
		}
	})
}

// A topic that is deleted under its consumer is told, not waited for in silence.
func TestTopicDeleted(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Topic, 2)
		k := consume(t, d, to, to.Name)
		k.owns(t, 2)
		publish(t, d, to, messages(4, 4))
		k.collect(t, 4)
		if _, err := d.Admin().Apply(t.Context(), []driver.Resource{{Destination: to}}, driver.Delete); err != nil {
			t.Fatal(err)
		}
		wantClass(t, publishError(t, d, to), driver.NotFound)
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		for {
			_, err := k.Receive(ctx, driver.Demand{Records: 1, Bytes: 1})
			if c := driver.ClassOf(err); c == driver.NotFound {
				return
			} else if err == nil || c != driver.Transient {
				t.Fatalf("Receive of a deleted topic: %v", err)
			}
		}
	})
}

func publishError(t *testing.T, d driver.Driver, to driver.Destination) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return driver.ResultAt(d.Publish(ctx, to, messages(1, 1)), 0)
}

// Settle in a black hole ends by its ctx, undecided.
func TestSettleInBlackHole(t *testing.T) {
	either(t, func(t *testing.T, b broker) {
		var w wire
		d := b.open(t, func(c *kafka.Config) { c.Dial = w.dial })
		to := topic(t, b.open(t), driver.Queue, 1)
		k := consume(t, d, to, "")
		publish(t, d, to, messages(1, 1))
		got := k.collect(t, 1)
		w.hole.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := k.Settle(ctx, []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Ack}})
		if took := time.Since(start); took > time.Second {
			t.Errorf("Settle took %v of a ctx of 500ms", took)
		}
		wantClass(t, driver.ResultAt(err, 0), driver.Ambiguous)
		w.hole.Store(false)
		w.Cut()
		k.ack(t, got, nil)
	})
}

// Publishers share one client; nobody's result is another's.
func TestConcurrentPublishers(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 3)
		const publishers, each = 20, 50
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				for i := range each {
					batch := []*driver.Message{{ID: fmt.Sprint(p, "-", i), Body: []byte("x"), Time: time.Now()}, {ID: "big", Body: make([]byte, 1<<20+1)}}
					err := d.Publish(t.Context(), to, batch)
					if driver.ResultAt(err, 0) != nil || driver.ClassOf(driver.ResultAt(err, 1)) != driver.TooLarge {
						t.Errorf("publisher %d: %v", p, err)
					}
				}
			})
		}
		wg.Wait()
		seen := make(map[string]bool)
		for _, m := range consume(t, d, to, "").collect(t, publishers*each) {
			seen[m.ID] = true
		}
		if len(seen) != publishers*each {
			t.Errorf("%d different messages", len(seen))
		}
	})
}

// A member that the broker has thrown out learns it: its partitions are lost, what it
// settles is refused, and it comes back under new epochs.
func TestEviction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		b   broker
		err *kerr.Error
	}{
		"classic":        {fake(t), kerr.UnknownMemberID},
		"server unknown": {assigning(t), kerr.UnknownMemberID},
		"server fenced":  {assigning(t), kerr.FencedMemberEpoch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testEviction(t, c.b, c.err)
		})
	}
}

func testEviction(t *testing.T, b broker, as *kerr.Error) {
	d := b.open(t)
	to := topic(t, d, driver.Queue, 2)
	publish(t, d, to, messages(8, 8))
	k := consume(t, d, to, "")
	got := k.collect(t, 8)
	b.fake.Fault(kfake.Fault{Keys: []kmsg.Key{b.beat()}, Err: as, Count: 1})
	k.until(t, "the loss and new assignments", func() bool { return k.lost == 2 && len(k.history) >= 4 && len(k.open) == 2 })
	err := k.Settle(t.Context(), []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Ack}})
	wantClass(t, driver.ResultAt(err, 0), driver.LeaseLost)
	again := k.collect(t, 8)
	for _, m := range again {
		if !k.admits(m) {
			t.Fatalf("%s came with an epoch that is not open", m.ID)
		}
	}
	k.ack(t, again, nil)
}

// What the coordinator says of a commit has a class.
func TestCommitErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		assignor string
		err      *kerr.Error
		want     driver.Class
	}{
		{"", kerr.IllegalGeneration, driver.LeaseLost},
		{"", kerr.UnknownMemberID, driver.LeaseLost},
		{"", kerr.FencedInstanceID, driver.LeaseLost},
		{"", kerr.RebalanceInProgress, driver.Transient},
		{"", kerr.OffsetMetadataTooLarge, driver.TooLarge},
		{"", kerr.GroupAuthorizationFailed, driver.Denied},
		{"server", kerr.UnknownMemberID, driver.LeaseLost},
		{"server", kerr.FencedMemberEpoch, driver.LeaseLost},
		{"server", kerr.StaleMemberEpoch, driver.Transient}, // of an epoch that does not change
		{"server", kerr.OffsetMetadataTooLarge, driver.TooLarge},
	} {
		t.Run(c.assignor+c.err.Message, func(t *testing.T) {
			t.Parallel()
			b := fake(t)
			b.conf.Assignor = c.assignor
			d := b.open(t)
			to := topic(t, d, driver.Queue, 1)
			publish(t, d, to, messages(1, 1))
			k := consume(t, d, to, "")
			got := k.collect(t, 1)
			b.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: c.err, Count: 1})
			entry := []driver.Settlement{{Receipt: got[0].Receipt, Disposition: driver.Ack}}
			wantClass(t, driver.ResultAt(k.Settle(t.Context(), entry), 0), c.want)
			if slices.Contains([]*kerr.Error{kerr.UnknownMemberID, kerr.FencedMemberEpoch, kerr.FencedInstanceID}, c.err) {
				// The member is none any more, whatever its heartbeats say: it lets go, and comes back.
				k.until(t, "the loss", func() bool { return k.lost == 1 })
				again := k.collect(t, 1)
				wantClass(t, driver.ResultAt(k.Settle(t.Context(), entry), 0), driver.LeaseLost)
				k.ack(t, again, nil)
				return
			}
			if err := k.Settle(t.Context(), entry); err != nil {
				t.Errorf("the next commit: %v", err)
			}
		})
	}
}
