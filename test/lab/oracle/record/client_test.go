package record_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/logbook"
	"github.com/varal-go/varal/test/lab/oracle/record"
)

// file is a log that can be read while it is written.
type file struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (f *file) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.b.Write(p)
}

func (f *file) events(t *testing.T) (out []history.Event) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if rep, err := history.Read(bytes.NewReader(f.b.Bytes()), func(e history.Event) error {
		out = append(out, e)
		return nil
	}); err != nil || rep.Bad > 0 {
		t.Fatal(rep, err)
	}
	return out
}

// oracle serves one for the length of the test.
func oracle(t *testing.T) (addr string, f *file) {
	t.Helper()
	f = &file{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- logbook.NewBook(f).Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String(), f
}

// Many handlers, a buffer of three: every event is in the file when Record returns, none
// is dropped, none twice.
func TestRecordWaitsAndNeverDrops(t *testing.T) {
	t.Parallel()
	addr, f := oracle(t)
	c, err := record.Dial(t.Context(), addr, record.Options{Proc: "w", Buffer: 3})
	if err != nil {
		t.Fatal(err)
	}
	var handlers sync.WaitGroup
	for w := range 16 {
		handlers.Go(func() {
			for i := range 20 {
				id := strconv.Itoa(w) + "." + strconv.Itoa(i)
				if err := c.Record(history.Event{Op: history.OpStart, ID: id}); err != nil {
					t.Error(err)
				}
				f.mu.Lock()
				in := bytes.Contains(f.b.Bytes(), []byte(`"id":"`+id+`"`))
				f.mu.Unlock()
				if !in {
					t.Errorf("%s is acknowledged and not in the file", id)
				}
			}
		})
	}
	handlers.Wait()
	if err := c.Close(); err != nil || c.Gen() != 1 {
		t.Error(err, c.Gen())
	}
	events := f.events(t)
	if h := history.New(events); len(h.Problems) > 0 || len(events) != 16*20+2 {
		t.Error(len(events), h.Problems)
	}
	if err := c.Record(history.Event{Op: history.OpTick}); !errors.Is(err, record.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// dumb is an oracle that greets and then does as it is told.
func dumb(t *testing.T, then func(net.Conn, *bufio.Reader)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		if _, err := in.ReadString('\n'); err == nil {
			then(conn, in)
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

func TestOracleThatFails(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(net.Conn, *bufio.Reader){
		"gone": func(net.Conn, *bufio.Reader) {},
		"silent": func(_ net.Conn, in *bufio.Reader) {
			_, _ = io.Copy(io.Discard, in)
		},
		"an error": func(c net.Conn, in *bufio.Reader) {
			_, _ = in.ReadString('\n')
			fmt.Fprintln(c, `{"error":"no space left"}`)
		},
		"an ack of what was not sent": func(c net.Conn, in *bufio.Reader) {
			fmt.Fprintln(c, `{"ack":99}`)
			_, _ = io.Copy(io.Discard, in)
		},
		"not JSON": func(c net.Conn, in *bufio.Reader) {
			fmt.Fprintln(c, strings.Repeat("x", 5000))
			_, _ = io.Copy(io.Discard, in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := dumb(t, func(c net.Conn, in *bufio.Reader) {
				fmt.Fprintln(c, `{"gen":4,"ack":1}`)
				then(c, in)
			})
			c, err := record.Dial(t.Context(), addr, record.Options{Proc: "w", Buffer: 2, Timeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			var handlers sync.WaitGroup
			for range 5 { // more than the buffer holds
				handlers.Go(func() {
					if c.Record(history.Event{Op: history.OpStart}) == nil {
						t.Error("recorded")
					}
				})
			}
			handlers.Wait()
			if c.Err() == nil || c.Gen() != 4 {
				t.Errorf("%v, gen %d", c.Err(), c.Gen())
			}
			if err := c.Close(); err == nil {
				t.Error("Close forgets the error")
			}
		})
	}
}

func TestDialRefused(t *testing.T) {
	t.Parallel()
	addr, _ := oracle(t)
	if _, err := record.Dial(t.Context(), addr, record.Options{}); err == nil || !strings.Contains(err.Error(), "hello with proc") {
		t.Errorf("no name: %v", err)
	}
	c, err := record.Dial(t.Context(), addr, record.Options{Proc: "w", Gen: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort()
	if _, err := record.Dial(t.Context(), addr, record.Options{Proc: "w", Gen: 3}); err == nil {
		t.Error("one incarnation twice")
	}
	silent := dumb(t, func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
	if _, err := record.Dial(t.Context(), silent, record.Options{Proc: "w", Timeout: 100 * time.Millisecond}); err == nil {
		t.Error("an oracle that does not greet")
	}
	other := dumb(t, func(c net.Conn, _ *bufio.Reader) { fmt.Fprintln(c, `{"hello":"I am something else"}`) })
	if _, err := record.Dial(t.Context(), other, record.Options{Proc: "w"}); err == nil {
		t.Error("not an oracle")
	}
}

func TestTooLongIsFinal(t *testing.T) {
	t.Parallel()
	addr, f := oracle(t)
	c, err := record.Dial(t.Context(), addr, record.Options{Proc: "w"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Record(history.Event{Op: history.OpLog, Class: strings.Repeat("x", 5000)}); !errors.Is(err, history.ErrTooLong) {
		t.Error(err)
	}
	c.Abort()
	c.Abort()
	if n := len(f.events(t)); n > 2 {
		t.Errorf("%d events", n)
	}
}

// A handler reports what it did, and does nothing that it cannot report.
func TestHandler(t *testing.T) {
	t.Parallel()
	addr, f := oracle(t)
	c, err := record.Dial(t.Context(), addr, record.Options{Proc: "w"})
	if err != nil {
		t.Fatal(err)
	}
	var result error
	ran := 0
	h := c.Handler(record.Message{Group: "g", Dest: "d", Number: func(*core.Delivery) int { return 7 }},
		func(context.Context, *core.Delivery) error { ran++; return result })
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, run := range []struct {
		ctx   context.Context //nolint:containedctx // a table
		err   error
		class string
		want  string
	}{
		{t.Context(), nil, "", history.OK},
		{t.Context(), errors.New("no"), "", history.Fail},
		{t.Context(), core.Permanent(errors.New("no")), history.Permanent, history.Fail},
		{cancelled, context.Canceled, "", history.Cancelled},
		{cancelled, nil, "", history.OK}, // it was done all the same
	} {
		result = run.err
		d := core.Delivery{Attempt: 2}
		d.ID, d.Key = "p.1", "k"
		if err := h(run.ctx, &d); !errors.Is(err, run.err) {
			t.Error(err)
		}
		events := f.events(t)
		start, end := events[len(events)-2], events[len(events)-1]
		if start.Op != history.OpStart || start.ID != "p.1" || start.Key != "k" || start.N != 7 || start.Group != "g" || start.Dest != "d" || start.Attempt != 2 {
			t.Errorf("%+v", start)
		}
		if end.Op != history.OpEnd || end.Outcome != run.want || end.Class != run.class || end.ID != "p.1" {
			t.Errorf("%+v, want %s", end, run.want)
		}
	}
	c.Resources(nil)
	c.Abort()
	before := ran
	if err := h(t.Context(), &core.Delivery{}); err == nil || ran != before {
		t.Errorf("%v; it ran although nobody hears of it", err)
	}
}
