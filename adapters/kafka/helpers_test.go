package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/core/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the tests of adapters share, by the name it has here.
var wantClass = adaptertest.WantClass

// patience is how long a test waits for what must happen. Two noisy cores.
const patience = 20 * time.Second

// broker is where a test runs: kfake, and a real broker where there is one.
type broker struct {
	conf kafka.Config   // its Assignor is that of the tests that do not choose one
	fake *kfake.Cluster // nil = a real broker
}

// either runs f on kfake under the classic protocol and under that of KIP-848, and under
// the classic one on the real broker too, whose sessions are too long otherwise.
func either(t *testing.T, f func(t *testing.T, b broker)) {
	everywhere(t, f)
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		f(t, assigning(t))
	})
}

// assigning is a kfake whose groups are of KIP-848.
func assigning(t testing.TB, opts ...kfake.Opt) broker {
	t.Helper()
	b := fake(t, opts...)
	b.conf.Assignor = "server"
	return b
}

// beat is the key of heartbeats.
func (b broker) beat() kmsg.Key {
	if b.conf.Assignor == "server" {
		return kmsg.ConsumerGroupHeartbeat
	}
	return kmsg.Heartbeat
}

// everywhere runs f on kfake, and on the real broker of VARAL_KAFKA_URL.
func everywhere(t *testing.T, f func(t *testing.T, b broker)) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		f(t, fake(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		f(t, live(t))
	})
}

func fake(t testing.TB, opts ...kfake.Opt) broker {
	t.Helper()
	cl, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100 * time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.consumer.session.timeout.ms": "3000", "group.consumer.heartbeat.interval.ms": "200"}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return broker{conf: kafka.Config{Brokers: cl.ListenAddrs()}, fake: cl}
}

// live is the Kafka of VARAL_KAFKA_URL.
func live(t testing.TB) broker {
	t.Helper()
	c, err := kafka.ParseURL(adaptertest.URL(t, "kafka"))
	if err != nil {
		t.Fatal(err)
	}
	return broker{conf: c}
}

func (b broker) open(t testing.TB, edit ...func(*kafka.Config)) driver.Driver {
	t.Helper()
	c := b.conf
	c.SessionTimeout = 3 * time.Second
	for _, f := range edit {
		f(&c)
	}
	if c.Assignor == "server" && b.fake == nil {
		c.SessionTimeout = 0 // the broker's: a test does not change it for others
	}
	d, err := kafka.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, d) })
	return d
}

type closer interface{ Close(context.Context) error }

func shut(t testing.TB, c closer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// topic makes a destination of its own for the test.
func topic(t testing.TB, d driver.Driver, shape driver.Shape, partitions int) driver.Destination {
	t.Helper()
	of := driver.Destination{Shape: shape, Name: adaptertest.Name("-"), Partitions: partitions}
	if _, err := d.Admin().Apply(t.Context(), []driver.Resource{{Destination: of}}, driver.Create); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = d.Admin().Apply(ctx, []driver.Resource{{Destination: of}}, driver.Delete)
	})
	return of
}

func messages(n, keys int) []*driver.Message {
	out := make([]*driver.Message, n)
	for i := range out {
		out[i] = &driver.Message{ID: fmt.Sprint("m", i), Body: fmt.Append(nil, i), Time: time.Now()}
		if keys > 0 {
			out[i].Key = fmt.Sprint("key", i%keys)
		}
	}
	return out
}

func publish(t testing.TB, d driver.Driver, to driver.Destination, batch []*driver.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Publish(ctx, to, batch); err != nil {
		t.Fatal(err)
	}
}

// desk stands in for core: it keeps the open epochs and lets go when asked.
type desk struct {
	driver.Consumer

	busy sync.Mutex // held while a batch is handled; Revoke waits for it

	mu       sync.Mutex
	open     map[string]driver.Assignment
	history  []driver.Assignment
	lost     int
	revoked  int
	events   []driver.Event
	changed  chan struct{} // closed and replaced with every change
	onRevoke func(ctx context.Context, names []string)
	patient  bool // collect calls again after Transient, as core does
}

func newDesk() *desk {
	return &desk{open: make(map[string]driver.Assignment), changed: make(chan struct{})}
}

