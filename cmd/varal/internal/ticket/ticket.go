// Package ticket is the numbered message that runs of varal bench publish and check.
package ticket

import (
	"encoding/binary"
	"math/rand/v2"
)

// MinSize is the smallest body: run, session, number and stamp.
const MinSize = 24

// Ticket is what a body says.
type Ticket struct {
	Session uint32
	N       uint32 // of the session: 1, 2, 3 …
	Stamp   int64  // when it was due or handed over, in nanoseconds since its run began
}

// noise fills bodies: zeros would compress to nothing on the way to a broker.
var noise = func() []byte {
	b := make([]byte, 64<<10)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // it never fails
	return b
}()

// Append appends a body of size bytes, at least MinSize, to b. run is a number that no
// other run has.
func (t Ticket) Append(b []byte, run uint64, size int) []byte {
	from := len(b)
	b = binary.LittleEndian.AppendUint64(b, run)
	b = binary.LittleEndian.AppendUint32(b, t.Session)
	b = binary.LittleEndian.AppendUint32(b, t.N)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Stamp)) //nolint:gosec // read back the same way
	at := int(Mix(uint64(t.Session)<<32|uint64(t.N)) % uint64(len(noise)))
	for size > len(b)-from {
		b = append(b, noise[at:min(len(noise), at+size-(len(b)-from))]...)
		at = 0
	}
	return b
}

// Decode reads a body; false: it is not of this run, or not whole.
func Decode(b []byte, run uint64, size int) (t Ticket, ok bool) {
	if len(b) != size || binary.LittleEndian.Uint64(b) != run {
		return t, false
	}
	t.Session = binary.LittleEndian.Uint32(b[8:])
	t.N = binary.LittleEndian.Uint32(b[12:])
	t.Stamp = int64(binary.LittleEndian.Uint64(b[16:])) //nolint:gosec // written the same way
	return t, true
}

// Mix spreads the bits of x: the finaliser of SplitMix64.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Chance is a number in [0, 1) that depends on nothing but the arguments: what happens to
// an attempt is the same for a seed, on every broker and at every member.
func Chance(seed uint64, session, n uint32, try int) float64 {
	h := Mix(seed ^ Mix(uint64(session)<<32|uint64(n)) ^ Mix(uint64(try)<<48)) //nolint:gosec // a small count
	return float64(h>>11) / (1 << 53)
}
