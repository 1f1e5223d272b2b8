//go:build unix

package faults

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/history"
)

// testAlarm: RabbitMQ's memory alarm blocks publishers. Their calls return by their
// ctx, consumers work on, Close keeps its deadline, and traffic resumes afterwards.
func testAlarm(t *testing.T, r brokers.Report) {
	s := newScene(t, r, false)
	s.publisher("p0", publisherArgs{Rate: 400, Senders: 8, Count: 400})
	acked := 0
	s.await("the backlog", 30*time.Second, func(e *history.Event) bool {
		if e.Op == history.OpPubd && e.Outcome == history.OK {
			acked++
		}
		return acked == 400
	})
	// 400 messages, 4 at a time, 100 ms each: 10 s of work, more than the alarm.
	s.consumer("c1", consumerArgs{Hold: 100 * time.Millisecond, Concurrency: 4})
	s.publisher("p1", publisherArgs{Rate: 20, Timeout: time.Second})
	leaver := s.publisher("p2", publisherArgs{Rate: 20, Timeout: time.Second, Body: 64 << 10})
	s.resumedPublishing("p1", 20*time.Second)
	s.resumedPublishing("p2", 20*time.Second)

	s.ctl(r, "set_vm_memory_high_watermark", "absolute", "1MB")
	cleared := false
	clearAlarm := func() {
		if !cleared {
			cleared = true
			s.ctl(r, "set_vm_memory_high_watermark", "0.4")
		}
	}
	t.Cleanup(clearAlarm)
	s.lab.Emit(history.Event{Op: history.OpLog, Class: "alarm"})
	failed := func(name string) func(e *history.Event) bool {
		return func(e *history.Event) bool {
			return e.Op == history.OpPubd && e.Proc == name && e.Outcome != history.OK
		}
	}
	s.await("a publish that the alarm stopped", 10*time.Second, failed("p1"))
	s.await("a publish that the alarm stopped", 10*time.Second, failed("p2"))
	before := s.handled()
	s.pass(2 * time.Second)
	s.end(leaver, time.Second+closeLimit+time.Second) // its publish, its Close, and 1 s
	after := s.handled()
	if after <= before {
		t.Errorf("consumers stood still: %d messages handled before and after 2 s of alarm", before)
	}
	clearAlarm()
	began := time.Now()
	s.resumedPublishing("p1", 30*time.Second)
	s.within("a publish confirmed after the alarm", time.Since(began), s.limits.resume)
	s.drain(40 * time.Second)
	h := s.judge("V5")
	t.Logf("measured: %d messages handled during 2 s of alarm; publishes of p1: %s; of p2: %s", after-before, outcomes(h, "p1"), outcomes(h, "p2"))
}

// resumedPublishing waits for a confirm of what was published after now.
func (s *scene) resumedPublishing(name string, limit time.Duration) {
	s.t.Helper()
	top := s.published()
	s.await("a confirm for "+name, limit, func(e *history.Event) bool {
		from, n := split(e.ID)
		return e.Op == history.OpPubd && e.Outcome == history.OK && from == name && n > top[name]
	})
}

// handled counts the handlers that ended well so far.
func (s *scene) handled() int {
	n := 0
	for _, e := range s.lab.History().Events {
		if e.Op == history.OpEnd && e.Outcome == history.OK {
			n++
		}
	}
	return n
}

func (s *scene) ctl(r brokers.Report, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.Env["VARAL_RABBITMQ_CTL"], args...).CombinedOutput() //nolint:gosec // our own wrapper
	if err != nil {
		s.t.Errorf("rabbitmqctl %v: %v: %s", args, err, out)
	}
}
