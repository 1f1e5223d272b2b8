package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// below is a Publisher that asks the test what to do with each call, and stores what was
// done with success.
type below struct {
	mu      sync.Mutex
	calls   [][]*core.Message
	log     []core.Message
	onCall  func(ctx context.Context, msgs []*core.Message) error
	under   int
	atOnce  int
	perKeys map[string]int
}

func (b *below) Publish(ctx context.Context, to core.Destination, msgs ...*core.Message) error {
	b.mu.Lock()
	b.calls = append(b.calls, msgs)
	b.under++
	b.atOnce = max(b.atOnce, b.under)
	if b.perKeys == nil {
		b.perKeys = map[string]int{}
	}
	for _, m := range msgs {
		if b.perKeys[to.Name+m.Key]++; m.Key != "" && b.perKeys[to.Name+m.Key] > 1 {
			panic("two of a key at once")
		}
	}
	on := b.onCall
	b.mu.Unlock()
	var err error
	if on != nil {
		err = on(ctx, msgs)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.under--
	for i, m := range msgs {
		b.perKeys[to.Name+m.Key]--
		if driver.ResultAt(err, i) == nil {
			b.log = append(b.log, *m)
		}
	}
	return err
}

// on changes what the next calls do.
func (b *below) on(f func(ctx context.Context, msgs []*core.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onCall = f
}

func (b *below) stored() (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.log {
		ids = append(ids, m.ID)
	}
	return ids
}

func failing(class driver.Class) func(context.Context, []*core.Message) error {
	return func(context.Context, []*core.Message) error { return driver.Errorf("p", class, "no luck") }
}

func after(d time.Duration, err error) func(context.Context, []*core.Message) error {
	return func(context.Context, []*core.Message) error {
		time.Sleep(d)
		return err
	}
}

var orders = core.Queue("orders")

func keyed(id, key string) *core.Message { return &core.Message{ID: id, Key: key} }

func closeOrdered(t *testing.T, p *core.OrderedPublisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Error("close:", err)
	}
}

// start publishes in the background and returns where its result comes.
func start(ctx context.Context, p core.Publisher, msgs ...*core.Message) <-chan error {
	out := make(chan error, 1)
	go func() { out <- p.Publish(ctx, orders, msgs...) }()
	synctest.Wait()
	return out
}

// notSent checks that err promises that nothing was sent.
func notSent(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, core.ErrTransient) || errors.Is(err, core.ErrIndeterminate) {
		t.Errorf("%v: want one that was provably not sent", err)
	}
}

func TestOrderedManyCallersFewCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: after(time.Millisecond, nil)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 4})
		var wg sync.WaitGroup
		for k := range 64 {
			wg.Go(func() {
				for n := range 20 {
					if err := p.Publish(t.Context(), orders, keyed(fmt.Sprintf("%02d-%02d", k, n), fmt.Sprint(k))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		closeOrdered(t, p)
		if len(b.calls) > 4*(20*2+2) {
			t.Errorf("%d calls for 1280 messages in 4 lanes", len(b.calls))
		}
		if b.atOnce != 4 {
			t.Errorf("%d calls at once, want one for each of 4 lanes", b.atOnce)
		}
		last := map[string]string{}
		for _, m := range b.log {
			if m.ID <= last[m.Key] {
				t.Errorf("key %s: %s after %s", m.Key, m.ID, last[m.Key])
			}
			last[m.Key] = m.ID
		}
		if len(b.log) != 1280 {
			t.Errorf("%d stored", len(b.log))
		}
	})
}

func TestOrderedFailureBlocksItsKey(t *testing.T) {
	t.Parallel()
	for _, class := range []driver.Class{driver.Transient, driver.Ambiguous, driver.TooLarge, 0} {
		synctest.Test(t, func(t *testing.T) {
			b := &below{}
			p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1})
			defer closeOrdered(t, p)
			b.on(failing(class))
			first := keyed("1", "a")
			err := p.Publish(t.Context(), orders, first, keyed("2", "a"))
			want := error(class)
			if class == 0 {
				want = core.ErrIndeterminate // nothing was said about it
			}
			if got := driver.ResultAt(err, 0); !errors.Is(got, want) || errors.Is(got, core.ErrKeyBlocked) {
				t.Errorf("the first: %v", got)
			}
			if got := driver.ResultAt(err, 1); !errors.Is(got, core.ErrKeyBlocked) {
				t.Errorf("the one behind it: %v", got)
			} else {
				notSent(t, got)
			}
			b.on(nil)
			if err := p.Publish(t.Context(), orders, keyed("3", "a")); !errors.Is(err, core.ErrKeyBlocked) {
				t.Errorf("a later one: %v", err)
			}
			// Another key, no key, and the same key elsewhere go on.
			if err := p.Publish(t.Context(), orders, keyed("4", "b"), keyed("5", "")); err != nil {
				t.Error(err)
			}
			if err := p.Publish(t.Context(), core.Queue("others"), keyed("6", "a")); err != nil {
				t.Error(err)
			}
			blocked := p.Blocked()
			if len(blocked) != 1 || blocked[0].Key != "a" || blocked[0].ID != "1" || blocked[0].To != orders ||
				blocked[0].Since != time.Now() || !errors.Is(blocked[0].Err, want) {
				t.Errorf("blocked: %+v", blocked)
			}
			again := *first // as after a restart of the caller: not the same struct, the same ID
			if err := p.Publish(t.Context(), orders, &again, keyed("7", "a")); err != nil {
				t.Error(err)
			}
			if len(p.Blocked()) != 0 {
				t.Errorf("still blocked: %+v", p.Blocked())
			}
			if got := strings.Join(b.stored(), ""); got != "45617" && got != "54617" {
				t.Errorf("stored %s", got)
			}
		})
	}
}

