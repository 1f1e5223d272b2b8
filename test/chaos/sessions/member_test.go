//go:build unix

package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/adapters/redis"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/chaos/faultnet"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/taps"
)

// group is the label of all members here.
const group = "g"

// memberArgs is what a member has to know.
type memberArgs struct {
	URL         string
	Dest, Dead  core.Destination // Dead zero: nothing fails
	Concurrency int
	Prefetch    int
	Work        time.Duration // the longest a handler takes; how long is the message's own
	Hold        string        // the message whose handler ends only with the member
	Poison      string        // the message whose handler kills its process after two seconds
	Healthy     bool          // no message fails
	Forget      bool          // no commit state
	Quiet       bool          // says nothing of single receives and settles
	Trusting    bool          // no message is quarantined for the ends of those who had it
	Alone       bool          // its revoke is no other member's too
	Instance    string        // the id of a static member of a Kafka group; "" = it is none

	name    string
	gen     int
	wrapper func(driver.Driver) driver.Driver // in this process only
}

// The failpoints, in the order in which a message passes them. envPoint names one, after
// a colon how often it is passed before the process dies there: from the command "arm"
// on.
const (
	envPoint = "VARAL_SESSIONS_FAILPOINT"

	beforeStart    = "before-start"
	afterStart     = "after-start"
	beforeEnd      = "before-end"
	afterEnd       = "after-end"
	settleBegun    = "settle-begun"
	settleSent     = "settle-sent"
	settleAnswered = "settle-answered"
	revokeBegun    = "revoke-begun"
	revokeEnded    = "revoke-ended"
)

// member is one consumer of the group: a process, or a part of the test's own.
type member struct {
	args  memberArgs
	say   func(history.Event)
	mouth sync.RWMutex  // locked for good by a death: nothing may follow it
	net   *faultnet.Net // nil in memory
	armed atomic.Bool
	point string
	left  atomic.Int64
	on    chan struct{} // closed by the command "go"
}

func init() {
	chaos.Register("member", func(ctx context.Context, w *chaos.Worker) error {
		m := &member{net: faultnet.New(), on: make(chan struct{}), say: func(e history.Event) { _ = w.Emit(e) }}
		if err := json.Unmarshal(w.Args(), &m.args); err != nil {
			return err
		}
		m.args.name, m.args.gen = w.Name(), w.Gen()
		point, count, _ := strings.Cut(os.Getenv(envPoint), ":")
		n, _ := strconv.ParseInt(count, 10, 64)
		m.point = point
		m.left.Store(n)
		ctx, cancel := context.WithCancel(ctx)
		var listening sync.WaitGroup
		listening.Go(func() { m.listen(ctx, w.Commands()) })
		err := m.consume(ctx)
		cancel()
		listening.Wait()
		return errors.Join(err, m.net.Close())
	})
}

// listen obeys the lab.
func (m *member) listen(ctx context.Context, commands <-chan chaos.Command) {
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-commands:
			if !ok {
				return
			}
			switch c.Cmd {
			case "arm":
				m.armed.Store(true)
			case "go":
				close(m.on)
			case "die":
				m.die("told to")
			}
		}
	}
}

// emit writes an event down. It does not return once the member is dead.
func (m *member) emit(e history.Event) {
	m.mouth.RLock()
	defer m.mouth.RUnlock()
	m.say(e)
}

// passes tells whether this is the pass that is the last.
func (m *member) passes(point string) bool {
	return m.point == point && m.armed.Load() && m.left.Add(-1) == 0
}

// at is a failpoint.
func (m *member) at(point string) {
	if !m.passes(point) {
		return
	}
	if !m.args.Alone && (point == revokeBegun || point == revokeEnded) {
		// The others of the group get their revoke with the same rebalance, and none at all
		// if this death makes room for the member that joins.
		m.emit(history.Event{Op: history.OpLog, Class: saidPoint + point})
		<-m.on
	}
	m.die("at the failpoint")
}

// deafAt is the failpoint that lies beyond this process: from here on nothing is heard.
func (m *member) deafAt(point string) bool {
	if !m.passes(point) {
		return false
	}
	m.net.BlackHole(faultnet.Down, true)
	return true
}

// dieAfterSent gives a request the time to arrive.
func (m *member) dieAfterSent() {
	time.Sleep(100 * time.Millisecond) // nobody can tell us: that is the point
	m.die("at the failpoint")
}

