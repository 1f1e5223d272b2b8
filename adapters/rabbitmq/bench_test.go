package rabbitmq_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// TestThroughput compares with the bare client, alternating, in one run. Figures, no
// verdict: set VARAL_RABBITMQ_BENCH.
func TestThroughput(t *testing.T) {
	if os.Getenv("VARAL_RABBITMQ_BENCH") == "" {
		t.Skip("VARAL_RABBITMQ_BENCH is not set")
	}
	d := open(t)
	const n = 20000
	body := make([]byte, 256)
	for round := range 3 {
		q := fresh(t, d, driver.Queue, 0)
		rawPub := rate(n, func() { rawPublish(t, q.Name, n, body) })
		rawCon := rate(n, func() { rawConsume(t, q.Name, n) })
		q = fresh(t, d, driver.Queue, 0) // a quorum queue gets slower with its log
		raw64 := rate(n, func() { raw64Callers(t, q.Name, n, body) })
		rawConsume(t, q.Name, n)
		q = fresh(t, d, driver.Queue, 0)
		batch := rate(n, func() {
			for i := 0; i < n; i += 10000 {
				var b []*driver.Message
				for j := i; j < i+10000; j++ {
					m := message(j, "")
					m.Body = body
					b = append(b, m)
				}
				if err := d.Publish(context.Background(), q, b); err != nil {
					t.Fatal(err)
				}
			}
		})
		con := rate(n, func() { ourConsume(t, d, q, n) })
		q = fresh(t, d, driver.Queue, 0)
		callers := rate(n, func() {
			var wg sync.WaitGroup
			for c := range 64 {
				wg.Go(func() {
					for i := c; i < n; i += 64 {
						m := message(i, "")
						m.Body = body
						if err := d.Publish(context.Background(), q, []*driver.Message{m}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
		t.Logf("round %d: publish raw window 1000 %.0f/s, one call of 10,000 %.0f/s (%.2f), 64 callers %.0f/s (%.2f; of raw 64 callers on one channel %.2f); consume raw multi-ack 50 %.0f/s, ours %.0f/s (%.2f)",
			round, rawPub, batch, batch/rawPub, callers, callers/rawPub, callers/raw64, rawCon, con, con/rawCon)
	}
}

func rate(n int, f func()) float64 {
	began := time.Now()
	f()
	return float64(n) / time.Since(began).Seconds()
}

func rawChannel(t *testing.T) (*amqp.Connection, *amqp.Channel) {
	conn, err := amqp.Dial(brokerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return conn, ch
}

func rawPublish(t *testing.T, q string, n int, body []byte) {
	conn, ch := rawChannel(t)
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var open []*amqp.DeferredConfirmation
	for range n {
		if len(open) == 1000 {
			open[0].Wait()
			open = open[1:]
		}
		c, err := ch.PublishWithDeferredConfirm("", q, true, false, amqp.Publishing{DeliveryMode: 2, Body: body, MessageId: "m", Timestamp: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	for _, c := range open {
		c.Wait()
	}
}

func raw64Callers(t *testing.T, q string, n int, body []byte) {
	conn, ch := rawChannel(t)
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for c := range 64 {
		wg.Go(func() {
			for i := c; i < n; i += 64 {
				d, err := ch.PublishWithDeferredConfirm("", q, true, false, amqp.Publishing{DeliveryMode: 2, Body: body, MessageId: "m", Timestamp: time.Now()})
				if err != nil {
					t.Error(err)
					return
				}
				d.Wait()
			}
		})
	}
	wg.Wait()
}

func rawConsume(t *testing.T, q string, n int) {
	conn, ch := rawChannel(t)
	defer conn.Close()
	_ = ch.Qos(100, 0, false)
	ds, err := ch.Consume(q, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ {
		m := <-ds
		if i%50 == 0 || i == n {
			_ = ch.Ack(m.DeliveryTag, true)
		}
	}
}

func ourConsume(t *testing.T, d driver.Driver, q driver.Destination, n int) {
	c, err := d.Subscribe(context.Background(), driver.Subscription{From: q})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	// As core: settles come in groups, from another goroutine.
	settles := make(chan []driver.Settlement, 16)
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := range settles {
			if err := c.Settle(context.Background(), b); err != nil {
				t.Error(err)
			}
		}
	})
	var b []driver.Settlement
	for got := 0; got < n; {
		rs, err := c.Receive(context.Background(), demand(50, 100))
		if err != nil {
			t.Fatal(err)
		}
		got += len(rs)
		for _, r := range rs {
			if b = append(b, driver.Settlement{Receipt: r.Receipt, Disposition: driver.Ack}); len(b) == 50 {
				settles <- b
				b = nil
			}
		}
	}
	if len(b) > 0 {
		settles <- b
	}
	close(settles)
	wg.Wait()
}
