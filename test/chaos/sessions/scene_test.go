//go:build unix

package sessions

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/middleware"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// scene is one test: destinations of its own, members, and the lab's history.
type scene struct {
	t      *testing.T
	lab    *chaos.Lab
	on     ground
	dest   core.Destination
	dead   core.Destination
	client *core.Client // publishes, and reads dead letters
	rng    *mathrand.Rand
	procs  []*chaos.Proc

	quarantined string // owed by no handler, and to be found among the dead letters

	mu   sync.Mutex
	owed map[string]bool // confirmed; guarded by mu
	top  map[string]int  // the highest counter each publisher has begun; guarded by mu
}

// newScene makes the destinations on a broker: the source, and a dead letter that keeps
// the order of its messages.
func newScene(t *testing.T, on ground, dest core.Destination) *scene {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("VARAL_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // never negative
	}
	t.Logf("VARAL_SEED=%d", seed)
	s := &scene{t: t, lab: chaos.NewLab(), on: on, owed: map[string]bool{}, top: map[string]int{}, rng: mathrand.New(mathrand.NewPCG(seed, 1))} //nolint:gosec // a schedule, not a secret
	dest.Name += "-" + strings.ToLower(rand.Text()[:8])
	s.dest, s.dead = dest, core.Queue(dest.Name+"-dead").Keyed(1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := openDriver(ctx, adapters.Config{URL: on.url})
	if err != nil {
		t.Fatal(err)
	}
	s.client = core.NewClient(d, core.Options{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.end)
	s.apply(driver.Create)
	return s
}

func (s *scene) end() {
	if err := s.lab.Close(); err != nil {
		s.t.Error(err)
	}
	s.apply(driver.Delete)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.client.Close(ctx); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) apply(mode driver.Mode) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	want := []driver.Resource{{Destination: s.dest}, {Destination: s.dead}}
	if _, err := s.client.Admin().Apply(ctx, want, mode); err != nil {
		s.t.Errorf("%s %s: %v", mode, s.dest, err)
	}
}

// start starts a member as a process and waits until it owns something, if it is to.
func (s *scene) start(name string, a memberArgs, owns bool, env ...string) *chaos.Proc {
	s.t.Helper()
	a.URL, a.Dest = s.on.url, s.dest
	p, err := s.lab.Start(chaos.Spec{Name: name, Body: "member", Args: a, Env: env, Tick: 100 * time.Millisecond})
	if err != nil {
		s.t.Fatal(err)
	}
	s.procs = append(s.procs, p)
	if owns {
		s.await("assignment of "+name, 40*time.Second, func(e *history.Event) bool {
			return e.Op == history.OpAssign && e.Proc == name && e.Gen == p.Gen()
		})
	}
	return p
}

// await waits for an event, past ones included, as patiently does.
func (s *scene) await(what string, limit time.Duration, match func(*history.Event) bool) history.Event {
	s.t.Helper()
	e, err := s.patiently(limit, match)
	if err != nil {
		s.explain(s.lab.History())
		s.t.Fatalf("%s did not come, and nothing went on for %s: %v", what, limit, err)
	}
	return e
}

// patiently waits for an event for as long as work goes on: limit counts from the last sign
// of it, and five times as long in all. A limit on the whole would say how busy the machine
// is.
func (s *scene) patiently(limit time.Duration, match func(*history.Event) bool) (history.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*limit)
	defer cancel()
	idle := time.AfterFunc(limit, cancel)
	defer idle.Stop()
	e, _, err := s.lab.Wait(ctx, func(e history.Event) bool {
		switch e.Op {
		case history.OpStart, history.OpEnd, history.OpAssign, history.OpLost:
			idle.Reset(limit)
		}
		return match(&e)
	})
	return e, err
}

// message carries its own place, so that a mix-up shows.
func message(id, key string, n int) *core.Message {
	return &core.Message{ID: id, Key: key, Body: []byte(id + "|" + key + "|" + strconv.Itoa(n))}
}

// publish sends messages of keys in batches, the n-th of each round under the n-th key.
func (s *scene) publish(first, count int, keys []string, from map[string]int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const batch = 1000
	var msgs []*core.Message
	var said []history.Event
	for i := range count {
		k := keys[i%len(keys)]
		from[k]++
		m := message("p1."+strconv.Itoa(first+i), k, from[k])
		e := history.Event{Op: history.OpPub, ID: m.ID, Dest: s.dest.Name, Key: k, N: from[k]}
		s.pub(e)
		e.Op, e.Outcome = history.OpPubd, history.OK
		msgs, said = append(msgs, m), append(said, e)
		if len(msgs) < batch && i < count-1 {
			continue
		}
		if err := s.client.Publish(ctx, s.dest, msgs...); err != nil {
			s.t.Fatal(err)
		}
		for _, e := range said {
			s.pub(e)
		}
		msgs, said = nil, nil
	}
}

func keys(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = prefix + strconv.Itoa(i)
	}
	return out
}

