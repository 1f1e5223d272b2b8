package redis_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core/driver"
)

// The trap of a shared log: whatever is appended to it again, every group sees again.
func TestANackIsUnseenByOtherGroups(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic, "a", "b")
	a, b := subscribe(t, d, driver.Subscription{From: to, Group: "a"}), subscribe(t, d, driver.Subscription{From: to, Group: "b"})
	publish(t, d, to, 0, 3)
	mustSettle(t, b, driver.Ack, receive(t, b, 3)...)
	got := receive(t, a, 3)
	for i, s := range []driver.Settlement{{Disposition: driver.Nack}, {Disposition: driver.Nack, Delay: 100 * time.Millisecond}, {Disposition: driver.Return}} {
		if err := settle(a, s, got[i]); err != nil {
			t.Fatal(err)
		}
	}
	if again := ids(receive(t, a, 3)); !slices.Equal(again, ids(got)) {
		t.Errorf("%v came again", again)
	}
	quiet(t, b, 300*time.Millisecond)
	if err := d.Publish(within(t, 5*time.Second), to.ForGroup("b"), []*driver.Message{message(7)}); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, b, 1)[0]; r.ID != message(7).ID {
		t.Errorf("%s came", r.ID)
	}
	quiet(t, a, 300*time.Millisecond)
}

// A log that one group has done with is not trimmed under another.
func TestTrimWaitsForTheSlowGroup(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic, "fast", "slow")
	fast, slow := subscribe(t, d, driver.Subscription{From: to, Group: "fast"}), subscribe(t, d, driver.Subscription{From: to, Group: "slow"})
	publish(t, d, to, 0, 1200)
	for range 4 {
		mustSettle(t, fast, driver.Ack, receive(t, fast, 300)...)
	}
	if n := len(receive(t, slow, 1200)); n != 1200 {
		t.Errorf("%d", n)
	}
}

func TestATemporaryGroupEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Topic)
	c := subscribe(t, d, driver.Subscription{From: to, Group: "t", Temporary: true})
	if _, err := d.Subscribe(within(t, 5*time.Second), driver.Subscription{From: to, Group: "t", Temporary: true}); !errors.Is(err, driver.Conflict) {
		t.Errorf("a second one gave %v", err)
	}
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Admin().Stats(within(t, 5*time.Second), driver.Resource{Destination: to.ForGroup("t")}); !errors.Is(err, driver.NotFound) {
		t.Errorf("the group is still there: %v", err)
	}
}

func TestPositionsOfAStream(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Stream)
	publish(t, d, to, 0, 5)
	time.Sleep(5 * time.Millisecond) // ids count milliseconds
	since := time.Now()
	time.Sleep(5 * time.Millisecond)
	publish(t, d, to, 5, 10)
	all := receive(t, subscribe(t, d, driver.Subscription{From: to, Group: "all"}), 10)
	if all[3].Offset >= all[4].Offset {
		t.Error("offsets do not grow")
	}
	for name, c := range map[string]struct {
		at   driver.Position
		want int
	}{
		"at id":     {driver.Position{Kind: driver.At, ID: all[4].NativeID}, 6},
		"at offset": {driver.Position{Kind: driver.At, Offset: all[7].Offset}, 3},
		"since":     {driver.Position{Kind: driver.Since, Time: since}, 5},
		"earliest":  {driver.Position{Kind: driver.Earliest}, 10},
	} {
		c1 := subscribe(t, d, driver.Subscription{From: to, Group: name, Start: c.at})
		got := receive(t, c1, c.want)
		if got[0].ID != all[10-c.want].ID {
			t.Errorf("%s begins with %s", name, got[0].ID)
		}
		mustSettle(t, c1, driver.Ack, got...)
		quiet(t, c1, 50*time.Millisecond)
	}
	latest := subscribe(t, d, driver.Subscription{From: to}) // no group
	quiet(t, latest, 50*time.Millisecond)
	publish(t, d, to, 10, 11)
	if r := receive(t, latest, 1)[0]; r.ID != message(10).ID {
		t.Error(r.ID)
	}
	if s := stats(t, d, to); s.Ready != 11 || s.InFlight != -1 {
		t.Errorf("%+v", s)
	}
}

