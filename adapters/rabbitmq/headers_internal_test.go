package rabbitmq

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/varal-go/varal/core/driver"
)

func TestForeignHeaders(t *testing.T) {
	t.Parallel()
	when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deep := any("x")
	for range 100 {
		deep = []any{deep}
	}
	in := amqp.Table{
		"a-nil": nil, "b-true": true, "c-int8": int8(-1), "d-uint8": byte(200), "e-int16": int16(-300), "f-uint16": uint16(300),
		"g-int32": int32(-7), "h-uint32": uint32(7), "i-int64": int64(1) << 62, "j-float32": float32(1.5), "k-float64": 0.1,
		"l-decimal": amqp.Decimal{Scale: 2, Value: 314}, "m-string": "s\x00\xff", "n-time": when, "o-bytes": []byte{1, 2},
		"p-array": []any{int32(1), "a\"b", nil, true, when}, "q-table": amqp.Table{"z": int64(1), "a": []any{}}, "r-deep": deep,
		"s-odd": struct{}{}, "x-death": []any{amqp.Table{"count": int64(2), "queue": "q", "time": when, "routing-keys": []any{"k"}}},
		"x-delivery-count": int64(3), "varal-key": int32(5), "varal-headers": "not packed",
	}
	got := map[string]string{}
	for _, h := range decodeHeaders(in) {
		got[h.Key] = h.Value
	}
	want := map[string]string{
		"a-nil": "", "b-true": "true", "c-int8": "-1", "d-uint8": "200", "e-int16": "-300", "f-uint16": "300", "g-int32": "-7",
		"h-uint32": "7", "i-int64": "4611686018427387904", "j-float32": "1.5", "k-float64": "0.1", "l-decimal": "314e-2",
		"m-string": "s\x00\xff", "n-time": "2026-01-02T03:04:05Z", "o-bytes": "\x01\x02",
		"p-array": `[1,"a\"b",null,true,"2026-01-02T03:04:05Z"]`, "q-table": `{"a":[],"z":1}`,
		"r-deep": strings.Repeat("[", 16) + `"…"` + strings.Repeat("]", 16), "s-odd": "{}",
		"x-death": `[{"count":2,"queue":"q","routing-keys":["k"],"time":"2026-01-02T03:04:05Z"}]`,
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q, want %q", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d headers, want %d: %v", len(got), len(want), got)
	}
	if n := deliveries(in); n != 4 {
		t.Errorf("deliveries %d", n)
	}
	if n := deliveries(amqp.Table{"x-delivery-count": int64(1), "x-acquired-count": int64(9)}); n != 9 {
		t.Errorf("deliveries %d", n)
	}
}

// An x-death that is published again makes the broker drop the message as a cycle.
func TestBrokerHeadersAreNotPublished(t *testing.T) {
	t.Parallel()
	out := amqp.Table{}
	in := []driver.Header{{Key: "x-death", Value: "[]"}, {Key: "x-first-death-queue", Value: "q"}, {Key: "x-mine", Value: "v"}, {Key: "a", Value: "1"}}
	if _, err := encodeHeaders(out, in); err != nil {
		t.Fatal(err)
	}
	for k := range out {
		if strings.HasPrefix(k, "x-") {
			t.Errorf("%s is published", k)
		}
	}
	if got := decodeHeaders(out); !slices.Equal(got, in[2:]) {
		t.Errorf("%v", got)
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte("a\x001\x00b\x002\x00a\x003"), []byte{1, 'a', 0})
	f.Add([]byte("x-mine\x00v\x00x-death\x00v"), []byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, pairs, packed []byte) {
		var in, want []driver.Header
		parts := bytes.Split(pairs, []byte{0})
		for i := 0; i+1 < len(parts); i += 2 {
			h := driver.Header{Key: string(parts[i]), Value: string(parts[i+1])}
			in = append(in, h)
			if !brokers(h.Key) {
				want = append(want, h)
			}
		}
		table := amqp.Table{}
		if _, err := encodeHeaders(table, in); err == nil {
			if err := table.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := decodeHeaders(table); !slices.Equal(got, want) {
				t.Fatalf("%q became %q", want, got)
			}
		}
		// Whatever stands in the packed field, nothing panics and nothing of the table
		// is lost.
		foreign := amqp.Table{headerOrder: packed, "a": int64(1), "b": []any{packed, nil}}
		n := 0
		for _, h := range decodeHeaders(foreign) {
			if h.Key == "a" && h.Value == "1" || h.Key == "b" {
				n++
			}
		}
		if n < 2 {
			t.Fatal("a header was lost")
		}
		if r, err := parseRecord(packed); err == nil {
			r.position("0")
			r.publishing()
		}
		difference(string(packed))
	})
}

func TestLedger(t *testing.T) {
	t.Parallel()
	var l ledger
	for tag := uint64(1); tag <= 10; tag++ {
		l.add(tag)
	}
	for _, tag := range []uint64{2, 3, 5, 1} {
		if !l.settle(tag) {
			t.Errorf("tag %d is not out", tag)
		}
	}
	if l.settle(3) || l.settle(0) || l.settle(11) {
		t.Error("settled what is not out")
	}
	if p := l.prefix(); p != 4 || l.out != 6 || l.last() != 10 {
		t.Errorf("prefix %d out %d last %d", p, l.out, l.last())
	}
	l.recount()
	l.add(11)
	if l.older != 6 || !l.settle(11) || l.older != 6 || !l.settle(4) || l.older != 5 {
		t.Errorf("older %d", l.older)
	}
	if l.settleTo(9); l.out != 1 || l.prefix() != 10 {
		t.Errorf("out %d", l.out)
	}
}
