// Package sendlane decides which messages of one send lane may leave now, so that the
// messages of a key are stored in order whatever fails: one of a key at a time, and after a
// failure none but that one again. It knows no goroutine, no lock and no clock; its caller
// guards a Lane by a lock.
//
// A key is
//
//	idle     nothing of it is here
//	open     messages wait, at most one is in flight
//	blocked  one failed, or is in flight and nobody waits for it: its Block names it, and
//	         nothing but the same message again (the same ID) may wait or be in flight
//
// Every key that is not idle has its place among Limits.Keys before its first message is
// admitted. So a failure can always be remembered: no bound makes a Lane forget one.
package sendlane

// Limits of one lane. Queue and Keys must be at least 1.
type Limits struct {
	// Queue is the most messages that wait. Those in flight do not count.
	Queue int
	// Keys is the most keys that are not idle, which bounds the blocked ones.
	Keys int
	// Numbered is the most idle keys whose last number is remembered. 0 = messages are not
	// numbered.
	Numbered int
}

// Number is the place of a message within its key. A later message has a greater Number;
// the same message again has the same. Numbers of one Generation count up by one.
type Number struct{ Generation, N uint64 }

// Item is one message on its way through a lane.
type Item[K comparable, V any] struct {
	// Key and Keyed: an Item that is not Keyed has no order and blocks nothing.
	Key   K
	Keyed bool
	// ID tells the same message again from another one.
	ID string
	// Value is the caller's.
	Value V
	// Number is set by Take.
	Number Number

	state   state
	resumed bool // its key was resumed while it was in flight
	of      *key[K, V]
	place   node[Item[K, V]]
}

type state uint8

const (
	fresh state = iota
	waiting
	inFlight
	over
)

// Block is why a key takes no other message.
type Block struct {
	ID     string
	Number Number
	// Note is the caller's.
	Note any
}

// key is what a lane knows of a key.
type key[K comparable, V any] struct {
	name    K
	keyed   bool
	queue   chain[Item[K, V]]
	flight  *Item[K, V]
	repeats bool // the message in flight may wait in the queue as well
	block   *Block
	number  Number // the last one given
	place   node[key[K, V]]
}

func (k *key[K, V]) idle() bool { return k.queue.head == nil && k.flight == nil && k.block == nil }

// Lane is the state of one lane. Make it by New.
type Lane[K comparable, V any] struct {
	limits     Limits
	keys       map[K]*key[K, V]
	ready      chain[key[K, V]] // keys of which a message may leave, the longest ready first
	waiting    int
	active     int // keys that are not idle
	blocked    int
	idle       int // keys that are in the map for their number alone
	generation uint64
}

// New returns an empty lane.
func New[K comparable, V any](limits Limits) *Lane[K, V] {
	return &Lane[K, V]{limits: limits, keys: map[K]*key[K, V]{}}
}

// Verdict is the answer of Admit.
type Verdict uint8

// The verdicts.
const (
	Admitted Verdict = iota
	Full             // there will be room when something has left
	Blocked          // another message of the key is in the way
	Crowded          // so many keys are blocked that this one could not be remembered
)

// Admit lets a new Item wait, or says why not. A retry of the message that blocks its key
// is admitted as another Item with the same ID.
func (l *Lane[K, V]) Admit(it *Item[K, V]) Verdict {
	var k *key[K, V]
	if it.Keyed {
		k = l.keys[it.Key]
	}
	newcomer := it.Keyed && (k == nil || k.idle())
	switch {
	case k != nil && k.block != nil && k.block.ID != it.ID:
		return Blocked
	case newcomer && l.blocked >= l.limits.Keys:
		return Crowded
	case l.waiting >= l.limits.Queue, newcomer && l.active >= l.limits.Keys:
		return Full
	}
	switch {
	case k == nil:
		k = &key[K, V]{name: it.Key, keyed: it.Keyed, number: Number{Generation: l.generation}}
		if k.keyed {
			l.keys[it.Key] = k
		}
	case newcomer:
		l.idle--
	}
	if newcomer {
		l.active++
	}
	if k.block != nil {
		k.repeats = true
	}
	it.of, it.state = k, waiting
	k.queue.add(&it.place, it)
	l.waiting++
	l.offer(k)
	return Admitted
}

// offer lets k leave if it may.
func (l *Lane[K, V]) offer(k *key[K, V]) {
	if k.flight == nil && k.queue.head != nil && k.place.of == nil {
		l.ready.add(&k.place, k)
	}
}

// Take appends to dst up to most items that leave together now: at most one of a key, all
// alike the first. Done must be called for each.
func (l *Lane[K, V]) Take(dst []*Item[K, V], most int, alike func(a, b *Item[K, V]) bool) []*Item[K, V] {
	from := len(dst)
	for n := l.ready.head; n != nil && len(dst)-from < most; {
		k, it := n.of, n.of.queue.head.of
		n = n.next
		if len(dst) > from && !alike(dst[from], it) {
			continue
		}
		l.ready.remove(&k.place)
		l.unqueue(it)
		it.state, k.flight = inFlight, it
		l.number(k, it)
		dst = append(dst, it)
	}
	return dst
}

