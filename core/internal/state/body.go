package state

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"math"
	"sync"
)

// appendBody appends the first n of Pending, those up to high, in one encoding. ok is
// false when the encoding cannot hold them.
func (e *encoder) appendBody(b []byte, enc byte, high int64, n, heads int) (_ []byte, ok bool) {
	switch enc {
	case encVector:
		return appendRuns(e.appendHeads(b, heads), e.loose[:upTo(e.loose, high)], e.Base), true
	case encRuns:
		return appendRuns(b, e.all[:n], e.Base), true
	case encBitmap:
		return e.appendBitmap(b, high, n, e.limit)
	case encRunsDeflated:
		return e.appendDeflated(b, enc, appendRuns(nil, e.all[:n], e.Base))
	default:
		raw, ok := e.appendBitmap(nil, high, n, maxRaw(enc, e.limit))
		if !ok {
			return nil, false
		}
		return e.appendDeflated(b, enc, raw)
	}
}

// inVector reports whether the key vector itself says all there is to say about a
// failed first record.
func inVector(p Pending) bool { return p.Attempts > 0 && p.Attempts <= math.MaxUint8 && p.Due <= 0 }

func (e *encoder) appendHeads(b []byte, n int) []byte {
	b = binary.AppendUvarint(b, uint64(n))
	prev := e.Base
	for _, h := range e.heads[:n] {
		p := Pending{}
		if h.index >= 0 {
			p = e.Pending[h.index]
		}
		b = appendFlagged(b, h.first-prev, inVector(p))
		b = append(b, byte(h.hash>>32), byte(h.hash>>24), byte(h.hash>>16), byte(h.hash>>8), byte(h.hash))
		if inVector(p) {
			b = append(b, byte(p.Attempts))
		}
		prev = h.first
	}
	return b
}

// appendFlagged appends a number that is not negative and a bit in one varint.
func appendFlagged(b []byte, v int64, flag bool) []byte {
	u := uint64(v) << 1
	if flag {
		u |= 1
	}
	return binary.AppendUvarint(b, u)
}

func appendRuns(b []byte, positions []int64, base int64) []byte {
	n := 0
	for i, p := range positions {
		if i == 0 || p != positions[i-1]+1 {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	next := base // the first position the runs so far do not speak about
	for i := 0; i < len(positions); {
		j := i + 1
		for j < len(positions) && positions[j] == positions[j-1]+1 {
			j++
		}
		b = appendFlagged(b, positions[i]-next, j-i > 1)
		if j-i > 1 {
			b = binary.AppendUvarint(b, uint64(j-i-2))
		}
		next = positions[j-1] + 1
		i = j
	}
	return b
}

// appendBitmap refuses a bitmap longer than room, and one so sparse that its runs are
// shorter whatever is done to it: the work must follow the records, not the span.
func (e *encoder) appendBitmap(b []byte, high int64, n, room int) (_ []byte, ok bool) {
	size := (high-e.Base)/8 + 1
	if size > int64(room) || size > 64+16*int64(n) {
		return nil, false
	}
	start := len(b)
	b = append(b, make([]byte, size)...)
	for _, p := range e.all[:n] {
		i := p - e.Base
		b[start+int(i/8)] |= 1 << (i % 8)
	}
	return b, true
}

// Without the search for repeats: gaps and bytes of a bitmap are rare ones among
// frequent ones in no order, so it finds next to none, splits the statistics (5,000
// random holes in 65,536: 3,890 bytes with it, 3,290 without) and takes three times as
// long. Only a strict pattern would gain.
var deflaters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.HuffmanOnly) // fails on an unknown level only
	return w
}}

// release gives back what appendDeflated took.
func (e *encoder) release() {
	if e.deflater != nil {
		deflaters.Put(e.deflater)
	}
	e.deflater = nil
}

func (e *encoder) appendDeflated(b []byte, enc byte, raw []byte) (_ []byte, ok bool) {
	if len(raw) > maxRaw(enc, e.limit) {
		return nil, false
	}
	if e.deflater == nil {
		e.deflater = deflaters.Get().(*flate.Writer)
	}
	var out bytes.Buffer
	e.deflater.Reset(&out)
	if _, err := e.deflater.Write(raw); err != nil {
		return nil, false
	}
	if err := e.deflater.Close(); err != nil {
		return nil, false
	}
	if out.Len() >= len(raw) || len(raw) > maxRaw(enc, out.Len()) {
		return nil, false
	}
	b = binary.AppendUvarint(b, uint64(len(raw)))
	b = binary.AppendUvarint(b, uint64(out.Len()))
	return append(b, out.Bytes()...), true
}

// appendFailed lists the failed ones among the first n of Pending, without those the
// first heads of a key vector have told.
func (e *encoder) appendFailed(b []byte, n, heads int) []byte {
	var list []Pending
	var earliest int64
	for i, p := range e.Pending[:n] {
		if !p.failed() || e.headOf[i] < heads && inVector(p) {
			continue
		}
		if p.Due > 0 && (earliest == 0 || p.Due < earliest) {
			earliest = p.Due
		}
		list = append(list, p)
	}
	b = binary.AppendUvarint(b, uint64(len(list)))
	if len(list) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(earliest))
	prev := e.Base
	for _, p := range list {
		b = binary.AppendUvarint(b, uint64(p.Position-prev))
		b = appendFlagged(b, int64(min(max(p.Attempts, 0), math.MaxInt32)), p.Due > 0)
		if p.Due > 0 {
			b = binary.AppendUvarint(b, uint64(p.Due-earliest))
		}
		prev = p.Position
	}
	return b
}
