package memory_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the tests of adapters share, by the name it has here.
var wantClass = adaptertest.WantClass

// patience bounds every wait of a test that should not have to wait.
const patience = 10 * time.Second

func queue(name string) driver.Destination {
	return driver.Destination{Shape: driver.Queue, Name: name}
}

func topic(name string) driver.Destination {
	return driver.Destination{Shape: driver.Topic, Name: name}
}

func stream(name string) driver.Destination {
	return driver.Destination{Shape: driver.Stream, Name: name}
}

// open returns a driver that is closed with the test, and creates dests.
func open(t testing.TB, c memory.Config, dests ...driver.Destination) driver.Driver {
	t.Helper()
	d, err := memory.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("close driver: %v", err)
		}
	})
	for _, to := range dests {
		if _, err := d.Admin().Apply(t.Context(), []driver.Resource{{Destination: to}}, driver.Create); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// core plays the part of package core: it keeps the open assignments of one consumer.
type core struct {
	mu       sync.Mutex
	open     map[string]driver.Assignment
	all      []driver.Assignment
	revoked  []string
	lost     []string // of revoked: with an ended context
	bad      []string // calls in an order that must not be
	events   []driver.Event
	onRevoke func(ctx context.Context, partitions []string)
}

func (k *core) assigned(a driver.Assignment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old, ok := k.open[a.Partition]; ok {
		k.bad = append(k.bad, fmt.Sprintf("assigned %q epoch %d while epoch %d is open", a.Partition, a.Epoch, old.Epoch))
	}
	if k.open == nil {
		k.open = map[string]driver.Assignment{}
	}
	k.open[a.Partition] = a
	k.all = append(k.all, a)
}

func (k *core) revoke(ctx context.Context, partitions []string) {
	if k.onRevoke != nil {
		k.onRevoke(ctx, partitions)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range partitions {
		if _, ok := k.open[p]; !ok {
			k.bad = append(k.bad, fmt.Sprintf("revoked %q, which is not open", p))
		}
		delete(k.open, p)
		k.revoked = append(k.revoked, p)
		if ctx.Err() != nil {
			k.lost = append(k.lost, p)
		}
	}
}

func (k *core) notify(e driver.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.events = append(k.events, e)
}

func (k *core) owned() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for p := range k.open {
		names = append(names, p)
	}
	slices.Sort(names)
	return names
}

// admits tells what core would: whether the message's epoch is open.
func (k *core) admits(r *driver.Received) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.open[r.Receipt.Partition]
	return ok && a.Epoch == r.Receipt.Epoch
}

func (k *core) check(t testing.TB) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.bad {
		t.Error(b)
	}
}

func subscribe(t testing.TB, d driver.Driver, sub driver.Subscription) (driver.Consumer, *core) {
	t.Helper()
	k := &core{}
	sub.Assigned, sub.Revoke, sub.Notify = k.assigned, k.revoke, k.notify
	c, err := d.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.check(t) })
	return c, k
}

func msg(id string) *driver.Message { return &driver.Message{ID: id, Body: []byte(id)} }

func keyed(key, id string) *driver.Message {
	return &driver.Message{ID: id, Key: key, Body: []byte(id)}
}

func publish(t testing.TB, d driver.Driver, to driver.Destination, batch ...*driver.Message) {
	t.Helper()
	if err := d.Publish(t.Context(), to, batch); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

func demand(n int) driver.Demand { return driver.Demand{Records: n, Bytes: 1 << 30, Limit: 1 << 20} }

// receive gets one batch of at most n, copied.
func receive(t testing.TB, c driver.Consumer, n int) []driver.Received {
	t.Helper()
	return receiveWithin(t, c, n, patience)
}

func receiveWithin(t testing.TB, c driver.Consumer, n int, d time.Duration) []driver.Received {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	got, err := c.Receive(ctx, demand(n))
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return slices.Clone(got)
}

// nothing checks that nothing comes within d.
func nothing(t testing.TB, c driver.Consumer, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if got, err := c.Receive(ctx, demand(10)); err == nil {
		t.Fatalf("received %v, want nothing", ids(got))
	}
}

func ids(got []driver.Received) []string {
	out := make([]string, len(got))
	for i := range got {
		out[i] = got[i].ID
	}
	return out
}

func want(t testing.TB, got []driver.Received, ids_ ...string) {
	t.Helper()
	if have := ids(got); !slices.Equal(have, ids_) {
		t.Fatalf("received %v, want %v", have, ids_)
	}
}

func settle(t testing.TB, c driver.Consumer, how driver.Disposition, got ...driver.Received) {
	t.Helper()
	if err := trySettle(c, how, 0, got...); err != nil {
		t.Fatalf("settle: %v", err)
	}
}

func trySettle(c driver.Consumer, how driver.Disposition, delay time.Duration, got ...driver.Received) error {
	batch := make([]driver.Settlement, len(got))
	for i := range got {
		batch[i] = driver.Settlement{Receipt: got[i].Receipt, Disposition: how, Delay: delay}
	}
	return c.Settle(context.Background(), batch)
}

// eventually polls f; under synctest the polling costs no time.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	adaptertest.Eventually(t, what, patience, f)
}

func closeNow(t testing.TB, c driver.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
}
