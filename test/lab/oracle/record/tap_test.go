package record_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/record"
)

// scripted is a driver and its one consumer, which answers as it is told.
type scripted struct {
	driver.Driver
	mode   driver.SettleMode
	sub    driver.Subscription
	got    []driver.Received
	answer error
}

func (s *scripted) Capabilities(driver.Destination) driver.Capabilities {
	return driver.Capabilities{Settle: s.mode}
}

func (s *scripted) Subscribe(_ context.Context, sub driver.Subscription) (driver.Consumer, error) {
	s.sub = sub
	return &scriptedConsumer{s: s}, nil
}

type scriptedConsumer struct {
	driver.Consumer
	s *scripted
}

func (c *scriptedConsumer) Receive(context.Context, driver.Demand) ([]driver.Received, error) {
	return c.s.got, nil
}

func (c *scriptedConsumer) Settle(context.Context, []driver.Settlement) error { return c.s.answer }

// tapped subscribes through a tap and returns what it reports, in short.
func tapped(t *testing.T, s *scripted) (driver.Consumer, func() string) {
	t.Helper()
	var events []string
	d := record.Tap(s, "g", func(e history.Event) {
		if e.Group != "g" || e.Dest != "d" {
			t.Errorf("%+v", e)
		}
		events = append(events, strings.Join(strings.Fields(fmt.Sprint(e.Op, " ", e.ID, " ", e.Partition, "@", e.Position, " ", e.Outcome, " ", e.Class)), " "))
	})
	c, err := d.Subscribe(t.Context(), driver.Subscription{
		From: driver.Destination{Name: "d"}, Assigned: func(driver.Assignment) {}, Revoke: func(context.Context, []string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, func() string {
		defer func() { events = nil }()
		return strings.Join(events, "; ")
	}
}

func received(id string, offset int64) driver.Received {
	r := driver.Received{Offset: offset, Receipt: driver.Receipt{Partition: "0", Epoch: 1, Seq: 100 + offset, ID: id}}
	r.ID = id
	return r
}

func settling(how driver.Disposition, r driver.Received) driver.Settlement {
	return driver.Settlement{Receipt: r.Receipt, Disposition: how}
}

// A log: a settle is about everything up to its receipt, and each delivery is said to be
// settled once, whatever the batch.
func TestTapOfALog(t *testing.T) {
	t.Parallel()
	a, b, c, d, e := received("a", 0), received("b", 1), received("c", 4), received("d", 5), received("e", 6)
	s := &scripted{mode: driver.UpTo, got: []driver.Received{a, b, c, d, e}}
	con, said := tapped(t, s)
	s.sub.Assigned(driver.Assignment{Partition: "0", Epoch: 1})
	if _, err := con.Receive(t.Context(), driver.Demand{}); err != nil {
		t.Fatal(err)
	}
	if got := said(); got != "assign 0@; recv a 0@0; recv b 0@1; recv c 0@4; recv d 0@5; recv e 0@6" {
		t.Error(got)
	}
	failed := &driver.Error{Class: driver.Transient}
	lost := &driver.Error{Class: driver.LeaseLost}
	for _, step := range []struct {
		answer error
		batch  []driver.Settlement
		want   string
	}{
		{failed, []driver.Settlement{settling(driver.Ack, b)}, "settled a 0@0 ack transient; settled b 0@1 ack transient"},
		{nil, []driver.Settlement{settling(driver.Ack, a), settling(driver.Reject, b)}, "settled a 0@0 ack; commit 0@1; settled b 0@1 reject; commit 0@2"},
		{nil, []driver.Settlement{settling(driver.Ack, b)}, "commit 0@2"}, // again, with a state
		{nil, []driver.Settlement{settling(driver.Hold, d)}, "settled c 0@4 ack; commit 0@5"},
		{nil, []driver.Settlement{settling(driver.Return, e)}, "settled e 0@6 return"},
		{lost, []driver.Settlement{settling(driver.Ack, d)}, "settled d 0@5 ack lease lost"},
	} {
		s.answer = step.answer
		if err := con.Settle(t.Context(), step.batch); (err != nil) != (step.answer != nil) {
			t.Error(err)
		}
		if got := said(); got != step.want {
			t.Errorf("%v: %q, want %q", step.batch[0].Disposition, got, step.want)
		}
	}
	s.answer = nil
	s.sub.Revoke(t.Context(), []string{"0"})
	_ = con.Settle(t.Context(), []driver.Settlement{settling(driver.Ack, d)})
	if got := said(); got != "revoke 0@; settled unknown receipt 0@ ack" {
		t.Error(got)
	}
}

func TestTapOfAQueue(t *testing.T) {
	t.Parallel()
	a, b, c := received("a", -1), received("b", -1), received("c", -1)
	c.Err = &driver.Error{Class: driver.Permanent}
	s := &scripted{mode: driver.Each, got: []driver.Received{a, b, c}}
	con, said := tapped(t, s)
	if _, err := con.Receive(t.Context(), driver.Demand{}); err != nil {
		t.Fatal(err)
	}
	if got := said(); got != "recv a 0@; recv b 0@; recv c 0@ corrupt" {
		t.Error(got)
	}
	s.answer = driver.Batch([]error{nil, &driver.Error{Class: driver.LeaseLost}, nil})
	_ = con.Settle(t.Context(), []driver.Settlement{settling(driver.Nack, a), settling(driver.Ack, b), settling(driver.Extend, c)})
	if got := said(); got != "settled a 0@ nack; settled b 0@ ack lease lost; settled c 0@ extend" {
		t.Error(got)
	}
	s.answer = nil
	_ = con.Settle(t.Context(), []driver.Settlement{settling(driver.Reject, c)})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.sub.Revoke(ended, []string{"0"})
	if got := said(); got != "settled c 0@ reject; lost 0@" {
		t.Error(got)
	}
}

// What ends while core is letting go is lost, not given up in good order.
func TestTapOfALateRevoke(t *testing.T) {
	t.Parallel()
	s := &scripted{mode: driver.Each}
	ctx, cancel := context.WithCancel(t.Context())
	var events []history.Op
	d := record.Tap(s, "g", func(e history.Event) { events = append(events, e.Op) })
	if _, err := d.Subscribe(t.Context(), driver.Subscription{
		Assigned: func(driver.Assignment) {}, Revoke: func(context.Context, []string) { cancel() },
	}); err != nil {
		t.Fatal(err)
	}
	s.sub.Revoke(ctx, []string{"0", "1"})
	if !slices.Equal(events, []history.Op{history.OpLost, history.OpLost}) {
		t.Error(events)
	}
}