// feed publishes at a rate until stop is called, which returns when all has ended. Each
// sender has keys of its own, so that the numbers of a key are sent one after another.
func (s *scene) feed(rate, senders, keysEach int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() { s.send(ctx, "p"+strconv.Itoa(i+1), keys("k"+strconv.Itoa(i)+"-", keysEach), rate/senders) })
	}
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func (s *scene) send(ctx context.Context, name string, keys []string, rate int) {
	pace := time.NewTicker(time.Second / time.Duration(rate))
	defer pace.Stop()
	next := map[string]int{}
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		k := keys[turn%len(keys)]
		next[k]++
		s.one(name+"."+strconv.Itoa(turn+1), k, next[k])
	}
}

func (s *scene) one(id, key string, n int) {
	e := history.Event{Op: history.OpPub, ID: id, Dest: s.dest.Name, Key: key, N: n}
	s.pub(e)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.client.Publish(ctx, s.dest, message(id, key, n))
	e.Op, e.Outcome = history.OpPubd, history.OK
	switch {
	case err == nil:
	case errors.Is(err, core.ErrIndeterminate):
		e.Outcome, e.Class = history.Unknown, fmt.Sprintf("%.300v", err)
	default:
		e.Outcome, e.Class = history.Rejected, fmt.Sprintf("%.300v", err)
	}
	s.pub(e)
}

// pub records a publish and keeps what the end of the run is judged by.
func (s *scene) pub(e history.Event) {
	s.mu.Lock()
	if e.Op == history.OpPub {
		name, n := split(e.ID)
		s.top[name] = max(s.top[name], n)
	} else if e.Outcome == history.OK {
		s.owed[e.ID] = true
	}
	s.mu.Unlock()
	s.lab.Emit(e)
}

// published is the highest counter each publisher has begun so far.
func (s *scene) published() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.top)
}

func split(id string) (name string, n int) {
	name, c, _ := strings.Cut(id, ".")
	n, _ = strconv.Atoi(c)
	return name, n
}

// drained waits until all that was confirmed is handled, or failed for good.
func (s *scene) drained(limit time.Duration) {
	s.t.Helper()
	s.mu.Lock()
	owed := maps.Clone(s.owed)
	s.mu.Unlock()
	dead := map[string]bool{}
	if s.quarantined != "" {
		dead[s.quarantined] = true
	}
	delete(owed, s.quarantined)
	if len(owed) == 0 {
		s.t.Fatal("nothing was ever confirmed: the test shows nothing")
	}
	outcome := history.OK
	if _, err := s.patiently(limit, func(e *history.Event) bool {
		if e.Op == history.OpEnd && (e.Outcome == history.OK || e.Class == history.Permanent) {
			delete(owed, e.ID)
			if e.Class == history.Permanent {
				dead[e.ID] = true
			}
		}
		return len(owed) == 0
	}); err != nil {
		outcome = history.Unknown
		some := make([]string, 0, 5)
		for id := range owed {
			if len(some) < cap(some) {
				some = append(some, id)
			}
		}
		s.t.Errorf("%d confirmed messages were not handled, and nothing went on for %s, such as %v", len(owed), limit, some)
	}
	s.empty(limit)
	s.bury(dead)
	s.lab.Emit(history.Event{Op: history.OpDrained, Outcome: outcome})
}

