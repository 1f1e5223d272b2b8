package state_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

const noLimit = 1 << 20

func TestEveryRecordAsTheModelSays(t *testing.T) {
	t.Parallel()
	for round := range 2000 {
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		ordered := round%2 == 0
		l := randomLog(rnd, 1+rnd.IntN(300), ordered)
		b := state.Encode(l.snapshot(ordered), noLimit)
		if b == nil {
			if l.lastDone() >= l.base || l.anyFailed() {
				t.Fatalf("seed %d: nothing stored", round)
			}
			continue
		}
		c := l.decode(t, b)
		l.law(t, c)
		l.exact(t, c)
		if c.High() < l.lastDone() {
			t.Fatalf("seed %d: up to %d, completed up to %d", round, c.High(), l.lastDone())
		}
		for _, r := range l.records { // also behind High
			if a, due := c.Attempts(r.pos); a != r.attempts || due != r.due {
				t.Fatalf("seed %d: record %d: %d attempts, due %d; want %d, %d", round, r.pos, a, due, r.attempts, r.due)
			}
		}
	}
}

func TestEachEncodingIsExact(t *testing.T) {
	t.Parallel()
	seen := map[byte]int{}
	for round := range 200 {
		rnd := rand.New(rand.NewPCG(uint64(round), 2))
		l := randomLog(rnd, 1+rnd.IntN(2000), true)
		for enc := state.Vector; enc <= state.BitmapDeflated; enc++ {
			b := state.Build(l.snapshot(true), enc, noLimit)
			if b == nil {
				continue
			}
			if b[2] != enc {
				t.Fatalf("seed %d: encoding %d asked, got %d", round, enc, b[2])
			}
			seen[enc]++
			c := l.decode(t, b)
			l.law(t, c)
			l.exact(t, c)
		}
	}
	for enc := state.Vector; enc <= state.BitmapDeflated; enc++ {
		if seen[enc] < 50 {
			t.Errorf("encoding %d was used %d times only", enc, seen[enc])
		}
	}
}

func TestTheSmallestEncodingIsTaken(t *testing.T) {
	t.Parallel()
	for round := range 300 {
		rnd := rand.New(rand.NewPCG(uint64(round), 3))
		ordered := rnd.IntN(2) == 0
		l := randomLog(rnd, 1+rnd.IntN(2000), ordered)
		s := l.snapshot(ordered)
		b := state.Encode(s, noLimit)
		for enc := state.Vector; enc <= state.BitmapDeflated && b != nil; enc++ {
			other := state.Build(s, enc, noLimit)
			if other != nil && len(other) < len(b) && (enc <= state.Bitmap || len(b) > 256) {
				t.Fatalf("seed %d: %d bytes in encoding %d, %d would do in %d", round, len(b), b[2], len(other), enc)
			}
		}
	}
}

func TestALimitShortensAndNeverLies(t *testing.T) {
	t.Parallel()
	short := 0
	for round := range 1000 {
		rnd := rand.New(rand.NewPCG(uint64(round), 4))
		ordered := round%2 == 0
		l := randomLog(rnd, 1+rnd.IntN(400), ordered)
		s := l.snapshot(ordered)
		whole := state.Encode(s, noLimit)
		limit := 1 + rnd.IntN(len(whole)+20)
		b := state.Encode(s, limit)
		if len(b) > limit {
			t.Fatalf("seed %d: %d bytes, limit %d", round, len(b), limit)
		}
		if len(whole) <= limit && !bytes.Equal(b, whole) {
			t.Fatalf("seed %d: the whole fits in %d, got something else", round, limit)
		}
		if b == nil {
			continue
		}
		if len(b) < len(whole) {
			short++
		}
		c := l.decode(t, b)
		l.law(t, c)
		l.exact(t, c)
	}
	if short < 300 {
		t.Errorf("only %d states were shortened", short)
	}
}

// A cut must be the longest that fits: every longer one is tried.
func TestTheLongestPrefixIsKept(t *testing.T) {
	t.Parallel()
	for round := range 200 {
		rnd := rand.New(rand.NewPCG(uint64(round), 5))
		ordered := round%2 == 0
		l := randomLog(rnd, 1+rnd.IntN(80), ordered)
		for i := range l.records {
			l.records[i].attempts, l.records[i].due = 0, 0
		}
		s := l.snapshot(ordered)
		whole := len(state.Encode(s, noLimit))
		if whole == 0 {
			continue
		}
		limit := 10 + rnd.IntN(whole)
		got := l.base - 1
		if b := state.Encode(s, limit); b != nil {
			got = l.decode(t, b).High()
		}
		for cut := got + 1; cut <= l.high; cut++ {
			shorter := s
			shorter.High = cut
			for len(shorter.Pending) > 0 && shorter.Pending[len(shorter.Pending)-1].Position > cut {
				shorter.Pending = shorter.Pending[:len(shorter.Pending)-1]
			}
			b := state.Encode(shorter, noLimit)
			if b != nil && len(b) <= limit && l.decode(t, b).High() > got {
				t.Fatalf("seed %d, limit %d: cut at %d, but %d fits in %d bytes", round, limit, got, cut, len(b))
			}
		}
	}
}

