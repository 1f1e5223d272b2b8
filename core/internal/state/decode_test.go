package state_test

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/varal-go/varal/core/internal/state"
)

// seal gives forged bytes the checksum they need to be looked at, computed from the
// layout in doc.go and not by the code under test.
func seal(b []byte, source, partition string, base int64) []byte {
	var head []byte
	for _, s := range []string{source, partition} {
		head = binary.AppendUvarint(head, uint64(len(s)))
		head = append(head, s...)
	}
	head = binary.BigEndian.AppendUint64(head, uint64(base))
	sum := crc32.Checksum(append(head, b...), crc32.MakeTable(crc32.Castagnoli))
	return binary.BigEndian.AppendUint32(bytes.Clone(b), sum)
}

// forge puts parts behind each other (int: varint, string and []byte: as they are) and
// seals them, for base 1000.
func forge(parts ...any) []byte {
	b := []byte("S1")
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			b = append(b, p)
		case int:
			b = binary.AppendUvarint(b, uint64(p))
		case uint64:
			b = binary.AppendUvarint(b, p)
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return seal(b, source, partition, 1000)
}

func deflated(raw []byte) []byte {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestCompression)
	_, _ = w.Write(raw)
	_ = w.Close()
	return out.Bytes()
}

// packed is the deflated body of raw.
func packed(raw []byte) []byte {
	z := deflated(raw)
	b := binary.AppendUvarint(nil, uint64(len(raw)))
	return append(binary.AppendUvarint(b, uint64(len(z))), z...)
}

const end = 5000 // high watermark of the forged states