func TestSeek(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Stream)
	publish(t, d, to, 0, 10)
	c := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	all := receive(t, c, 10)
	mustSettle(t, c, driver.Ack, all...)
	seek := func(p driver.Position) error {
		return d.Admin().Seek(within(t, 5*time.Second), driver.Resource{Destination: to.ForGroup("g")}, p)
	}
	if err := seek(driver.Position{Kind: driver.Earliest}); !errors.Is(err, driver.Conflict) {
		t.Errorf("Seek beside a consumer gave %v", err)
	}
	if err := c.Close(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := seek(driver.Position{Kind: driver.At, ID: all[6].NativeID}); err != nil {
		t.Fatal(err)
	}
	if s := stats(t, d, to.ForGroup("g")); s.Lag != 4 {
		t.Errorf("after Seek %+v", s)
	}
	c = subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	if got := receive(t, c, 4); got[0].ID != all[6].ID {
		t.Errorf("it goes on with %s", got[0].ID)
	}
}

// What was there and is gone comes anew; what was deleted on purpose ends its consumers.
func TestAStreamThatVanishes(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	var mu sync.Mutex
	var epochs []uint64
	gone, revoked := 0, 0
	c := subscribe(t, d, driver.Subscription{
		From:     to,
		Assigned: func(a driver.Assignment) { mu.Lock(); defer mu.Unlock(); epochs = append(epochs, a.Epoch) },
		Revoke: func(ctx context.Context, _ []string) {
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				revoked++
			}
		},
		Notify: func(e driver.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Kind == driver.Gone {
				gone++
			}
		},
	})
	publish(t, d, to, 0, 1)
	old := receive(t, c, 1)[0]
	time.AfterFunc(200*time.Millisecond, func() {
		tag := "varal:{" + to.Name + "}:"
		raw(t).Del(context.Background(), tag+"s", tag+"meta", tag+"r:queue")
		for i := range 100 { // it comes back with its consumer
			if err := d.Publish(context.Background(), to, []*driver.Message{message(5)}); err == nil {
				return
			} else if i == 99 {
				t.Error(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if r := receive(t, c, 1)[0]; r.ID != message(5).ID || r.Receipt.Epoch != 2 {
		t.Errorf("%+v", r)
	}
	if err := settle(c, driver.Settlement{Disposition: driver.Ack}, old); !errors.Is(err, driver.LeaseLost) {
		t.Errorf("a receipt of what is gone gave %v", err)
	}
	mu.Lock()
	if !slices.Equal(epochs, []uint64{1, 2}) || gone != 1 || revoked != 1 {
		t.Errorf("epochs %v, %d gone, %d revoked", epochs, gone, revoked)
	}
	mu.Unlock()
	if _, err := d.Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: to}}, driver.Delete); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(within(t, 5*time.Second), demand(1)); !errors.Is(err, driver.NotFound) {
		t.Errorf("after Delete: %v", err)
	}
}

func TestAForeignEntryIsHandedOutWithAnError(t *testing.T) {
	t.Parallel()
	d, to := open(t), fresh(t, driver.Queue)
	c := subscribe(t, d, driver.Subscription{From: to})
	cl := raw(t)
	if err := cl.Do(within(t, time.Second), "XADD", "varal:{"+to.Name+"}:s", "*", "topping", "ham").Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, d, to, 0, 1)
	got := receive(t, c, 2)
	if got[0].Err == nil || string(got[0].Body) != "topping=ham\n" || got[1].Err != nil {
		t.Errorf("%+v", got)
	}
	mustSettle(t, c, driver.Reject, got[0])
}

