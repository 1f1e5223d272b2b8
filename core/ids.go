package core

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"sync/atomic"
)

// idSource makes message ids: 16 random bytes of which the last 8 count up, in hex.
// Unique without asking anybody: two processes collide only if they draw the same
// first 8 bytes, and one process counts 2^64 messages before it repeats.
type idSource struct {
	prefix [16]byte // hex of the first 8 bytes
	next   *atomic.Uint64
}

func newIDSource() idSource {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("varal: no randomness: " + err.Error()) // crypto/rand documents that it never fails
	}
	s := idSource{next: &atomic.Uint64{}}
	hex.Encode(s.prefix[:], b[:8])
	s.next.Store(binary.BigEndian.Uint64(b[8:]))
	return s
}

const idLen = 32

// take returns n fresh ids cut from one string, so that a batch costs one
// allocation.
func (s *idSource) take(n int) string {
	last := s.next.Add(uint64(n))
	var b strings.Builder
	b.Grow(n * idLen)
	var num [8]byte
	var text [idLen]byte
	copy(text[:], s.prefix[:])
	for i := range n {
		binary.BigEndian.PutUint64(num[:], last-uint64(n-1-i))
		hex.Encode(text[16:], num[:])
		b.Write(text[:])
	}
	return b.String()
}
