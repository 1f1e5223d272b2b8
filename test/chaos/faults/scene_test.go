//go:build unix

package faults

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// scene is one fault test: a destination of its own, workers, and the lab's history.
type scene struct {
	t      *testing.T
	lab    *chaos.Lab
	broker string
	url    string
	dest   core.Destination
	rng    *mathrand.Rand
	pubs   []*chaos.Proc
	cons   []*chaos.Proc
	limits limits

	prepare func(*history.History) // before the checks look at it; nil = as it is
}

// limits are what a broker is allowed.
type limits struct {
	takeover time.Duration // of what a killed process held
	frozen   time.Duration // of what a frozen process holds
	resume   time.Duration // of consuming, after the fault ended
}

var allowed = map[string]limits{
	// Kafka: the session timeout (6 s) and 5 s.
	"kafka": {takeover: 11 * time.Second, frozen: 11 * time.Second, resume: 10 * time.Second},
	// RabbitMQ: a dead process closes its connection, so 2 s; the balancing of shards
	// and a loaded machine get the rest. A frozen one is missed by heartbeats of 5 s:
	// the broker gives up after two to three of them.
	"rabbitmq": {takeover: 5 * time.Second, frozen: 25 * time.Second, resume: 10 * time.Second},
	// Redis: the lease of these tests and 5 s, whether the process is dead or frozen: the
	// server does not know the difference.
	"redis": {takeover: redisLease + 5*time.Second, frozen: redisLease + 5*time.Second, resume: 10 * time.Second},
	// SQS: the visibility timeout of these tests and 5 s. It knows nothing of processes. A
	// request that was swallowed runs into its deadline, 6 s here, and what was handed out
	// to an answer that never came, with the group behind it, is hidden for a lease.
	"sqs": {takeover: sqsLease + 5*time.Second, frozen: sqsLease + 5*time.Second, resume: sqsLease + 10*time.Second},
}

const (
	partitions = 4
	redisLease = 5 * time.Second
	sqsLease   = 5 * time.Second
)

// newScene makes the destination; keyed asks for order per key.
func newScene(t *testing.T, r brokers.Report, keyed bool) *scene {
	t.Helper()
	s := bareScene(t)
	s.broker, s.url, s.limits = r.Broker, r.URL, allowed[r.Broker]
	switch s.broker {
	case "redis":
		s.url += "?lease=" + redisLease.String()
	case "sqs": // waits that end within the limits of these tests
		s.url = "sqs://test:test@us-east-1?wait=1s&timeout=3s&connect_timeout=2s&lease=" + sqsLease.String() + "&endpoint=" + r.URL
	}
	s.dest = core.Queue("faults-" + strings.ToLower(rand.Text()[:8]))
	if keyed {
		s.dest = s.dest.Keyed(partitions)
	}
	s.apply(driver.Create)
	t.Cleanup(func() { s.apply(driver.Delete) })
	return s
}

