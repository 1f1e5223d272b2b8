package state

import (
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"sort"
)

// deflateOver is the size from which deflating is tried. Below it there is nothing to
// gain: a commit this small is not rationed.
const deflateOver = 256

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the state of s in at most limit bytes, or nil when nothing is worth
// storing: no completed record behind Base, nothing failed, or no room. Where the whole
// does not fit it describes the longest prefix of the log that does. A snapshot that
// breaks its own rules gives nil: the commit alone is always right.
func Encode(s Snapshot, limit int) []byte {
	if limit <= 0 || !s.valid() {
		return nil
	}
	e := newEncoder(s, limit)
	defer e.release()
	if e.High < e.Base {
		return nil
	}
	best := e.whole()
	if best == nil {
		best = e.prefix()
	}
	if best == nil && e.allFailed {
		e.allFailed = false // it was the list that left no room
		best = e.prefix()
	}
	return best
}

// encoder holds a snapshot, taken apart once for every body that is tried.
type encoder struct {
	Snapshot
	limit int
	all   []int64 // positions of Pending
	loose []int64 // those without a key
	heads []head  // by hash, the first with a key
	// headOf is, for each of Pending, its place in heads; noHead = it is none.
	headOf []int
	// allFailed: the list of failed records is short enough to be kept whole when the
	// body has to be cut, because attempts forgotten are attempts made again.
	allFailed bool
	joined    bool          // with an earlier state, which tells of positions behind seen
	seen      int64         // what the owner has read
	vector    bool          // the earlier state was a key vector
	deflater  *flate.Writer // taken when first needed: it is large
}

const noHead = math.MaxInt

// head is the first unfinished record of all keys with one hash.
type head struct {
	first int64
	hash  uint64
	index int // in Pending; -1 = it is not there
}

func newEncoder(s Snapshot, limit int) *encoder {
	e := &encoder{Snapshot: s, limit: limit, all: make([]int64, len(s.Pending))}
	seen := map[uint64]struct{}{}
	for i, p := range s.Pending {
		e.all[i] = p.Position
		if !s.Ordered {
			continue
		}
		if !p.HasKey {
			e.loose = append(e.loose, p.Position)
			continue
		}
		h := hash40(p.Key)
		if _, ok := seen[h]; !ok {
			seen[h] = struct{}{}
			e.heads = append(e.heads, head{p.Position, h, i})
		}
	}
	e.join(s.Known)
	e.headOf = slices.Repeat([]int{noHead}, len(e.Pending))
	for i, h := range e.heads {
		if h.index >= 0 {
			e.headOf[h.index] = i
		}
	}
	e.allFailed = len(e.appendFailed(nil, len(e.Pending), 0)) <= limit/2
	return e
}

// whole returns the smallest state of the whole snapshot, nil if none fits.
func (e *encoder) whole() (best []byte) {
	smallest := func(encs ...byte) {
		for _, enc := range encs {
			if b := e.build(enc, e.High); b != nil && (best == nil || len(b) < len(best)) {
				best = b
			}
		}
	}
	smallest(encVector, encRuns, encBitmap)
	if best == nil || len(best) > deflateOver {
		smallest(encRunsDeflated, encBitmapDeflated)
	}
	return e.worth(best, e.High)
}

// prefix returns the state of the longest prefix for which one fits.
func (e *encoder) prefix() (best []byte) {
	reached := e.Base - 1
	for enc := encVector; enc <= encBitmapDeflated; enc++ {
		// The size grows with the cut (deflated: almost, then the search ends a little
		// early), so the first cut that does not fit is found by halving.
		n := sort.Search(int(min(e.High-e.Base+1, math.MaxInt)), func(i int) bool {
			cut := e.Base + int64(i)
			return e.build(enc, cut) == nil && (enc != encVector || e.headsUpTo(cut) > 0)
		})
		cut := e.Base + int64(n) - 1
		if n == 0 || cut < reached {
			continue
		}
		if b := e.build(enc, cut); b != nil && (cut > reached || len(b) < len(best)) {
			best, reached = b, cut
		}
	}
	return e.worth(best, reached)
}

// worth returns b unless it would tell nothing: no record completed, none failed.
func (e *encoder) worth(b []byte, cut int64) []byte {
	high, n := e.trim(cut)
	if high-e.Base+1 > int64(n) {
		return b
	}
	for _, p := range e.Pending[:e.failedUpTo(cut)] {
		if p.failed() {
			return b
		}
	}
	return nil
}

// trim moves a cut back to the last completed record, at most to Base, and counts the
// unfinished ones up to there. What is dropped was unfinished, as all behind H is.
func (e *encoder) trim(cut int64) (high int64, pending int) {
	high, pending = cut, upTo(e.all, cut)
	for pending > 0 && e.all[pending-1] == high && high > e.Base {
		high--
		pending--
	}
	return high, pending
}

// failedUpTo is how many of Pending the list of failed records is taken from.
func (e *encoder) failedUpTo(cut int64) int {
	if e.allFailed {
		return len(e.all)
	}
	return upTo(e.all, cut)
}

// upTo counts the positions not above limit; they ascend.
func upTo(positions []int64, limit int64) int {
	return sort.Search(len(positions), func(i int) bool { return positions[i] > limit })
}

func (e *encoder) headsUpTo(high int64) int {
	return sort.Search(len(e.heads), func(i int) bool { return e.heads[i].first > high })
}

// build returns the state of everything up to cut in one encoding, nil if it does not
// fit or the encoding is unfit for it.
func (e *encoder) build(enc byte, cut int64) []byte {
	high, n := e.trim(cut)
	b := append(make([]byte, 0, min(e.limit, 1024)), magic...)
	b = append(b, enc, e.KeyFn)
	b = binary.AppendUvarint(b, uint64(high-e.Base))
	heads := e.headsUpTo(high)
	if !e.fits(enc, high, heads) || enc == encVector && heads == 0 { // runs are the same, and shorter
		return nil
	}
	if enc != encVector {
		heads = 0
	}
	b, ok := e.appendBody(b, enc, high, n, heads)
	if !ok {
		return nil
	}
	b = e.appendFailed(b, e.failedUpTo(cut), heads)
	b = binary.BigEndian.AppendUint32(b, checksum(e.Source, e.Partition, e.Base, b))
	if len(b) > e.limit {
		return nil
	}
	return b
}

// checksum binds a state to the commit it was made for. The lengths keep two pairs of
// names that read the same in a row apart.
func checksum(source, partition string, base int64, b []byte) uint32 {
	head := binary.AppendUvarint(nil, uint64(len(source)))
	head = append(head, source...)
	head = binary.AppendUvarint(head, uint64(len(partition)))
	head = append(head, partition...)
	head = binary.BigEndian.AppendUint64(head, uint64(base))
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, b)
}
