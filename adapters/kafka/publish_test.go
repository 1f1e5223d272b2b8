package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

// A message arrives as it was sent: bytes, headers in order with repeats, tombstone
// and empty body apart, a body of exactly the limit.
func TestRoundTrip(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		limit := d.Capabilities(to).MaxBytes
		at := time.Now().Truncate(time.Millisecond)
		random := make([]byte, limit)
		for i := range random {
			random[i] = byte(rand.Uint32())
		}
		sent := []*driver.Message{
			{
				ID: "1", Key: "table-7", Type: "order", Body: []byte("margherita"), Time: at, TTL: 90 * time.Second, Priority: 3,
				Headers: []driver.Header{{Key: "a", Value: "1"}, {Key: "a", Value: "2"}, {Key: "Größe", Value: ""}, {Key: "bin", Value: "\x00\xff\n"}},
			},
			{ID: "2", Body: nil, Time: at},
			{ID: "3", Body: []byte{}, Time: at},
			{ID: "4", Body: []byte{0xff, 0xfe, 0}, Time: at},
			{ID: "5", Body: random, Time: at},
		}
		publish(t, d, to, sent)
		for i, got := range consume(t, d, to, "").collect(t, len(sent)) {
			want := sent[i]
			if got.ID != want.ID || got.Key != want.Key || got.Type != want.Type || got.TTL != want.TTL || got.Priority != want.Priority || !got.Time.Equal(want.Time) {
				t.Errorf("message %d: got %+v, want %+v", i, got.Message, *want)
			}
			if !bytes.Equal(got.Body, want.Body) || (got.Body == nil) != (want.Body == nil) {
				t.Errorf("message %d: body of %d bytes (nil %v), want %d (nil %v)", i, len(got.Body), got.Body == nil, len(want.Body), want.Body == nil)
			}
			if fmt.Sprint(got.Headers) != fmt.Sprint(want.Headers) {
				t.Errorf("message %d: headers %q, want %q", i, got.Headers, want.Headers)
			}
			if got.Offset != int64(i) || got.DeliveryCount != 0 || !got.Deadline.IsZero() {
				t.Errorf("message %d: offset %d, count %d, deadline %v", i, got.Offset, got.DeliveryCount, got.Deadline)
			}
		}
	})
}

// A key goes where driver.PartitionOf says, on the broker's own count of partitions.
func TestKeysFollowPartitionOf(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		const n = 7
		to := topic(t, d, driver.Topic, n)
		batch := messages(300, 300)
		for i := range 100 { // of every length, all bytes
			batch[i].Key = string(random(1 + i%19))
		}
		publish(t, d, to, batch)
		for _, m := range consume(t, d, to, "g").collect(t, len(batch)) {
			if want := fmt.Sprintf("%s/%d", to.Name, driver.PartitionOf(m.Key, n)); m.Receipt.Partition != want {
				t.Fatalf("key %q is in %s, PartitionOf says %s", m.Key, m.Receipt.Partition, want)
			}
		}
	})
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// One message over the limit fails alone, before anything is written of it.
func TestOversizeFailsAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		batch := messages(3, 1)
		batch[1].Body = make([]byte, d.Capabilities(to).MaxBytes)
		err := d.Publish(t.Context(), to, batch)
		for i, want := range []driver.Class{0, driver.TooLarge, 0} {
			wantClass(t, driver.ResultAt(err, i), want)
		}
		got := consume(t, d, to, "").collect(t, 2)
		if got[0].ID != "m0" || got[1].ID != "m2" {
			t.Fatalf("received %s, %s", got[0].ID, got[1].ID)
		}
	})
}

// A topic with a lower limit than ours: small messages are not punished for being
// many, and what is over that limit is TooLarge.
func TestTopicWithLowerLimit(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := driver.Destination{Shape: driver.Queue, Name: fmt.Sprint("low-", time.Now().UnixNano()), Partitions: 1}
		small := driver.Resource{Destination: to, Options: map[string]string{"max.message.bytes": "20000"}}
		if _, err := d.Admin().Apply(t.Context(), []driver.Resource{small}, driver.Create); err != nil {
			t.Fatal(err)
		}
		batch := messages(200, 1)
		for _, m := range batch {
			m.Body = random(1000)
		}
		batch[100].Body = random(30000)
		err := d.Publish(t.Context(), to, batch)
		for i := range batch {
			want := driver.Class(0)
			if i == 100 {
				want = driver.TooLarge
			}
			wantClass(t, driver.ResultAt(err, i), want)
		}
	})
}

