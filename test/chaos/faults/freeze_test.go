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

// testFreeze: SIGSTOP in the middle of a handler, long enough for the other process to
// take over; then SIGCONT. The thawed process learns that it has lost, nothing it
// settles is accepted, and it comes back to work.
func testFreeze(t *testing.T, r brokers.Report, keyed bool) {
	s := newScene(t, r, keyed)
	victim := "p1." + strconv.Itoa(40+s.rng.IntN(40))
	a := consumerArgs{Hold: 20 * time.Millisecond, HoldIDs: map[string]time.Duration{victim: time.Second}}
	a.URL = s.url
	if r.Broker == "rabbitmq" {
		a.URL += "?heartbeat=5s" // the lease of a connection
	}
	s.consumer("c1", a)
	s.consumer("c2", a)
	s.publisher("p1", publisherArgs{Keys: 32, Rate: 40})
	var frozen *chaos.Proc
	s.aim(chaos.Aim{ID: victim, Hold: 150 * time.Millisecond, Do: func(p *chaos.Proc) error {
		frozen = p
		return p.Freeze()
	}})
	s.await("the message elsewhere", 2*s.limits.frozen, func(e *history.Event) bool {
		return e.Op == history.OpStart && e.ID == victim && e.Proc != frozen.Name()
	})
	s.await("its end elsewhere", 10*time.Second, func(e *history.Event) bool {
		return e.Op == history.OpEnd && e.ID == victim && e.Proc != frozen.Name()
	})
	if err := frozen.Thaw(); err != nil {
		t.Fatal(err)
	}
	told := func(e *history.Event) bool {
		return e.Proc == frozen.Name() && (e.Op == history.OpLost || e.Op == history.OpSettled && e.Class == history.LeaseLost)
	}
	s.await("the loss at the thawed process", 20*time.Second, told)
	top := s.published()
	s.await("the thawed process at work again", 30*time.Second, func(e *history.Event) bool {
		_, n := split(e.ID)
		return e.Op == history.OpStart && e.Proc == frozen.Name() && n > top["p1"]
	})
	s.drain(30 * time.Second)
	h := s.judge()
	freeze := first(h, func(e *history.Event) bool { return e.Op == history.OpFault && e.Outcome == history.FaultFreeze })
	thaw := first(h, func(e *history.Event) bool { return e.Op == history.OpHeal && e.Outcome == history.FaultFreeze })
	s.takeover(h, "takeover after SIGSTOP", frozen, freeze, s.limits.frozen)
	if lost := first(h, told); lost != nil {
		s.within("thaw to loss known", time.Duration(lost.T-thaw.T), 10*time.Second)
	}
	if e := first(h, func(e *history.Event) bool {
		return e.Op == history.OpSettled && e.ID == victim && e.Proc == frozen.Name() && e.Class == "" && e.T > thaw.T
	}); e != nil {
		t.Errorf("a settle of the thawed process was accepted: %+v", e)
	}
}
