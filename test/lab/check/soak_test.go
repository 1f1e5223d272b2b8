package check_test

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// stream feeds a check an honest run of n messages over so many keys, each event
// made when it is needed: what is left on the heap is the check's own memory.
func stream(s check.Stream, n, keys int) {
	var now int64
	emit := func(e history.Event) {
		now += 1000
		e.T, e.Gen = now, 1
		s.Observe(&e)
	}
	for i := range n {
		key, num := "k"+strconv.Itoa(i%keys), i/keys+1
		m := history.Event{
			ID: "p" + strconv.Itoa(i%4) + "." + strconv.Itoa(i/4+1), Key: key, N: num, Dest: "q",
			Partition: strconv.Itoa(i % 8), Position: strconv.Itoa(i / 8),
		}
		do := func(proc string, op history.Op, outcome string) {
			e := m
			e.Proc, e.Op, e.Outcome = proc, op, outcome
			if proc != "pub" {
				e.Group, e.Attempt = "g", 1
			}
			emit(e)
		}
		do("pub", history.OpPub, "")
		do("pub", history.OpPubd, history.OK)
		do("w1", history.OpRecv, "")
		do("w1", history.OpStart, "")
		do("w1", history.OpEnd, history.OK)
		do("w1", history.OpSettled, history.Ack)
		if i%64 == 63 {
			m.Position = strconv.Itoa(i/8 + 1)
			for p := range 8 {
				m.Partition = strconv.Itoa(p)
				do("w1", history.OpCommit, "")
			}
		}
	}
	emit(history.Event{Op: history.OpDrained, Outcome: history.OK})
}

// A soak of 40 million messages must fit: no check may keep more than 100 bytes a
// message.
func TestMemoryPerMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory: not in short runs")
	}
	const n = 100_000
	for _, c := range check.All() {
		var before, after runtime.MemStats
		s := c.New(check.Params{Groups: []string{"g"}, Attempts: 3, InFlight: 8})
		runtime.GC()
		runtime.ReadMemStats(&before)
		stream(s, n, 1000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		per := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / n
		r := s.Result()
		t.Logf("%-8s %6.1f B a message, %s", c.ID, per, r.Outcome)
		if per > 100 {
			t.Errorf("%s keeps %.0f B a message", c.ID, per)
		}
		if r.Outcome == check.Broken {
			t.Errorf("%s: %s", c.ID, r.Why)
		}
	}
}

func BenchmarkChecks(b *testing.B) {
	for _, c := range check.All() {
		b.Run(c.ID, func(b *testing.B) {
			s := c.New(check.Params{Groups: []string{"g"}, Attempts: 3, InFlight: 8})
			b.ResetTimer()
			stream(s, b.N, 1000)
		})
	}
}
