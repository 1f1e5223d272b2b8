package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// A log frees room one message at a time. Asking for each of them cost more than
// handling it.
func TestALogIsAskedForBatchesWhileThereIsWork(t *testing.T) {
	t.Parallel()
	const inFlight, n = 64, 640
	f := newFake(driver.UpTo)
	for i := range n {
		f.push(msg(fmt.Sprint(i), ""))
	}
	c := core.NewClient(f, core.Options{Logger: quiet})
	gate, done := make(chan struct{}), make(chan struct{})
	handled := 0 // one worker
	_, err := c.Start(context.Background(), in, func(context.Context, *core.Delivery) error {
		<-gate
		if handled++; handled == n {
			close(done)
		}
		return nil
	}, edit("p", func(p *core.Policy) { p.MaxInFlight, p.Concurrency = inFlight, 1 }))
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		gate <- struct{}{}
	}
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the receiver stopped asking")
	}
	if err := c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	left := n
	for i, d := range f.demands {
		if left -= d.Records; left <= 0 {
			break
		}
		if d.Records < inFlight/4 {
			t.Errorf("call %d asked for %d records while %d were ready to start", i, d.Records, inFlight-d.Records)
		}
	}
}

func TestOneReceiveAsksForABoundedBatch(t *testing.T) {
	t.Parallel()
	f := newFake(driver.UpTo)
	c := core.NewClient(f, core.Options{Logger: quiet})
	handled := make(chan struct{})
	_, err := c.Start(context.Background(), in, func(context.Context, *core.Delivery) error {
		close(handled)
		return nil
	}, edit("p", func(p *core.Policy) { p.MaxInFlight = 100_000 }))
	if err != nil {
		t.Fatal(err)
	}
	f.push(msg("1", ""))
	<-handled
	if err := c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.demands {
		if d.Records > 1024 || d.Limit != 100_000 {
			t.Errorf("asked for %d records with a limit of %d", d.Records, d.Limit)
		}
	}
}