func TestAKeyOfAnotherTypeIsNotDestroyed(t *testing.T) {
	t.Parallel()
	d, cl := open(t), raw(t)
	name := "test-type-" + time.Now().Format("150405.000000")
	key := "varal:{" + name + "}:s"
	t.Cleanup(func() { cl.Del(context.Background(), key, "varal:{"+name+"}:meta") })
	cl.Set(within(t, time.Second), key, "mine", 0)
	to := driver.Destination{Shape: driver.Queue, Name: name}
	if _, err := d.Admin().Apply(within(t, 5*time.Second), []driver.Resource{{Destination: to}}, driver.Create); !errors.Is(err, driver.Conflict) {
		t.Errorf("Apply over a string gave %v", err)
	}
	if v := cl.Get(within(t, time.Second), key).Val(); v != "mine" {
		t.Errorf("the string is %q now", v)
	}
}

func TestOpenSaysWhy(t *testing.T) {
	t.Parallel()
	ctx := within(t, 10*time.Second)
	began := time.Now()
	_, err := redis.Open(ctx, redis.Config{Addr: "127.0.0.1:1"})
	if !errors.Is(err, driver.Transient) || time.Since(began) > 2*time.Second {
		t.Errorf("nobody there: %v after %v", err, time.Since(began))
	}
	c := config(t)
	c.User, c.Password = "nobody", "wrong-hunter2"
	if _, err = redis.Open(ctx, c); !errors.Is(err, driver.Denied) {
		t.Errorf("a wrong password: %v", err)
	}
}

func TestDurableIsWhatTheServerSays(t *testing.T) {
	t.Parallel()
	d := open(t)
	info := raw(t).ConfigGet(within(t, time.Second), "appendonly").Val()
	policy := raw(t).ConfigGet(within(t, time.Second), "maxmemory-policy").Val()
	want := info["appendonly"] == "yes" && policy["maxmemory-policy"] == "noeviction"
	q := driver.Destination{Shape: driver.Queue, Name: "x"}
	if got := d.Capabilities(q).Durable; got != want {
		t.Errorf("Durable is %v with %v and %v", got, info, policy)
	}
	found, err := d.Admin().Inspect(within(t, 5*time.Second), driver.Resource{Destination: q})
	if err != nil || len(found) == 0 { // it does not exist
		t.Errorf("%v %v", found, err)
	}
}

// Names of consumers that were killed do not add up; one that has something pending stays
// until somebody has taken that over.
func TestNamesOfTheDeadAreRemoved(t *testing.T) {
	t.Parallel()
	long := func(c *redis.Config) { c.Lease = 3 * time.Second } // as long as a living one may be silent
	d, cl, to := open(t, long), raw(t), fresh(t, driver.Topic, "g")
	log, ctx := "varal:{"+to.Name+"}:s", within(t, 20*time.Second)
	publish(t, d, to, 0, 1)
	if err := cl.XGroupCreateConsumer(ctx, log, "g", "dead").Err(); err != nil {
		t.Fatal(err)
	}
	if err := cl.Do(ctx, "XREADGROUP", "GROUP", "g", "holds one", "STREAMS", log, ">").Err(); err != nil {
		t.Fatal(err)
	}
	names := func() (out []string) {
		for _, c := range cl.XInfoConsumers(ctx, log, "g").Val() {
			out = append(out, c.Name)
		}
		slices.Sort(out)
		return out
	}
	if _, err := d.Subscribe(ctx, driver.Subscription{From: to, Group: "g"}); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"dead", "holds one"}) {
		t.Errorf("%q: one that was silent for a moment is not dead", got)
	}
	time.Sleep(3*time.Second + 200*time.Millisecond) // the silence
	c := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
	if got := names(); !slices.Equal(got, []string{"holds one"}) {
		t.Errorf("%q are left", got)
	}
	if r := receive(t, c, 1)[0]; r.ID != message(0).ID {
		t.Errorf("%s came", r.ID)
	}
}