func TestAttemptsOutliveACut(t *testing.T) {
	t.Parallel()
	s := state.Snapshot{Source: source, Partition: partition, Base: 1000, High: 1000 + 9999, KeyFn: keyFn}
	for i := int64(0); i < 10_000; i += 2 {
		s.Pending = append(s.Pending, state.Pending{Position: 1000 + i + (i/2)%7%2})
	}
	last := &s.Pending[len(s.Pending)-1]
	last.Attempts, last.Due = 4, 1_800_000_000
	b := state.Encode(s, 300)
	c, err := state.Decode(b, source, partition, s.Base, s.High+1, keyFn)
	if err != nil || c.High() >= last.Position || c.High() < s.Base+1000 {
		t.Fatalf("high %v, %v; want a cut between", c.High(), err)
	}
	if a, due := c.Attempts(last.Position); a != 4 || due != 1_800_000_000 {
		t.Errorf("the record behind the cut has %d attempts, due %d", a, due)
	}
}

// More failed records than fit must not push out what is completed.
func TestFailedBeyondTheLimitStillLeaveAPrefix(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{22, 24, 30, 64, 300, 3000} {
		l := log{base: 5, high: 5}
		for i := range int64(4000) {
			r := record{pos: 5 + i, key: fmt.Sprint(i), hasKey: true, done: i%2 == 1}
			if !r.done {
				r.attempts, r.due = int(1+i%9), 1_800_000_000+i
			}
			l.records = append(l.records, r)
			l.high = r.pos
		}
		for _, ordered := range []bool{true, false} {
			b := state.Encode(l.snapshot(ordered), limit)
			if b == nil || len(b) > limit {
				t.Fatalf("limit %d: %d bytes", limit, len(b))
			}
			c := l.decode(t, b)
			l.law(t, c)
			l.exact(t, c)
		}
	}
}

