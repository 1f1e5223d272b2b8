package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestReceiveWaitsForRoom(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	publish(t, d, queue("q"), msg("1"), msg("2"))
	w := driver.Demand{Records: 1, Bytes: 100, Limit: 1}
	got, err := c.Receive(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	first := slices.Clone(got)
	next := make(chan string, 1)
	go func() {
		got, err := c.Receive(t.Context(), w)
		if err != nil {
			next <- err.Error()
			return
		}
		next <- got[0].ID
	}()
	select {
	case id := <-next:
		t.Fatalf("%s came over the limit", id)
	case <-time.After(20 * time.Millisecond):
	}
	settle(t, c, driver.Ack, first...)
	if id := <-next; id != "2" {
		t.Errorf("got %s, want 2", id)
	}
}

func TestWaitingReceiveIsWoken(t *testing.T) {
	t.Parallel()
	for _, to := range []driver.Destination{queue("x"), queue("x").Keyed(3), topic("x"), stream("x"), stream("x").Keyed(3)} {
		synctest.Test(t, func(t *testing.T) {
			d := open(t, memory.Config{}, to)
			c, _ := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
			go func() {
				synctest.Wait()
				publish(t, d, to, msg("1"))
			}()
			start := time.Now()
			want(t, receive(t, c, 9), "1")
			if d := time.Since(start); d != 0 {
				t.Errorf("%s: woken after %v", to, d)
			}
		})
	}
}

// Two wait. The one that was woken is cancelled before it has taken anything: the other
// must get the message.
func TestCancelledReceiveLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{}, queue("q"))
		a, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		b, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
		for i := range 300 {
			got := make(chan string, 2)
			one := func(ctx context.Context, c driver.Consumer) {
				r, err := c.Receive(ctx, demand(1))
				if err != nil {
					if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
						t.Errorf("receive: %v", err)
					}
					return
				}
				settle(t, c, driver.Ack, r...)
				got <- r[0].ID
			}
			actx, acancel := context.WithCancel(t.Context())
			bctx, bcancel := context.WithCancel(t.Context())
			go one(actx, a)
			synctest.Wait() // a waits longer, so it is the one to be woken
			go one(bctx, b)
			synctest.Wait()
			id := fmt.Sprint(i)
			publish(t, d, queue("q"), msg(id))
			acancel()
			synctest.Wait()
			bcancel()
			synctest.Wait()
			if len(got) != 1 || <-got != id {
				t.Fatalf("round %d: the message reached nobody", i)
			}
		}
	})
}

func TestCompetingConsumersAreWokenInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.Config{}, queue("q"))
		got := make(chan int, 100)
		for i := range 5 {
			c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
			go func() {
				receive(t, c, 1)
				got <- i
			}()
			synctest.Wait()
		}
		publish(t, d, queue("q"), msg("1"), msg("2"), msg("3"), msg("4"), msg("5"))
		synctest.Wait()
		if len(got) != 5 {
			t.Errorf("%d of 5 waiting consumers got one of 5 messages", len(got))
		}
	})
}

func TestCloseGivesBackAndEndsReceive(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{Lease: time.Hour}, queue("q"))
	a, ka := subscribe(t, d, driver.Subscription{From: queue("q")})
	b, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
	publish(t, d, queue("q"), msg("1"), msg("2"), msg("3"))
	got := receive(t, a, 2)
	ended := make(chan error)
	go func() {
		for {
			if _, err := a.Receive(t.Context(), driver.Demand{Records: 9, Bytes: 9, Limit: 2}); err != nil {
				ended <- err
				return
			}
		}
	}()
	want(t, receive(t, b, 5), "3")
	ka.onRevoke = func(context.Context, []string) { // Settle works until Close returns
		settle(t, a, driver.Ack, got[0])
	}
	closeNow(t, a)
	wantClass(t, <-ended, driver.Closed)
	closeNow(t, a)
	wantClass(t, trySettle(a, driver.Ack, 0, got[1]), driver.Closed)
	if _, err := a.Receive(t.Context(), demand(1)); driver.ClassOf(err) != driver.Closed {
		t.Errorf("Receive after Close: %v", err)
	}
	want(t, receive(t, b, 5), "2")
}

