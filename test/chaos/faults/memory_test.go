//go:build unix

package faults

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
)

// The memory broker lives in one process, so its workers are goroutines. A kill is a
// client whose calls never return again and whose handlers say nothing more.

// mortal is a driver that can die.
type mortal struct {
	driver.Driver
	death, burial chan struct{}
}

type mortalConsumer struct {
	driver.Consumer
	*mortal
}

func (m *mortal) dead() bool {
	select {
	case <-m.death:
		return true
	default:
		return false
	}
}

// last holds a dead client's call until the end of the test.
func (m *mortal) last() error {
	<-m.burial
	return driver.Errorf("call", driver.Closed, "the client was killed")
}

func (m *mortal) Subscribe(ctx context.Context, sub driver.Subscription) (driver.Consumer, error) {
	c, err := m.Driver.Subscribe(ctx, sub)
	return &mortalConsumer{c, m}, err
}

func (m *mortal) Close(ctx context.Context) error { return m.Driver.Close(ctx) }

// Receive hands out nothing after death, and takes nothing from the broker either.
func (c *mortalConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-c.death:
			cancel()
		case <-ended:
		}
	}()
	got, err := c.Consumer.Receive(ctx, want)
	if c.dead() {
		return nil, c.last()
	}
	return got, err
}

func (c *mortalConsumer) Settle(ctx context.Context, batch []driver.Settlement) error {
	if c.dead() {
		return c.last()
	}
	return c.Consumer.Settle(ctx, batch)
}

func (c *mortalConsumer) Close(ctx context.Context) error { return c.Consumer.Close(ctx) }

// inProcess runs a consumer as a goroutine; it ends with stop, and says how.
func (s *scene) inProcess(name string, a consumerArgs, life *mortal) (stop context.CancelFunc, ended <-chan error) {
	a.URL, a.Dest, a.Keyed = s.url, s.dest, s.dest.Partitions > 0
	emit := func(e history.Event) {
		if life != nil && life.dead() {
			return
		}
		e.Proc, e.Gen = name, 1
		s.lab.Emit(e)
	}
	if life != nil {
		a.wrap = func(d driver.Driver) driver.Driver {
			life.Driver = d
			return life
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- consume(ctx, a, nil, emit) }()
	s.t.Cleanup(cancel)
	s.await("assignment of "+name, 10*time.Second, func(e *history.Event) bool {
		return e.Op == history.OpAssign && e.Proc == name
	})
	return cancel, end
}

// send publishes count messages from this process.
func (s *scene) send(count, keys int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := (&target{URL: s.url, Dest: s.dest}).open(ctx, nil, func(history.Event) {})
	if err != nil {
		s.t.Fatal(err)
	}
	p := &publisher{client: client, emit: s.lab.Emit, publisherArgs: publisherArgs{
		target: target{Dest: s.dest}, Name: "p1", Timeout: 5 * time.Second,
	}}
	for i := range count {
		k := ""
		if keys > 0 {
			k = "k" + strconv.Itoa(i%keys)
		}
		p.one("p1."+strconv.Itoa(i+1), k, i/max(keys, 1)+1)
	}
	if err := client.Close(ctx); err != nil {
		s.t.Error(err)
	}
}

func memoryScene(t *testing.T, keyed bool) *scene {
	t.Helper()
	s := bareScene(t)
	s.broker, s.url = "memory", "memory:faults-"+t.Name()+"?lease=1s"
	s.limits = limits{takeover: 6 * time.Second} // the lease and 5 s
	s.dest = core.Queue("tickets")
	if keyed {
		s.dest = s.dest.Keyed(partitions)
	}
	return s
}

// TestMemoryKill: what a dead client held comes to the other one after the lease.
func TestMemoryKill(t *testing.T) {
	t.Parallel()
	s := memoryScene(t, false)
	life := &mortal{death: make(chan struct{}), burial: make(chan struct{})}
	a := consumerArgs{Hold: 10 * time.Millisecond, HoldIDs: map[string]time.Duration{"p1.40": 1500 * time.Millisecond}}
	_, ended1 := s.inProcess("c1", a, life)
	// Alone at first, so that the victim is known.
	s.send(40, 0)
	started := s.await("the victim's handler", 10*time.Second, func(e *history.Event) bool {
		return e.Op == history.OpStart && e.ID == "p1.40"
	})
	s.pass(200 * time.Millisecond) // the handler holds
	s.lab.Emit(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Dest: "c1", N: 1})
	close(life.death)
	stop2, ended2 := s.inProcess("c2", a, nil)
	s.drained(20 * time.Second)
	stop2()
	if err := <-ended2; err != nil {
		t.Error(err)
	}
	close(life.burial)
	<-ended1 // whatever it says: it is dead
	h := s.judge("V5")
	moved := first(h, func(e *history.Event) bool { return e.Op == history.OpStart && e.ID == "p1.40" && e.Proc == "c2" })
	kill := first(h, func(e *history.Event) bool { return e.Op == history.OpFault })
	if moved == nil || started.Proc != "c1" {
		t.Fatalf("the victim's message did not move from c1 to c2")
	}
	s.within("takeover after the death of a client", time.Duration(moved.T-kill.T), s.limits.takeover)
}

// TestMemoryTerm: a stop with full slots settles all of them and gives the rest away.
func TestMemoryTerm(t *testing.T) {
	t.Parallel()
	for name, keyed := range map[string]bool{"Unordered": false, "Ordered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := memoryScene(t, keyed)
			const drain = 3 * time.Second
			a := consumerArgs{Hold: 300 * time.Millisecond, Concurrency: slots, Prefetch: 2 * slots, Drain: drain}
			stop1, ended1 := s.inProcess("c1", a, nil)
			stop2, ended2 := s.inProcess("c2", a, nil)
			keys := 0
			if keyed {
				keys = 32
			}
			s.send(64, keys)
			s.full("c1", slots)
			began := time.Now()
			stop1()
			if err := <-ended1; err != nil {
				t.Errorf("c1: %v", err)
			}
			s.within("end after a stop with full slots", time.Since(began), drain+time.Second)
			s.drained(20 * time.Second)
			stop2()
			if err := <-ended2; err != nil {
				t.Errorf("c2: %v", err)
			}
			s.once(s.judge("V5"))
		})
	}
}
