package plant

import (
	"slices"

	"github.com/varal-go/varal/test/lab/history"
)

// made plants the bugs of the lab itself, and sorts.
func (t *toy) made() Made {
	events := t.out
	switch t.o.Bug {
	case LinesMissing:
		n := 0
		events = slices.DeleteFunc(events, func(e history.Event) bool {
			if e.Op == history.OpStart {
				n++
			}
			return e.Op == history.OpStart && n%100 == 0
		})
		t.planted = n / 100
	case TailMissing:
		last := t.workers[0].seq
		events = slices.DeleteFunc(events, func(e history.Event) bool {
			return e.Proc == "w1" && e.Gen == t.workers[0].gen && e.Seq > max(last-20, 1)
		})
		t.planted++
	case ClockJumped:
		return t.jumped(events)
	}
	return Made{History: history.New(events), Planted: t.planted}
}

// jumped gives the events of one worker back to its own clock, which leaps, and
// merges with the pings that were taken before and after.
func (t *toy) jumped(events []history.Event) Made {
	const leap = int64(1e9)
	half := t.now / 2
	byProc := map[string]*history.Log{}
	var order []string
	for _, e := range events {
		name := e.Proc
		if byProc[name] == nil {
			byProc[name] = &history.Log{Proc: name, Gen: e.Gen}
			order = append(order, name)
		}
		if name == "w1" && e.T > half {
			e.T += leap
		}
		byProc[name].Events = append(byProc[name].Events, e)
	}
	byProc["w1"].Pings = []history.Ping{
		{Sent: 1e9, Stamp: 1e9 + 40_000, Received: 1e9 + 80_000},
		{Sent: t.now, Stamp: t.now + leap + 50_000, Received: t.now + 100_000},
	}
	logs := make([]history.Log, 0, len(order))
	for _, name := range order {
		logs = append(logs, *byProc[name])
	}
	return Made{History: history.Merge(logs...), Planted: 1}
}
