package check

import (
	"hash/maphash"
	"strconv"
	"strings"
)

// split takes "publisher.counter" apart. ok is false for any other ID.
func split(id string) (publisher string, counter uint64, ok bool) {
	dot := strings.LastIndexByte(id, '.')
	if dot < 0 {
		return "", 0, false
	}
	digits := id[dot+1:]
	if digits == "" || len(digits) > 18 || (digits[0] == '0' && len(digits) > 1) {
		return "", 0, false // "p.01" and "p.1" are two messages
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return "", 0, false
		}
	}
	counter, err := strconv.ParseUint(digits, 10, 64)
	return id[:dot], counter, err == nil
}

// page holds sixteen neighbours: a map entry for sixteen messages instead of one
// is what keeps tens of millions of them in memory.
const pageSize = 16

type pageKey struct {
	owner uint32
	page  int64
}

// table maps (owner, number) to a small value.
type table[T comparable] struct{ pages map[pageKey]*[pageSize]T }

func newTable[T comparable]() table[T] { return table[T]{pages: map[pageKey]*[pageSize]T{}} }

// peek returns the value, zero where there is none.
func (t table[T]) peek(owner uint32, n int64) (v T) {
	if p := t.pages[pageKey{owner, n >> 4}]; p != nil {
		return p[n&(pageSize-1)]
	}
	return v
}

// at returns a pointer to the value, made where there is none.
func (t table[T]) at(owner uint32, n int64) *T {
	k := pageKey{owner, n >> 4}
	p := t.pages[k]
	if p == nil {
		p = new([pageSize]T)
		t.pages[k] = p
	}
	return &p[n&(pageSize-1)]
}

// names gives strings small numbers.
type names struct {
	of   map[string]uint32
	list []string
}

func newNames() *names { return &names{of: map[string]uint32{}} }

func (s *names) number(name string) uint32 {
	n, ok := s.of[name]
	if !ok {
		name = strings.Clone(name) // do not keep the whole line alive
		n = uint32(len(s.list))    //nolint:gosec // bounded by memory
		s.of[name] = n
		s.list = append(s.list, name)
	}
	return n
}

// ids is a table by message ID. IDs of the usual form go by publisher and counter,
// others one by one.
type ids[T comparable] struct {
	publishers *names
	usual      table[T]
	other      map[string]*T
}

func newIDs[T comparable]() ids[T] {
	return ids[T]{publishers: newNames(), usual: newTable[T](), other: map[string]*T{}}
}

func (t ids[T]) at(id string) *T {
	if pub, n, ok := split(id); ok {
		return t.usual.at(t.publishers.number(pub), int64(n)) //nolint:gosec // 18 digits
	}
	v := t.other[id]
	if v == nil {
		v = new(T)
		t.other[strings.Clone(id)] = v
	}
	return v
}

// each calls f for every value that is not zero, in no order.
func (t ids[T]) each(f func(id string, v T)) {
	var zero T
	for k, p := range t.usual.pages {
		for i, v := range p {
			if v != zero {
				f(t.publishers.list[k.owner]+"."+strconv.FormatInt(k.page<<4+int64(i), 10), v)
			}
		}
	}
	for id, v := range t.other {
		if *v != zero {
			f(id, *v)
		}
	}
}

// digest is a short fingerprint of a message's place, for comparing what was sent
// with what came.
type digester struct{ seed maphash.Seed }

func newDigester() digester { return digester{maphash.MakeSeed()} }

func (d digester) of(key string, n int) uint32 {
	h := maphash.String(d.seed, key+"\x00"+strconv.Itoa(n))
	return uint32(h) | 1 //nolint:gosec // truncation is the point; 0 means none
}

// laneKey names a key's lane of one group.
func laneKey(group, dest, key string) string { return group + "\x00" + dest + "\x00" + key }
