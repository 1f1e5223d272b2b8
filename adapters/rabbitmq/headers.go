package rabbitmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

// headerOrder is the field that keeps what an AMQP table cannot: the order of headers,
// repeated keys, and keys that mean something to RabbitMQ. Written only when the headers
// are not already unique, sorted and free of such keys.
//
// It is a list of entries in order: length of the key (varint), key, then 0 (the value
// is the table's) or 1 and the value (length as varint, bytes).
const headerOrder = "varal-headers"

// shortMax is the most bytes of an AMQP short string: message id, type, routing key,
// header key. The client closes the whole connection on a longer one.
const shortMax = 255

// own are the fields of a Message that travel as headers; they are taken out again.
var own = map[string]bool{
	driver.HeaderID: true, driver.HeaderKey: true, driver.HeaderType: true,
	driver.HeaderTime: true, headerOrder: true,
}

// brokers tells the headers that RabbitMQ writes about a delivery. Published again, an
// x-death makes the broker see a cycle and drop the message without a word.
func brokers(key string) bool {
	switch key {
	case "x-delivery-count", "x-acquired-count", "x-stream-offset", "x-death", "x-received-from", "x-delay":
		return true
	}
	return strings.HasPrefix(key, "x-first-death-") || strings.HasPrefix(key, "x-last-death-") || strings.HasPrefix(key, "x-opt-")
}

// aboutDelivery tells those that Received has a field for; they change with each
// hand-out and would make two copies of a message look different.
func aboutDelivery(key string) bool {
	return key == "x-delivery-count" || key == "x-acquired-count" || key == "x-stream-offset"
}

// meant tells the keys that RabbitMQ acts on when they are published: x-…, and CC and BCC
// (further routing keys), which must be arrays or the channel is closed under everybody.
func meant(key string) bool {
	return strings.HasPrefix(key, "x-") || key == "CC" || key == "BCC"
}

// encodeHeaders fills the table; size is a bound of its encoded bytes.
func encodeHeaders(t amqp.Table, hs []driver.Header) (size int, err error) {
	var packed []byte
	last, plain := "", true
	for i := range hs {
		k := hs[i].Key
		switch {
		case k == "":
			return 0, errors.New("a header has an empty key")
		case len(k) > shortMax:
			return 0, fmt.Errorf("header key %.40q… is longer than %d bytes", k, shortMax)
		case own[k]:
			return 0, fmt.Errorf("header %q is reserved: use the field of Message", k)
		}
		plain = plain && k > last && !meant(k)
		last = k
	}
	for i := range hs {
		k, v := hs[i].Key, hs[i].Value
		if brokers(k) {
			continue
		}
		size += len(k) + len(v) + 6
		_, repeated := t[k]
		inline := repeated || meant(k)
		if !inline {
			t[k] = v
		}
		if plain {
			continue
		}
		packed = append(binary.AppendUvarint(packed, uint64(len(k))), k...)
		if !inline {
			packed = append(packed, 0)
			continue
		}
		packed = append(binary.AppendUvarint(append(packed, 1), uint64(len(v))), v...)
	}
	if len(packed) > 0 {
		t[headerOrder] = packed
		size += len(packed) + len(headerOrder) + 6
	}
	return size, nil
}

// decodeHeaders is total: whatever a table holds becomes text, nothing fails.
func decodeHeaders(t amqp.Table) []driver.Header {
	if len(t) == 0 {
		return nil
	}
	out := make([]driver.Header, 0, len(t))
	var listed map[string]bool
	if p, ok := t[headerOrder].([]byte); ok {
		out, listed = unpack(out, p, t)
	}
	at := len(out)
	for k, v := range t {
		if own[k] || aboutDelivery(k) || listed[k] {
			continue
		}
		out = append(out, driver.Header{Key: k, Value: text(v, 0)})
	}
	rest := out[at:]
	sort.Slice(rest, func(i, j int) bool { return rest[i].Key < rest[j].Key })
	if len(out) == 0 {
		return nil
	}
	return out
}

// unpack reads the entries of headerOrder. A damaged tail is dropped: the values of
// the table come anyway.
func unpack(out []driver.Header, p []byte, t amqp.Table) ([]driver.Header, map[string]bool) {
	listed := map[string]bool{}
	for len(p) > 0 {
		key, rest, ok := cut(p)
		if !ok || len(rest) == 0 || key == "" {
			break
		}
		inline := rest[0] == 1
		p = rest[1:]
		if !inline {
			if v, ok := t[key]; ok && !own[key] && !listed[key] {
				out = append(out, driver.Header{Key: key, Value: text(v, 0)})
				listed[key] = true
			}
			continue
		}
		var value string
		if value, p, ok = cut(p); !ok {
			break
		}
		if !own[key] {
			out = append(out, driver.Header{Key: key, Value: value})
		}
	}
	return out, listed
}

func cut(p []byte) (s string, rest []byte, ok bool) {
	n, w := binary.Uvarint(p)
	if w <= 0 || n > uint64(len(p)-w) {
		return "", nil, false
	}
	return string(p[w : w+int(n)]), p[w+int(n):], true
}

const (
	textDepth = 16      // deeper values are cut
	textMax   = 4 << 10 // bytes of one nested value's text, roughly
)

// text is the canonical text of any AMQP value. Strings and bytes come as they are;
// arrays and tables in JSON's notation with sorted keys.
func text(v any, depth int) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	case bool:
		return strconv.FormatBool(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case amqp.Decimal:
		return decimal(v)
	case []any, amqp.Table:
		return string(nested(nil, v, depth))
	case int, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%.100v", v)
}

func decimal(d amqp.Decimal) string {
	s := strconv.FormatInt(int64(d.Value), 10)
	if d.Scale == 0 {
		return s
	}
	return s + "e-" + strconv.Itoa(int(d.Scale))
}

func nested(b []byte, v any, depth int) []byte {
	if depth >= textDepth || len(b) > textMax {
		return append(b, `"…"`...)
	}
	switch v := v.(type) {
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if len(b) > textMax {
				b = append(b, `"…"`...)
				break
			}
			b = nested(b, e, depth+1)
		}
		return append(b, ']')
	case amqp.Table:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			if len(b) > textMax {
				b = append(b, `"…":""`...)
				break
			}
			b = append(quote(b, k), ':')
			b = nested(b, v[k], depth+1)
		}
		return append(b, '}')
	case nil:
		return append(b, "null"...)
	case bool, int, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return fmt.Append(b, v)
	}
	return quote(b, text(v, depth))
}

func quote(b []byte, s string) []byte {
	if len(s) > textMax {
		s = s[:textMax] + "…"
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return strconv.AppendQuote(b, s)
}
