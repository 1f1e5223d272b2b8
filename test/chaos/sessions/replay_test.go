//go:build unix

package sessions

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/chaos/faultnet"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// B7 of ordering.md: the head of a partition is stuck, so its position stands still, and
// everything else above it is done when the process is killed. Without a commit state all
// of it is done again. With one, what was done since the last commit.

const (
	replaySlots = 16
	replayKeys  = 100
	stuck       = "p1.1"
)

func TestReplayAfterKill(t *testing.T) { // not in parallel to the others: see turns
	for name, c := range map[string]struct {
		on   func(*testing.T) ground
		done int
		dest core.Destination
	}{
		"Kafka":          {func(t *testing.T) ground { return live(t, "kafka") }, 50_000, core.Queue("replay").Keyed(1)},
		"RabbitMQStream": {func(t *testing.T) ground { return live(t, "stream") }, 5_000, core.Stream("replay").Keyed(1)},
		"Kfake":          {kfakeAlone, 50_000, core.Queue("replay").Keyed(1)},
		"Memory":         {memoryGround, 50_000, core.Stream("replay").Keyed(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for way, forget := range map[string]bool{"WithState": false, "WithoutState": true} {
				t.Run(way, func(t *testing.T) {
					t.Parallel()
					turn(t)
					testReplay(t, c.on(t), c.dest, c.done, forget)
				})
			}
		})
	}
}

// kfakeAlone spares a run with the real Kafka the same again.
func kfakeAlone(t *testing.T) ground {
	if os.Getenv("VARAL_KAFKA_URL") != "" {
		t.Skip("the real Kafka does it in this run")
	}
	return faked(t, 1, fakeSession)
}

func memoryGround(t *testing.T) ground {
	return ground{name: "memory", url: "memory:sessions-" + t.Name()}
}

func testReplay(t *testing.T, on ground, dest core.Destination, done int, forget bool) {
	s := newScene(t, on, dest)
	first := memberArgs{Concurrency: replaySlots, Prefetch: on.prefetch(), Hold: stuck, Forget: forget, Quiet: true}
	n := map[string]int{}
	s.publish(1, 1, []string{"stuck"}, n)
	// A tenth more than is waited for, so that the kill comes in the middle of work.
	s.publish(2, done+done/10, keys("k", replayKeys), n)
	kill := s.replayer("c1", first)
	ended := 0
	s.await("the messages above the stuck one", 2*time.Minute, func(e *history.Event) bool {
		if e.Op == history.OpEnd && e.Outcome == history.OK {
			ended++
		}
		return ended >= done
	})
	kill()
	second := first
	second.Hold = ""
	s.replayer("c2", second)
	s.drained(90 * time.Second)
	s.leave()
	h := s.judge(check.Params{}, "I1", "V1", "V2", "V3")
	r := replayed(h)
	// A handler of each slot may have said that it is over and not have told core yet.
	bound := r.running + r.since + replaySlots
	t.Logf("measured: B7 %s, state %v: %d completed above the stuck message when it was killed, %d of them done again; %d were running, %d completed since 100 ms before the last commit (%d commits with a whole state, the last begun %d ms before the kill)",
		on.name, !forget, r.completed, r.again, r.running, r.since, r.commits, r.age.Milliseconds())
	switch {
	case r.completed < done:
		t.Errorf("only %d were completed", r.completed)
	case forget && r.again < done:
		t.Errorf("without a commit state %d of %d were done again: the test does not show what the state is for", r.again, r.completed)
	case !forget && (r.again > bound || r.commits == 0):
		t.Errorf("%d were done again, the bound is %d", r.again, bound)
	}
}

// replayer starts a member. Its kill is a SIGKILL, or in memory, where all live in one
// process, a client whose calls never return again.
func (s *scene) replayer(name string, a memberArgs) (kill func()) {
	s.t.Helper()
	if s.on.name == "memory" {
		return s.inMemory(name, a)
	}
	p := s.start(name, a, false)
	return func() {
		s.t.Helper()
		if err := p.Send(chaos.Command{Cmd: "die"}); err != nil {
			s.t.Fatal(err)
		}
		if _, err := p.Wait(10 * time.Second); err != nil {
			s.t.Fatal(err)
		}
	}
}

// repetition is what a kill made be done again.
type repetition struct {
	completed, again int
	running          int           // handlers at work at the kill
	since            int           // completed since the last commit began; without one, all
	commits          int           // that carried a whole state
	age              time.Duration // of the last one
}

