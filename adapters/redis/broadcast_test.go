package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
)

func onAir(c *redis.Config) { c.Broadcast = true }

// channel is a topic that nobody else uses; there is nothing to make.
func channel() driver.Destination {
	return driver.Destination{Shape: driver.Topic, Name: adaptertest.Name("-")}
}

func TestBroadcastReachesEverySubscriber(t *testing.T) {
	t.Parallel()
	to := channel()
	d := open(t, onAir)
	publish(t, d, to, 0, 3) // to nobody
	var cs []driver.Consumer
	for range 3 {
		cs = append(cs, subscribe(t, open(t, onAir), driver.Subscription{From: to, Temporary: true}))
	}
	want := []*driver.Message{{
		ID: "a", Key: "k", Type: "pizza", Body: []byte("\x00\xffmargherita"), Time: time.UnixMilli(1_700_000_000_000),
		Headers: []driver.Header{{Key: "table", Value: "7"}, {Key: "table", Value: ""}},
	}, {ID: "b", Time: time.Now()}}
	if err := d.Publish(within(t, 5*time.Second), to, want); err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		got := receive(t, c, 2)
		if m := got[0]; m.ID != "a" || m.Key != "k" || m.Type != "pizza" || string(m.Body) != "\x00\xffmargherita" || len(m.Headers) != 2 || !m.Time.Equal(want[0].Time) || m.Err != nil {
			t.Errorf("%+v came", m)
		}
		quiet(t, c, 50*time.Millisecond)
	}
	if err := raw(t).Publish(context.Background(), "varal:{"+to.Name+"}:channel", "hello").Err(); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, cs[0], 1)[0]; got.Err == nil || string(got.Body) != "hello" {
		t.Errorf("what another program said came as %+v", got)
	}
}

// The two points of loss are told: a subscriber that is slow, and a connection that is lost.
func TestBroadcastTellsWhatItLoses(t *testing.T) {
	t.Parallel()
	to := channel()
	var net cutter
	var told events
	d := open(t, onAir)
	c := subscribe(t, open(t, onAir, func(c *redis.Config) { c.Dial = net.Dial }), driver.Subscription{From: to, Temporary: true, Notify: told.tell})
	publish(t, d, to, 0, 1000)
	publish(t, d, to, 1000, 2000)
	eventually(t, "word of what was dropped", 10*time.Second, func() bool {
		_, _ = c.Receive(within(t, 100*time.Millisecond), demand(10))
		return told.of(driver.Gone) > 0
	})
	// What is still on its way would fill the buffer again, and the last message be dropped.
	for {
		if got, _ := c.Receive(within(t, 300*time.Millisecond), demand(1000)); len(got) == 0 {
			break
		}
	}
	before := told.of(driver.Gone)
	net.Down()
	eventually(t, "word of the outage", 10*time.Second, func() bool { return told.of(driver.Disconnected) == 1 })
	net.Up()
	eventually(t, "word of the connection", 10*time.Second, func() bool {
		return told.of(driver.Connected) == 1 && told.of(driver.Gone) > before
	})
	publish(t, d, to, 5000, 5001)
	eventually(t, "the next message", 10*time.Second, func() bool {
		got, _ := c.Receive(within(t, time.Second), demand(100))
		return len(got) > 0 && got[len(got)-1].ID == message(5000).ID
	})
}

func TestBroadcastRefusesWhatItIsNot(t *testing.T) {
	t.Parallel()
	d, to := open(t, onAir), channel()
	if c := d.Capabilities(to); c.Settle != driver.None || c.Durable || c.Replay || c.Counts || c.Order != driver.NoOrder {
		t.Errorf("%+v", c)
	}
	for _, of := range []driver.Destination{{Shape: driver.Queue, Name: "q"}, {Shape: driver.Stream, Name: "s"}, {Shape: driver.Topic, Name: "t", Partitions: 2}, to.ForGroup("g")} {
		if c := d.Capabilities(of); of.Group == "" && c != (driver.Capabilities{}) {
			t.Errorf("%s: %+v", of, c)
		}
		if err := driver.ResultAt(d.Publish(within(t, time.Second), of, []*driver.Message{message(1)}), 0); driver.ClassOf(err) != driver.Unsupported {
			t.Errorf("publish to %s: %v", of, err)
		}
		if _, err := d.Admin().Apply(within(t, time.Second), []driver.Resource{{Destination: of}}, driver.Create); driver.ClassOf(err) != driver.Unsupported {
			t.Errorf("apply %s: %v", of, err)
		}
	}
	late := message(1)
	late.Delay = time.Second
	if err := driver.ResultAt(d.Publish(within(t, time.Second), to, []*driver.Message{message(0), late}), 1); driver.ClassOf(err) != driver.Unsupported {
		t.Errorf("a delay: %v", err)
	}
	for _, s := range []driver.Subscription{{From: to, Group: "g"}, {From: to, Start: driver.Position{Kind: driver.Earliest}}} {
		if _, err := d.Subscribe(within(t, time.Second), s); driver.ClassOf(err) != driver.Unsupported {
			t.Errorf("%+v: %v", s, err)
		}
	}
	c := config(t)
	c.Broadcast, c.RequireDurable = true, true
	if _, err := redis.Open(within(t, time.Second), c); driver.ClassOf(err) != driver.Permanent || !strings.Contains(err.Error(), "Broadcast") {
		t.Errorf("durable: %v", err)
	}
}

func TestBroadcastOnACluster(t *testing.T) {
	t.Parallel()
	r := clustered(t)
	to := channel()
	d := open(t, r.config, onAir)
	c := subscribe(t, open(t, r.config, onAir), driver.Subscription{From: to, Temporary: true})
	for i := range 20 {
		publish(t, d, to, i, i+1)
	}
	if got := ids(receive(t, c, 20)); got[19] != message(19).ID {
		t.Errorf("%v came", got)
	}
}

// TestBroadcastThroughCore: core refuses the subscription until it says that it is at most
// once.
func TestBroadcastThroughCore(t *testing.T) {
	t.Parallel()
	ctx := within(t, 10*time.Second)
	c := core.NewClient(open(t, onAir), core.Options{})
	t.Cleanup(func() { _ = c.Close(within(t, 5*time.Second)) })
	news := core.Topic(channel().Name)
	got := make(chan string, 1)
	handle := func(_ context.Context, d *core.Delivery) error { got <- string(d.Body); return nil }
	sub := core.Subscription{From: news, Group: "mine", Temporary: true}
	if _, err := c.Start(ctx, sub, handle); !errors.Is(err, core.ErrUnsupported) || !strings.Contains(err.Error(), "AckFirst") {
		t.Errorf("without AckFirst: %v", err)
	}
	if _, err := c.Start(ctx, sub, handle, middleware.AckFirst()); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(ctx, news, &core.Message{Body: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	select {
	case body := <-got:
		if body != "hello" {
			t.Errorf("%q came", body)
		}
	case <-ctx.Done():
		t.Fatal("nothing came")
	}
}
