package check_test

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/varal-go/varal/test/lab/check"
	"github.com/varal-go/varal/test/lab/history"
)

// stream feeds a check an honest run over so many keys, each event made when it is
// needed: what is left on the heap is the check's own memory. It goes from one message
// up to another, so that a run can be looked at in the middle.
func stream(s check.Stream, from, to, keys int) {
	now := int64(from) * 10_000 // a message has at most so many events a microsecond apart
	emit := func(e history.Event) {
		now += 1000
		e.T, e.Gen = now, 1
		s.Observe(&e)
	}
	for i := from; i < to; i++ {
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
}

// drained ends a run.
func drained(s check.Stream) {
	s.Observe(&history.Event{Op: history.OpDrained, Outcome: history.OK, T: 1 << 60})
}

// A soak of 40 million messages must fit: no check may keep more than 100 bytes a
// message. A window of the latest messages is filled before the first that is measured.
func TestMemoryPerMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory: not in short runs")
	}
	const n, keys = 25_600, 250
	for _, c := range check.All() {
		s := c.New(check.Params{Groups: []string{"g"}, Attempts: 3, InFlight: 8})
		stream(s, 0, n/2, keys)
		before := heap()
		stream(s, n/2, n, keys)
		per := float64(heap()-before) / (n - n/2)
		drained(s)
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

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below
}

func BenchmarkChecks(b *testing.B) {
	for _, c := range check.All() {
		b.Run(c.ID, func(b *testing.B) {
			s := c.New(check.Params{Groups: []string{"g"}, Attempts: 3, InFlight: 8})
			b.ResetTimer()
			stream(s, 0, b.N, 1000)
			drained(s)
		})
	}
}
