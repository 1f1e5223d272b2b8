//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/varal-go/varal/test/internal/brokers"
	"github.com/varal-go/varal/test/lab/history"
)

// testSplit: one of two members is cut off for longer than the broker's patience. The
// other takes over; the first must not go on as if nothing had happened once the
// network is back.
func testSplit(t *testing.T, r brokers.Report, lasts time.Duration) {
	s := newScene(t, r, true)
	c1 := s.consumer("c1", consumerArgs{target: target{Net: true}, Hold: 20 * time.Millisecond})
	s.consumer("c2", consumerArgs{Hold: 20 * time.Millisecond})
	s.publisher("p1", publisherArgs{Keys: 32, Rate: 100})
	s.resumed("the start")
	s.command(c1, history.OpFault, history.FaultBlackHole, "hole")
	s.pass(lasts)
	s.command(c1, history.OpHeal, history.FaultBlackHole, "heal")
	s.resumed("the heal")
	s.pass(5 * time.Second)
	s.drain(60 * time.Second)
	h := s.judge()
	heal := first(h, func(e *history.Event) bool { return e.Op == history.OpHeal })
	// Where nobody owns partitions, it is the messages that are lost.
	lost := first(h, func(e *history.Event) bool {
		return e.Proc == "c1" && (e.Op == history.OpLost || e.Op == history.OpSettled && e.Class == history.LeaseLost)
	})
	if lost == nil && s.broker == "sqs" && !takenOver(h) {
		t.Log("c1 had nothing under way when it was cut off, so nothing of it was lost")
		return
	}
	if lost == nil {
		t.Fatal("c1 never heard that it had lost")
	}
	// The checks have judged what this could do: overlap of a key, a stale settle.
	zombie := 0
	for i := range h.Events {
		if e := &h.Events[i]; e.Op == history.OpStart && e.Proc == "c1" && e.T > heal.T && e.T < lost.T {
			zombie++
		}
	}
	t.Logf("measured: %s loss known %.2fs after the heal; %d handlers started at c1 in between", s.broker, time.Duration(lost.T-heal.T).Seconds(), zombie)
}

// takenOver reports whether a message that c1 had begun was begun by another one too.
func takenOver(h *history.History) bool {
	begun := map[string]bool{}
	for i := range h.Events {
		e := &h.Events[i]
		switch {
		case e.Op != history.OpStart:
		case e.Proc == "c1":
			begun[e.ID] = true
		case begun[e.ID]:
			return true
		}
	}
	return false
}
