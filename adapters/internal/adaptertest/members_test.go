package adaptertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/internal/adaptertest"
	"github.com/varal-go/varal/core/driver"
)

// scripted is a driver and its one consumer. It does as it is told.
type scripted struct {
	driver.Driver
	sub  driver.Subscription
	news chan any // a driver.Received or an error
}

func (s *scripted) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	s.sub, s.news = sub, make(chan any)
	return &scriptedConsumer{s: s}, nil
}

func (s *scripted) Close(context.Context) error { return nil }

type scriptedConsumer struct {
	driver.Consumer
	s *scripted
}

func (c *scriptedConsumer) Receive(ctx context.Context, _ driver.Demand) ([]driver.Received, error) {
	select {
	case x := <-c.s.news:
		if err, ok := x.(error); ok {
			return nil, err
		}
		return []driver.Received{x.(driver.Received)}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *scriptedConsumer) Close(context.Context) error { return nil }

func at(epoch uint64) driver.Received {
	return driver.Received{Receipt: driver.Receipt{Partition: "0", Epoch: epoch}}
}

func TestOwners(t *testing.T) {
	t.Parallel()
	o := adaptertest.NewOwners()
	var a, b scripted
	for name, d := range map[string]*scripted{"a": &a, "b": &b} {
		o.Member(name).Consume(t, d, driver.Subscription{}, adaptertest.Demand(1), nil)
	}
	said := func() string { return verdict(t, func(t testing.TB) { o.Check(t) }) }
	a.sub.Assigned(driver.Assignment{Partition: "0", Epoch: 1, Fence: 7})
	a.sub.Assigned(driver.Assignment{Partition: "1", Epoch: 1, Fence: 7})
	if o.Balanced(2, "a", "b") || !o.Balanced(2, "a") {
		t.Error("all is one member's")
	}
	a.sub.Revoke(t.Context(), []string{"0"})
	b.sub.Assigned(driver.Assignment{Partition: "0", Epoch: 1, Fence: 8})
	if got := said(); got != "" || !o.Balanced(2, "a", "b") || o.Held("a", "b") != 2 || o.Changes() != 3 {
		t.Error("a change in good order:", got, o.Held("a", "b"), o.Changes())
	}
	b.sub.Assigned(driver.Assignment{Partition: "1", Epoch: 2, Fence: 7})
	if got := said(); got != "1 given to b while a has it\n1: fence 7 after 7\n" {
		t.Errorf("%q", got)
	}
	o.Loosen()
	a.sub.Assigned(driver.Assignment{Partition: "1", Epoch: 2, Fence: 9})
	o.Fault("of the test's %s", "own")
	if got := said(); strings.Count(got, "\n") != 3 || !strings.HasSuffix(got, "of the test's own\n") {
		t.Errorf("%q", got)
	}
}

func TestMember(t *testing.T) {
	t.Parallel()
	var d scripted
	handled, begun, let := 0, make(chan struct{}, 2), make(chan struct{})
	m := adaptertest.NewOwners().Member("a")
	m.Consume(t, &d, driver.Subscription{}, adaptertest.Demand(1), func(context.Context, driver.Consumer, driver.Received) {
		begun <- struct{}{}
		<-let
		handled++
	})
	transient := &driver.Error{Class: driver.Transient} // taken when what came before it has been handled
	d.news <- at(1)
	d.news <- transient
	d.sub.Assigned(driver.Assignment{Partition: "0", Epoch: 1, Fence: 1})
	d.news <- at(1)
	<-begun
	time.AfterFunc(20*time.Millisecond, func() { close(let) })
	if d.sub.Revoke(t.Context(), []string{"0"}); handled != 1 {
		t.Errorf("after a revoke %d messages were handled, want the one that had begun", handled)
	}
	d.news <- at(1)
	d.news <- transient
	d.sub.Assigned(driver.Assignment{Partition: "0", Epoch: 2, Fence: 2})
	d.news <- at(2)
	d.news <- transient
	m.Drop("0")
	d.news <- at(2)
	d.news <- &driver.Error{Class: driver.Permanent}
	m.Leave()
	if handled != 2 {
		t.Errorf("%d messages were handled, want one of each epoch", handled)
	}
	if errs := m.Errs(); len(errs) != 1 || !errors.Is(errs[0], driver.Permanent) {
		t.Error(errs)
	}
}