// bareScene has a lab and a seed, and no broker.
func bareScene(t *testing.T) *scene {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("VARAL_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // never negative
	}
	t.Logf("VARAL_SEED=%d", seed)
	s := &scene{
		t: t, lab: chaos.NewLab(),
		rng: mathrand.New(mathrand.NewPCG(seed, 1)), //nolint:gosec // a schedule, not a secret
	}
	t.Cleanup(func() {
		if err := s.lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *scene) apply(mode driver.Mode) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := adapters.OpenDriver(ctx, adapters.Config{URL: s.url})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err = d.Admin().Apply(ctx, []driver.Resource{{Destination: s.dest}}, mode); err != nil {
		s.t.Errorf("%s %s: %v", mode, s.dest, err)
	}
	if err := d.Close(ctx); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) start(name, body string, args any) *chaos.Proc {
	s.t.Helper()
	p, err := s.lab.Start(chaos.Spec{Name: name, Body: body, Args: args})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// consumer starts one and waits until it owns something.
func (s *scene) consumer(name string, a consumerArgs) *chaos.Proc {
	s.t.Helper()
	if a.URL == "" {
		a.URL = s.url
	}
	a.Dest, a.Keyed = s.dest, s.dest.Partitions > 0
	p := s.start(name, "consumer", a)
	s.cons = append(s.cons, p)
	s.await("assignment of "+name, 30*time.Second, func(e *history.Event) bool {
		return e.Op == history.OpAssign && e.Proc == name && e.Gen == p.Gen()
	})
	return p
}

func (s *scene) publisher(name string, a publisherArgs) *chaos.Proc {
	s.t.Helper()
	a.URL, a.Dest, a.Name = s.url, s.dest, name
	p := s.start(name, "publisher", a)
	s.pubs = append(s.pubs, p)
	return p
}

// await waits for an event, past ones included.
func (s *scene) await(what string, limit time.Duration, match func(*history.Event) bool) history.Event {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e, _, err := s.lab.Wait(ctx, func(e history.Event) bool { return match(&e) })
	if err != nil {
		s.explain(s.lab.History())
		s.t.Fatalf("%s did not come within %s: %v", what, limit, err)
	}
	return e
}

// aim hits the process that runs the message.
func (s *scene) aim(a chaos.Aim) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.lab.Aim(ctx, a); err != nil {
		s.explain(s.lab.History())
		s.t.Fatal(err)
	}
}

// command has a worker switch its net; the fault is in the history as from before it
// and until after it.
func (s *scene) command(p *chaos.Proc, op history.Op, outcome, cmd string) {
	s.t.Helper()
	id := cmd + "-" + strconv.FormatInt(s.lab.Now(), 10)
	fault := history.Event{Op: op, Outcome: outcome, Dest: p.Name(), N: p.Gen()}
	if op == history.OpFault {
		s.lab.Emit(fault)
	}
	if err := p.Send(chaos.Command{Cmd: cmd, ID: id}); err != nil {
		s.t.Fatal(err)
	}
	s.await(cmd+" at "+p.Name(), 10*time.Second, func(e *history.Event) bool { return e.Op == history.OpLog && e.ID == id })
	if op == history.OpHeal {
		s.lab.Emit(fault)
	}
}

// published is the highest counter each publisher has begun so far.
func (s *scene) published() map[string]int {
	top := map[string]int{}
	h := s.lab.History()
	for i := range h.Events {
		if e := &h.Events[i]; e.Op == history.OpPub {
			name, n := split(e.ID)
			top[name] = max(top[name], n)
		}
	}
	return top
}

func split(id string) (name string, n int) {
	name, c, _ := strings.Cut(id, ".")
	n, _ = strconv.Atoi(c)
	return name, n
}

// resumed waits until a message is handled that was published after now.
func (s *scene) resumed(what string) {
	s.t.Helper()
	top := s.published()
	s.await("a handler for what was published after "+what, 3*s.limits.resume, func(e *history.Event) bool {
		name, n := split(e.ID)
		return e.Op == history.OpStart && n > top[name]
	})
}

// drain stops the publishers and waits until everything that was confirmed is handled.
func (s *scene) drain(limit time.Duration) {
	s.t.Helper()
	for _, p := range s.pubs {
		s.end(p, closeLimit+10*time.Second)
	}
	s.drained(limit)
	for _, p := range s.cons {
		s.end(p, 20*time.Second)
	}
	s.empty()
}

func (s *scene) drained(limit time.Duration) {
	s.t.Helper()
	owed := map[string]bool{}
	for _, e := range s.lab.History().Events {
		if e.Op == history.OpPubd && e.Outcome == history.OK {
			owed[e.ID] = true
		}
	}
	if len(owed) == 0 {
		s.t.Fatal("nothing was ever confirmed: the test shows nothing")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	outcome := history.OK
	if _, _, err := s.lab.Wait(ctx, func(e history.Event) bool {
		if e.Op == history.OpEnd && e.Outcome == history.OK {
			delete(owed, e.ID)
		}
		return len(owed) == 0
	}); err != nil {
		outcome = history.Unknown
		s.t.Errorf("%d confirmed messages were not handled within %s after the last publish", len(owed), limit)
	}
	s.lab.Emit(history.Event{Op: history.OpDrained, Outcome: outcome})
}

// end terminates a worker in good order, unless it is gone.
func (s *scene) end(p *chaos.Proc, limit time.Duration) {
	s.t.Helper()
	select {
	case <-p.Exited():
		return
	default:
	}
	if err := p.Term(); err != nil {
		s.t.Fatal(err)
	}
	code, err := p.Wait(limit)
	if err != nil {
		s.explain(s.lab.History())
		s.t.Fatal(err)
	}
	if code != chaos.ExitOK {
		s.t.Errorf("%s ended with code %d: %s", p.Name(), code, lastOf(p.Stderr(), 2000))
	}
}

// empty asks the broker itself: our own events could agree with each other and be wrong.
func (s *scene) empty() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := adapters.OpenDriver(ctx, adapters.Config{URL: s.url})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = d.Close(ctx) }()
	r := driver.Resource{Destination: s.dest}
	r.Group = group
	for {
		st, err := d.Admin().Stats(ctx, r)
		left := max(st.Ready, 0) + max(st.InFlight, 0) + max(st.Lag, 0)
		if err == nil && left == 0 {
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

// judge ends the run and has the checks look at it. It returns the merged history.
func (s *scene) judge(ids ...string) *history.History {
	s.t.Helper()
	if err := s.lab.Close(); err != nil {
		s.t.Error(err)
	}
	h := s.lab.History()
	if s.broker == "rabbitmq" {
		doubt(h)
	}
	if s.prepare != nil {
		s.prepare(h)
	}
	if s.dest.Partitions > 0 {
		ids = append(ids, "I7", "V1", "V2")
	}
	if s.broker == "kafka" {
		ids = append(ids, "V4")
	}
	ids = append(ids, "I1", "I2", "I3", "I4", "I6", "I12")
	bad := len(h.Problems) > 0
	for _, p := range h.Problems {
		s.t.Errorf("history: %s", p)
	}
	for _, c := range check.Named(ids...) {
		r := c.Fn(h, check.Params{})
		s.t.Logf("%s %s %+v %v", c.ID, r.Outcome, r.Trials, r.Counts)
		if r.Outcome == check.Held {
			continue
		}
		bad = true
		s.t.Errorf("%s %s: %s; rule: %s; %v", c.ID, r.Outcome, r.Why, c.Rule, r.IDs)
		for _, i := range r.Witness {
			s.t.Errorf("  %+v", h.Events[i])
		}
	}
	if bad || os.Getenv("VARAL_FAULTS_KEEP") != "" {
		s.explain(h)
	}
	return h
}

// beforeCut is how long a written ack may lie in buffers on its way to the broker.
const beforeCut = int64(500 * time.Millisecond)

// doubt takes back what AMQP cannot know. A basic.ack has no answer: the adapter's nil
// says that it was written. One that was written from shortly before a network or broker
// fault on, and before its loss was noticed, may never have arrived. Outside of that
// window an accepted settle stays final, and a message that comes again accuses.
func doubt(h *history.History) {
	for i := range h.Events {
		lost := &h.Events[i]
		if lost.Op != history.OpLost {
			continue
		}
		from, hurt := int64(0), false
		for j := range i { // the latest fault of that process, and what it lost before
			e := &h.Events[j]
			mine := e.Dest == "" || e.Dest == lost.Proc && e.N == lost.Gen
			switch {
			case e.Op == history.OpFault && mine && (e.Outcome == history.FaultCut || e.Outcome == history.FaultBlackHole || e.Outcome == history.FaultBroker):
				from, hurt = e.T-beforeCut, true
			case e.Op == history.OpLost && e.Proc == lost.Proc && e.Gen == lost.Gen && e.Partition == lost.Partition:
				hurt = false // noticed; a fault since then counts anew
			}
		}
		for j := range i {
			e := &h.Events[j]
			if hurt && e.Op == history.OpSettled && e.Class == "" && e.T >= from &&
				e.Proc == lost.Proc && e.Gen == lost.Gen && e.Partition == lost.Partition {
				e.Class = "unconfirmed"
			}
		}
	}
}

// explain keeps the history and shows what the workers logged.
func (s *scene) explain(h *history.History) {
	path := filepath.Join(os.TempDir(), "varal-faults-"+strings.ReplaceAll(s.t.Name(), "/", "-")+".jsonl")
	if f, err := os.Create(path); err == nil {
		_ = history.Write(f, h.Events)
		_ = f.Close()
		s.t.Logf("history: %s", path)
	}
	for _, p := range s.lab.Procs() {
		s.t.Logf("log of %s/%d: %s", p.Name(), p.Gen(), lastOf(p.Stderr(), 3000))
	}
}

func lastOf(text string, n int) string { return text[max(0, len(text)-n):] }

// first returns the first event of h that matches, nil if there is none.
func first(h *history.History, match func(*history.Event) bool) *history.Event {
	for i := range h.Events {
		if match(&h.Events[i]) {
			return &h.Events[i]
		}
	}
	return nil
}

// within prints a measured time beside its limit, and fails when it is over twice that: what
// is in between may be the machine's. With ten processes for each processor a member that was
// back needed 11 s instead of 3.
func (s *scene) within(what string, took, limit time.Duration) {
	s.t.Helper()
	over := ""
	if took > limit {
		over = ", OVER IT"
	}
	s.t.Logf("measured: %s %s: %.2fs (limit %s%s)", s.broker, what, took.Seconds(), limit, over)
	if took > 2*limit {
		s.t.Errorf("%s took %s, the limit is %s", what, took, limit)
	}
}

// outcomes counts how the publishes of one publisher ended, "" = all.
func outcomes(h *history.History, name string) string {
	n := map[string]int{}
	for i := range h.Events {
		if e := &h.Events[i]; e.Op == history.OpPubd && (name == "" || e.Proc == name) {
			n[e.Outcome]++
		}
	}
	return fmt.Sprintf("ok %d, rejected %d, unknown %d", n[history.OK], n[history.Rejected], n[history.Unknown])
}

// measureResume is the time from a heal to the first handler of a message that was
// published after it.
func (s *scene) measureResume(h *history.History, what string, heal *history.Event) {
	s.t.Helper()
	begun := map[string]int64{}
	for i := range h.Events {
		e := &h.Events[i]
		if e.Op == history.OpPub && begun[e.ID] == 0 {
			begun[e.ID] = e.T
		}
		if e.Op == history.OpStart && begun[e.ID] > heal.T {
			s.within(what, time.Duration(e.T-heal.T), s.limits.resume)
			return
		}
	}
	s.t.Errorf("%s: nothing that was published after it was ever handled", what)
}
