package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// slowRevoke hands a log over while its first message m1, of a key that every second
// message has, fails, a message of another partition arrives, and a last message takes its
// time. It returns the log as the next owner finds it.
func slowRevoke(t *testing.T, n int, fate error) *fake {
	t.Helper()
	keys := []string{"even", "odd"}
	f := logFake(n, keys...)
	f.more = []string{"p2"}
	var heir *fake
	var mu sync.Mutex
	gates := map[string]chan error{} // made in the bubble; guarded by mu
	gate := func(id string) chan error {
		mu.Lock()
		defer mu.Unlock()
		if gates[id] == nil {
			gates[id] = make(chan error)
		}
		return gates[id]
	}
	h := func(ctx context.Context, d *core.Delivery) error {
		if d.ID == "m1" || d.ID == fmt.Sprint("m", n) || d.Partition == "p2" {
			select {
			case err := <-gate(d.ID):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	bubble(t, f, h, func(*core.Consumer) {
		time.Sleep(time.Second)
		let := make(chan struct{})
		go func() { f.sub.Revoke(context.Background(), []string{""}); close(let) }()
		synctest.Wait()
		gate("m1") <- fate
		synctest.Wait()
		other := msg("other", "stranger")
		other.Receipt.Partition = "p2"
		f.push(other)
		synctest.Wait()
		gate(fmt.Sprint("m", n)) <- nil
		<-let
		heir = f.next(t, n, keys...)
	}, byKey, retryAfter(time.Second), edit("drain", func(p *core.Policy) { p.DrainTimeout = -1 }))
	return heir
}

// TestAFailureDuringARevokeStaysInTheState: the message that failed last was given up
// and its flight was used again, for a message of another partition, while the ring still
// pointed to it. The state beside the last commit then said of m1 what was true of that
// other message: with its key, m1 was complete, and nobody ever handled it.
func TestAFailureDuringARevokeStaysInTheState(t *testing.T) {
	t.Parallel()
	const n = 400
	for what, c := range map[string]struct {
		fate    error
		attempt int
	}{
		"failed":     {errors.New("no"), 2},
		"given back": {core.Return(nil), 1},
	} {
		heir := slowRevoke(t, n, c.fate)
		if heir.given.Committed != (driver.Position{Kind: driver.At, Offset: 1}) || len(heir.given.State) == 0 {
			t.Fatalf("%s: the next owner begins at %v with %d bytes of state", what, heir.given.Committed, len(heir.given.State))
		}
		var seen runs
		bubble(t, heir, func(_ context.Context, d *core.Delivery) error { seen.add(d); return nil },
			func(*core.Consumer) { time.Sleep(time.Minute) }, byKey)
		if !slices.Equal(seen.of["m1"], []int{c.attempt}) || len(seen.of) != n/2 {
			t.Errorf("%s: the next owner ran %d messages, m1 in %v; want %d, m1 in attempt %d", what, len(seen.of), seen.of["m1"], n/2, c.attempt)
		}
	}
}