func (l *Lane[K, V]) unqueue(it *Item[K, V]) {
	it.of.queue.remove(&it.place)
	l.waiting--
}

// number gives it the next number of its key, or the one it had when it failed. Only now:
// a message that is never sent leaves no gap.
func (l *Lane[K, V]) number(k *key[K, V], it *Item[K, V]) {
	switch {
	case l.limits.Numbered == 0 || !k.keyed:
	case k.block != nil:
		it.Number = k.block.Number
	default:
		k.number.N++
		it.Number = k.number
	}
}

// Done ends an item that Take returned and appends to dst those whose fate it decided:
// after a success the same message where it waits to be sent again, which need not be;
// after a failure, the messages of the key that waited and are now behind a blocked key.
// They are over. note is that of the Block.
func (l *Lane[K, V]) Done(it *Item[K, V], ok bool, note any, dst []*Item[K, V]) []*Item[K, V] {
	k := it.of
	it.state, k.flight = over, nil
	switch {
	case !k.keyed:
		return dst
	case ok:
		if k.block != nil {
			k.block = nil
			l.blocked--
		}
		if k.repeats {
			dst = l.drop(k, dst, func(id string) bool { return id == it.ID })
		}
	case it.resumed: // given up by Resume before its outcome was known
	case k.block != nil:
		k.block.Note = note
	default:
		dst = l.block(k, it, note, dst)
	}
	k.repeats = k.block != nil && k.queue.head != nil
	l.rest(k)
	return dst
}

// Leave says that nobody waits for it any more. If it had not been sent it is out of the
// lane and never will be. Otherwise its key is blocked until Done, and what waited behind
// it is over and appended to dst.
func (l *Lane[K, V]) Leave(it *Item[K, V], note any, dst []*Item[K, V]) (unsent bool, out []*Item[K, V]) {
	k := it.of
	switch it.state {
	case waiting:
		l.unqueue(it)
		it.state = over
		if k.queue.head == nil {
			l.ready.remove(&k.place)
		}
		l.rest(k)
		return true, dst
	case inFlight:
		if k.keyed && k.block == nil && !it.resumed {
			dst = l.block(k, it, note, dst)
			k.repeats = true
		}
		return false, dst
	}
	return it.state == fresh, dst
}

// block blocks k by it and drops everybody else who waits.
func (l *Lane[K, V]) block(k *key[K, V], it *Item[K, V], note any, dst []*Item[K, V]) []*Item[K, V] {
	k.block = &Block{ID: it.ID, Number: it.Number, Note: note}
	l.blocked++
	return l.drop(k, dst, func(id string) bool { return id != it.ID })
}

// drop ends those who wait in k and have such an ID.
func (l *Lane[K, V]) drop(k *key[K, V], dst []*Item[K, V], such func(id string) bool) []*Item[K, V] {
	for n := k.queue.head; n != nil; {
		it := n.of
		n = n.next
		if such(it.ID) {
			l.unqueue(it)
			it.state = over
			dst = append(dst, it)
		}
	}
	return dst
}

// rest lets k leave again, or forgets it when nothing of it is here.
func (l *Lane[K, V]) rest(k *key[K, V]) {
	if !k.idle() {
		l.offer(k)
		return
	}
	if !k.keyed {
		return
	}
	l.active--
	if l.limits.Numbered == 0 {
		delete(l.keys, k.name)
		return
	}
	if l.idle++; l.idle > l.limits.Numbered {
		l.forget()
	}
}

// forget drops the numbers of all idle keys. From now on a key that is not known counts in
// a new generation, so that what follows is greater than what was forgotten.
func (l *Lane[K, V]) forget() {
	for name, k := range l.keys {
		if k.idle() {
			delete(l.keys, name)
		}
	}
	l.idle = 0
	l.generation++
}

// Resume unblocks a key: the message that blocked it is given up, and so is its number. If
// it is still in flight the next one waits for it, and its failure blocks nothing.
func (l *Lane[K, V]) Resume(name K) bool {
	k := l.keys[name]
	if k == nil || k.block == nil {
		return false
	}
	k.block = nil
	l.blocked--
	if k.flight != nil {
		k.flight.resumed = true
	}
	l.rest(k)
	return true
}

// BlockOf returns the Block of a key, nil where there is none.
func (l *Lane[K, V]) BlockOf(name K) *Block {
	if k := l.keys[name]; k != nil {
		return k.block
	}
	return nil
}

// Blocks calls yield for each blocked key, in no order.
func (l *Lane[K, V]) Blocks(yield func(name K, b *Block) bool) {
	for name, k := range l.keys {
		if k.block != nil && !yield(name, k.block) {
			return
		}
	}
}
