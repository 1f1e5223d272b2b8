package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/varal-go/varal/core/driver"
)

// The fields of an entry. Every entry has the first five in this order: a node of the
// stream then stores their names once.
const (
	fieldID     = "i"
	fieldKey    = "k"
	fieldHead   = "h" // packed: see packHead
	fieldBody   = "d"
	fieldTime   = "t" // Unix nanoseconds
	fieldTries  = "a" // hand-outs before this entry, of a retry
	fieldOrigin = "o" // id of the entry in the log, of a retry
	fieldError  = "e" // last error, of a retry
)

// headVersion begins a packed head. A reader refuses another.
const headVersion = 1

// entryOf are the arguments of XADD after the id.
func entryOf(m *driver.Message) []any {
	return []any{
		fieldID, m.ID, fieldKey, m.Key, fieldHead, packHead(m), fieldBody, m.Body,
		fieldTime, strconv.FormatInt(m.Time.UnixNano(), 10),
	}
}

// packHead packs type, end of life and headers: one field instead of many.
func packHead(m *driver.Message) []byte {
	size := 16 + len(m.Type)
	for _, h := range m.Headers {
		size += len(h.Key) + len(h.Value) + 8
	}
	b := append(make([]byte, 0, size), headVersion)
	b = appendText(b, m.Type)
	expires := int64(0)
	if m.TTL > 0 && m.TTL < 100*365*24*time.Hour {
		expires = m.Time.Add(m.TTL).UnixMilli()
	}
	b = binary.AppendVarint(b, expires)
	b = binary.AppendUvarint(b, uint64(len(m.Headers)))
	for _, h := range m.Headers {
		b = appendText(appendText(b, h.Key), h.Value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errHead = errors.New("the packed headers (field h) cannot be read")

// unpackHead is total: whatever s holds, it ends with an error or a head, and allocates no
// more than s is long.
func unpackHead(s string, m *driver.Message) (expires int64, err error) {
	r := headReader{s: s}
	if r.byte() != headVersion {
		return 0, errHead
	}
	m.Type = r.text()
	expires = r.varint()
	n := r.uvarint()
	if n > uint64(len(r.s))/2 { // a header takes two bytes at least
		return 0, errHead
	}
	if n > 0 {
		m.Headers = make([]driver.Header, n)
	}
	for i := range m.Headers {
		m.Headers[i].Key, m.Headers[i].Value = r.text(), r.text()
	}
	if r.bad || r.s != "" {
		return 0, errHead
	}
	return expires, nil
}

// headReader takes a packed head apart. After the first mistake it returns zeros.
type headReader struct {
	s   string
	bad bool
}

func (r *headReader) byte() byte {
	if r.s == "" {
		r.bad = true
		return 0
	}
	b := r.s[0]
	r.s = r.s[1:]
	return b
}

func (r *headReader) uvarint() uint64 {
	var x uint64
	for i := range binary.MaxVarintLen64 {
		b := r.byte()
		if r.bad || i == binary.MaxVarintLen64-1 && b > 1 {
			break
		}
		x |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return x
		}
	}
	r.bad, r.s = true, ""
	return 0
}

func (r *headReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *headReader) text() string {
	n := r.uvarint()
	if n > uint64(len(r.s)) {
		r.bad, r.s = true, ""
		return ""
	}
	t := r.s[:n]
	r.s = r.s[n:]
	return t
}

// record is an entry as it was read.
type record struct {
	msg     driver.Message
	expires int64 // Unix milliseconds on the publisher's clock; 0 = never
	tries   int64
	origin  string // id in the log
	err     error
}

// readRecord makes a record of the flat fields of an entry. One that is not readable as a
// message has err set and everything it holds in the body.
func readRecord(id string, fields []any) record {
	r := record{origin: id}
	var head, at string
	var have [3]bool
	for i := 0; i+1 < len(fields); i += 2 {
		name, value := text(fields[i]), text(fields[i+1])
		switch name {
		case fieldID:
			r.msg.ID, have[0] = value, true
		case fieldKey:
			r.msg.Key = value
		case fieldHead:
			head, have[1] = value, true
		case fieldBody:
			r.msg.Body, have[2] = []byte(value), true
		case fieldTime:
			at = value
		case fieldTries:
			r.tries, _ = strconv.ParseInt(value, 10, 64)
		case fieldOrigin:
			r.origin = value
		}
	}
	nanos, timeErr := strconv.ParseInt(at, 10, 64)
	r.msg.Time = time.Unix(0, nanos)
	var headErr error
	r.expires, headErr = unpackHead(head, &r.msg)
	switch {
	case !have[0] || !have[1] || !have[2] || r.msg.ID == "":
		r.err = fmt.Errorf("entry %s is not one of ours: it lacks one of the fields %s, %s, %s", id, fieldID, fieldHead, fieldBody)
	case headErr != nil:
		r.err = headErr
	case timeErr != nil:
		r.err = errors.New("the time of publishing (field t) cannot be read")
	default:
		return r
	}
	return foreign(r, id, fields)
}

// foreign turns a record that cannot be read into one that core can dead-letter.
func foreign(r record, id string, fields []any) record {
	var raw []byte
	for i := 0; i+1 < len(fields); i += 2 {
		raw = append(raw, text(fields[i])+"="+text(fields[i+1])+"\n"...)
	}
	if r.msg.ID == "" {
		r.msg.ID = id
	}
	r.msg.Headers, r.msg.Body, r.expires = nil, raw, 0
	r.msg.Time = timeOf(id)
	return r
}

// text is a string in an answer.
func text(v any) string {
	s, _ := v.(string)
	return s
}

// splitID takes <ms>-<seq> apart.
func splitID(id string) (ms, seq uint64, ok bool) {
	a, b, found := strings.Cut(id, "-")
	ms, err1 := strconv.ParseUint(a, 10, 64)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	if !found {
		return ms, 0, err1 == nil
	}
	return ms, seq, err1 == nil && err2 == nil
}

func timeOf(id string) time.Time {
	ms, _, ok := splitID(id)
	if !ok || ms > math.MaxInt64 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

// seqBits is how much of an offset counts within a millisecond.
const seqBits = 20

// offsetOf is an id as a number that grows as ids do: 43 bits of milliseconds, until the
// year 2248, and 20 of the sequence. -1 for an id that does not fit.
func offsetOf(id string) int64 {
	ms, seq, ok := splitID(id)
	if !ok || ms >= 1<<(63-seqBits) || seq >= 1<<seqBits {
		return -1
	}
	return int64(ms<<seqBits | seq)
}

// idOf is the inverse of offsetOf.
func idOf(offset int64) string {
	return fmt.Sprintf("%d-%d", uint64(offset)>>seqBits, uint64(offset)&(1<<seqBits-1))
}

// before is the id just before ms-seq: a group reads what is after its position.
func before(ms, seq uint64) string {
	switch {
	case seq > 0:
		return fmt.Sprintf("%d-%d", ms, seq-1)
	case ms > 0:
		return fmt.Sprintf("%d-%d", ms-1, uint64(math.MaxUint64))
	}
	return "0-0"
}
