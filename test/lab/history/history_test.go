package history_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/varal-go/varal/test/lab/history"
)

// lines records each Write.
type lines struct{ writes [][]byte }

func (l *lines) Write(p []byte) (int, error) {
	l.writes = append(l.writes, bytes.Clone(p))
	return len(p), nil
}

func TestWriterWritesWholeLinesConcurrently(t *testing.T) {
	t.Parallel()
	var out lines
	w := history.NewWriter(&out, "w1", 3, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if err := w.Emit(history.Event{Op: history.OpStart, ID: "a.1", Key: "käse\n"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := w.Emit(history.Event{Op: history.OpLog, Class: strings.Repeat("x", history.MaxLine)}); !errors.Is(err, history.ErrTooLong) {
		t.Errorf("long line: %v", err)
	}
	if err := w.Emit(history.Event{Op: history.OpBye}); err != nil {
		t.Error(err)
	}
	var events []history.Event
	rep, err := history.Read(bytes.NewReader(bytes.Join(out.writes, nil)), func(e history.Event) error {
		events = append(events, e)
		return nil
	})
	if err != nil || rep != (history.Report{Lines: 801}) || len(out.writes) != 801 {
		t.Fatalf("%+v, %v, %d writes", rep, err, len(out.writes))
	}
	for i, e := range events {
		if e.Seq != i+1 || e.Proc != "w1" || e.Gen != 3 || i > 0 && e.T < events[i-1].T {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
	if h := history.New(events); len(h.Problems) > 0 {
		t.Error(h.Problems)
	}
}

func TestReadIsTotal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		want     history.Report
	}{
		{"empty", "", history.Report{}},
		{"unknown field and op", `{"t":1,"op":"dance","shoes":2}` + "\n", history.Report{Lines: 1}},
		{"torn", `{"t":1,"op":"bye"}` + "\n" + `{"t":2,"op":"st`, history.Report{Lines: 1, Torn: true}},
		{"whole, but no newline", `{"t":1,"op":"bye"}`, history.Report{Torn: true}},
		{"bad in the middle", "{}\nx\n" + `{"t":1,"op":"bye"}` + "\n\n", history.Report{Lines: 1, Bad: 2, First: 1}},
		{"too long", `{"t":1,"op":"` + strings.Repeat("x", 200_000) + "\"}\n" + `{"t":1,"op":"bye"}` + "\n", history.Report{Lines: 1, Bad: 1, First: 1}},
		{"number out of range", `{"t":1e400,"op":"bye"}` + "\n", history.Report{Bad: 1, First: 1}},
	} {
		got, err := history.Read(strings.NewReader(c.in), func(history.Event) error { return nil })
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	stop := errors.New("enough")
	if _, err := history.Read(strings.NewReader(`{"t":1,"op":"bye"}`+"\n"), func(history.Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("each's error: %v", err)
	}
	if _, err := history.Read(io.MultiReader(strings.NewReader("x"), broken{}), func(history.Event) error { return nil }); err == nil {
		t.Error("a read error was swallowed")
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestBefore(t *testing.T) {
	t.Parallel()
	at := func(proc string, gen, seq int, tt, eps int64) *history.Event {
		return &history.Event{Proc: proc, Gen: gen, Seq: seq, T: tt, Eps: eps}
	}
	for _, c := range []struct {
		name string
		a, b *history.Event
		want bool
	}{
		{"one process, by number", at("w", 1, 1, 5, 9), at("w", 1, 2, 5, 9), true},
		{"one process, back", at("w", 1, 2, 5, 9), at("w", 1, 1, 5, 9), false},
		{"one process, by incarnation", at("w", 1, 9, 5, 9), at("w", 2, 1, 5, 9), true},
		{"two, clear", at("v", 1, 1, 5, 2), at("w", 1, 1, 10, 2), true},
		{"two, touching", at("v", 1, 1, 5, 3), at("w", 1, 1, 10, 2), false},
		{"overflow", at("v", 1, 1, math.MaxInt64, 5), at("w", 1, 1, math.MinInt64, 5), false},
		{"negative error", at("v", 1, 1, 5, -100), at("w", 1, 1, 5, -100), false},
	} {
		if got := history.Before(c.a, c.b); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	h := history.New(nil)
	if h.Before(0, 1) || h.Before(-1, 0) {
		t.Error("an index out of range is before something")
	}
}

func TestMergeUsesTheBestPing(t *testing.T) {
	t.Parallel()
	h := history.Merge(
		history.Log{Proc: "lab", Gen: 1, Events: []history.Event{{Proc: "lab", Gen: 1, T: 1_000_500, Op: history.OpDrained}}},
		history.Log{
			Proc: "w", Gen: 1, Events: []history.Event{{Proc: "w", Gen: 1, Seq: 1, T: 400, Op: history.OpTick}},
			Pings: []history.Ping{{Sent: 1_000_000, Received: 1_900_000, Stamp: 200_000}, {Sent: 1_000_000, Received: 1_000_200, Stamp: 100}},
		},
	)
	if len(h.Problems) > 0 || len(h.Events) != 2 {
		t.Fatalf("%+v", h)
	}
	if e := h.Events[0]; e.T != 1_000_400 || e.Eps != 101 {
		t.Errorf("%+v", e)
	}
	if h.Before(0, 1) {
		t.Error("100 ns apart with an error of 101: concurrent")
	}
	if _, _, jumped := history.Offset([]history.Ping{{Sent: 0, Received: 10, Stamp: 5}, {Sent: 2e9, Received: 2e9 + 10, Stamp: 3e9}}); !jumped {
		t.Error("a leap of 1 s was not seen")
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	ev := func(seq int, op history.Op) history.Event {
		return history.Event{Proc: "w", Gen: 1, Seq: seq, T: int64(seq), Op: op}
	}
	kill := history.Event{Proc: "lab", Gen: 1, T: 9, Op: history.OpFault, Outcome: history.FaultKill, Dest: "w", N: 1}
	missed := kill
	missed.Outcome = history.FaultMissed
	back := ev(2, history.OpTick)
	back.T = 0
	for _, c := range []struct {
		name   string
		events []history.Event
		want   int
	}{
		{"whole", []history.Event{ev(1, history.OpHello), ev(2, history.OpBye)}, 0},
		{"killed", []history.Event{ev(1, history.OpHello), ev(2, history.OpTick), kill}, 0},
		{"no end", []history.Event{ev(1, history.OpHello), ev(2, history.OpTick)}, 1},
		{"kill not delivered", []history.Event{ev(1, history.OpHello), missed}, 1},
		{"gap", []history.Event{ev(1, history.OpHello), ev(3, history.OpBye)}, 1},
		{"first missing", []history.Event{ev(2, history.OpBye)}, 1},
		{"twice", []history.Event{ev(1, history.OpTick), ev(1, history.OpTick)}, 1},
		{"clock went back", []history.Event{ev(1, history.OpTick), back}, 1},
		{"made by hand", []history.Event{{Op: history.OpTick}, {Op: history.OpTick}}, 0},
	} {
		if h := history.New(c.events); len(h.Problems) != c.want {
			t.Errorf("%s: %q", c.name, h.Problems)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"seq":1,"proc":"w","gen":1,"t":5,"eps":2,"op":"start","id":"a.1","fence":7}` + "\n" + `{"t`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var events []history.Event
		rep, err := history.Read(bytes.NewReader(data), func(e history.Event) error {
			events = append(events, e)
			return nil
		})
		if err != nil || rep.Lines != len(events) {
			t.Fatal(rep, err)
		}
		// What was read is written and read back as it is.
		var b bytes.Buffer
		if err := history.Write(&b, events); err != nil {
			t.Fatal(err)
		}
		i := 0
		if _, err := history.Read(&b, func(e history.Event) error {
			if len(e.ID)+len(e.Key)+len(e.Class) < 4000 && e != events[i] {
				t.Fatalf("%+v, then %+v", events[i], e)
			}
			i++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		history.Merge(history.Log{Events: events, Report: rep, Pings: []history.Ping{{Sent: 1, Received: 3, Stamp: 2}}})
		if len(events) > 1 {
			history.Before(&events[0], &events[1])
		}
	})
}
