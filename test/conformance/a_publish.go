package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/core/driver"
)

func publishCases() []Case {
	return []Case{
		{ID: "C01", Rule: "A body arrives byte for byte: empty, not UTF-8, and as large as the declared limit.", on: shapesOf, run: c01},
		{ID: "C02", Rule: "Headers arrive as they were sent, and an illegal one fails at publish and is never mangled.", on: shapesOf, run: c02},
		{ID: "C03", Rule: "A delivery tells id, native id, key, source, publish time and an attempt from 1 on; ids stay the same over redelivery.", on: shapesOf, run: c03},
		{ID: "C04", Rule: "A publish that was confirmed survives the publisher's SIGKILL right after it.", on: []shapeOf{queue, stream}, run: c04},
		{ID: "C05", Rule: "A batch reports each item: what is ok arrives, what failed does not, and a batch over the broker's maximum loses none.", on: shapesOf, run: c05},
		{ID: "C06", Rule: "A message over the limit is refused with class too large and the limit in the text.", on: shapesOf, run: c06},
		{ID: "C07", Rule: "Publishing to a destination that is missing gives NotFound in time: no hang, no silent drop.", on: shapesOf, run: c07},
		{ID: "C08", Rule: "A cancelled publish returns the context's error promptly; it is failed or unknown, and ok only if it arrives.", on: []shapeOf{queue, stream}, run: c08},
		{ID: "C09", Rule: "50 publishers at once lose and duplicate nothing.", on: shapesOf, run: c09},
		{ID: "C10", Rule: "In an outage each publish ends by its deadline; afterwards every ok message is delivered and no failed one.", on: []shapeOf{queue, stream}, alone: true, run: c10},
	}
}

// sizes of the bodies of C01; the last is the declared limit.
func (e *env) bodies(limit int) map[string][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(e.rng.Uint32())
	}
	return map[string][]byte{
		"empty": {}, "one zero": {0}, "not UTF-8": []byte("\xff\xfe\x80pizza\xc3"), "every byte": all, "newlines": []byte("a\r\nb\n\x00"),
		"64 KiB of noise": noise[:min(len(noise), limit)], "the limit": slices.Repeat([]byte{0xA5}, limit),
	}
}