func TestPublishRefusals(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Queue, 1)
		start := time.Now()
		missing := driver.Destination{Shape: driver.Queue, Name: "no-such-topic"}
		wantClass(t, d.Publish(t.Context(), missing, messages(1, 0)), driver.NotFound)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("NotFound took %v", took)
		}
		wantClass(t, d.Publish(t.Context(), to.ForGroup("g"), messages(1, 0)), driver.Unsupported)
		wantClass(t, d.Publish(t.Context(), driver.Destination{Shape: driver.Queue, Name: "a/b"}, messages(1, 0)), driver.Permanent)
		late := messages(2, 1)
		late[0].Delay = time.Second
		err := d.Publish(t.Context(), to, late)
		wantClass(t, driver.ResultAt(err, 0), driver.Unsupported)
		wantClass(t, driver.ResultAt(err, 1), 0)
		if !strings.Contains(err.Error(), "schedule") {
			t.Errorf("the refusal does not name the need: %v", err)
		}
		shut(t, d)
		wantClass(t, d.Publish(t.Context(), to, messages(1, 0)), driver.Closed)
	})
}

// In a black hole Publish ends by its own deadline, Ambiguous; the records stay the
// client's, and when the network heals nothing has overtaken anything.
func TestBlackHole(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		var w wire
		d := b.open(t, func(c *kafka.Config) { c.Dial = w.dial })
		reader := b.open(t)
		to := topic(t, reader, driver.Queue, 1)
		publish(t, d, to, messages(1, 1))
		w.hole.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := d.Publish(ctx, to, messages(3, 1))
		if took := time.Since(start); took > 1200*time.Millisecond {
			t.Errorf("Publish took %v, its deadline was 700 ms", took)
		}
		for i := range 3 {
			wantClass(t, driver.ResultAt(err, i), driver.Ambiguous)
		}
		w.hole.Store(false)
		w.Cut()
		publish(t, d, to, []*driver.Message{{ID: "after", Key: "key0", Body: []byte("x"), Time: time.Now()}})
		var ids []string
		for k := consume(t, reader, to, ""); len(ids) == 0 || ids[len(ids)-1] != "after"; {
			ids = append(ids, k.collect(t, 1)[0].ID)
		}
		const inOrder = "m0 m0 m1 m2 after"
		if got := strings.Join(ids, " "); !strings.HasPrefix(inOrder, strings.TrimSuffix(got, " after")) {
			t.Errorf("stored %q: not a prefix of what was published in order", got)
		}
	})
}

// Close in a black hole is over by its ctx.
func TestCloseInBlackHole(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		var w wire
		d := b.open(t, func(c *kafka.Config) { c.Dial = w.dial })
		to := topic(t, b.open(t), driver.Queue, 2)
		k := consume(t, d, to, "")
		k.owns(t, 2)
		publish(t, d, to, messages(10, 3))
		w.hole.Store(true)
		defer w.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_ = d.Close(ctx)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("Close took %v of a ctx of 1s", took)
		}
		if len(k.open) != 0 {
			t.Errorf("still open after Close: %v", k.open)
		}
	})
}

// Records that other clients wrote are delivered, whatever they look like.
func TestForeignRecords(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		d := b.open(t)
		to := topic(t, d, driver.Stream, 1)
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.conf.Brokers...), kgo.DefaultProduceTopic(to.Name))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		res := cl.ProduceSync(t.Context(),
			&kgo.Record{Value: []byte("bare")},
			&kgo.Record{Key: []byte{}, Value: []byte("null header"), Headers: []kgo.RecordHeader{{Key: "n"}, {Key: "", Value: []byte("v")}}},
			&kgo.Record{Key: []byte("k"), Value: []byte("bad"), Headers: []kgo.RecordHeader{{Key: driver.HeaderTTL, Value: []byte("soon")}, {Key: driver.HeaderID}, {Key: driver.HeaderPriority, Value: []byte("-9")}}},
		)
		if err := res.FirstErr(); err != nil {
			t.Fatal(err)
		}
		got := consume(t, d, to, "g").collect(t, 3)
		for i, m := range got {
			if want := fmt.Sprintf("%s/0/%d", to.Name, i); m.ID != want {
				t.Errorf("id %q, want %q", m.ID, want)
			}
			if m.Err != nil || m.TTL != 0 || m.Priority != 0 {
				t.Errorf("message %d: %+v", i, m)
			}
		}
		if v, ok := got[1].Header("n"); !ok || v != "" {
			t.Errorf("null header value read as %q, %v", v, ok)
		}
		if got[2].Key != "k" || len(got[2].Headers) != 0 {
			t.Errorf("third message: %+v", got[2])
		}
	})
}

// What the broker says of a record has a class, and the client's own error is there.
func TestBrokerErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  *kerr.Error
		want driver.Class
	}{
		{kerr.TopicAuthorizationFailed, driver.Denied},
		{kerr.InvalidRecord, driver.Permanent},
		{kerr.MessageTooLarge, driver.TooLarge},
	} {
		t.Run(c.err.Message, func(t *testing.T) {
			t.Parallel()
			b := fake(t)
			d := b.open(t)
			to := topic(t, d, driver.Queue, 1)
			b.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.err, Count: -1})
			err := d.Publish(t.Context(), to, messages(1, 1))
			wantClass(t, driver.ResultAt(err, 0), c.want)
			if !errors.Is(err, c.err) {
				t.Errorf("%v does not lead to %v", err, c.err)
			}
		})
	}
}
