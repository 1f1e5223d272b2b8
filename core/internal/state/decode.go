package state

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
)

// Reason says why a state was ignored. It is an error: errors.Is(err, BeyondEnd), or
// errors.As with a Reason to count by it.
type Reason uint8

// The reasons.
const (
	Foreign    Reason = iota + 1 // not written by this codec
	Mismatch                     // of another source, partition or committed position, or damaged
	OtherKeys                    // keys were made in another way
	BeyondEnd                    // speaks about positions the log does not have: truncated, recreated
	Malformed                    // passes the checksum, breaks the layout: forged
	numReasons                   // not a reason
)

var reasons = [numReasons]string{
	Foreign:   "foreign bytes",
	Mismatch:  "checksum differs: another source, partition or committed position, or damaged",
	OtherKeys: "made with another key function",
	BeyondEnd: "goes beyond the end of the log",
	Malformed: "malformed",
}

// Error tells what follows, because it is always the same.
func (r Reason) Error() string {
	s := "unknown reason"
	if r > 0 && r < numReasons {
		s = reasons[r]
	}
	return "commit state ignored, completed records are processed again: " + s
}

// Decode reads what Encode wrote for the same source and partition beside the committed
// position base. highWatermark is the position the log writes next; a state is believed
// only below it, so 0 (unknown) believes none: ask the broker first. No bytes are no
// error and a Completed that knows nothing. Any error wraps a Reason and means ignore
// and replay.
//
// It accepts any input and allocates at most 64 times its length plus 512 KiB.
func Decode(b []byte, source, partition string, base, highWatermark int64, keyFn byte) (*Completed, error) {
	c := &Completed{base: base, next: base}
	if len(b) == 0 {
		return c, nil
	}
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return nil, Foreign
	}
	body := len(b) - crcSize
	if base < 0 || body < len(magic)+2 || binary.BigEndian.Uint32(b[body:]) != checksum(source, partition, base, b[:body]) {
		return nil, Mismatch
	}
	d := decoder{b: b[len(magic):body], base: base, end: highWatermark}
	if err := d.state(c, keyFn); err != nil {
		return nil, err
	}
	return c, nil
}

// decoder reads from the front of b. The first thing wrong is kept, and from there on
// it reads zeros.
type decoder struct {
	b    []byte
	base int64
	end  int64 // no position at or behind it exists
	err  error
}

func (d *decoder) fail(r Reason, what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", r, what)
		d.b = nil
	}
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail(Malformed, "truncated")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail(Malformed, "bad varint")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) flagged() (v uint64, flag bool) {
	u := d.uvarint()
	return u >> 1, u&1 == 1
}

// count reads the length of a list, which the bytes left must be able to hold: only
// then may room be made for it.
func (d *decoder) count(itemSize int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/itemSize) {
		d.fail(Malformed, "list longer than the state")
		return 0
	}
	return int(n)
}

// after returns from + by, which must stay below limit.
func (d *decoder) after(from int64, by uint64, limit int64, r Reason) int64 {
	if from >= limit || by >= uint64(limit-from) {
		d.fail(r, "position out of range")
		return from
	}
	return from + int64(by)
}

func (d *decoder) state(c *Completed, keyFn byte) error {
	enc, fn := d.byte(), d.byte()
	high := d.after(d.base, d.uvarint(), d.end, BeyondEnd)
	if d.err != nil {
		return d.err
	}
	c.next = high + 1 // high < d.end, so this cannot overflow
	switch enc {
	case encVector:
		if fn != keyFn {
			d.fail(OtherKeys, fmt.Sprintf("%d, now %d", fn, keyFn))
		}
		d.heads(c)
		c.holes = d.runs(c.next)
	case encRuns:
		c.holes = d.runs(c.next)
	case encRunsDeflated:
		in := decoder{b: d.inflate(enc), base: d.base}
		c.holes = in.runs(c.next)
		if in.err != nil || len(in.b) != 0 {
			d.fail(Malformed, "deflated runs")
		}
	case encBitmap, encBitmapDeflated:
		c.bits = d.bitmap(enc, high)
	default:
		d.fail(Malformed, "unknown encoding")
	}
	d.failed(c)
	if len(d.b) != 0 {
		d.fail(Malformed, "trailing bytes")
	}
	return d.err
}

