package aws

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/varal-go/varal/core/driver"
)

// The attributes of a message of ours. A queue takes ten, none of them empty: so all
// headers travel in one, in order and with repeats, and only those that something outside
// of varal reads are attributes as well.
const (
	attrHeaders  = "varal-headers"  // JSON: [["name","value"] …]; a value that is no text is {"b64":"…"}
	attrEncoding = "varal-encoding" // of the body: "b64", or not there
	attrTrace    = "traceparent"

	encodingB64 = "b64"
	typeString  = "String"
	typeBinary  = "Binary"
)

// attribute of a message, for SQS and SNS alike.
type attribute struct {
	name   string
	binary bool
	text   string
	raw    []byte
}

func (a *attribute) size() int {
	kind := typeString
	if a.binary {
		kind = typeBinary
	}
	return len(a.name) + len(kind) + len(a.text) + len(a.raw)
}

// record is a message as it goes out.
type record struct {
	body  string
	attrs []attribute
	size  int // what counts against the limit of a message and of a batch
}

// encode makes the record of a message. keyTold: the message group says what the key is.
func encode(m *driver.Message, promoted []string, keyTold bool) record {
	var r record
	r.add(driver.HeaderID, m.ID)
	r.add(driver.HeaderTime, m.Time.UTC().Format(time.RFC3339Nano))
	if m.Type != "" {
		r.add(driver.HeaderType, m.Type)
	}
	if m.Key != "" && !keyTold {
		r.add(driver.HeaderKey, m.Key)
	}
	if len(m.Headers) > 0 {
		r.add(attrHeaders, packHeaders(m.Headers))
		for _, name := range append([]string{attrTrace}, promoted...) {
			if v, ok := m.Header(name); ok && v != "" && legalText(v) && !r.has(name) {
				r.add(name, v)
			}
		}
	}
	if len(m.Body) > 0 && legalText(string(m.Body)) {
		r.body = string(m.Body)
	} else {
		// An empty body is none for AWS, and of the characters it takes those of XML 1.0.
		r.body = base64.StdEncoding.EncodeToString(m.Body)
		r.add(attrEncoding, encodingB64)
		if r.body == "" {
			r.body = emptyBody
		}
	}
	r.size += len(r.body)
	return r
}

// emptyBody stands for an empty body: base64 of nothing is nothing.
const emptyBody = "="

func (r *record) add(name, value string) {
	a := attribute{name: name, text: value}
	if value == "" || !legalText(value) {
		a = attribute{name: name, binary: true, raw: []byte(value)}
	}
	r.attrs = append(r.attrs, a)
	r.size += a.size()
}

func (r *record) has(name string) bool {
	return slices.ContainsFunc(r.attrs, func(a attribute) bool { return a.name == name })
}

// legalText reports whether s is UTF-8 of the characters that SQS takes: those of XML 1.0.
// Valid UTF-8 alone is not enough: NUL is.
func legalText(s string) bool {
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return false
			}
		case r == '\t', r == '\n', r == '\r', r >= 0x20 && r <= 0xD7FF, r >= 0xE000 && r <= 0xFFFD, r >= 0x10000:
		default:
			return false
		}
	}
	return true
}

// binaryValue is a header's value that is no text.
type binaryValue struct {
	B64 []byte `json:"b64"`
}

func packHeaders(hs []driver.Header) string {
	out := make([][2]any, len(hs))
	for i, h := range hs {
		out[i] = [2]any{jsonText(h.Key), jsonText(h.Value)}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(out) // strings and byte slices only
	return strings.TrimSuffix(b.String(), "\n")
}

func jsonText(s string) any {
	if legalText(s) {
		return s
	}
	return binaryValue{[]byte(s)}
}

var errHeaders = errors.New("the attribute varal-headers cannot be read")

// unpackHeaders is total: whatever s holds, it ends with headers or an error.
func unpackHeaders(s string) ([]driver.Header, error) {
	var list [][]json.RawMessage
	if json.Unmarshal([]byte(s), &list) != nil {
		return nil, errHeaders
	}
	out := make([]driver.Header, len(list))
	for i, pair := range list {
		if len(pair) != 2 {
			return nil, errHeaders
		}
		for j, to := range []*string{&out[i].Key, &out[i].Value} {
			var b binaryValue
			switch {
			case json.Unmarshal(pair[j], to) == nil && pair[j][0] == '"':
			case pair[j][0] == '{' && json.Unmarshal(pair[j], &b) == nil:
				*to = string(b.B64)
			default:
				return nil, errHeaders
			}
		}
	}
	return out, nil
}

// incoming is a message as a queue gives it.
type incoming struct {
	body   string
	attrs  []attribute
	native string    // the queue's own id
	group  string    // message group, "" = none
	sent   time.Time // when the queue stored it
}

// decode makes a message of it. A message of somebody else comes as it is: its attributes
// are headers, its id is the queue's. One of ours that is damaged has an error, and the
// body as it came.
func decode(in *incoming) (driver.Message, error) {
	m := driver.Message{ID: in.native, Key: keyOf(in.group), Time: in.sent}
	var headers, encoding string
	ours := false
	for i := range in.attrs {
		a := &in.attrs[i]
		v := a.text
		if a.binary {
			v = string(a.raw)
		}
		switch a.name {
		case driver.HeaderID:
			m.ID, ours = v, true
		case driver.HeaderTime:
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
				m.Time = t
			}
		case driver.HeaderType:
			m.Type = v
		case driver.HeaderKey:
			m.Key = v
		case attrHeaders:
			headers = v
		case attrEncoding:
			encoding = v
		default:
			m.Headers = append(m.Headers, driver.Header{Key: a.name, Value: v})
		}
	}
	return finish(m, in, ours, headers, encoding)
}

func finish(m driver.Message, in *incoming, ours bool, headers, encoding string) (driver.Message, error) {
	m.Body = []byte(in.body)
	slices.SortFunc(m.Headers, func(a, b driver.Header) int { return strings.Compare(a.Key, b.Key) })
	if ours {
		m.Headers = nil // what is an attribute as well is among the headers
	} else {
		m.Key = in.group
	}
	if headers != "" {
		hs, err := unpackHeaders(headers)
		if err != nil {
			return m, err
		}
		m.Headers = hs
	}
	switch {
	case encoding == "":
	case encoding != encodingB64:
		return m, errors.New("the attribute varal-encoding names an unknown encoding")
	case in.body == emptyBody:
		m.Body = []byte{}
	default:
		body, err := base64.StdEncoding.Strict().DecodeString(in.body)
		if err != nil {
			return m, errors.New("the body is not the base64 that the attribute varal-encoding says")
		}
		m.Body = body
	}
	return m, nil
}
