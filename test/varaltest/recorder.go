package varaltest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/varal-go/varal/core"
)

// Recorder is a core.Publisher that keeps what it is given. The zero Recorder is
// ready; its methods may be called concurrently.
type Recorder struct {
	mu   sync.Mutex
	sent []sent
	fail error
}

var _ core.Publisher = (*Recorder)(nil)

// Publish records copies of msgs, or returns the error of FailWith, or ctx's.
func (r *Recorder) Publish(ctx context.Context, to core.Destination, msgs ...*core.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	for _, m := range msgs {
		r.sent = append(r.sent, sent{to, clone(m)})
	}
	return nil
}

// FailWith makes Publish return err and record nothing; nil ends that.
func (r *Recorder) FailWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// Published returns copies of what was sent to a destination, in order.
func (r *Recorder) Published(to core.Destination) (out []core.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.sent {
		if r.sent[i].to.Shape == to.Shape && r.sent[i].to.Name == to.Name {
			out = append(out, clone(&r.sent[i].m))
		}
	}
	return out
}

// Count returns how many messages were sent in all.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sent)
}

// Reset forgets everything, FailWith included.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent, r.fail = nil, nil
}

// Expect fails the test unless exactly these bodies were sent to a destination, in
// this order.
func (r *Recorder) Expect(t testing.TB, to core.Destination, bodies ...string) {
	t.Helper()
	Expect(t, r.Published(to), bodies...)
}

// Expect fails the test unless the messages have exactly these bodies, in this order.
// It serves for Harness.Published too.
func Expect(t testing.TB, got []core.Message, bodies ...string) {
	t.Helper()
	have := make([]string, len(got))
	for i := range got {
		have[i] = string(got[i].Body)
	}
	if len(have) != len(bodies) {
		t.Errorf("%d messages, want %d:\n got %s\nwant %s", len(have), len(bodies), list(have), list(bodies))
		return
	}
	for i := range have {
		if have[i] != bodies[i] {
			t.Errorf("message %d is %q, want %q:\n got %s\nwant %s", i+1, have[i], bodies[i], list(have), list(bodies))
			return
		}
	}
}

func list(s []string) string { return "[" + strings.Join(s, " | ") + "]" }
