package state

import "math"

// Snapshot is one assignment at the moment of a commit.
type Snapshot struct {
	// Source and Partition name the log; a state is read back only for the same two.
	Source, Partition string
	// Base is the position committed together with the state: next to read.
	Base int64
	// High is the highest position admitted. Base-1: nothing was.
	High int64
	// KeyFn names the way a key comes from a record. It changes whenever the same
	// record may get another key (or none).
	KeyFn byte
	// Ordered: within a key, nothing behind an unfinished record is completed.
	// Without it keys are not looked at. Set wrongly, it costs replays only.
	Ordered bool
	// Pending is every unfinished record with Base <= Position <= High, ascending.
	// All other positions up to High count as completed, also those that hold no
	// record (compacted away, transaction markers).
	Pending []Pending
	// Known is what an earlier state of this log told; nil = nothing. What it tells of
	// positions above High is told again: their records have not come since.
	Known *Completed
}

// Pending is an unfinished record.
type Pending struct {
	Position int64
	Key      string // the ordering key; only with HasKey
	HasKey   bool
	Attempts int   // so far; up to MaxInt32 are kept
	Due      int64 // next attempt not before, in unix seconds; 0 = not waiting
}

// failed reports whether there is something to remember about the record.
func (p Pending) failed() bool { return p.Attempts > 0 || p.Due > 0 }

// valid reports whether the snapshot is what its comments promise.
func (s Snapshot) valid() bool {
	if s.Base < 0 || s.High < s.Base-1 || s.High == math.MaxInt64 {
		return false
	}
	if s.High < s.Base && (s.Known == nil || s.Known.Last() < s.Base) {
		return false
	}
	prev := s.Base - 1
	for _, p := range s.Pending {
		if p.Position <= prev || p.Position > s.High {
			return false
		}
		prev = p.Position
	}
	return true
}

const (
	magic   = "S1"
	crcSize = 4

	hashBits = 40
	hashSize = hashBits / 8
)

// The encodings of the body. The numbers are stored.
const (
	encVector byte = iota + 1
	encRuns
	encBitmap
	encRunsDeflated
	encBitmapDeflated
)

// maxRaw bounds what a deflated body of n bytes may hold: the rule that keeps a forged
// state from taking memory without limit. A run takes 16 times its byte when decoded.
func maxRaw(enc byte, n int) int {
	if enc == encRunsDeflated {
		return 16<<10 + 2*n
	}
	return 64<<10 + 32*n
}

// hash40 is FNV-1a with the finaliser of MurmurHash3, which spreads the last bytes of
// a key into the bits that are kept. It is part of the format.
func hash40(key string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 0x100000001b3
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return (h ^ h>>33) >> (64 - hashBits)
}