// empty asks the broker itself: our own events could agree with each other and be wrong.
func (s *scene) empty(limit time.Duration) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r := driver.Resource{Destination: s.dest}
	r.Group = group
	for {
		st, err := s.client.Admin().Stats(ctx, r)
		if err == nil && max(st.Ready, 0)+max(st.InFlight, 0)+max(st.Lag, 0) == 0 {
			s.lab.Emit(history.Event{Op: history.OpStat, Outcome: history.StatReady, Dest: s.dest.Name})
			return
		}
		select {
		case <-ctx.Done():
			s.t.Errorf("the broker still has messages of %s: %+v, %v", s.dest, st, err)
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// bury reads the dead letters in order, until those that must be there have come and the
// broker says that there are no more.
func (s *scene) bury(due map[string]bool) {
	s.t.Helper()
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	failed := make(chan error, 1)
	reading.Go(func() {
		failed <- s.client.Consume(ctx, core.Subscription{
			From: s.dead, Group: "graves", Name: "graves", Start: core.Position{Kind: driver.Earliest},
		}, func(_ context.Context, d *core.Delivery) error {
			reason, _ := d.Header(driver.HeaderFailureReason)
			s.lab.Emit(history.Event{
				Op: history.OpDead, ID: d.ID, Group: group, Dest: s.dead.Name, Key: d.Key, N: number(&d.Message), Class: reason,
			})
			return nil
		}, middleware.SessionOrder(1))
	})
	defer reading.Wait()
	defer cancel()
	waiting, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if _, _, err := s.lab.Wait(waiting, func(e history.Event) bool {
		if e.Op == history.OpDead {
			delete(due, e.ID)
		}
		return len(due) == 0
	}); err != nil {
		s.t.Errorf("%d messages that failed for good are not among the dead letters", len(due))
		return
	}
	r := driver.Resource{Destination: s.dead}
	r.Group = "graves"
	for waiting.Err() == nil {
		st, err := s.client.Admin().Stats(waiting, r)
		if err == nil && max(st.Ready, 0)+max(st.InFlight, 0)+max(st.Lag, 0) == 0 {
			return
		}
		select {
		case err := <-failed:
			s.t.Errorf("reading the dead letters: %v", err)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	s.t.Error("the dead letters do not come to an end")
}

// leave ends members in good order.
func (s *scene) leave() {
	s.t.Helper()
	for _, p := range s.procs {
		select {
		case <-p.Exited():
			continue
		default:
		}
		if err := p.Term(); err != nil && !errors.Is(err, chaos.ErrEnded) {
			s.t.Error(err)
		}
	}
	for _, p := range s.procs {
		code, err := p.Wait(30 * time.Second)
		if err != nil {
			s.explain(s.lab.History())
			s.t.Fatal(err)
		}
		if code > chaos.ExitOK {
			s.t.Errorf("%s ended with code %d: %s", p.Name(), code, lastOf(p.Stderr(), 2000))
		}
	}
}

// judge ends the run and has the checks look at it. It returns the merged history.
func (s *scene) judge(p check.Params, ids ...string) *history.History {
	s.t.Helper()
	if err := s.lab.Close(); err != nil {
		s.t.Error(err)
	}
	h := s.lab.History()
	if s.on.name == "rabbitmq" {
		doubt(h)
	}
	if s.on.fake != nil {
		h = onTime(h)
	}
	isBad := len(h.Problems) > 0
	for _, p := range h.Problems {
		s.t.Errorf("history: %s", p)
	}
	for _, c := range check.Named(ids...) {
		r := c.Fn(h, p)
		s.t.Logf("%s %s %+v %v", c.ID, r.Outcome, r.Trials, r.Counts)
		if r.Outcome == check.Held {
			continue
		}
		isBad = true
		s.t.Errorf("%s %s: %s; rule: %s; %v", c.ID, r.Outcome, r.Why, c.Rule, r.IDs)
		for _, i := range r.Witness {
			s.t.Errorf("  %+v", h.Events[i])
		}
	}
	for _, p := range s.procs {
		if strings.Contains(p.Stderr(), "DATA RACE") {
			s.t.Errorf("%s/%d: %s", p.Name(), p.Gen(), p.Stderr())
		}
	}
	if isBad || s.t.Failed() || os.Getenv("VARAL_FAULTS_KEEP") != "" {
		s.explain(h)
	}
	return h
}

// onTime puts commits that a loss overtook on their way where they began. kfake's injected
// errors tell a member that it is out while the broker still counts it in: the commit under
// way is accepted, and its answer is read after the loss.
func onTime(h *history.History) *history.History {
	type place struct{ proc, partition string }
	begun, lost := map[place]int64{}, map[place]bool{}
	moved := false
	for i := range h.Events {
		e := &h.Events[i]
		at := place{e.Proc, e.Partition}
		switch {
		case e.Op == history.OpLog && e.Class == saidBegins:
			begun[at], lost[at] = e.T, false
		case e.Op == history.OpLost:
			lost[at] = true
		case (e.Op == history.OpCommit || e.Op == history.OpSettled && e.Class == "") && e.Seq == 0 && lost[at]:
			e.T, moved = begun[at], true
		}
	}
	if !moved {
		return h
	}
	sorted := history.New(h.Events)
	sorted.Problems = h.Problems
	return sorted
}

// beforeKill is how long a written ack may lie in buffers on its way to the broker.
const beforeKill = int64(250 * time.Millisecond)

// doubt takes back what AMQP cannot know. A basic.ack has no answer: the adapter's nil
// says that it was written. What was written right before a kill may never have arrived.
func doubt(h *history.History) {
	type incarnation struct {
		proc string
		gen  int
	}
	killed := map[incarnation]int64{}
	for _, e := range h.Events {
		if e.Op == history.OpFault && e.Outcome == history.FaultKill {
			killed[incarnation{e.Dest, e.N}] = e.T
		}
	}
	for i := range h.Events {
		e := &h.Events[i]
		if at, ok := killed[incarnation{e.Proc, e.Gen}]; ok && e.Op == history.OpSettled && e.Class == "" && e.T >= at-beforeKill {
			e.Class = "unconfirmed"
		}
	}
}

// explain keeps the history and shows what the workers logged.
func (s *scene) explain(h *history.History) {
	path := filepath.Join(os.TempDir(), "varal-sessions-"+strings.ReplaceAll(s.t.Name(), "/", "-")+".jsonl")
	if f, err := os.Create(path); err == nil {
		_ = history.Write(f, h.Events)
		_ = f.Close()
		s.t.Logf("history: %s", path)
	}
	for _, p := range s.lab.Procs() {
		if log := p.Stderr(); log != "" {
			s.t.Logf("log of %s/%d: %s", p.Name(), p.Gen(), lastOf(log, 3000))
		}
	}
}

func lastOf(text string, n int) string { return text[max(0, len(text)-n):] }
