package main

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
)

// source makes payloads that no codec can shrink: slices of one random pool, one behind
// the other, so that the same bytes come again only after a megabyte, beyond the window
// of snappy. (Slices that overlapped compressed to a third.) Keys are drawn from a fixed set in turn, so every key has many
// messages. Both sides use the same source.
type source struct {
	size int
	pool []byte
	keys []string
	n    atomic.Uint64
}

const poolSize = 1 << 20

func newSource(size, keys int) *source {
	s := &source{size: size, pool: make([]byte, poolSize)}
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(s.pool) // documented never to fail
	for k := range keys {
		s.keys = append(s.keys, fmt.Sprintf("session-%04d", k))
	}
	return s
}

// next returns the next payload and its key ("" without keys). The payload is shared:
// nobody writes to it.
func (s *source) next() (body []byte, key string) {
	n := s.n.Add(1)
	at := int(n%uint64(poolSize/s.size)) * s.size
	if len(s.keys) > 0 {
		key = s.keys[n%uint64(len(s.keys))]
	}
	return s.pool[at : at+s.size : at+s.size], key
}

// idSource makes ids of the form and at the cost of varal's own: 16 random hex digits,
// then a counter, a batch cut from one string. A raw peer that made ids by a UUID
// package would pay for what is not the client's.
type idSource struct{ next atomic.Uint64 }

const idLen = 32

func (s *idSource) take(n int) string {
	last := s.next.Add(uint64(n))
	buf := make([]byte, 0, n*idLen)
	var num [8]byte
	for i := range n {
		v := last - uint64(n-1-i)
		for k := range num {
			num[k] = byte(v >> (56 - 8*k))
		}
		buf = append(buf, "9f3b6c1de07a5482"...)
		buf = hex.AppendEncode(buf, num[:])
	}
	return string(buf)
}