func c01(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	key := e.key(1)
	limit := e.h.BodyLimit
	if e.caps.MaxBytes > 0 {
		limit = min(limit, e.caps.MaxBytes-len(key))
	}
	want := map[string][]byte{}
	for name, body := range e.bodies(limit) {
		m := e.message(key)
		m.Body = body
		want[m.ID] = body
		if err := e.try(e.h.Patience, cl, l, dest, m); err != nil {
			e.Fatalf("body %q of %d bytes (MaxBytes %d): %v", name, len(body), e.caps.MaxBytes, err)
		}
	}
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.exactly(l)
	for _, v := range l.all() {
		if !slices.Equal(v.msg.Body, want[v.id]) {
			e.Errorf("sent %d bytes, %d came, first difference at %d", len(want[v.id]), len(v.msg.Body), firstDifference(want[v.id], v.msg.Body))
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func c02(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	good := e.message(e.key(1))
	good.Type = "pizza.ordered"
	good.Headers = []core.Header{
		{Key: "Case.Kept", Value: "Ä ñ 🍕 日本"},
		{Key: "empty", Value: ""},
		{Key: "number", Value: "007"},
		{Key: "bool", Value: "true"},
		{Key: "repeated", Value: "1"},
		{Key: "repeated", Value: "2"},
		{Key: "binary", Value: "\x00\xff\r\n"},
		{Key: "content-type", Value: "text/plain"},
	}
	for i := len(good.Headers); i < 50; i++ {
		good.Headers = append(good.Headers, core.Header{Key: fmt.Sprintf("h-%02d", i), Value: strings.Repeat("v", i)})
	}
	e.publish(cl, l, dest, good)
	for name, h := range map[string]core.Header{
		"empty key": {Key: "", Value: "x"}, "space in key": {Key: "a b", Value: "x"}, "line break in key": {Key: "a\r\nb", Value: "x"},
		"NUL in key": {Key: "a\x00", Value: "x"}, "reserved key": {Key: driver.HeaderAttempt, Value: "7"}, "huge key": {Key: strings.Repeat("k", 300), Value: "x"},
		"huge value": {Key: "k", Value: strings.Repeat("v", 5<<10)},
	} {
		m := e.message("")
		m.Headers = []core.Header{h}
		err := e.try(e.h.Patience, cl, l, dest, m)
		if !errors.Is(err, core.ErrPermanent) && !errors.Is(err, core.ErrTooLarge) {
			e.Errorf("illegal header (%s) gave %v; want class permanent or too large", name, err)
		}
	}
	e.publish(cl, l, dest, e.message(""))
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.exactly(l)
	for _, v := range l.of(good.ID) {
		e.sameHeaders(good, &v.msg)
	}
}

// sameHeaders compares headers in order, and type.
func (e *env) sameHeaders(want, got *core.Message) {
	if got.Type != want.Type {
		e.Errorf("type %q came as %q", want.Type, got.Type)
	}
	if slices.Equal(want.Headers, got.Headers) {
		return
	}
	for i, h := range want.Headers {
		if i >= len(got.Headers) || got.Headers[i] != h {
			var have any = "nothing"
			if i < len(got.Headers) {
				have = got.Headers[i]
			}
			e.Errorf("%d headers were sent, %d came; header %d was %q, came as %q", len(want.Headers), len(got.Headers), i, h, have)
			return
		}
	}
	e.Errorf("%d headers were sent, %d came: %q is new", len(want.Headers), len(got.Headers), got.Headers[len(want.Headers):])
}

func c03(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	before := time.Now().Add(-2 * time.Second)
	msgs := e.messages(5, 5)
	e.publish(cl, l, dest, msgs...)
	e.start(cl, e.sub(dest, "g"), l.handler("one", func(_ context.Context, d *core.Delivery) error {
		if d.Attempt == 1 {
			return errors.New("once more")
		}
		return nil
	}))
	e.arrive(l)
	for _, m := range msgs {
		vs := l.of(m.ID)
		for i, v := range vs {
			switch {
			case v.key != m.Key:
				e.Errorf("key %q came as %q", m.Key, v.key)
			case v.src != dest:
				e.Errorf("Source is %v, want %v", v.src, dest)
			case v.msg.Time.Before(before) || v.msg.Time.After(time.Now().Add(2*time.Second)) || v.msg.Time.Sub(m.Time).Abs() > time.Millisecond:
				e.Errorf("published at %v, the delivery says %v", m.Time, v.msg.Time)
			case v.attempt != i+1:
				e.Errorf("delivery %d says attempt %d", i+1, v.attempt)
			case v.native != vs[0].native || v.offset != vs[0].offset:
				e.Errorf("redelivered with native id %q and offset %d, before they were %q and %d", v.native, v.offset, vs[0].native, vs[0].offset)
			}
		}
		if len(vs) != 2 {
			e.Errorf("message %s was delivered %d times, want 2", m.ID, len(vs))
		}
	}
}

func c04(e *env) {
	if e.h.Spawn == nil {
		e.notExercised("Harness.Spawn is nil: no process to kill")
	}
	dest, l := e.dest("g"), newLedger()
	ids := make([]string, 200)
	for i := range ids {
		m := e.message("")
		ids[i] = m.ID
		l.expect(m)
	}
	at := 20 + e.rng.IntN(60)
	p := e.h.Spawn(e, Job{Role: "publish", On: dest, IDs: ids})
	e.eventually("confirms in the child", func() bool { return len(p.of("ok")) >= at || len(p.of("failed")) > 0 })
	p.Kill()
	if f := p.of("failed"); len(f) > 0 {
		e.Fatalf("publish in the child: %s", f[0].Text)
	}
	for _, ev := range p.of("ok") {
		l.outcome(ev.ID, confirmed)
	}
	e.start(e.client(), e.sub(dest, "g"), l.handler("one", nil))
	e.arrive(l)
	e.rest(l)
	for _, ev := range p.of("ok") {
		if n := len(l.of(ev.ID)); n != 1 {
			e.Errorf("message %s, confirmed before the kill, was delivered %d times", ev.ID, n)
		}
	}
}

func c05(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl, _ := e.tapped()
	raw := e.h.Open(e)
	n := e.h.bulk(2500)
	if e.caps.MaxBatch > 0 {
		n = 2*e.caps.MaxBatch + 1
	}
	e.publish(cl, l, dest, e.messages(n, 7)...)
	msgs := e.messages(40, 5)
	bad := map[int]bool{3: true, 17: true, 39: true}
	for i := range bad {
		msgs[i].Headers = []core.Header{{Key: "no good", Value: "x"}}
	}
	err := e.try(e.h.Patience, cl, l, dest, msgs...)
	for i := range msgs {
		if res := driver.ResultAt(err, i); (res != nil) != bad[i] {
			e.Errorf("item %d of the batch ended with %v", i, res)
		}
	}
	e.perItem(raw, l, dest)
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.exactly(l)
}

// perItem asks the adapter itself for a batch of which one message is too large.
func (e *env) perItem(raw driver.Driver, l *ledger, dest driver.Destination) {
	if e.caps.MaxBytes == 0 || e.caps.MaxBytes > 64<<20 {
		return
	}
	msgs := e.messages(3, 3) // a key each: order per key must not make the others wait
	msgs[1].Body = make([]byte, e.caps.MaxBytes+1)
	for _, m := range msgs {
		m.Time = time.Now()
		l.expect(m)
	}
	err := raw.Publish(e.within(e.h.Patience), dest, msgs)
	for i, m := range msgs {
		res := driver.ResultAt(err, i)
		switch {
		case i == 1 && driver.ClassOf(res) != driver.TooLarge:
			e.Errorf("an oversize message in a batch ended with %v; want class too large", res)
		case i != 1 && res != nil:
			e.Errorf("a good message beside an oversize one ended with %v", res)
		case i == 1:
			l.outcome(m.ID, failed)
		default:
			l.outcome(m.ID, confirmed)
		}
	}
}

func c06(e *env) {
	if e.caps.MaxBytes <= 0 {
		e.Fatalf("Capabilities.MaxBytes is %d: every broker has a limit, and a publisher must be told", e.caps.MaxBytes)
	}
	if e.caps.MaxBytes > 256<<20 {
		e.notExercised("the limit of %d bytes is more than this machine should send: configure a smaller one", e.caps.MaxBytes)
	}
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	big := e.message("")
	big.Body = make([]byte, e.caps.MaxBytes+1)
	err := e.try(e.h.Patience, cl, l, dest, big)
	if !errors.Is(err, core.ErrTooLarge) {
		e.Fatalf("a message of MaxBytes+1 ended with %v; want class too large", err)
	}
	if !strings.Contains(err.Error(), strconv.Itoa(e.caps.MaxBytes)) {
		e.Errorf("%q does not name the limit of %d bytes", err, e.caps.MaxBytes)
	}
	e.publish(cl, l, dest, e.message(""))
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.exactly(l)
}

func c07(e *env) {
	missing := e.h.Missing(e, e.on.shape)
	missing.Partitions = e.on.partitions
	cl := e.client()
	for i := range 2 { // the second time must not hang on what the first left behind
		start := time.Now()
		err := cl.Publish(e.within(e.h.Patience), missing, e.message(""))
		if !errors.Is(err, core.ErrNotFound) {
			e.Fatalf("publish %d to a missing %s ended with %v; want class not found", i+1, e.on.name, err)
		}
		if took := time.Since(start); took > 5*time.Second+e.h.Tolerance {
			e.Errorf("not found took %v", took)
		}
	}
	_, err := cl.Start(e.within(e.h.Patience), e.sub(missing, "g"), func(context.Context, *core.Delivery) error { return nil }, policy())
	if !errors.Is(err, core.ErrNotFound) {
		e.Errorf("subscribing to a missing %s ended with %v; want class not found", e.on.name, err)
	}
	dest, l := e.dest("g"), newLedger()
	e.publish(cl, l, dest, e.message(""))
}

func c08(e *env) {
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	gone, cancel := context.WithCancel(e.Context())
	cancel()
	m := e.message("")
	l.expect(m)
	if err := cl.Publish(gone, dest, m); !errors.Is(err, context.Canceled) || errors.Is(err, core.ErrIndeterminate) {
		e.Errorf("publish with an ended context gave %v; want context canceled, and not indeterminate", err)
	}
	l.outcome(m.ID, failed)
	for i := range 100 {
		e.cancelled(cl, l, dest, time.Duration(e.rng.Int64N(int64(2*time.Millisecond))), 1+i%8)
	}
	e.publish(cl, l, dest, e.message(""))
	e.start(cl, e.sub(dest, "g"), l.handler("one", nil))
	e.arrive(l)
	e.rest(l)
	e.noExtra(l, true)
}

// cancelled publishes n messages and cancels after d.
func (e *env) cancelled(cl *core.Client, l *ledger, dest driver.Destination, d time.Duration, n int) {
	ctx, cancel := context.WithCancel(e.Context())
	ended := make(chan time.Time, 1)
	time.AfterFunc(d, func() { cancel(); ended <- time.Now() })
	msgs := e.messages(n, 0)
	for _, m := range msgs {
		l.expect(m)
	}
	err := cl.Publish(ctx, dest, msgs...)
	at := time.Now()
	if late := at.Sub(<-ended); late > 500*time.Millisecond+e.h.Tolerance {
		e.Errorf("publish returned %v after it was cancelled", late)
	}
	for i, m := range msgs {
		switch res := driver.ResultAt(err, i); {
		case res == nil:
			l.outcome(m.ID, confirmed)
		case !errors.Is(res, context.Canceled):
			e.Errorf("a cancelled publish ended with %v, which is not the context's error", res)
		case !errors.Is(res, core.ErrIndeterminate):
			l.outcome(m.ID, failed)
		}
	}
}

func c09(e *env) {
	const publishers, each = 50, 20
	dest, l := e.dest("g"), newLedger()
	cls := []*core.Client{e.client(), e.client(), e.client()}
	e.start(cls[0], e.sub(dest, "g"), l.handler("one", nil))
	var wg sync.WaitGroup
	for p := range publishers {
		msgs := e.messages(each, 0)
		for i := range msgs {
			msgs[i].Key = e.key(p)
		}
		wg.Go(func() {
			for i := range msgs {
				if err := e.try(e.h.Patience, cls[p%3], l, dest, msgs[i]); err != nil {
					e.Errorf("publisher %d, message %d: %v", p, i, err)
				}
			}
		})
	}
	wg.Wait()
	e.exactly(l)
}

func c10(e *env) {
	if e.h.Break == nil {
		e.notExercised("Harness.Break is nil: no outage")
	}
	dest, l := e.dest("g"), newLedger()
	cl := e.client()
	e.publish(cl, l, dest, e.message(""))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var ended [4]atomic.Int64 // publishes, by publisher
	rounds := func(n int64) func() bool {
		var from [len(ended)]int64
		for i := range from {
			from[i] = ended[i].Load()
		}
		return func() bool {
			for i := range from {
				if ended[i].Load() < from[i]+n {
					return false
				}
			}
			return true
		}
	}
	for i := range ended {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				const limit = time.Second
				start := time.Now()
				_ = e.try(limit, cl, l, dest, e.message(""))
				ended[i].Add(1)
				if over := time.Since(start) - limit; over > 500*time.Millisecond+e.h.Tolerance {
					e.Errorf("a publish in the outage ended %v after its deadline", over)
				}
			}
		})
	}
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	e.Cleanup(end)
	e.eventually("publishes of everyone", rounds(5))
	heal := e.h.Break(e)
	if !e.holds(e.h.Patience, rounds(3)) { // the first of them may have begun before
		e.Errorf("not every publisher had publishes that began and ended in the outage within %v", e.h.Patience)
	}
	heal()
	e.eventually("a publish after the outage", func() bool { return e.try(2*time.Second, cl, l, dest, e.message("")) == nil })
	end()
	e.start(e.client(), e.sub(dest, "g"), l.handler("one", nil))
	e.arrive(l)
	e.rest(l)
	e.noExtra(l, false)
}
