package state_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

// FuzzDecode gives the decoder any bytes, and the same with a right checksum, so that
// all of it is reached.
func FuzzDecode(f *testing.F) {
	for seed := range uint64(8) {
		l := randomLog(rand.New(rand.NewPCG(seed, 13)), 60, true)
		for enc := state.Vector; enc <= state.BitmapDeflated; enc++ {
			if b := state.Build(l.snapshot(true), enc, noLimit); b != nil {
				f.Add(b, l.base, l.high+1)
				f.Add(b[2:len(b)-4], l.base, l.high+1)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, base, hwm int64) {
		for _, in := range [][]byte{b, seal(append([]byte("S1"), b...), source, partition, base)} {
			c, err := state.Decode(in, source, partition, base, hwm, keyFn)
			if err != nil {
				if c != nil || reason(err) == 0 {
					t.Fatalf("%v, %v", c, err)
				}
				continue
			}
			if len(in) > 0 && (c.High() < base || c.High() >= hwm) {
				t.Fatalf("High %d, base %d, high watermark %d", c.High(), base, hwm)
			}
			for _, pos := range []int64{base - 1, base, base + 1, base + 77, c.High() - 1, c.High(), c.High() + 1, hwm - 1, hwm} {
				a, due := c.Attempts(pos)
				done := c.Done(pos, "k1", true) || c.Done(pos, "", false)
				if a < 0 || due < 0 || done && (pos < base || pos > c.High() || a > 0 || due > 0) {
					t.Fatalf("position %d: done %v, attempts %d, due %d (base %d, high %d)", pos, done, a, due, base, c.High())
				}
			}
		}
	})
}

// FuzzRoundTrip makes a log from the bytes, two for each record, and holds the result
// against the model.
func FuzzRoundTrip(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 14))
	for _, n := range []int{0, 2, 20, 200, 2000} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b, uint16(50), true, int64(0))
		f.Add(b, uint16(7000), false, int64(1<<40))
	}
	f.Fuzz(func(t *testing.T, b []byte, limit uint16, ordered bool, base int64) {
		l := log{base: max(base, 0), high: max(base, 0) - 1}
		if l.base > 1<<62 {
			t.Skip()
		}
		held := map[string]bool{}
		for pos := l.base; len(b) > 1; b = b[2:] {
			pos += int64(b[0]&3) * int64(b[0]&3)
			r := record{pos: pos, hasKey: b[1]&15 != 0, done: b[0]&0x30 != 0}
			if r.hasKey {
				r.key = fmt.Sprint(b[1] & 15)
				if ordered && held[r.key] {
					r.done = false
				}
				held[r.key] = held[r.key] || !r.done
			}
			if !r.done && b[0]&0x40 != 0 {
				r.attempts = 1 + int(b[1])*3
				r.due = int64(b[1]>>5) * 600_000_000
			}
			l.records, l.high = append(l.records, r), pos
			pos++
		}
		s := l.snapshot(ordered)
		for _, limit := range []int{int(limit), noLimit} {
			out := state.Encode(s, limit)
			if len(out) > limit {
				t.Fatalf("%d bytes, limit %d", len(out), limit)
			}
			if out == nil && limit == noLimit && (l.lastDone() >= l.base || l.anyFailed()) {
				t.Fatal("nothing stored")
			}
			if out == nil {
				continue
			}
			c := l.decode(t, out)
			l.law(t, c)
			l.exact(t, c)
			if limit == noLimit && c.High() < l.lastDone() {
				t.Fatalf("up to %d, completed up to %d", c.High(), l.lastDone())
			}
		}
	})
}
