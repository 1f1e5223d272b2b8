//go:build unix

package faults

import (
	"context"
	"testing"
	"time"

	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/history"
)

// testRestart: the broker ends under traffic, once in good order and, where it keeps its
// messages over that, once by SIGKILL.
// What was confirmed is consumed, every publish ends by its deadline, and consuming
// goes on soon after the broker answers again.
func testRestart(t *testing.T, r brokers.Report, keyed, kill bool) {
	s := newScene(t, r, keyed)
	a := consumerArgs{Hold: 5 * time.Millisecond}
	s.consumer("c1", a)
	s.consumer("c2", a)
	s.publisher("p1", publisherArgs{Keys: 32, Rate: 80, Senders: 8})
	names := []string{"resume after SIGTERM of the broker", "resume after SIGKILL of the broker"}
	if !kill {
		names = names[:1]
	}
	for i, name := range names {
		// Queues must be older than 2 s before a SIGKILL: RabbitMQ itself forgets
		// younger ones. The moment after that is the seed's.
		s.pass(2500*time.Millisecond + time.Duration(s.rng.IntN(1000))*time.Millisecond)
		s.lab.Emit(history.Event{Op: history.OpFault, Outcome: history.FaultBroker})
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
		err := own.restart(ctx, r.Broker, i == 1)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		s.lab.Emit(history.Event{Op: history.OpHeal, Outcome: history.FaultBroker})
		s.resumed(name)
	}
	s.drain(60 * time.Second)
	h := s.judge()
	t.Logf("measured: publishes: %s", outcomes(h, ""))
	i := 0
	for j := range h.Events {
		e := &h.Events[j]
		if e.Op != history.OpHeal || e.Outcome != history.FaultBroker {
			continue
		}
		s.measureResume(h, names[i], e)
		i++
	}
}

// pass lets traffic flow. It is the duration of a phase and synchronises nothing.
func (s *scene) pass(d time.Duration) { time.Sleep(d) }