// die is a SIGKILL from within; it does not return. The moment is written down before it,
// and nothing after it: a start that the lab read behind the kill would look like that of
// a second owner.
func (m *member) die(why string) {
	m.mouth.Lock()
	m.say(history.Event{Op: history.OpLog, Class: why})
	m.say(history.Event{Op: history.OpFault, Outcome: history.FaultKill, Dest: m.args.name, N: m.args.gen})
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// open opens a client whose driver is watched.
func (m *member) open(ctx context.Context) (*core.Client, error) {
	c := adapters.Config{URL: m.args.URL}
	if m.args.Instance != "" {
		c.URL += "&instance_id=" + m.args.Instance
	}
	if m.net != nil {
		c.Dial = m.net.DialContext
	}
	var client atomic.Pointer[core.Client]
	c.Notify = func(e core.Event) {
		if cl := client.Load(); cl != nil {
			cl.Notify(e)
		}
	}
	d, err := openDriver(ctx, c)
	if err != nil {
		return nil, err
	}
	if m.args.wrapper != nil {
		d = m.args.wrapper(d)
	}
	// Memory is empty at first, so its destinations are made as they are used.
	o := core.Options{Observer: taps.Signals(m.emit), Logger: slog.New(slog.NewTextHandler(logs(m.args.name), nil))}
	if strings.HasPrefix(m.args.URL, "memory:") {
		o.Provision = core.ProvisionCreate
	}
	cl := core.NewClient(&recorder{Driver: d, member: m}, o)
	client.Store(cl)
	return cl, nil
}

// openDriver opens Redis by its own Open.
func openDriver(ctx context.Context, c adapters.Config) (driver.Driver, error) {
	if !strings.HasPrefix(c.URL, "redis:") {
		return adapters.OpenDriver(ctx, c)
	}
	own, err := redis.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	own.Dial, own.Notify = c.Dial, c.Notify
	return redis.Open(ctx, own)
}

// logs is where a member's log goes: a process has its own stderr, which the lab keeps.
func logs(process string) io.Writer {
	if process == "" || os.Getenv(envPoint+"_LOG") == "" {
		return io.Discard
	}
	return os.Stderr
}

const (
	closeLimit = 10 * time.Second
	attempts   = 4
)

func (m *member) layers() []core.Layer {
	layers := []core.Layer{
		middleware.Prefetch(max(m.args.Prefetch, 64)), middleware.Drain(5 * time.Second),
		middleware.SessionOrder(max(m.args.Concurrency, 8)),
	}
	if m.args.Trusting {
		layers = append(layers, middleware.Quarantine(-1))
	}
	retry := middleware.Exponential{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}
	if m.args.Dead.Name != "" {
		retry.Attempts = attempts
		layers = append(layers, middleware.DeadLetter(m.args.Dead))
	}
	return append(layers, middleware.Retry(retry))
}

// consume runs the member until ctx ends, then drains and closes.
func (m *member) consume(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client, err := m.open(opening)
	if err != nil && ctx.Err() != nil {
		return nil // told to leave before it had come
	}
	if err != nil {
		return err
	}
	err = client.Consume(ctx, core.Subscription{
		From: m.args.Dest, Group: group, Name: "sessions", Start: core.Position{Kind: driver.Earliest},
	}, m.handle, m.layers()...)
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer done()
	return errors.Join(err, client.Close(closing))
}

var (
	errFlaky = errors.New("the kitchen is busy")
	errBad   = errors.New("no such pizza")
)

// dice is a number of the message alone: what becomes of it does not depend on who has it.
func dice(id string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, id)
	return h.Sum64() >> 16
}

// bad messages fail for good: several of each key, or their order could not be told. Flaky
// ones fail at their first attempt.
func bad(n int) bool       { return n%4 == 2 }
func flaky(id string) bool { return dice(id)%11 == 2 }

func (m *member) handle(ctx context.Context, d *core.Delivery) error {
	m.at(beforeStart)
	e := history.Event{
		Op: history.OpStart, ID: d.ID, Group: group, Dest: m.args.Dest.Name, Key: d.Key, N: number(&d.Message),
		Attempt: d.Attempt, Partition: d.Partition, Position: taps.Position(d.Offset), Fence: d.Fence,
	}
	m.emit(e)
	m.at(afterStart)
	e.Op, e.Outcome = history.OpEnd, history.OK
	err := m.work(ctx, d)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		e.Outcome = history.Cancelled
	case errors.Is(err, errBad):
		e.Outcome, e.Class = history.Fail, history.Permanent
	default:
		e.Outcome = history.Fail
	}
	m.at(beforeEnd)
	m.emit(e)
	m.at(afterEnd)
	return err
}

func (m *member) work(ctx context.Context, d *core.Delivery) error {
	switch {
	case d.ID == m.args.Hold:
		<-ctx.Done()
		return context.Cause(ctx)
	case d.ID == m.args.Poison:
		time.Sleep(2 * time.Second)
		m.die("poisoned")
	case m.args.Work > 0:
		t := time.NewTimer(time.Duration(dice(d.ID) % uint64(m.args.Work)))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	switch {
	case m.args.Dead.Name == "" || m.args.Healthy:
	case bad(number(&d.Message)):
		return core.Permanent(errBad)
	case flaky(d.ID) && d.Attempt == 1:
		return errFlaky
	}
	return nil
}
