//go:build unix

package faults

import (
	"strconv"
	"testing"
	"time"

	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/history"
)

// testKill: SIGKILL hits a process whose handler of a chosen message has started and
// holds. Its work runs elsewhere, nothing is lost, what runs twice was in its hands.
func testKill(t *testing.T, r brokers.Report, keyed bool) {
	s := newScene(t, r, keyed)
	victim := "p1." + strconv.Itoa(60+s.rng.IntN(60))
	a := consumerArgs{Hold: 20 * time.Millisecond, HoldIDs: map[string]time.Duration{victim: 2 * time.Second}}
	s.consumer("c1", a)
	s.consumer("c2", a)
	s.publisher("p1", publisherArgs{Keys: 32, Rate: 60})
	var killed *chaos.Proc
	s.aim(chaos.Aim{ID: victim, Hold: 150 * time.Millisecond, Do: func(p *chaos.Proc) error {
		killed = p
		return p.Kill()
	}})
	s.await("the message elsewhere", 3*s.limits.takeover, func(e *history.Event) bool {
		return e.Op == history.OpStart && e.ID == victim && e.Proc != killed.Name()
	})
	s.drain(30 * time.Second)
	h := s.judge("V5")
	kill := first(h, func(e *history.Event) bool { return e.Op == history.OpFault && e.Outcome == history.FaultKill })
	s.takeover(h, "takeover after SIGKILL", killed, kill, s.limits.takeover)
}

// takeover measures how long each message that was running at p when the fault came
// waited for its start elsewhere.
func (s *scene) takeover(h *history.History, what string, p *chaos.Proc, fault *history.Event, limit time.Duration) {
	s.t.Helper()
	running := map[string]bool{}
	var worst time.Duration
	held, moved := 0, 0
	for i := range h.Events {
		e := &h.Events[i]
		mine := e.Proc == p.Name() && e.Gen == p.Gen()
		switch {
		case mine && e.T <= fault.T && e.Op == history.OpStart:
			running[e.ID] = true
		case mine && e.T <= fault.T && e.Op == history.OpEnd:
			delete(running, e.ID)
		case !mine && e.T > fault.T && e.Op == history.OpStart && running[e.ID]:
			delete(running, e.ID)
			moved++
			worst = max(worst, time.Duration(e.T-fault.T))
		}
	}
	held = moved + len(running)
	s.t.Logf("%d handlers were running, %d messages moved", held, moved)
	if moved == 0 {
		s.t.Errorf("nothing that %s held ran elsewhere", p.Name())
	}
	s.within(what, worst, limit)
}