func TestUseAfterClose(t *testing.T) {
	t.Parallel()
	d := open(t, memory.Config{}, queue("q"))
	c, k := subscribe(t, d, driver.Subscription{From: queue("q")})
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(k.owned()) != 0 {
		t.Error("the consumer still owns its partition")
	}
	wantClass(t, d.Publish(t.Context(), queue("q"), []*driver.Message{msg("1")}), driver.Closed)
	_, err := d.Subscribe(t.Context(), driver.Subscription{From: queue("q")})
	wantClass(t, err, driver.Closed)
	_, err = c.Receive(t.Context(), demand(1))
	wantClass(t, err, driver.Closed)
	_, err = d.Admin().Stats(t.Context(), driver.Resource{Destination: queue("q")})
	wantClass(t, err, driver.Closed)
}

// Many publishers and consumers, which also close with messages out: nothing is lost and,
// as no lease ends, nothing is done twice.
func TestCompetingConsumersLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	const publishers, each = 8, 500
	d := open(t, memory.Config{}, queue("q"))
	var mu sync.Mutex
	done := map[string]int{}
	var wg, pub sync.WaitGroup
	for p := range publishers {
		pub.Go(func() {
			for i := 0; i < each; i += 5 {
				var batch []*driver.Message
				for j := range 5 {
					batch = append(batch, &driver.Message{ID: fmt.Sprint(p, "-", i+j), Priority: j})
				}
				if err := d.Publish(context.Background(), queue("q"), batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for w := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for ctx.Err() == nil {
				c, _ := subscribe(t, d, driver.Subscription{From: queue("q")})
				for range 20 {
					short, stop := context.WithTimeout(ctx, 5*time.Millisecond) // the rest may be out elsewhere, until a Close
					got, err := c.Receive(short, driver.Demand{Records: 1 + rnd.IntN(20), Bytes: 1 << 20, Limit: 1000})
					stop()
					if err != nil {
						break
					}
					mu.Lock() // settled and noted in one step, so that a Close cannot come between
					for _, r := range got {
						how := []driver.Disposition{driver.Ack, driver.Ack, driver.Nack, driver.Return, 0}[rnd.IntN(5)]
						if how == 0 { // stays out until the Close
							continue
						}
						settle(t, c, how, r)
						if how == driver.Ack {
							done[r.ID]++
						}
					}
					if len(done) == publishers*each {
						cancel()
					}
					mu.Unlock()
				}
				closeNow(t, c)
			}
		})
	}
	pub.Wait()
	wg.Wait()
	for id, n := range done {
		if n != 1 {
			t.Errorf("%s was done %d times", id, n)
		}
	}
	if len(done) != publishers*each {
		t.Errorf("%d of %d messages were done", len(done), publishers*each)
	}
}

// The slice is the caller's until the next call, and one between core and the adapter may
// write into it: a middleware that marks a message as unreadable, say. None of it shows in
// the next batch.
func TestNextBatchHoldsNothingOfTheLast(t *testing.T) {
	t.Parallel()
	for _, to := range []driver.Destination{queue("x"), queue("x").Keyed(1), topic("x"), stream("x")} {
		synctest.Test(t, func(t *testing.T) {
			second := func(between func([]driver.Received)) []driver.Received {
				d := open(t, memory.Config{}, to)
				c, _ := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
				publish(t, d, to, msg("1"), msg("2"))
				got, err := c.Receive(t.Context(), demand(2))
				if err != nil || len(got) != 2 {
					t.Fatalf("received %v, %v", ids(got), err)
				}
				settle(t, c, driver.Ack, slices.Clone(got)...)
				between(got)
				publish(t, d, to, msg("3"), msg("4"))
				out := receive(t, c, 2)
				want(t, out, "3", "4")
				for i := range out {
					out[i].Receipt.Ref = nil // a pointer of the adapter's own
				}
				return out
			}
			clean := second(func([]driver.Received) {})
			written := second(func(got []driver.Received) {
				for i := range got {
					got[i] = driver.Received{
						Message: driver.Message{ID: "old", Key: "old", Type: "old", Headers: []driver.Header{{Key: "old"}}, Body: []byte("old"), Time: time.Now().Add(time.Hour), Delay: 1, TTL: 1, Priority: 1},
						Receipt: driver.Receipt{Partition: "old", Epoch: 99, Seq: 99, Aux: 99, ID: "old", Ref: t},
						Offset:  99, NativeID: "old", DeliveryCount: 99, Deadline: time.Now().Add(time.Hour), Err: errors.New("old"),
					}
				}
			})
			if !reflect.DeepEqual(clean, written) {
				t.Errorf("%s: a batch after one that was written into:\n%+v\nwant\n%+v", to, written, clean)
			}
		})
	}
}
