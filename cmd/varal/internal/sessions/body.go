package sessions

import (
	"encoding/binary"
	"math/rand/v2"
)

// MinPayload is the smallest body: run, session, number and stamp.
const MinPayload = 24

// ticket is what a body says. Numbers of a session are 1, 2, 3 …; the stamp is in
// nanoseconds since the round began.
type ticket struct {
	session, n uint32
	stamp      int64
}

// noise fills bodies: zeros would compress to nothing on the way to a broker.
var noise = func() []byte {
	b := make([]byte, 64<<10)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // it never fails
	return b
}()

// encode appends a body of size bytes to b.
func (t ticket) encode(b []byte, run uint64, size int) []byte {
	from := len(b)
	b = binary.LittleEndian.AppendUint64(b, run)
	b = binary.LittleEndian.AppendUint32(b, t.session)
	b = binary.LittleEndian.AppendUint32(b, t.n)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.stamp)) //nolint:gosec // read back the same way
	at := int(mix(uint64(t.session)<<32|uint64(t.n)) % uint64(len(noise)))
	for size > len(b)-from {
		b = append(b, noise[at:min(len(noise), at+size-(len(b)-from))]...)
		at = 0
	}
	return b
}

// decode reads a body; false: it is not of this run, or not whole.
func decode(b []byte, run uint64, size int) (t ticket, ok bool) {
	if len(b) != size || binary.LittleEndian.Uint64(b) != run {
		return t, false
	}
	t.session = binary.LittleEndian.Uint32(b[8:])
	t.n = binary.LittleEndian.Uint32(b[12:])
	t.stamp = int64(binary.LittleEndian.Uint64(b[16:])) //nolint:gosec // written the same way
	return t, true
}
