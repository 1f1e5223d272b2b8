// Package control has the controls of the sequence oracle: consumers that are wrong on
// purpose, each in one way that real ones were, and two that are right. An oracle that
// has not caught the first proves nothing, and one that accuses the second is of no use.
//
// A control runs in this process, over adapters/memory or a small log of its own, and
// reports to an oracle like any member. The wrong ones wait for the event at which their
// bug shows, so that they are caught with every seed. A seed picks keys, sizes, victims
// and failures.
package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/record"
)

// Names in the histories of controls, and the limit a judge must be told.
const (
	Group    = "kitchen"
	Dest     = "tickets"
	Letters  = "tickets.dlq"
	Attempts = 3
)

// Control is a consumer of known quality.
type Control struct {
	Name string
	What string   // what it does, in one line
	Must []string // checks that have to say broken; none: it is right
	May  []string // checks that may say so too: consequences of the same bug
	Held []string // checks that must say held of a right one
	run  func(*stage) error
}

// Right reports whether nothing may be broken.
func (c Control) Right() bool { return len(c.Must) == 0 }

// All lists the controls: those asked for by the design, one for each verdict that these
// leave out, then the right ones.
func All() []Control {
	return []Control{
		{Name: "flat worker pool", What: "any free worker takes the next message, whatever its key", Must: []string{"V1", "V2"}, run: flatPool},
		{Name: "commit-max, crash", What: "commits the highest completed offset; killed with one running", Must: []string{"V3", "V4"}, run: commitMax},
		{Name: "nack-requeue", What: "gives a failed message back and goes on with what it has", Must: []string{"V2"}, run: nackRequeue},
		{Name: "revoke without drain", What: "lets a partition go while a handler runs", Must: []string{"V1"}, run: noDrain},
		{Name: "late ack after revoke", What: "a commit put back after the partition had gone, and taken", Must: []string{"V4", "V5"}, May: []string{"V2"}, run: lateAck},
		{Name: "drop on full", What: "drops and acknowledges what finds its lane full", Must: []string{"V3"}, run: dropOnFull},
		{Name: "stealing", What: "claims what has been idle for long, although it runs (XAUTOCLAIM)", Must: []string{"V1"}, run: stealing},
		{Name: "no last commit", What: "leaves in good order without committing what it did", Must: []string{"V5"}, run: noLastCommit},
		{Name: "dead letters by a pool", What: "two dead letters of a key are written in the other order", Must: []string{"V6"}, run: scrambledLetters},
		{Name: "lanes kept", What: "never forgets the lane of a key", Must: []string{"V7"}, run: lanesKept},
		{Name: "right: stream", What: "core, order by key, retries, a crash, a hand-over; positions", Held: []string{"V1", "V2", "V3", "V4", "V5", "V7"}, run: rightStream},
		{Name: "right: keyed queue", What: "the same over shard queues; each message settled", Held: []string{"V1", "V2", "V3", "V5", "V7"}, run: rightQueue},
	}
}

// Run runs the control against the oracle at addr and returns when its members have said
// bye. An error means that the run could not be made, not that something was broken.
func (c Control) Run(ctx context.Context, addr string, seed uint64) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := &stage{
		ctx: ctx, addr: addr, seed: seed, rng: rand.New(rand.NewPCG(seed, 5)), //nolint:gosec // a schedule
		broker: memory.NewBroker(), changed: make(chan struct{}),
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.lab, err = record.Dial(ctx, addr, record.Options{Proc: "lab"}); err != nil {
		return err
	}
	if err := c.run(s); err != nil {
		return fmt.Errorf("control %q, seed %d: %w", c.Name, seed, err)
	}
	return nil
}

// stage is where a control plays: a broker, an oracle, and what has been reported.
type stage struct {
	ctx    context.Context //nolint:containedctx // one run, made and ended by Run
	addr   string
	seed   uint64
	rng    *rand.Rand
	broker *memory.Broker
	lab    *record.Client
	counts map[string]int // published, by key

	mu      sync.Mutex
	noted   []history.Event
	changed chan struct{} // closed and replaced with every event
	closers []func() error
}

// later has f run at the end, the last first.
func (s *stage) later(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

func (s *stage) close() error {
	s.mu.Lock()
	closers := s.closers
	s.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(closers) {
		errs = append(errs, f())
	}
	if s.lab != nil {
		errs = append(errs, s.lab.Close())
	}
	return errors.Join(errs...)
}

// note remembers what the oracle has by now, for those who wait for it.
func (s *stage) note(e history.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noted = append(s.noted, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits for an event, past ones included.
func (s *stage) await(what string, match func(*history.Event) bool) error {
	for seen := 0; ; {
		s.mu.Lock()
		changed := s.changed
		for ; seen < len(s.noted); seen++ {
			if match(&s.noted[seen]) {
				s.mu.Unlock()
				return nil
			}
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.ctx.Done():
			return fmt.Errorf("%s did not come: %w", what, s.ctx.Err())
		}
	}
}

// message is the n-th of its key.
func message(id, key string, n int) *driver.Message {
	return &driver.Message{ID: id, Key: key, Headers: []driver.Header{{Key: "n", Value: strconv.Itoa(n)}}, Body: []byte(id)}
}

func number(m *driver.Message) int {
	v, _ := m.Header("n")
	n, _ := strconv.Atoi(v)
	return n
}

// make makes n messages: the first two of key "k0", then over so many keys by chance.
func (s *stage) make(n, keys int) []*driver.Message {
	s.counts = map[string]int{}
	out := make([]*driver.Message, 0, n)
	for i := range n {
		k := "k0"
		if i > 1 {
			k = "k" + strconv.Itoa(s.rng.IntN(keys))
		}
		s.counts[k]++
		out = append(out, message("p."+strconv.Itoa(i+1), k, s.counts[k]))
	}
	return out
}

// publish records and stores messages, one by one: their order within a key is stated.
func (s *stage) publish(store func(*driver.Message) error, all []*driver.Message) error {
	for _, m := range all {
		e := history.Event{Op: history.OpPub, ID: m.ID, Key: m.Key, N: number(m), Dest: Dest}
		s.lab.Emit(e)
		if err := store(m); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		e.Op, e.Outcome = history.OpPubd, history.OK
		s.lab.Emit(e)
	}
	return s.lab.Err()
}

func (s *stage) create(d driver.Driver, to driver.Destination) error {
	_, err := d.Admin().Apply(s.ctx, []driver.Resource{{Destination: to}}, driver.Create)
	return err
}

// drained states that nothing more can come.
func (s *stage) drained() error {
	return s.lab.Record(history.Event{Op: history.OpDrained, Outcome: history.OK})
}

// empty waits until the broker has nothing more for the group.
func (s *stage) empty(d driver.Driver, of driver.Destination) error {
	for {
		n, err := s.lag(d, of)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-s.ctx.Done():
			return fmt.Errorf("%s does not become empty, %d are left: %w", of, n, s.ctx.Err())
		}
	}
}

// lag is how many messages the group has not settled.
func (s *stage) lag(d driver.Driver, of driver.Destination) (int, error) {
	r := driver.Resource{Destination: of}
	r.Group = Group
	st, err := d.Admin().Stats(s.ctx, r)
	return int(max(st.Delayed, 0) + max(st.Lag, 0)), err // Lag is what is ready or in flight
}
