package core

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/varal-go/varal/core/driver"
)

// Sequence is the place of a message within its key, as an OrderedPublisher with
// OrderedOptions.Sequence writes it into the header varal-seq. By it a consumer can prove
// the order of a key:
//
//   - Two messages of a key and the same Publisher: the one with the greater Generation, or
//     in one Generation the greater N, was published later. If it comes first, the order was
//     broken on the way, or in the consumer.
//   - Equal: the same message, stored or delivered more than once.
//   - A gap (N and then N+2 in one Generation): a message that was sent and has not come.
//     Either its publish failed or ended indeterminate and ResumeKey gave it up, so that it
//     may or may not be stored; or it expired, went to another group, or was lost. A message
//     that was never sent leaves no gap.
//   - Another Generation: the publisher forgot the last number (OrderedOptions.MaxNumbered)
//     and counts from 1 again; a gap between the two cannot be seen.
//   - Another Publisher: another instance, or the same program after a restart. Nothing can
//     be said; where two publish the same key at a time there is no order to prove.
//
// A number is never given to two messages. A message published again after a failure keeps
// its number, unless ResumeKey has given it up.
//
// The header is not signed: anybody may have written it.
type Sequence struct {
	// Publisher names the OrderedPublisher: 16 hexadecimal digits, drawn at random.
	Publisher string
	// Generation counts up from 0.
	Generation uint64
	// N counts the messages of the key in this Generation, from 1.
	N uint64
}

// publisherLen is the length of Sequence.Publisher.
const publisherLen = 16

func newPublisherID() string {
	var b [publisherLen / 2]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("varal: no randomness: " + err.Error()) // crypto/rand documents that it never fails
	}
	return hex.EncodeToString(b[:])
}

// Epoch is what the numbers are compared within: "publisher.generation".
func (s Sequence) Epoch() string { return s.Publisher + "." + strconv.FormatUint(s.Generation, 10) }

// String returns the value of the header: Epoch, "-" and N.
func (s Sequence) String() string { return s.Epoch() + "-" + strconv.FormatUint(s.N, 10) }

// Compare returns -1, 0 or +1 as s was published before t, is the same or came after. It
// returns false where nothing can be said: they are of different Publishers. Both must be
// of the same key.
func (s Sequence) Compare(t Sequence) (int, bool) {
	if s.Publisher != t.Publisher {
		return 0, false
	}
	return cmp.Or(cmp.Compare(s.Generation, t.Generation), cmp.Compare(s.N, t.N)), true
}

// SequenceOf reads the header of a message. It returns false where there is none, or one
// that is not what String writes.
func SequenceOf(m *Message) (Sequence, bool) {
	v, ok := m.Header(driver.HeaderSeq)
	if !ok {
		return Sequence{}, false
	}
	return parseSequence(v)
}

func parseSequence(v string) (s Sequence, ok bool) {
	epoch, n, ok1 := strings.Cut(v, "-")
	publisher, generation, ok2 := strings.Cut(epoch, ".")
	if !ok1 || !ok2 || len(publisher) != publisherLen || strings.Trim(publisher, "0123456789abcdef") != "" {
		return Sequence{}, false
	}
	s.Publisher = publisher
	if s.Generation, ok = canonical(generation); !ok {
		return Sequence{}, false
	}
	if s.N, ok = canonical(n); !ok || s.N == 0 {
		return Sequence{}, false
	}
	return s, true
}

// canonical reads a number as strconv writes it: no sign, no leading zero.
func canonical(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && (s == "0" || s[0] != '0')
}
