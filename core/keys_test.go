package core_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// orderThen is order by key with two attempts, a second apart, and a dead letter.
func orderThen(after core.AfterTerminal) core.Layer {
	return edit("p", func(p *core.Policy) {
		p.Concurrency = 1 // what the diary says is in one order
		p.Order, p.AfterTerminal, p.DeadLetter = core.ByKey, after, core.Queue("dlq")
		p.SetRetry(core.RetryPolicy{Base: time.Second, Cap: time.Second, Jitter: core.NoJitter, Attempts: 2})
	})
}

// diary notes what ran; poison fails as long as it is in bad.
type diary struct {
	mu  sync.Mutex
	ran []string
	bad map[string]bool
}

func (d *diary) handle(_ context.Context, m *core.Delivery) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ran = append(d.ran, m.ID)
	if d.bad[m.ID] {
		return errors.New("no")
	}
	return nil
}

func (d *diary) cure(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.bad, id)
}

func (d *diary) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.ran
	d.ran = nil
	return out
}

func wantRuns(t *testing.T, d *diary, when string, want ...string) {
	t.Helper()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if got := d.take(); !slices.Equal(got, want) {
		t.Errorf("%s: ran %v, want %v", when, got, want)
	}
}

func TestHaltedKeyWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		d := &diary{bad: map[string]bool{"a1": true, "a3": true}}
		bubble(t, f, d.handle, func(s *core.Consumer) {
			f.push(msg("a1", "a"), msg("b1", "b"), msg("a2", "a"), msg("a3", "a"), msg("a4", "a"))
			wantRuns(t, d, "at first", "a1", "b1", "a1")
			keys := s.Keys(0)
			if len(keys) != 1 || keys[0].Key != "a" || keys[0].State != "halted" || keys[0].ID != "a1" || keys[0].Attempt != 2 || keys[0].Waiting != 3 || keys[0].Error != "no" {
				t.Errorf("keys: %+v", keys)
			}
			if err := s.ResumeKey("b"); !errors.Is(err, core.ErrNotFound) {
				t.Errorf("resume of a key that is not halted: %v", err)
			}
			do(t, s.ResumeKey("a"))
			wantRuns(t, d, "resumed and still bad", "a1")
			do(t, s.ReplayKey("a"))
			wantRuns(t, d, "replayed and still bad", "a1", "a1")
			d.cure("a1")
			do(t, s.ResumeKey("a"))
			wantRuns(t, d, "cured", "a1", "a2", "a3", "a3")
			do(t, s.SkipKey("a"))
			wantRuns(t, d, "skipped", "a4")
			if st := s.Status(); st.InFlight != 0 || st.Keys != 0 || st.Totals.KeysSkipped != 1 {
				t.Errorf("left: %+v", st)
			}
		}, orderThen(core.HaltKey))
		dead := f.sent("dlq")
		if len(dead) != 1 || dead[0].ID != "a3" {
			t.Fatalf("dead letters %v", dead)
		}
		if v, _ := dead[0].Header(driver.HeaderFailureReason); v != "skipped" {
			t.Errorf("reason %q", v)
		}
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// A halted key ends with its subscription: nothing of it is settled, and the drain does
// not wait for an operator.
func TestDrainWithAHaltedKey(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.SettleMode{driver.Each, driver.UpTo} {
		f := newFake(mode)
		d := &diary{bad: map[string]bool{"a1": true}}
		bubble(t, f, d.handle, func(s *core.Consumer) {
			f.push(msg("a1", "a"), msg("a2", "a"), msg("b1", "b"))
			wantRuns(t, d, "at first", "a1", "b1", "a1")
			start := time.Now()
			do(t, s.Drain(context.Background()))
			if took := time.Since(start); took > time.Second {
				t.Errorf("the drain took %v", took)
			}
			if err := s.ResumeKey("a"); !errors.Is(err, core.ErrNotFound) {
				t.Errorf("resume after the end: %v", err)
			}
		}, orderThen(core.HaltKey))
		final, _ := f.settlements()
		for _, st := range final {
			if mode == driver.Each && st.Receipt.Seq != 3 || mode == driver.UpTo && st.Disposition == driver.Ack {
				t.Errorf("%v: settled %+v", mode, st)
			}
		}
	}
}

