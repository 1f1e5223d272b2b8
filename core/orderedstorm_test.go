package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// flaky is a Publisher that refuses messages, loses confirms and is slow, at random. What it
// lets through goes to next.
type flaky struct {
	next core.Publisher
	slow time.Duration

	mu  sync.Mutex
	rnd *rand.Rand // guarded by mu
	off bool       // guarded by mu
}

// draw decides the fate of one message: whether it is stored, and what is said about it.
func (f *flaky) draw() (store bool, err error) {
	switch f.rnd.IntN(12) {
	case 0:
		return false, driver.Errorf("flaky", driver.Transient, "refused")
	case 1:
		return false, driver.Errorf("flaky", driver.Ambiguous, "lost, and so is the message")
	case 2:
		return true, driver.Errorf("flaky", driver.Ambiguous, "stored, the confirm is lost")
	case 3:
		return false, errors.New("no class")
	case 4:
		return false, driver.Errorf("flaky", driver.Denied, "not today")
	}
	return true, nil
}

func (f *flaky) Publish(ctx context.Context, to core.Destination, msgs ...*core.Message) error {
	f.mu.Lock()
	if f.off {
		f.mu.Unlock()
		return f.next.Publish(ctx, to, msgs...)
	}
	errs, through := make([]error, len(msgs)), []*core.Message{}
	at := []int{}
	for i, m := range msgs {
		var store bool
		if store, errs[i] = f.draw(); store {
			through, at = append(through, m), append(at, i)
		}
	}
	before, behind := time.Duration(f.rnd.Int64N(int64(f.slow))), time.Duration(f.rnd.Int64N(int64(f.slow)))
	f.mu.Unlock()
	time.Sleep(before)
	err := f.next.Publish(ctx, to, through...)
	for k, i := range at {
		if e := driver.ResultAt(err, k); e != nil {
			errs[i] = e
		}
	}
	time.Sleep(behind)
	if len(msgs) == 1 {
		return errs[0]
	}
	return driver.Batch(errs)
}

// rush has many callers publish through p at the same time, several of them for each key,
// in calls of one message or a few, under deadlines that are too short at times. Each goes
// on to its next messages only when these are confirmed or it has given them up.
type rush struct {
	p       *core.OrderedPublisher
	to      core.Destination
	keys    int
	callers int // of each key
	each    int // messages of each caller
	patient time.Duration

	mu    sync.Mutex
	given map[string]bool // by id; guarded by mu
}

func (s *rush) run(t *testing.T, seed uint64) {
	s.given = map[string]bool{}
	var wg sync.WaitGroup
	for k := range s.keys {
		for c := range s.callers {
			rnd := rand.New(rand.NewPCG(seed, uint64(k*100+c)))
			wg.Go(func() { s.caller(t, rnd, fmt.Sprint("key-", k), c) })
		}
	}
	wg.Wait()
}

func (s *rush) caller(t *testing.T, rnd *rand.Rand, key string, c int) {
	for n := 0; n < s.each; {
		var msgs []*core.Message
		for range min(1+rnd.IntN(3), s.each-n) {
			msgs = append(msgs, keyed(fmt.Sprintf("%s/%d/%06d", key, c, n), key))
			n++
		}
		for try := 0; len(msgs) > 0; try++ {
			if try == 1000 {
				t.Errorf("%s is never confirmed; blocked are %+v", msgs[0].ID, s.p.Blocked())
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 1+time.Duration(rnd.Int64N(int64(s.patient))))
			begin := time.Now()
			limit, _ := ctx.Deadline()
			err := s.p.Publish(ctx, s.to, msgs...)
			if late := time.Since(limit); late > 500*time.Millisecond {
				t.Errorf("a call that began %v ago is %v late", time.Since(begin), late)
			}
			cancel()
			msgs = s.rest(rnd, key, msgs, err)
			if len(msgs) > 0 {
				time.Sleep(time.Duration(rnd.Int64N(int64(s.patient))))
			}
		}
	}
}

// rest are the messages to publish again. Now and then the one that failed is given up.
func (s *rush) rest(rnd *rand.Rand, key string, msgs []*core.Message, err error) (again []*core.Message) {
	for i, m := range msgs {
		err := driver.ResultAt(err, i)
		switch {
		case err == nil:
		case !errors.Is(err, core.ErrKeyBlocked) && rnd.IntN(10) == 0:
			s.mu.Lock()
			s.given[m.ID] = true
			s.mu.Unlock()
			for _, b := range s.p.Blocked() {
				if b.ID == m.ID {
					s.p.ResumeKey(s.to, key)
				}
			}
		default:
			again = append(again, m)
		}
	}
	return again
}

// judge proves by the numbers that no message of a key was stored behind a later one, and
// checks the numbers by what it knows of the messages.
func (s *rush) judge(t *testing.T, log []core.Message) {
	t.Helper()
	last, ofCaller := map[string]core.Sequence{}, map[string]int{}
	owner, stored := map[string]string{}, map[string]bool{}
	for i := range log {
		m := &log[i]
		seq, ok := core.SequenceOf(m)
		if !ok {
			t.Fatalf("message %s has no number: %v", m.ID, m.Headers)
		}
		if before, ok := last[m.Key]; ok {
			if order, ok := seq.Compare(before); !ok || order < 0 {
				t.Errorf("inversion: %s (%v) came after %v", m.ID, seq, before)
			}
		}
		last[m.Key] = seq
		if id, ok := owner[m.Key+seq.String()]; ok && id != m.ID {
			t.Errorf("number %v of key %s is that of %s and of %s", seq, m.Key, id, m.ID)
		}
		owner[m.Key+seq.String()] = m.ID
		stored[m.ID] = true
		caller, number := m.ID[:strings.LastIndex(m.ID, "/")], m.ID[strings.LastIndex(m.ID, "/")+1:]
		n, _ := strconv.Atoi(number)
		if n < ofCaller[caller] {
			t.Errorf("inversion: %s came after message %d of its caller", m.ID, ofCaller[caller])
		}
		ofCaller[caller] = n
	}
	for k := range s.keys {
		for c := range s.callers {
			for n := range s.each {
				id := fmt.Sprintf("key-%d/%d/%06d", k, c, n)
				if !stored[id] && !s.given[id] {
					t.Errorf("%s was confirmed and is not there", id)
				}
			}
		}
	}
}

func TestOrderedStorm(t *testing.T) {
	t.Parallel()
	gaps := 0
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			log := &below{}
			f := &flaky{next: log, slow: 10 * time.Millisecond, rnd: rnd}
			p := core.NewOrderedPublisher(f, core.OrderedOptions{
				Lanes: 1 + rnd.IntN(3), Queue: 1 + rnd.IntN(6), Batch: 1 + rnd.IntN(5), MaxBlocked: 3 + rnd.IntN(20),
				MaxNumbered: 1 + rnd.IntN(4), Sequence: true,
			})
			s := &rush{p: p, to: orders, keys: 1 + rnd.IntN(5), callers: 1 + rnd.IntN(3), each: 20, patient: 40 * time.Millisecond}
			s.run(t, seed)
			closeOrdered(t, p)
			s.judge(t, log.log)
			gaps += len(s.given)
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if gaps == 0 {
		t.Error("nothing was ever given up: the storm does not do what it should")
	}
}
