package varaltest

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// closeWithin is how long the end of a test waits for its handlers.
const closeWithin = 5 * time.Second

// Options of a Harness. The zero Options are valid.
type Options struct {
	// Client options. Provision 0 = create.
	Client core.Options
	// Broker is the memory broker's configuration, for a shorter lease for example. Its
	// Broker is the harness's own where it is nil.
	Broker memory.Config
	// Log receives what the client logs. nil = the test's own output.
	Log io.Writer
}

// Harness is a client over a broker of its own. It is made by New; its methods may be
// called concurrently.
type Harness struct {
	*core.Client

	t   testing.TB
	rec *recording
}

// New returns a client over a fresh broker in this process. Both end with t: running
// subscriptions are drained, and a subscription that failed fails the test. At most one
// Options may be given.
func New(t testing.TB, opts ...Options) *Harness {
	t.Helper()
	var o Options
	switch len(opts) {
	case 0:
	case 1:
		o = opts[0]
	default:
		t.Fatalf("varaltest.New: %d Options; give one", len(opts))
	}
	if o.Client.Provision == core.ProvisionDefault {
		o.Client.Provision = core.ProvisionCreate
	}
	if o.Client.Logger == nil {
		if o.Log == nil {
			o.Log = t.Output()
		}
		o.Client.Logger = slog.New(slog.NewTextHandler(o.Log, nil))
	}
	d, err := memory.Open(t.Context(), o.Broker)
	if err != nil {
		t.Fatalf("varaltest.New: %v", err)
	}
	rec := &recording{Driver: d, prefix: o.Client.Prefix}
	h := &Harness{Client: core.NewClient(rec, o.Client), t: t, rec: rec}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), closeWithin)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("varaltest: close: %v", err)
		}
	})
	return h
}

// Run starts a subscription that lives as long as the test, and fails the test if it
// does not start or ends with an error.
func (h *Harness) Run(sub core.Subscription, handler core.Handler, layers ...core.Layer) *core.Consumer {
	h.t.Helper()
	s, err := h.Start(context.WithoutCancel(h.t.Context()), sub, handler, layers...)
	if err != nil {
		h.t.Fatalf("varaltest: %v", err)
	}
	h.t.Cleanup(func() { // before the client's: cleanups run last first
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), closeWithin)
		defer cancel()
		if err := s.Drain(ctx); err != nil {
			h.t.Errorf("varaltest: drain: %v", err)
			return
		}
		if err := s.Wait(); err != nil {
			h.t.Errorf("varaltest: %v", err)
		}
	})
	return s
}

// Send publishes messages and fails the test if the broker does not take them.
func (h *Harness) Send(to core.Destination, msgs ...*core.Message) {
	h.t.Helper()
	if err := h.Publish(h.t.Context(), to, msgs...); err != nil {
		h.t.Fatalf("varaltest: %v", err)
	}
}

// Published returns copies of the messages that were confirmed for a destination so
// far, whoever sent them: the test, a handler, the engine (dead letters, retries). In
// the order of publishing.
func (h *Harness) Published(to core.Destination) []core.Message {
	return h.rec.messages(h.rec.prefix + to.Name)
}

// recording is a driver that remembers what it has stored.
type recording struct {
	driver.Driver
	prefix string

	mu     sync.Mutex
	stored []sent
}

type sent struct {
	to driver.Destination
	m  core.Message
}

// Publish implements driver.Driver.
func (r *recording) Publish(ctx context.Context, to driver.Destination, batch []*driver.Message) error {
	// The lock is held over the call, so that the record has the order of the broker.
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.Driver.Publish(ctx, to, batch)
	for i, m := range batch {
		if driver.ResultAt(err, i) == nil {
			r.stored = append(r.stored, sent{to, clone(m)})
		}
	}
	return err
}

func (r *recording) messages(name string) (out []core.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.stored {
		if r.stored[i].to.Name == name {
			out = append(out, clone(&r.stored[i].m))
		}
	}
	return out
}

// clone shares nothing with m.
func clone(m *core.Message) core.Message {
	c := *m
	c.Headers = append([]core.Header(nil), m.Headers...)
	if m.Body != nil {
		c.Body = append([]byte{}, m.Body...)
	}
	return c
}
