package core_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

// TestOrderedSequenceGolden fixes the bytes of the header, from the publisher to the driver
// of a Client.
func TestOrderedSequenceGolden(t *testing.T) {
	t.Parallel()
	f := newFake(driver.Each)
	p := core.NewOrderedPublisher(client(f), core.OrderedOptions{Lanes: 1, Sequence: true, MaxNumbered: 2})
	defer closeOrdered(t, p)
	publish := func(id, key string, headers ...core.Header) {
		m := keyed(id, key)
		m.Headers = headers
		if err := p.Publish(t.Context(), core.Queue("q"), m); err != nil && id != "failed" {
			t.Fatal(err)
		}
		if len(m.Headers) != len(headers) {
			t.Errorf("the caller's message was changed: %v", m.Headers)
		}
	}
	publish("1", "a", core.Header{Key: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
	publish("2", "a")
	publish("3", "")
	publish("4", "b")
	f.onPublish = func(driver.Destination, []*driver.Message) error { return driver.Errorf("p", driver.Denied, "no") }
	publish("failed", "a")
	f.onPublish = nil
	publish("failed", "a")
	publish("5", "a", core.Header{Key: driver.HeaderSeq, Value: "0123456789abcdef.0-17"}) // received from another
	publish("6", "c")                                                                     // the third idle key: the numbers are forgotten
	publish("7", "a")
	var b strings.Builder
	publisher := ""
	for _, m := range f.sent("q") {
		fmt.Fprintf(&b, "id %q key %q\n", m.ID, m.Key)
		for _, h := range m.Headers {
			if s, ok := core.SequenceOf(m); ok && h.Key == driver.HeaderSeq {
				if publisher == "" {
					publisher = s.Publisher
				}
				h.Value = strings.Replace(h.Value, publisher, "PPPPPPPPPPPPPPPP", 1) // it is drawn at random
			}
			fmt.Fprintf(&b, "%s: %q\n", h.Key, h.Value)
		}
	}
	path := filepath.Join("testdata", "ordered.golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func withSeq(v string) *core.Message {
	return &core.Message{Headers: []core.Header{{Key: driver.HeaderSeq, Value: v}}}
}

func TestSequenceIsReadStrictly(t *testing.T) {
	t.Parallel()
	if _, ok := core.SequenceOf(&core.Message{}); ok {
		t.Error("a message without the header has a sequence")
	}
	good := core.Sequence{Publisher: "0123456789abcdef", Generation: 3, N: math.MaxUint64}
	if got, ok := core.SequenceOf(withSeq(good.String())); !ok || got != good || good.String() != "0123456789abcdef.3-18446744073709551615" {
		t.Errorf("%v %v", got, ok)
	}
	for _, bad := range []string{
		"", "-", ".-", "0123456789abcdef.0-0", "0123456789abcdef.0-01", "0123456789abcdef.-1", "0123456789abcdef.0-", "0123456789ABCDEF.0-1",
		"0123456789abcde.0-1", "0123456789abcdef.0-18446744073709551616", "0123456789abcdef.0-+1", "0123456789abcdef.0--1", "0123456789abcdef.00-1",
		"0123456789abcdef.0-1 ", "0123456789abcdef-1", "012345678\n9abcde.0-1", strings.Repeat("9", 1<<16),
	} {
		if s, ok := core.SequenceOf(withSeq(bad)); ok {
			t.Errorf("%q is read as %+v", bad, s)
		}
		// And as it is none of ours, an application may not publish it.
		if bad == "" {
			continue
		}
		if err := client(newFake(driver.Each)).Publish(context.Background(), core.Queue("q"), withSeq(bad)); err == nil {
			t.Errorf("%q was published", bad)
		}
	}
}

func FuzzSequence(f *testing.F) {
	f.Add("0123456789abcdef.3-17")
	f.Add("0123456789abcdef.0-01")
	f.Fuzz(func(t *testing.T, v string) {
		if s, ok := core.SequenceOf(withSeq(v)); ok && s.String() != v {
			t.Errorf("%q is read as %v", v, s)
		}
	})
}

func TestSequenceCompare(t *testing.T) {
	t.Parallel()
	at := func(publisher string, generation, n uint64) core.Sequence {
		return core.Sequence{Publisher: publisher, Generation: generation, N: n}
	}
	for _, c := range []struct {
		a, b  core.Sequence
		order int
		ok    bool
	}{
		{at("a", 0, 1), at("a", 0, 2), -1, true},
		{at("a", 0, 2), at("a", 0, 2), 0, true},
		{at("a", 1, 1), at("a", 0, 2), 1, true},
		{at("a", 0, 1), at("b", 0, 2), 0, false},
	} {
		if order, ok := c.a.Compare(c.b); order != c.order || ok != c.ok {
			t.Errorf("%v and %v: %d %v", c.a, c.b, order, ok)
		}
	}
}