func TestDeadLetteredKeyTakesItsSuffixAlong(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	d := &diary{bad: map[string]bool{"a1": true}}
	bubble(t, f, d.handle, func(s *core.Consumer) {
		f.push(msg("a1", "a"), msg("a2", "a"), msg("b1", "b"), msg("a3", "a"))
		wantRuns(t, d, "at first", "a1", "b1", "a1")
		if keys := s.Keys(0); len(keys) != 1 || keys[0].State != "blocked" || keys[0].ID != "a1" {
			t.Errorf("keys: %+v", keys)
		}
		f.push(msg("a4", "a"))
		wantRuns(t, d, "blocked")
		for name, verb := range map[string]func(string) error{"skip": s.SkipKey, "replay": s.ReplayKey} {
			if err := verb("a"); !errors.Is(err, core.ErrNotFound) {
				t.Errorf("%s of a key that is not halted: %v", name, err)
			}
		}
		do(t, s.ResumeKey("a"))
		f.push(msg("a5", "a"))
		wantRuns(t, d, "resumed", "a5")
		d.mu.Lock()
		d.bad["a6"] = true
		d.mu.Unlock()
		f.push(msg("a6", "a"), msg("a7", "a"))
		wantRuns(t, d, "again", "a6", "a6")
		time.Sleep(time.Hour)
		f.push(msg("a8", "a"))
		wantRuns(t, d, "after its time", "a8")
	}, orderThen(core.DeadLetterKey))
	var ids []string
	for _, m := range f.sent("dlq") {
		ids = append(ids, m.ID)
		by, _ := m.Header(driver.HeaderBlockedBy)
		want := map[string]string{"a2": "a1", "a3": "a1", "a4": "a1", "a7": "a6"}[m.ID]
		if by != want {
			t.Errorf("%s is blocked by %q, want %q", m.ID, by, want)
		}
		if n, _ := m.Header(driver.HeaderAttempts); want != "" && n != "0" {
			t.Errorf("%s has %s attempts, it was never handled", m.ID, n)
		}
	}
	if !slices.Equal(ids, []string{"a1", "a2", "a3", "a4", "a6", "a7"}) {
		t.Errorf("dead letters %v", ids)
	}
}

func TestKeyPoliciesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]core.Layer{
		"halt without order":      edit("p", func(p *core.Policy) { p.AfterTerminal = core.HaltKey }),
		"dead letter without one": edit("p", func(p *core.Policy) { p.Order, p.AfterTerminal = core.ByKey, core.DeadLetterKey }),
		"halt and discard": edit("p", func(p *core.Policy) {
			p.Order, p.AfterTerminal, p.Exhausted = core.ByKey, core.HaltKey, core.ExhaustedDiscard
		}),
		"negative time":           edit("p", func(p *core.Policy) { p.BlockFor = -1 }),
		"more ends than are told": edit("p", func(p *core.Policy) { p.Quarantine = 8 }),
	} {
		_, err := client(newFake(driver.Each)).Start(t.Context(), in, (&diary{}).handle, l)
		if !errors.Is(err, core.ErrPermanent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeysBesideDeadLetters asks what keys wait for while their messages are on the way to
// the dead letter, unhandled: the time of such a failure was written without the lock, and
// the race detector sees it.
func TestKeysBesideDeadLetters(t *testing.T) {
	t.Parallel()
	const n = 200
	f := newFake(driver.UpTo)
	f.onPublish = func(driver.Destination, []*driver.Message) error { time.Sleep(100 * time.Microsecond); return nil }
	c := client(f)
	s, err := c.Start(t.Context(), in, func(context.Context, *core.Delivery) error { return nil }, orderThen(core.ContinueKey))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := msg("m"+strconv.Itoa(i), "k"+strconv.Itoa(i))
		m.Err = errors.New("not a message")
		f.push(m)
	}
	for late := time.Now().Add(30 * time.Second); s.Status().Totals.DeadLettered < n; {
		if time.Now().After(late) {
			t.Fatalf("%d of %d are in the dead letter", s.Status().Totals.DeadLettered, n)
		}
		s.Keys(0)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