// heads reads the key vector.
func (d *decoder) heads(c *Completed) {
	n := d.count(1 + hashSize)
	c.keys = make([]keyFrom, 0, n)
	first := d.base
	for range n {
		by, tried := d.flagged()
		first = d.after(first, by, c.next, Malformed)
		var hash uint64
		for range hashSize {
			hash = hash<<8 | uint64(d.byte())
		}
		c.keys = append(c.keys, keyFrom{hash, first})
		if tried {
			c.failed = append(c.failed, failure{position: first, attempts: int32(d.byte())})
		}
	}
	slices.SortFunc(c.keys, func(a, b keyFrom) int { return cmp.Compare(a.hash, b.hash) })
	for i := 1; i < len(c.keys); i++ {
		if c.keys[i].hash == c.keys[i-1].hash {
			d.fail(Malformed, "hash twice")
		}
	}
}

// runs reads runs of unfinished records, which end before next.
func (d *decoder) runs(next int64) []run {
	n := d.count(1)
	runs := make([]run, 0, n)
	at := d.base
	for i := range n {
		by, long := d.flagged()
		if i > 0 && by == 0 {
			d.fail(Malformed, "runs touch")
		}
		r := run{from: d.after(at, by, next, Malformed)}
		r.to = r.from
		if long {
			// A long run is of two or more. In two steps, as 1+MaxUint64 would wrap.
			r.to = d.after(d.after(r.from, 1, next, Malformed), d.uvarint(), next, Malformed)
		}
		runs = append(runs, r)
		at = r.to + 1
	}
	return runs
}

func (d *decoder) bitmap(enc byte, high int64) []byte {
	size := uint64(high-d.base)/8 + 1
	var bits []byte
	if enc == encBitmapDeflated {
		bits = d.inflate(enc)
	} else {
		bits = bytes.Clone(d.take(size))
	}
	if d.err == nil && uint64(len(bits)) != size {
		d.fail(Malformed, "bitmap of another length")
	}
	if d.err != nil {
		return nil
	}
	if spare := bits[size-1] >> (uint64(high-d.base)%8 + 1); spare != 0 {
		d.fail(Malformed, "spare bits")
	}
	return bits
}

// take returns the next n bytes. They are the caller's: Completed keeps a copy.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail(Malformed, "truncated")
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

var inflaters = sync.Pool{New: func() any { return flate.NewReader(nil) }}

func (d *decoder) inflate(enc byte) []byte {
	size, in := d.uvarint(), d.uvarint()
	packed := d.take(in)
	if d.err != nil || size > uint64(maxRaw(enc, len(packed))) {
		d.fail(Malformed, "deflated length")
		return nil
	}
	src := bytes.NewReader(packed) // a ByteReader, so flate takes no byte too many
	r := inflaters.Get().(io.ReadCloser)
	defer inflaters.Put(r)
	if err := r.(flate.Resetter).Reset(src, nil); err != nil {
		d.fail(Malformed, "deflated body")
		return nil
	}
	raw := make([]byte, size)
	_, err := io.ReadFull(r, raw)
	var more [1]byte
	if err == nil {
		_, err = io.ReadFull(r, more[:])
	}
	if err != io.EOF || src.Len() != 0 {
		d.fail(Malformed, "deflated body")
		return nil
	}
	return raw
}

// failed reads the list of failed records and puts it in order with those of the key
// vector.
func (d *decoder) failed(c *Completed) {
	n := d.count(2)
	c.failed = slices.Grow(c.failed, n)
	earliest := uint64(0)
	if n > 0 {
		earliest = d.uvarint()
	}
	at := d.base
	for i := range n {
		by := d.uvarint()
		if i > 0 && by == 0 {
			d.fail(Malformed, "failed records not ascending")
		}
		at = d.after(at, by, d.end, BeyondEnd)
		attempts, waiting := d.flagged()
		f := failure{position: at, attempts: int32(min(attempts, math.MaxInt32))}
		if attempts > math.MaxInt32 {
			d.fail(Malformed, "attempts")
		}
		if waiting {
			due := earliest + d.uvarint()
			if due < earliest || due > math.MaxInt64 || due == 0 {
				d.fail(Malformed, "due")
			}
			f.due = int64(due)
		}
		c.failed = append(c.failed, f)
	}
	slices.SortFunc(c.failed, func(a, b failure) int { return cmp.Compare(a.position, b.position) })
	for i := 1; i < len(c.failed); i++ {
		if c.failed[i].position == c.failed[i-1].position {
			d.fail(Malformed, "failed record twice")
		}
	}
}
