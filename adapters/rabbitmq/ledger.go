package rabbitmq

// ledger knows the delivery tags of one channel: which are out, and up to where all
// are settled. Tags count from 1 and arrive in order. Not safe for concurrent use.
type ledger struct {
	base  uint64 // state[0] is this tag; everything below is settled
	state []bool // true = settled
	out   int    // tags that are not settled
	mark  uint64 // tags up to here came from earlier consumers of this channel
	older int    // of those, how many are not settled
}

func (l *ledger) add(tag uint64) {
	if l.base == 0 {
		l.base = tag
	}
	for l.base+uint64(len(l.state)) < tag { // cannot happen; a gap is not ours to settle
		l.state = append(l.state, true)
	}
	l.state = append(l.state, false)
	l.out++
}

// settle marks a tag and reports whether it was out.
func (l *ledger) settle(tag uint64) bool {
	if tag < l.base || tag >= l.base+uint64(len(l.state)) || l.state[tag-l.base] {
		return false
	}
	l.state[tag-l.base] = true
	l.out--
	if tag <= l.mark {
		l.older--
	}
	return true
}

// prefix forgets the settled tags in front and returns the first one kept: all below
// it are settled.
func (l *ledger) prefix() uint64 {
	n := 0
	for n < len(l.state) && l.state[n] {
		n++
	}
	l.base += uint64(n)
	if l.state = l.state[n:]; len(l.state) == 0 && cap(l.state) < 1024 {
		l.state = nil
	}
	return l.base
}

// recount makes everything out now the inheritance of earlier consumers.
func (l *ledger) recount() {
	l.mark, l.older = l.base+uint64(len(l.state)), l.out
	if l.mark > 0 {
		l.mark--
	}
}

// last is the highest tag that is out; 0 = none.
func (l *ledger) last() uint64 {
	for i := len(l.state) - 1; i >= 0; i-- {
		if !l.state[i] {
			return l.base + uint64(i)
		}
	}
	return 0
}

// settleTo marks every tag up to tag.
func (l *ledger) settleTo(tag uint64) {
	for t := l.base; t <= tag && t < l.base+uint64(len(l.state)); t++ {
		l.settle(t)
	}
	l.prefix()
}
