package core_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

var update = flag.Bool("update", false, "write the golden files")

// deadLetterOf runs one failing message through a consumer in fake time and returns
// its dead-letter copy.
func deadLetterOf(t *testing.T, m driver.Received, maxBytes int, failure error, limits core.Limits) (out *driver.Message) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(driver.UpTo)
		f.caps.MaxBytes = maxBytes
		c := core.NewClient(f, core.Options{Logger: quiet, Limits: limits})
		s, err := c.Start(t.Context(), core.Subscription{From: core.Stream("in"), Group: "kitchen"},
			func(context.Context, *core.Delivery) error { return failure },
			edit("p", func(p *core.Policy) {
				p.SetRetry(core.RetryPolicy{Attempts: 2, Base: time.Second, Jitter: core.NoJitter})
				p.DeadLetter = core.Queue("dlq")
			}))
		if err != nil {
			t.Fatal(err)
		}
		f.push(m)
		time.Sleep(time.Minute)
		if err := s.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		dead := f.sent("dlq")
		if len(dead) != 1 {
			t.Fatalf("%d copies", len(dead))
		}
		out = dead[0]
	})
	return out
}

func TestDeadLetterGolden(t *testing.T) {
	t.Parallel()
	m := msg("id-1", "table-7")
	m.Type = "order.placed"
	m.Headers = []core.Header{
		{Key: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		{Key: "lang", Value: "it"},
		{Key: "lang", Value: "de"},
		{Key: driver.HeaderError, Value: "of an earlier failure"},
	}
	dead := deadLetterOf(t, m, 0, errors.New("oven\tis\r\ncold \x1b[31m\xff"), core.Limits{})
	var b strings.Builder
	fmt.Fprintf(&b, "id %q\nkey %q\ntype %q\nbody %q\n", dead.ID, dead.Key, dead.Type, dead.Body)
	for _, h := range dead.Headers {
		fmt.Fprintf(&b, "%s: %q\n", h.Key, h.Value)
	}
	path := filepath.Join("testdata", "deadletter.golden")
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

func TestDeadLetterFitsTheBroker(t *testing.T) {
	t.Parallel()
	m := msg("id-1", "k")
	m.Body = make([]byte, 3000)
	m.Headers = []core.Header{{Key: "big", Value: strings.Repeat("v", 900)}}
	for limit, want := range map[int]string{4000: "headers", 2000: "headers,body", 10000: ""} {
		dead := deadLetterOf(t, m, limit, errors.New("x"), core.Limits{})
		if dead.Size() > limit {
			t.Errorf("limit %d: copy of %d bytes", limit, dead.Size())
		}
		if got, _ := dead.Header(driver.HeaderTruncated); got != want {
			t.Errorf("limit %d: truncated %q, want %q", limit, got, want)
		}
		if _, ok := dead.Header(driver.HeaderError); !ok {
			t.Errorf("limit %d: the error is gone", limit)
		}
	}
}

func TestDeadLetterErrorTextIsCutAtARune(t *testing.T) {
	t.Parallel()
	dead := deadLetterOf(t, msg("id-1", ""), 0, errors.New(strings.Repeat("ü", 2000)), core.Limits{})
	text, _ := dead.Header(driver.HeaderError)
	if len(text) > 1024 || !utf8.ValidString(text) || !strings.HasSuffix(text, "…[cut]") {
		t.Errorf("%d bytes, ends %q", len(text), text[max(0, len(text)-20):])
	}
}

func TestUnreadableAndOversizeGoToTheDeadLetterRaw(t *testing.T) {
	t.Parallel()
	bad := msg("", "")
	bad.Body, bad.Err = []byte{0xff, 0x00}, errors.New("not a record")
	dead := deadLetterOf(t, bad, 0, nil, core.Limits{})
	if string(dead.Body) != "\xff\x00" || dead.ID == "" {
		t.Errorf("record %+v", dead)
	}
	if r, _ := dead.Header(driver.HeaderFailureReason); r != "undecodable" {
		t.Errorf("reason %q", r)
	}
	big := msg("id", "")
	big.Body = make([]byte, 101)
	dead = deadLetterOf(t, big, 0, nil, core.Limits{Body: 100})
	if r, _ := dead.Header(driver.HeaderFailureReason); r != "too_large" || len(dead.Body) != 101 {
		t.Errorf("reason %q, %d bytes", r, len(dead.Body))
	}
}

// FuzzIncomingHeaders: whatever the wire says about a message, it is handled or
// dead-lettered, nothing panics, and what a handler sees keeps the limits.
func FuzzIncomingHeaders(f *testing.F) {
	f.Add(driver.HeaderAttempt, "3", "k", "v")
	f.Add(driver.HeaderAttempt, "-1", driver.HeaderDue, "2026-13-45")
	f.Add(driver.HeaderDue, "9999-12-31T23:59:59Z", driver.HeaderGroup, "other")
	f.Add(driver.HeaderAttempt, "99999999999999999999", "", "\x00\xff")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		synctest.Test(t, func(t *testing.T) { fuzzHeaders(t, []core.Header{{Key: k1, Value: v1}, {Key: k2, Value: v2}}) })
	})
}

func fuzzHeaders(t *testing.T, headers []core.Header) {
	t.Helper()
	d := newFake(driver.Each)
	c := core.NewClient(d, core.Options{Logger: quiet})
	s, err := c.Start(t.Context(), in, func(_ context.Context, d *core.Delivery) error {
		n := 0
		for _, h := range d.Headers {
			n += len(h.Key) + len(h.Value)
		}
		if n > 32<<10 {
			t.Errorf("%d bytes of headers reached the handler", n)
		}
		if d.Attempt < 1 || d.Attempt > 1001 {
			t.Errorf("attempt %d", d.Attempt)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m := msg("m", "")
	m.Headers = headers
	d.push(m)
	time.Sleep(time.Second)
	if final, _ := d.settlements(); len(final) != 1 {
		t.Errorf("neither handled nor settled: %v", final)
	}
	_ = s.Drain(context.Background())
}