func TestForgedStatesAreIgnored(t *testing.T) {
	t.Parallel()
	const k = byte(keyFn)
	huge := uint64(math.MaxUint64)
	overlong, endless := "\x80\x00", strings.Repeat("\xff", 11)
	for name, tc := range map[string]struct {
		want state.Reason // 0: must be accepted, so that the others are known to fail for their own reason
		b    []byte
	}{
		"runs":                        {0, forge(state.Runs, k, 100, 2, 0<<1, 5<<1|1, 3, 0)},
		"vector":                      {0, forge(state.Vector, k, 100, 2, 0<<1, "aaaaa", 9<<1|1, "bbbbb", "\x04", 1, 3<<1, 0)},
		"bitmap":                      {0, forge(state.Bitmap, k, 9, "\x01\x02", 0)},
		"deflated runs":               {0, forge(state.RunsDeflated, k, 100, packed([]byte{1, 0}), 0)},
		"deflated bitmap":             {0, forge(state.BitmapDeflated, k, 9, packed([]byte{1, 2}), 0)},
		"failed":                      {0, forge(state.Runs, k, 100, 1, 0, 2, 50, 0, 1<<1|1, 0, 3000, 2<<1, "")},
		"to the last position":        {0, forge(state.Runs, k, end-1001, 0, 0)},
		"only magic":                  {state.Mismatch, []byte("S1")},
		"no body":                     {state.Mismatch, seal([]byte("S1\x02"), source, partition, 1000)},
		"foreign":                     {state.Foreign, []byte("member-7f3a")},
		"one byte":                    {state.Foreign, []byte("S")},
		"next version":                {state.Foreign, seal([]byte("S2\x02\x03\x05\x00\x00"), source, partition, 1000)},
		"no span":                     {state.Malformed, forge(state.Runs, k)},
		"span to the end":             {state.BeyondEnd, forge(state.Runs, k, end-1000, 0, 0)},
		"span wraps":                  {state.BeyondEnd, forge(state.Runs, k, huge, 0, 0)},
		"span wraps to base":          {state.BeyondEnd, forge(state.Runs, k, huge-999, 0, 0)},
		"overlong varint":             {state.Malformed, forge(state.Runs, k, overlong, 0, 0)},
		"endless varint":              {state.Malformed, forge(state.Runs, k, endless, 0, 0)},
		"encoding 0":                  {state.Malformed, forge(byte(0), k, 100, 0, 0)},
		"encoding 6":                  {state.Malformed, forge(byte(6), k, 100, 0, 0)},
		"trailing byte":               {state.Malformed, forge(state.Runs, k, 100, 0, 0, 0)},
		"no list of failed":           {state.Malformed, forge(state.Runs, k, 100, 0)},
		"other key function":          {state.OtherKeys, forge(state.Vector, k+1, 100, 1, 0, "aaaaa", 0, 0)},
		"other key function, runs":    {0, forge(state.Runs, k+1, 100, 1, 0, 0)},
		"more keys than bytes":        {state.Malformed, forge(state.Vector, k, 100, uint64(1<<40), 0, "aaaaa", 0, 0)},
		"key cut short":               {state.Malformed, forge(state.Vector, k, 100, 1, 0, "aaa", 0, 0)},
		"key beyond high":             {state.Malformed, forge(state.Vector, k, 100, 1, 101<<1, "aaaaa", 0, 0)},
		"key wraps":                   {state.Malformed, forge(state.Vector, k, 100, 2, 9<<1, "aaaaa", huge-1, "bbbbb", 0, 0)},
		"keys at one position":        {0, forge(state.Vector, k, 100, 2, 0, "aaaaa", 0, "bbbbb", 0, 0)},
		"keys that failed at one":     {state.Malformed, forge(state.Vector, k, 100, 2, 1, "aaaaa", "\x02", 1, "bbbbb", "\x02", 0, 0)},
		"hash twice":                  {state.Malformed, forge(state.Vector, k, 100, 3, 0, "aaaaa", 9<<1, "bbbbb", 9<<1, "aaaaa", 0, 0)},
		"more runs than bytes":        {state.Malformed, forge(state.Runs, k, 100, huge, 0, 0, 0)},
		"run beyond high":             {state.Malformed, forge(state.Runs, k, 100, 1, 101<<1, 0)},
		"long run beyond high":        {state.Malformed, forge(state.Runs, k, 100, 1, 1, 100, 0)},
		"run length wraps":            {state.Malformed, forge(state.Runs, k, 100, 1, 1, huge, 0)},
		"runs overlap by wrapping":    {state.Malformed, forge(state.Runs, k, 100, 2, 50<<1, huge-1, 0)},
		"runs touch":                  {state.Malformed, forge(state.Runs, k, 100, 2, 0, 0, 0)},
		"bitmap too short":            {state.Malformed, forge(state.Bitmap, k, 100, "\x01\x02", 0)},
		"bitmap with spare bits":      {state.Malformed, forge(state.Bitmap, k, 9, "\x01\x04", 0)},
		"deflated bitmap too short":   {state.Malformed, forge(state.BitmapDeflated, k, 100, packed([]byte{1, 2}), 0)},
		"deflated bitmap too long":    {state.Malformed, forge(state.BitmapDeflated, k, 9, packed([]byte{1, 2, 0}), 0)},
		"deflated, said shorter":      {state.Malformed, forge(state.RunsDeflated, k, 100, 1, len(deflated([]byte{1, 0})), deflated([]byte{1, 0}), 0)},
		"deflated, said longer":       {state.Malformed, forge(state.RunsDeflated, k, 100, 3, len(deflated([]byte{1, 0})), deflated([]byte{1, 0}), 0)},
		"deflated runs, trailing":     {state.Malformed, forge(state.RunsDeflated, k, 100, packed([]byte{1, 0, 0}), 0)},
		"deflated runs, bad":          {state.Malformed, forge(state.RunsDeflated, k, 100, packed([]byte{2, 0, 0}), 0)},
		"deflate stream, trailing":    {state.Malformed, forge(state.RunsDeflated, k, 100, 2, len(deflated([]byte{1, 0}))+1, deflated([]byte{1, 0}), "x", 0)},
		"deflate stream, bad":         {state.Malformed, forge(state.RunsDeflated, k, 100, 2, 3, "\xff\xff\xff", 0)},
		"deflate stream, too long":    {state.Malformed, forge(state.RunsDeflated, k, 100, 2, 99, "\xff\xff\xff", 0)},
		"deflate bomb":                {state.Malformed, forge(state.BitmapDeflated, k, 8<<20-1, packed(make([]byte, 1<<20)), 0)},
		"failed beyond the end":       {state.BeyondEnd, forge(state.Runs, k, 100, 0, 1, 0, end-1000, 1<<1)},
		"failed, more than bytes":     {state.Malformed, forge(state.Runs, k, 100, 0, 9, 0, 1, 1<<1)},
		"failed twice":                {state.Malformed, forge(state.Runs, k, 100, 0, 2, 0, 1, 1<<1, 0, 1<<1)},
		"failed twice, with a key":    {state.Malformed, forge(state.Vector, k, 100, 1, 9<<1|1, "aaaaa", "\x02", 0, 1, 0, 9, 1<<1)},
		"failed wraps":                {state.BeyondEnd, forge(state.Runs, k, 100, 0, 2, 0, 5, 1<<1, huge, 1<<1)},
		"attempts beyond 32 bits":     {state.Malformed, forge(state.Runs, k, 100, 0, 1, 0, 5, uint64(1<<32))},
		"due wraps":                   {state.Malformed, forge(state.Runs, k, 100, 0, 1, 9, 5, 1<<1|1, huge)},
		"due beyond the end of time":  {state.Malformed, forge(state.Runs, k, 100, 0, 1, 9, 5, 1<<1|1, uint64(math.MaxInt64))},
		"waiting for nothing":         {state.Malformed, forge(state.Runs, k, 100, 0, 1, 0, 5, 1<<1|1, 0)},
		"earliest due is overlong":    {state.Malformed, forge(state.Runs, k, 100, 0, 1, overlong, 5, 1<<1)},
		"high watermark tells nobody": {state.BeyondEnd, forge(state.Runs, k, uint64(1<<62), 0, 0)},
	} {
		hwm := int64(end)
		if name == "deflate bomb" {
			hwm = math.MaxInt64
		}
		c, err := state.Decode(tc.b, source, partition, 1000, hwm, keyFn)
		if reason(err) != tc.want || (c == nil) != (tc.want != 0) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func TestAStateOfAnotherCommitIsIgnored(t *testing.T) {
	t.Parallel()
	s := state.Snapshot{
		Source: "ab", Partition: "c", Base: 7, High: 90, KeyFn: 1, Ordered: true,
		Pending: []state.Pending{{Position: 7, Key: "k", HasKey: true}, {Position: 80, Key: "l", HasKey: true}},
	}
	b := state.Build(s, state.Vector, noLimit)
	for name, tc := range map[string]struct {
		source, partition string
		base, hwm         int64
		keyFn             byte
		want              state.Reason
	}{
		"its own":               {"ab", "c", 7, 91, 1, 0},
		"other source":          {"xb", "c", 7, 91, 1, state.Mismatch},
		"other partition":       {"ab", "d", 7, 91, 1, state.Mismatch},
		"names cut otherwise":   {"a", "bc", 7, 91, 1, state.Mismatch},
		"committed later":       {"ab", "c", 8, 91, 1, state.Mismatch},
		"committed earlier":     {"ab", "c", 6, 91, 1, state.Mismatch},
		"committed is unknown":  {"ab", "c", -1, 91, 1, state.Mismatch},
		"log ends at high":      {"ab", "c", 7, 90, 1, state.BeyondEnd},
		"log is empty":          {"ab", "c", 7, 7, 1, state.BeyondEnd},
		"log end is unknown":    {"ab", "c", 7, 0, 1, state.BeyondEnd},
		"log end is senseless":  {"ab", "c", 7, math.MinInt64, 1, state.BeyondEnd},
		"other key function":    {"ab", "c", 7, 91, 2, state.OtherKeys},
		"all wrong, first told": {"xb", "c", 7, 0, 2, state.Mismatch},
	} {
		_, err := state.Decode(b, tc.source, tc.partition, tc.base, tc.hwm, tc.keyFn)
		if reason(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if tc.want != 0 && (!errors.Is(err, tc.want) || !strings.Contains(err.Error(), "processed again")) {
			t.Errorf("%s: the error does not say what follows: %v", name, err)
		}
	}
}

// A record that has failed is unfinished, whatever its key is by now.
func TestAFailedRecordIsNeverDone(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{
		forge(state.Vector, byte(keyFn), 100, 1, 9<<1|1, "aaaaa", "\x02", 0, 0),
		forge(state.Vector, byte(keyFn), 100, 1, 50<<1, "aaaaa", 0, 1, 0, 9, 2<<1),
		forge(state.Runs, byte(keyFn), 100, 0, 1, 0, 9, 2<<1),
	} {
		c, err := state.Decode(b, source, partition, 1000, end, keyFn)
		if err != nil || c.Done(1009, "b", true) || c.Done(1009, "", false) || !c.Done(1010, "b", true) {
			t.Errorf("%+v, %v", c, err)
		}
		if n, _ := c.Attempts(1009); n != 2 {
			t.Errorf("%d attempts", n)
		}
	}
}

func TestNoStateIsNoError(t *testing.T) {
	t.Parallel()
	c, err := state.Decode(nil, source, partition, 7, 0, 0)
	if err != nil || c.High() != 6 || c.Done(7, "", false) {
		t.Errorf("%+v, %v", c, err)
	}
}

// A flipped bit, a missing end or something behind it: ignored, never a skip.
func TestDamageIsIgnored(t *testing.T) {
	t.Parallel()
	for round := range 30 {
		rnd := rand.New(rand.NewPCG(uint64(round), 7))
		l := randomLog(rnd, 1+rnd.IntN(200), true)
		b := state.Encode(l.snapshot(true), noLimit)
		try := func(what string, damaged []byte) {
			if _, err := state.Decode(damaged, source, partition, l.base, math.MaxInt64, keyFn); err == nil {
				t.Fatalf("seed %d: %s was accepted", round, what)
			}
		}
		for i := range b {
			for bit := range 8 {
				damaged := bytes.Clone(b)
				damaged[i] ^= 1 << bit
				try("a flipped bit", damaged)
			}
			if i > 0 {
				try("a part", b[:i])
			}
		}
		if b != nil {
			try("a longer one", append(bytes.Clone(b), 0))
		}
	}
}

// The decoder's bytes are the broker's: a Completed must not change with them.
func TestCompletedKeepsNothingOfTheInput(t *testing.T) {
	t.Parallel()
	for round := range 200 {
		rnd := rand.New(rand.NewPCG(uint64(round), 8))
		l := randomLog(rnd, 1+rnd.IntN(300), true)
		for enc := state.Vector; enc <= state.BitmapDeflated; enc++ {
			if b := state.Build(l.snapshot(true), enc, noLimit); b != nil {
				c := l.decode(t, b)
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
				l.law(t, c)
				l.exact(t, c)
			}
		}
	}
}

// Not parallel: it counts what the whole process allocates.
func TestDecodeAllocatesByTheInput(t *testing.T) {
	const constant = 512 << 10
	rnd := rand.New(rand.NewPCG(1, 9))
	inputs := map[string][]byte{
		"runs":            forge(state.Runs, byte(keyFn), 1<<20, 200_000, bytes.Repeat([]byte{2}, 200_000), 0),
		"vector":          forge(state.Vector, byte(keyFn), 1<<20, 100_000, bytes.Repeat([]byte{2, 1, 2, 3, 4, 5}, 100_000), 0, 0),
		"failed":          forge(state.Runs, byte(keyFn), 1<<20, 0, 100_000, 0, bytes.Repeat([]byte{1, 2}, 100_000)),
		"counts":          forge(state.Runs, byte(keyFn), 1<<20, uint64(1<<60), 0),
		"deflated runs":   forge(state.RunsDeflated, byte(keyFn), 1<<20, packed(append([]byte{0xff, 0x7f}, bytes.Repeat([]byte{2}, 16_383)...)), 0),
		"deflated bitmap": forge(state.BitmapDeflated, byte(keyFn), 1<<19-1, packed(make([]byte, 1<<16)), 0),
		"bomb":            forge(state.BitmapDeflated, byte(keyFn), 1<<26-1, packed(make([]byte, 1<<23)), 0),
		"raw length":      forge(state.BitmapDeflated, byte(keyFn), uint64(1<<60), uint64(1<<57), 3, "\x03\x00\x00", 0),
	}
	for name, b := range inputs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := state.Decode(b, source, partition, 1000, math.MaxInt64, keyFn)
		runtime.ReadMemStats(&after)
		got, limit := after.TotalAlloc-before.TotalAlloc, uint64(64*len(b)+constant)
		t.Logf("%-16s %8d bytes in, %9d allocated (limit %9d): %v", name, len(b), got, limit, err)
		if got > limit {
			t.Errorf("%s: %d bytes allocated for %d, limit %d", name, got, len(b), limit)
		}
	}
	for range 500 { // random bytes behind a good head
		body := make([]byte, rnd.IntN(200))
		for i := range body {
			body[i] = byte(rnd.Uint32()) >> rnd.IntN(8)
		}
		b := forge(byte(1+rnd.IntN(5)), byte(keyFn), body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = state.Decode(b, source, partition, 1000, math.MaxInt64, keyFn)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > uint64(64*len(b)+constant) {
			t.Fatalf("%x: %d bytes allocated for %d", b, got, len(b))
		}
	}
}
