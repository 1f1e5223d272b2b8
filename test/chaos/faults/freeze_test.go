//go:build unix

package faults

import (
	"cmp"
	"slices"
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
	s.prepare = func(h *history.History) { s.thawed(h, frozen) }
	h := s.judge()
	freeze := first(h, func(e *history.Event) bool { return e.Op == history.OpFault && e.Outcome == history.FaultFreeze })
	thaw := first(h, func(e *history.Event) bool { return e.Op == history.OpHeal && e.Outcome == history.FaultFreeze })
	s.takeover(h, "takeover after SIGSTOP", frozen, freeze, s.limits.frozen)
	if lost := first(h, told); lost != nil {
		s.within("thaw to loss known", time.Duration(lost.T-thaw.T), 10*time.Second)
	}
}

// thawed takes out of a history what a thawed process did before it could know that it
// had lost, and judges that by itself. Between SIGCONT and the answer to its first
// heartbeat it goes on with what it had fetched, which the other has done meanwhile: it
// may start those messages (ordering.md §4.8: possible, and fenceable), and none of its
// settles may be accepted. The checks know no cause for such a start. What it wrote
// before the freeze and heard the answer of only now happened before the freeze.
func (s *scene) thawed(h *history.History, p *chaos.Proc) {
	s.t.Helper()
	mine := func(e *history.Event) bool { return e.Proc == p.Name() && e.Gen == p.Gen() }
	mark := func(op history.Op) *history.Event {
		return first(h, func(e *history.Event) bool { return e.Op == op && e.Outcome == history.FaultFreeze })
	}
	freeze, heal := mark(history.OpFault), mark(history.OpHeal)
	// The heal is recorded after the signal, the fault before it: what is nearer to the
	// heal came after the freeze.
	from := freeze.T + (heal.T-freeze.T)/2
	lost := map[string]int64{}
	for i := range h.Events {
		if e := &h.Events[i]; mine(e) && e.Op == history.OpLost && e.T > from && lost[e.Partition] == 0 {
			lost[e.Partition] = e.T
		}
	}
	stale, began, done := map[string]bool{}, int64(0), 0
	kept := h.Events[:0:0]
	for _, e := range h.Events {
		if mine(&e) && e.Op == history.OpLog && e.Class == settling {
			began = e.T
		}
		if !mine(&e) || e.T <= from {
			kept = append(kept, e)
			continue
		}
		before := e.T <= lost[e.Partition]
		switch e.Op {
		case history.OpRecv, history.OpStart:
			if before {
				stale[e.ID] = true
				if e.Op == history.OpStart {
					done++
				}
				continue
			}
			delete(stale, e.ID)
		case history.OpEnd:
			if stale[e.ID] {
				continue
			}
		case history.OpSettled, history.OpCommit:
			if e.Class == "" && before && began < from {
				e.T = freeze.T
			} else if e.Class == "" && (before || stale[e.ID]) {
				s.t.Errorf("a settle that the thawed process made before it knew of its loss was accepted: %+v", e)
			}
		}
		kept = append(kept, e)
	}
	slices.SortStableFunc(kept, func(a, b history.Event) int { return cmp.Compare(a.T, b.T) })
	h.Events = kept
	s.t.Logf("measured: %s started %d messages after its thaw before it knew of its loss", p.Name(), done)
}