// whole tells whether a commit's state of so many bytes says all. Between two large ones,
// every 2 s, core keeps a state to 480 bytes and leaves out what is furthest up, so that it
// comes out just below.
func whole(bytes int) bool { return bytes > 480 || bytes > 0 && bytes < 440 }

// written is how long core may take, on a busy machine, from writing a state down to
// handing it to the adapter, which is when the recorder sees it. In memory it waits for its
// turn to say so behind all handlers.
const written = int64(100 * time.Millisecond)

// replayed counts what c1 had completed when it was killed and c2 started again.
func replayed(h *history.History) (r repetition) {
	completed, running := map[string]int64{}, map[string]bool{}
	var begun, last, kill int64
	var ends []int64
	for i := range h.Events {
		e := &h.Events[i]
		_, done := completed[e.ID]
		switch {
		case e.Op == history.OpFault && e.Outcome == history.FaultKill && e.Dest == "c1":
			kill = e.T
		case e.Proc == "c2" && e.Op == history.OpStart && done:
			delete(completed, e.ID) // once
			r.again++
		case e.Proc != "c1":
		case e.Op == history.OpStart:
			running[e.ID] = true
		case e.Op == history.OpEnd && e.Outcome == history.OK:
			delete(running, e.ID)
			completed[e.ID] = e.T
			ends = append(ends, e.T)
		case e.Op == history.OpLog && e.Class == saidBegins && whole(e.N):
			begun = e.T
		case e.Op == history.OpLog && e.Class == saidCommit && whole(e.N):
			last = begun
			r.commits++
		}
	}
	r.completed, r.running = len(ends), len(running)
	for _, at := range ends {
		if r.commits == 0 || at >= last-written {
			r.since++
		}
	}
	if r.commits > 0 {
		r.age = time.Duration(kill - last)
	}
	return r
}

// mortal is a driver that can die. What core asks of a dead one never returns; the broker
// sees a client that went away and settled nothing.
type mortal struct {
	driver.Driver
	death, burial chan struct{}
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
	inner := sub
	inner.Assigned = func(a driver.Assignment) {
		if !m.dead() {
			sub.Assigned(a)
		}
	}
	inner.Revoke = func(ctx context.Context, p []string) {
		if !m.dead() {
			sub.Revoke(ctx, p)
		}
	}
	c, err := m.Driver.Subscribe(ctx, inner)
	return &mortalConsumer{c, m}, err
}

type mortalConsumer struct {
	driver.Consumer
	*mortal
}

func (c *mortalConsumer) Receive(ctx context.Context, want driver.Demand) ([]driver.Received, error) {
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
	err := c.Consumer.Settle(ctx, batch)
	if c.dead() {
		return c.last()
	}
	return err
}

func (c *mortalConsumer) Close(ctx context.Context) error { return c.Consumer.Close(ctx) }

func (m *mortal) Close(ctx context.Context) error { return m.Driver.Close(ctx) }

// inMemory runs a member in this process.
func (s *scene) inMemory(name string, a memberArgs) (kill func()) {
	life := &mortal{death: make(chan struct{}), burial: make(chan struct{})}
	a.wrapper = func(d driver.Driver) driver.Driver { life.Driver = d; return life }
	m, stop, ended := s.inProcess(name, a)
	s.t.Cleanup(func() {
		if life.dead() {
			close(life.burial)
			m.say = func(history.Event) {}
			m.mouth.Unlock()
		}
		stop()
		<-ended
	})
	return func() {
		m.mouth.Lock() // for good: its handlers and calls say nothing more
		m.say(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Dest: name, N: 1})
		close(life.death)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = life.Driver.Close(ctx) // the connection of a dead process ends
	}
}

// inProcess runs a member as a goroutine until stop is called.
func (s *scene) inProcess(name string, a memberArgs) (m *member, stop context.CancelFunc, ended <-chan error) {
	a.URL, a.Dest, a.name, a.gen = s.on.url, s.dest, name, 1
	m = &member{args: a, say: func(e history.Event) {
		e.Proc, e.Gen = name, 1
		s.lab.Emit(e)
	}}
	if !strings.HasPrefix(a.URL, "memory:") {
		m.net = faultnet.New()
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- m.consume(ctx) }()
	return m, cancel, end
}

// prefetch is what a member may have in flight. On a RabbitMQ stream everything behind the
// stuck message has to fit in it: the broker counts a message as out until the position has
// passed it, done or not.
func (g ground) prefetch() int {
	if g.name == "stream" {
		return 8192
	}
	return 1024
}