// A list of failed records that may be kept whole, but beside which no body fits, is
// cut too.
func TestTheListOfFailedGivesWay(t *testing.T) {
	t.Parallel()
	s := state.Snapshot{Source: source, Partition: partition, High: 300, KeyFn: keyFn, Pending: []state.Pending{
		{Position: 0, Attempts: 1}, {Position: 2, Attempts: 1}, {Position: 4, Attempts: 1},
	}}
	c, err := state.Decode(state.Encode(s, 16), source, partition, 0, 301, keyFn)
	if err != nil || !c.Done(1, "", false) || c.Done(0, "", false) || c.Done(2, "", false) {
		t.Errorf("%+v, %v", c, err)
	}
	if n, _ := c.Attempts(0); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestKeysOfOneHashShareTheEarlierPosition(t *testing.T) {
	t.Parallel()
	const a, b = "key-388909", "key-1983190" // the same hash40, found by search
	s := state.Snapshot{
		Source: source, Partition: partition, Base: 100, High: 100_000, KeyFn: keyFn, Ordered: true,
		Pending: []state.Pending{{Position: 100, Key: a, HasKey: true, Attempts: 2}, {Position: 50_000, Key: b, HasKey: true, Attempts: 7}},
	}
	enc := state.Build(s, state.Vector, noLimit)
	alone := s
	alone.Pending = s.Pending[:1]
	if n := len(enc) - len(state.Build(alone, state.Vector, noLimit)); n > 6 {
		t.Fatalf("the second key took %d bytes: no collision, choose other keys", n)
	}
	c, err := state.Decode(enc, source, partition, 100, 100_001, keyFn)
	if err != nil {
		t.Fatal(err)
	}
	if c.Done(50_000, b, true) || c.Done(200, a, true) {
		t.Error("an unfinished record would be skipped")
	}
	if c.Done(200, b, true) {
		t.Error("exact in spite of the collision: the test does not test it")
	}
	if !c.Done(200, "another", true) {
		t.Error("another key is processed again")
	}
	if n, _ := c.Attempts(50_000); n != 7 {
		t.Errorf("the later record has %d attempts, want 7", n)
	}
}

// Ordered set where order was not kept costs replays, not records.
func TestOrderedSetWronglyIsSafe(t *testing.T) {
	t.Parallel()
	for round := range 1000 {
		rnd := rand.New(rand.NewPCG(uint64(round), 6))
		l := randomLog(rnd, 1+rnd.IntN(300), false)
		for enc := state.Vector; enc <= state.BitmapDeflated; enc++ {
			if b := state.Build(l.snapshot(true), enc, noLimit); b != nil {
				l.law(t, l.decode(t, b))
			}
		}
	}
}

func TestNothingWorthStoring(t *testing.T) {
	t.Parallel()
	p := func(positions ...int64) (out []state.Pending) {
		for _, x := range positions {
			out = append(out, state.Pending{Position: x, Key: "a", HasKey: true})
		}
		return out
	}
	for name, tc := range map[string]struct {
		s     state.Snapshot
		limit int
	}{
		"all unfinished":  {state.Snapshot{Base: 4, High: 6, Pending: p(4, 5, 6)}, 100},
		"nothing there":   {state.Snapshot{Base: 4, High: 3}, 100},
		"no room":         {state.Snapshot{Base: 4, High: 6, Pending: p(4)}, 0},
		"hardly any room": {state.Snapshot{Base: 4, High: 6, Pending: p(4)}, 9},
		"negative base":   {state.Snapshot{Base: -4, High: 6, Pending: p(4)}, 100},
		"no next":         {state.Snapshot{Base: 4, High: math.MaxInt64, Pending: p(4)}, 100},
		"not ascending":   {state.Snapshot{Base: 4, High: 9, Pending: p(4, 7, 6)}, 100},
		"twice":           {state.Snapshot{Base: 4, High: 9, Pending: p(4, 4)}, 100},
		"below base":      {state.Snapshot{Base: 4, High: 9, Pending: p(3)}, 100},
		"above high":      {state.Snapshot{Base: 4, High: 9, Pending: p(4, 10)}, 100},
	} {
		for _, ordered := range []bool{false, true} {
			tc.s.Ordered = ordered
			if b := state.Encode(tc.s, tc.limit); b != nil {
				t.Errorf("%s: %x", name, b)
			}
		}
	}
}

func TestTheEndsOfTheRange(t *testing.T) {
	t.Parallel()
	s := state.Snapshot{Base: 0, High: math.MaxInt64 - 1, Ordered: true, Pending: []state.Pending{
		{Position: 0, Key: "a", HasKey: true, Attempts: math.MaxInt, Due: math.MaxInt64},
		{Position: math.MaxInt64 - 2, Due: 1},
	}}
	for enc := state.Vector; enc <= state.Runs; enc++ {
		c, err := state.Decode(state.Build(s, enc, noLimit), "", "", 0, math.MaxInt64, 0)
		if err != nil {
			t.Fatal(err)
		}
		if c.High() != s.High || c.Done(0, "a", true) || c.Done(math.MaxInt64-2, "", false) || !c.Done(math.MaxInt64-1, "", false) || !c.Done(9, "", false) {
			t.Errorf("encoding %d: %+v", enc, c)
		}
		if n, due := c.Attempts(0); n != math.MaxInt32 || due != math.MaxInt64 {
			t.Errorf("attempts %d, due %d", n, due)
		}
		if n, due := c.Attempts(math.MaxInt64 - 2); n != 0 || due != 1 {
			t.Errorf("attempts %d, due %d", n, due)
		}
	}
	if b := state.Encode(s, 40); len(b) > 40 {
		t.Errorf("%d bytes", len(b))
	}
}

func TestTheZeroCompletedKnowsNothing(t *testing.T) {
	t.Parallel()
	var c state.Completed
	if n, due := c.Attempts(0); c.Done(0, "", false) || c.High() >= 0 || n != 0 || due != 0 {
		t.Errorf("%+v", c)
	}
}

// The bytes are stored by brokers and read by the next release: they must not change.
func TestTheFormatIsFixed(t *testing.T) {
	t.Parallel()
	s := state.Snapshot{Source: source, Partition: partition, Base: 1000, High: 9000, KeyFn: keyFn, Ordered: true, Pending: []state.Pending{
		{Position: 1000, Key: "amsterdam", HasKey: true, Attempts: 2},
		{Position: 1300, Key: "", HasKey: true},
		{Position: 1301, Attempts: 3, Due: 1_800_000_000},
		{Position: 1302},
	}}
	for enc, want := range map[byte]string{
		state.Vector: "53310103c03e0201debea8048302d804efd01f60ba01db04000180a4a7da06ad0207003cfb41b9",
		state.Runs:   "53310203c03e0200d704010280a4a7da060004ad020700b6be70e6",
	} {
		if got := hex.EncodeToString(state.Build(s, enc, noLimit)); got != want {
			t.Errorf("encoding %d:\n%s, want\n%s", enc, got, want)
		}
	}
	s.High = 1003
	s.Pending = s.Pending[:1]
	if got, want := hex.EncodeToString(state.Build(s, state.Bitmap, noLimit)), "5331030303010100000421873bc8"; got != want {
		t.Errorf("bitmap:\n%s, want\n%s", got, want)
	}
}