// change runs f under the lock and wakes who waits.
func (k *desk) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *desk) subscription(from driver.Destination, group string) driver.Subscription {
	return driver.Subscription{
		From: from, Group: group,
		Assigned: func(a driver.Assignment) {
			k.change(func() {
				if _, ok := k.open[a.Partition]; ok {
					panic("assigned twice without a revoke: " + a.Partition)
				}
				k.open[a.Partition] = a
				k.history = append(k.history, a)
			})
		},
		Revoke: func(ctx context.Context, names []string) {
			if k.onRevoke != nil {
				k.onRevoke(ctx, names)
			}
			k.busy.Lock()
			defer k.busy.Unlock()
			k.change(func() {
				for _, n := range names {
					delete(k.open, n)
				}
				k.revoked += len(names)
				if ctx.Err() != nil {
					k.lost += len(names)
				}
			})
		},
		Notify: func(e driver.Event) { k.change(func() { k.events = append(k.events, e) }) },
	}
}

func (k *desk) admits(m driver.Received) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.open[m.Receipt.Partition]
	return ok && a.Epoch == m.Receipt.Epoch
}

// until waits for cond, which is called under the lock.
func (k *desk) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	end := time.After(patience)
	for {
		k.mu.Lock()
		ok, changed := cond(), k.changed
		k.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func (k *desk) owns(t testing.TB, n int) {
	t.Helper()
	k.until(t, fmt.Sprint(n, " partitions"), func() bool { return len(k.open) == n })
}

func join(t testing.TB, d driver.Driver, sub func(*desk) driver.Subscription) *desk {
	t.Helper()
	k := newDesk()
	c, err := d.Subscribe(t.Context(), sub(k))
	if err != nil {
		t.Fatal(err)
	}
	k.Consumer = c
	t.Cleanup(func() { shut(t, c) })
	return k
}

func consume(t testing.TB, d driver.Driver, from driver.Destination, group string, edit ...func(*driver.Subscription)) *desk {
	t.Helper()
	return join(t, d, func(k *desk) driver.Subscription {
		s := k.subscription(from, group)
		for _, f := range edit {
			f(&s)
		}
		return s
	})
}

// collect receives n messages; the copies survive the next Receive.
func (k *desk) collect(t testing.TB, n int) []driver.Received {
	t.Helper()
	var out []driver.Received
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(out) < n {
		batch, err := k.Receive(ctx, driver.Demand{Records: n - len(out), Bytes: 1 << 30, Limit: 1 << 20})
		if k.patient && driver.ClassOf(err) == driver.Transient {
			continue
		}
		if err != nil {
			t.Fatalf("after %d of %d: %v", len(out), n, err)
		}
		if len(batch) == 0 || len(batch) > n-len(out) {
			t.Fatalf("Receive returned %d messages, asked for %d", len(batch), n-len(out))
		}
		out = append(out, batch...)
	}
	return out
}

// quiet checks that nothing comes for d.
func (k *desk) quiet(t testing.TB, d time.Duration, paused ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	batch, err := k.Receive(ctx, driver.Demand{Records: 100, Bytes: 1 << 30, Limit: 100, Paused: paused})
	if err == nil {
		t.Fatalf("received %d messages (first %s of %s), want none", len(batch), batch[0].ID, batch[0].Receipt.Partition)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("cancelled Receive: %v", err)
	}
}

// ack settles the last message of each partition.
func (k *desk) ack(t testing.TB, got []driver.Received, state []byte) {
	t.Helper()
	last := make(map[string]driver.Receipt)
	for _, m := range got {
		last[m.Receipt.Partition] = m.Receipt
	}
	var batch []driver.Settlement
	for _, r := range last {
		batch = append(batch, driver.Settlement{Receipt: r, Disposition: driver.Ack, State: state})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := k.Settle(ctx, batch); err != nil {
		t.Fatalf("settle: %v", err)
	}
}

// wire is a network that can be cut or turned into a black hole.
type wire struct {
	adaptertest.Cutter
	hole atomic.Bool
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := w.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, w: w}, nil
}

// wireConn swallows what is written while the wire is a black hole, and answers
// nothing.
type wireConn struct {
	net.Conn

	w *wire
}

func (c *wireConn) Write(b []byte) (int, error) {
	if c.w.hole.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b) // keeps the deadline that the client sets
		if err != nil || !c.w.hole.Load() {
			return n, err
		}
	}
}
