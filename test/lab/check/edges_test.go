package check_test

import (
	"slices"
	"testing"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// script numbers and times events of one clock.
func script(events ...history.Event) *history.History {
	for i := range events {
		e := &events[i]
		e.T = int64(i+1) * 1000
		e.Gen = max(e.Gen, 1)
		if e.ID != "" && e.Key == "" {
			e.Key = "k"
		}
	}
	return history.New(events)
}

func pub(id string, n int) []history.Event {
	return []history.Event{
		{Proc: "p", Op: history.OpPub, ID: id, N: n},
		{Proc: "p", Op: history.OpPubd, ID: id, N: n, Outcome: history.OK},
	}
}

func start(proc, id string, n int) history.Event {
	return history.Event{Proc: proc, Op: history.OpStart, ID: id, N: n}
}

func end(proc, id string) history.Event {
	return history.Event{Proc: proc, Op: history.OpEnd, ID: id, Outcome: history.OK}
}

func all(parts ...any) (out []history.Event) {
	for _, p := range parts {
		switch p := p.(type) {
		case history.Event:
			out = append(out, p)
		case []history.Event:
			out = append(out, p...)
		}
	}
	return out
}

func TestEdges(t *testing.T) {
	t.Parallel()
	kill := history.Event{Proc: "lab", Op: history.OpFault, Outcome: history.FaultKill, Dest: "a", N: 1}
	drained := history.Event{Proc: "lab", Op: history.OpDrained, Outcome: history.OK}
	at := func(e history.Event, position string) history.Event {
		e.Partition, e.Position = "0", position
		return e
	}
	commit := func(proc, position string) history.Event {
		return history.Event{Proc: proc, Op: history.OpCommit, Partition: "0", Position: position}
	}
	own := func(op history.Op, proc string) history.Event {
		return history.Event{Proc: proc, Op: op, Partition: "0"}
	}
	for _, c := range []struct {
		name, id string
		h        []history.Event
		want     check.Outcome
		witness  int // events, at least
	}{
		{
			"a start that the victim reports after the record of its kill", "V1",
			all(pub("p.1", 1), kill, start("a", "p.1", 1), start("b", "p.1", 1), end("b", "p.1")), check.Held, 0,
		},
		{
			"the same while another runs", "V1",
			all(pub("p.1", 1), start("b", "p.1", 1), kill, start("a", "p.1", 1), end("b", "p.1")), check.Broken, 2,
		},
		{
			"order of what nobody published is not judged", "V2",
			all(start("a", "p.1", 1), start("b", "p.2", 2), end("a", "p.1"), end("b", "p.2")), check.Inconclusive, 0,
		},
		{
			"the same, published", "V2",
			all(pub("p.1", 1), pub("p.2", 2), start("a", "p.1", 1), start("b", "p.2", 2), end("a", "p.1"), end("b", "p.2")), check.Broken, 3,
		},
		{
			"dead-lettered without a start, and redriven", "V2",
			all(pub("p.1", 1), pub("p.2", 2), history.Event{Proc: "q", Op: history.OpDead, ID: "p.1"},
				start("a", "p.2", 2), end("a", "p.2"), start("a", "p.1", 1), end("a", "p.1")), check.Held, 0,
		},
		{
			"a message is started below the commit, and was not received before", "V4",
			all(at(start("a", "p.2", 2), "1"), at(end("a", "p.2"), "1"), commit("a", "2"), at(start("a", "p.1", 1), "0"), at(end("a", "p.1"), "0")), check.Broken, 2,
		},
		{
			"one that was terminal before comes again below the commit", "V4",
			all(at(start("a", "p.1", 1), "0"), at(end("a", "p.1"), "0"), commit("a", "1"), at(start("b", "p.1", 1), "0"), at(end("b", "p.1"), "0"), drained), check.Held, 0,
		},
		{
			"received below the commit and dead-lettered later", "V4",
			all(commit("a", "1"), at(history.Event{Proc: "b", Op: history.OpRecv, ID: "p.1"}, "0"), history.Event{Proc: "q", Op: history.OpDead, ID: "p.1"}, drained), check.Held, 0,
		},
		{
			"received below the commit and never heard of again", "V4",
			all(commit("a", "1"), at(history.Event{Proc: "b", Op: history.OpRecv, ID: "p.1"}, "0"), drained), check.Broken, 2,
		},
		{"a commit after the revoke", "V4", all(own(history.OpAssign, "a"), own(history.OpRevoke, "a"), commit("a", "1")), check.Broken, 2},
		{"a commit after revoke and assign", "V4", all(own(history.OpRevoke, "a"), own(history.OpAssign, "a"), commit("a", "1")), check.Held, 0},
		{"a commit of the next owner", "V4", all(own(history.OpRevoke, "a"), own(history.OpAssign, "b"), commit("b", "1")), check.Held, 0},
		{"a commit that was on its way when the partition was lost", "V4", all(own(history.OpLost, "a"), commit("a", "1")), check.Held, 0},
		{"growth", "V7", []history.Event{
			{Proc: "a", Op: history.OpStat, Class: history.Resource, Outcome: "timers"},
			{Proc: "b", Op: history.OpStat, Class: history.Resource, Outcome: "timers", N: 9},
			{Proc: "a", Op: history.OpStat, Class: history.Resource, Outcome: "timers", N: 1},
		}, check.Broken, 2},
	} {
		h := script(c.h...)
		r := check.Named(c.id)[0].Fn(h, check.Params{})
		if r.Outcome != c.want || len(r.Witness) < c.witness || !slices.IsSorted(r.Witness) {
			t.Errorf("%s: %s says %s (%s), witness %v; want %s", c.name, c.id, r.Outcome, r.Why, r.Witness, c.want)
		}
	}
}
