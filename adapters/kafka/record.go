package kafka

import (
	"context"
	"math"
	"strconv"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/core/driver"
)

// outgoing is one record on its way. It is the record's own Context, so that the
// promise, which sees only the record, knows its place in the batch without an
// allocation per record.
type outgoing struct {
	context.Context
	rec   kgo.Record
	index int
}

// bytesOf shares the bytes of s. The client only reads them, and core promises not
// to change a message it handed in.
func bytesOf(s string) []byte {
	if s == "" {
		return []byte{}
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// headerCount is how many headers m becomes.
func headerCount(m *driver.Message) int {
	n := len(m.Headers) + 1
	if m.Type != "" {
		n++
	}
	if m.TTL > 0 {
		n++
	}
	if m.Priority != 0 {
		n++
	}
	return n
}

// ttlMillis rounds up: a TTL never becomes "no limit".
func ttlMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond != 0 {
		ms++
	}
	return ms
}

// encode fills r from m, its headers appended to room, which is returned.
func encode(r *kgo.Record, topic string, m *driver.Message, room []kgo.RecordHeader) []kgo.RecordHeader {
	r.Topic, r.Timestamp, r.Value = topic, m.Time, m.Body
	if m.Key != "" {
		r.Key = bytesOf(m.Key)
	}
	from := len(room)
	room = append(room, kgo.RecordHeader{Key: driver.HeaderID, Value: bytesOf(m.ID)})
	if m.Type != "" {
		room = append(room, kgo.RecordHeader{Key: driver.HeaderType, Value: bytesOf(m.Type)})
	}
	if m.TTL > 0 {
		room = append(room, kgo.RecordHeader{Key: driver.HeaderTTL, Value: strconv.AppendInt(nil, ttlMillis(m.TTL), 10)})
	}
	if m.Priority != 0 {
		room = append(room, kgo.RecordHeader{Key: driver.HeaderPriority, Value: strconv.AppendInt(nil, int64(m.Priority), 10)})
	}
	for i := range m.Headers {
		room = append(room, kgo.RecordHeader{Key: m.Headers[i].Key, Value: bytesOf(m.Headers[i].Value)})
	}
	r.Headers = room[from:len(room):len(room)]
	return room
}

// sizeOf is what core counts a record as: see driver.Message.Size.
func sizeOf(r *kgo.Record) int64 {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}

// The headers that carry a field of Message.
const (
	notOurs = iota
	isID
	isType
	isTTL
	isPriority
)

func ourHeader(key string) int {
	if len(key) < len(driver.HeaderPrefix) || key[:len(driver.HeaderPrefix)] != driver.HeaderPrefix {
		return notOurs
	}
	switch key {
	case driver.HeaderID:
		return isID
	case driver.HeaderType:
		return isType
	case driver.HeaderTTL:
		return isTTL
	case driver.HeaderPriority:
		return isPriority
	}
	return notOurs
}

// textOf copies key and headers of r into one string of the message's own. Sharing
// the client's buffer would cost nothing now and a whole fetch (hundreds of KiB) for
// every key or id that somebody keeps in a map.
func textOf(r *kgo.Record) string {
	n := len(r.Key)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	if n == 0 {
		return ""
	}
	buf := make([]byte, 0, n)
	buf = append(buf, r.Key...)
	for i := range r.Headers {
		if ourHeader(r.Headers[i].Key) == notOurs {
			buf = append(buf, r.Headers[i].Key...)
		}
		buf = append(buf, r.Headers[i].Value...)
	}
	return unsafe.String(unsafe.SliceData(buf), len(buf)) // nobody writes to buf again
}

// decode fills m from r, its headers appended to room, which is returned. It is
// total: whatever another producer wrote becomes a message. Of a repeated header of
// ours the first counts.
func decode(m *driver.Message, r *kgo.Record, room []driver.Header) []driver.Header {
	// Capped: a handler that appends to its body must not write into the neighbour's.
	m.Body = r.Value[:len(r.Value):len(r.Value)]
	if r.Timestamp.UnixMilli() >= 0 {
		m.Time = r.Timestamp
	}
	text := textOf(r)
	m.Key, text = text[:len(r.Key)], text[len(r.Key):]
	from, seen := len(room), 0
	for i := range r.Headers {
		h, key, value := &r.Headers[i], "", ""
		kind := ourHeader(h.Key)
		if kind == notOurs {
			key, text = text[:len(h.Key)], text[len(h.Key):]
		}
		value, text = text[:len(h.Value)], text[len(h.Value):]
		if kind == notOurs {
			room = append(room, driver.Header{Key: key, Value: value})
		} else if seen&(1<<kind) == 0 {
			seen |= 1 << kind
			setField(m, kind, value)
		}
	}
	if from < len(room) {
		m.Headers = room[from:len(room):len(room)]
	}
	if m.ID == "" {
		m.ID = r.Topic + "/" + strconv.Itoa(int(r.Partition)) + "/" + strconv.FormatInt(r.Offset, 10)
	}
	return room
}

// setField ignores a number it cannot read: it is not what makes a message.
func setField(m *driver.Message, kind int, value string) {
	switch kind {
	case isID:
		m.ID = value
	case isType:
		m.Type = value
	case isTTL:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms > 0 && ms <= math.MaxInt64/int64(time.Millisecond) {
			m.TTL = time.Duration(ms) * time.Millisecond
		}
	case isPriority:
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			m.Priority = n
		}
	}
}