func TestOrderedRetryThatFailsKeepsTheKeyBlocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{})
		defer closeOrdered(t, p)
		b.on(failing(driver.Transient))
		since := time.Now()
		_ = p.Publish(t.Context(), orders, keyed("1", "a"))
		time.Sleep(time.Minute)
		b.on(failing(driver.Denied))
		if err := p.Publish(t.Context(), orders, keyed("1", "a")); !errors.Is(err, core.ErrDenied) {
			t.Error(err)
		}
		if got := p.Blocked(); len(got) != 1 || got[0].Since != since || !errors.Is(got[0].Err, core.ErrDenied) {
			t.Errorf("blocked %+v", got)
		}
		if !p.ResumeKey(orders, "a") || p.ResumeKey(orders, "a") || p.ResumeKey(orders, "b") {
			t.Error("ResumeKey does not tell whether the key was blocked")
		}
		b.on(nil)
		if err := p.Publish(t.Context(), orders, keyed("2", "a")); err != nil {
			t.Error(err)
		}
	})
}

func TestOrderedBlockedErrorIsFitForALog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: failing(driver.Ambiguous)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{})
		defer closeOrdered(t, p)
		key := "k\n\x1b[31m" + strings.Repeat("x", 10000)
		id := strings.Repeat("\x00", 10000)
		_ = p.Publish(t.Context(), orders, keyed(id, key))
		err := p.Publish(t.Context(), orders, keyed("2", key))
		text := err.Error()
		if len(text) > 1000 || strings.ContainsAny(text, "\n\x1b\x00") || !strings.Contains(text, `"k\n\x1b[31mxx`) || !strings.Contains(text, `"\x00`) {
			t.Errorf("%d bytes: %q", len(text), text)
		}
		notSent(t, err)
	})
}

func TestOrderedContextEndsWhileTheMessageWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: after(10*time.Second, nil)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1})
		defer closeOrdered(t, p)
		first := start(t.Context(), p, keyed("1", "a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		err := p.Publish(ctx, orders, keyed("2", "a"))
		if notSent(t, err); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if got := p.Blocked(); len(got) != 0 {
			t.Errorf("blocked %+v", got)
		}
		if err := errors.Join(<-first, p.Publish(t.Context(), orders, keyed("3", "a"))); err != nil {
			t.Error(err)
		}
		if got := b.stored(); !slices.Equal(got, []string{"1", "3"}) {
			t.Errorf("stored %v", got)
		}
	})
}

// What is in flight when its caller goes blocks its key until the outcome is known.
func TestOrderedContextEndsInFlight(t *testing.T) {
	t.Parallel()
	for _, outcome := range []error{nil, driver.Errorf("p", driver.Transient, "down")} {
		synctest.Test(t, func(t *testing.T) {
			b := &below{onCall: after(10*time.Second, outcome)}
			p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1})
			defer closeOrdered(t, p)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			first := start(ctx, p, keyed("1", "a"), keyed("9", ""))
			second := start(t.Context(), p, keyed("2", "a"))
			begin := time.Now()
			err := <-first
			if !errors.Is(err, core.ErrIndeterminate) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
				t.Errorf("after %v: %v", time.Since(begin), err)
			}
			for _, err := range []error{<-second, p.Publish(t.Context(), orders, keyed("3", "a"))} {
				if notSent(t, err); !errors.Is(err, core.ErrKeyBlocked) {
					t.Errorf("behind it: %v", err)
				}
			}
			retry := start(t.Context(), p, keyed("1", "a"))
			if got := p.Blocked(); len(got) != 1 || !errors.Is(got[0].Err, core.ErrIndeterminate) {
				t.Errorf("blocked %+v", got)
			}
			time.Sleep(9*time.Second - time.Nanosecond)
			b.on(nil)
			if err := <-retry; err != nil {
				t.Errorf("the retry: %v", err)
			}
			// Where the first was stored the retry was not sent.
			if got := strings.Join(b.stored(), ""); got != "19" && got != "1" {
				t.Errorf("stored %s", got)
			}
			if err := p.Publish(t.Context(), orders, keyed("4", "a")); err != nil {
				t.Errorf("after the outcome was known: %v", err)
			}
		})
	}
}

func TestOrderedFullLaneMakesCallersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: after(time.Second, nil)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1, Queue: 3, Batch: 2})
		defer closeOrdered(t, p)
		var results []<-chan error
		for n := range 10 {
			results = append(results, start(t.Context(), p, keyed(fmt.Sprint(n), fmt.Sprint("k", n))))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := p.Publish(ctx, orders, keyed("late", "late"))
		notSent(t, err)
		many := make([]*core.Message, 20) // more than the lane holds
		for i := range many {
			many[i] = keyed(fmt.Sprintf("m%02d", i), "many")
		}
		if err := p.Publish(t.Context(), orders, many...); err != nil {
			t.Error(err)
		}
		for _, r := range results {
			if err := <-r; err != nil {
				t.Error(err)
			}
		}
		got := slices.DeleteFunc(b.stored(), func(id string) bool { return id[0] != 'm' })
		if len(b.stored()) != 30 || len(got) != 20 || !slices.IsSorted(got) {
			t.Errorf("stored %v", b.stored())
		}
	})
}

func TestOrderedAtTheBoundOfBlockedKeysItRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: failing(driver.Ambiguous)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1, MaxBlocked: 3})
		defer closeOrdered(t, p)
		for n := range 3 {
			_ = p.Publish(t.Context(), orders, keyed(fmt.Sprint(n), fmt.Sprint(n)))
		}
		b.on(nil)
		err := p.Publish(t.Context(), orders, keyed("9", "9"))
		if notSent(t, err); errors.Is(err, core.ErrKeyBlocked) || !strings.Contains(err.Error(), "MaxBlocked") {
			t.Error(err)
		}
		if got := p.Blocked(); len(got) != 3 {
			t.Errorf("%d blocked", len(got))
		}
		if err := p.Publish(t.Context(), orders, keyed("8", "")); err != nil {
			t.Errorf("without a key: %v", err)
		}
		if err := p.Publish(t.Context(), orders, keyed("1", "1"), keyed("9", "9")); err == nil {
			t.Error("9 went ahead although 1 was not yet stored") // it is admitted only after
		}
		if err := p.Publish(t.Context(), orders, keyed("9", "9")); err != nil {
			t.Error(err)
		}
	})
}

// A resumed key does not let the rest of a call overtake what failed before in that call.
func TestOrderedTheRestOfACallStaysBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1, Queue: 1, Batch: 1})
		defer closeOrdered(t, p)
		b.on(func(_ context.Context, msgs []*core.Message) error {
			time.Sleep(time.Second)
			if msgs[0].ID == "1" {
				p.ResumeKey(orders, "a") // not blocked yet
				go func() {
					for !p.ResumeKey(orders, "a") {
						time.Sleep(time.Nanosecond)
					}
				}()
				return driver.Errorf("p", driver.Transient, "down")
			}
			return nil
		})
		err := p.Publish(t.Context(), orders, keyed("1", "a"), keyed("2", "a"), keyed("x", "b"), keyed("3", "a"), keyed("4", "a"))
		for i, want := range []bool{false, false, true, false, false} {
			if got := driver.ResultAt(err, i); (got == nil) != want {
				t.Errorf("message %d: %v", i, got)
			}
		}
		if got := b.stored(); !slices.Equal(got, []string{"x"}) {
			t.Errorf("stored %v", got)
		}
	})
}

// A call that holds a new message in front of the one that blocks the key must not keep the
// key blocked for ever: the one that has been sent once goes again, the new one follows.
func TestOrderedTheBlockerGoesAheadOfWhatNeverWent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &below{onCall: failing(driver.Ambiguous)}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{})
		defer closeOrdered(t, p)
		_ = p.Publish(t.Context(), orders, keyed("2", "a"))
		b.on(nil)
		err := p.Publish(t.Context(), orders, keyed("1", "a"), keyed("2", "a"), keyed("3", "a"))
		if got := driver.ResultAt(err, 0); !errors.Is(got, core.ErrKeyBlocked) {
			t.Errorf("the new one: %v", got)
		}
		if got := driver.ResultAt(err, 1); got != nil {
			t.Errorf("the one that blocks: %v", got)
		}
		if got := driver.ResultAt(err, 2); !errors.Is(got, core.ErrKeyBlocked) {
			t.Errorf("the one behind both: %v", got) // the first comes before it
		}
	})
}

// Whenever the call ends, what was sent of a key is what comes first in the call: no message
// is out while one before it was taken out unsent.
func TestOrderedACallThatEndsLeavesAPrefix(t *testing.T) {
	t.Parallel()
	for round := range 3000 {
		b := &below{}
		p := core.NewOrderedPublisher(b, core.OrderedOptions{Lanes: 1})
		msgs := make([]*core.Message, 40)
		for i := range msgs {
			msgs[i] = keyed(fmt.Sprint(i), "a")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for range round % 50 {
				runtime.Gosched()
			}
			cancel()
		}()
		err := p.Publish(ctx, orders, msgs...)
		closeOrdered(t, p)
		unsent := false
		for i := range msgs {
			result := driver.ResultAt(err, i)
			if unsent && !errors.Is(result, core.ErrTransient) {
				t.Fatalf("round %d: message %d ended with %v, one before it was not sent", round, i, result)
			}
			unsent = unsent || errors.Is(result, core.ErrTransient)
		}
	}
}
