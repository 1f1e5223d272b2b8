package logbook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/test/lab/history"
	"github.com/varal-go/varal/test/lab/oracle/logbook"
)

const hello = `{"op":"hello","seq":1,"proc":"w1"}` + "\n"

// read returns the events of a file, which must be whole.
func read(t testing.TB, file []byte) []history.Event {
	t.Helper()
	var events []history.Event
	rep, err := history.Read(bytes.NewReader(file), func(e history.Event) error {
		events = append(events, e)
		return nil
	})
	if err != nil || rep.Bad > 0 || rep.Torn {
		t.Fatalf("the file is damaged: %+v, %v", rep, err)
	}
	return events
}

func TestRules(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", history.MaxLine)
	for _, c := range []struct {
		name, in string
		want     error
		events   int // of the member in the file
	}{
		{"nothing", "", nil, 0},
		{"hello and bye", hello + `{"op":"bye","seq":2}` + "\n", nil, 2},
		{"gone without bye", hello + `{"op":"start","seq":2,"id":"a.1"}` + "\n", nil, 2},
		{"torn", hello + `{"op":"start","seq":2,"id":"a.1"}` + "\n" + `{"op":"end","seq":3`, nil, 2},
		{"whole, but no newline", hello + `{"op":"bye","seq":2}`, nil, 1},
		{"unknown op and field", hello + `{"op":"dance","seq":2,"shoes":[[[1]]]}` + "\n", nil, 2},
		{"no hello", `{"op":"start","seq":1}` + "\n", logbook.ErrHello, 0},
		{"no proc", `{"op":"hello","seq":1}` + "\n", logbook.ErrHello, 0},
		{"the oracle's own name", `{"op":"hello","seq":1,"proc":"oracle"}` + "\n", logbook.ErrHello, 0},
		{"a name that does not print", `{"op":"hello","seq":1,"proc":"a\nb"}` + "\n", logbook.ErrHello, 0},
		{"a long name", `{"op":"hello","seq":1,"proc":"` + strings.Repeat("x", 65) + `"}` + "\n", logbook.ErrHello, 0},
		{"a negative gen", `{"op":"hello","seq":1,"proc":"a","gen":-1}` + "\n", logbook.ErrHello, 0},
		{"two hellos", hello + `{"op":"hello","seq":2,"proc":"w1"}` + "\n", logbook.ErrBye, 1},
		{"behind bye nothing is read", hello + `{"op":"bye","seq":2}` + "\n" + `{"op":"end","seq":3}` + "\n", nil, 2},
		{"a gap", hello + `{"op":"start","seq":2}` + "\n" + `{"op":"end","seq":4}` + "\n", logbook.ErrSeq, 2},
		{"a repeat", hello + `{"op":"start","seq":2}` + "\n" + `{"op":"start","seq":2}` + "\n", logbook.ErrSeq, 2},
		{"not JSON", hello + "GET / HTTP/1.1\r\n", logbook.ErrLine, 1},
		{"a long line", hello + `{"op":"log","seq":2,"class":"` + long + `"}` + "\n", logbook.ErrLine, 1},
		{"a line without an end", hello + strings.Repeat(long, 100), logbook.ErrLine, 1},
		{"longer once escaped", hello + `{"op":"log","seq":2,"class":"` + strings.Repeat("<", 3000) + `"}` + "\n", logbook.ErrLine, 1},
		{"a number out of range", hello + `{"op":"tick","seq":2,"n":1e400}` + "\n", logbook.ErrLine, 1},
	} {
		var file, out bytes.Buffer
		b := logbook.NewBook(&file)
		err := b.Converse(strings.NewReader(c.in), &out)
		if !errors.Is(err, c.want) || (err != nil) != (c.want != nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if told := strings.Contains(out.String(), `"error"`); told != (c.want != nil) {
			t.Errorf("%s: the member is told %q", c.name, out.String())
		}
		n := 0
		for _, e := range read(t, file.Bytes()) {
			if e.Proc == logbook.Self {
				continue
			}
			n++
			if e.Seq != n || e.Proc != "w1" || e.Gen != 1 {
				t.Errorf("%s: event %d is %+v", c.name, n, e)
			}
		}
		if n != c.events {
			t.Errorf("%s: %d events in the file, want %d", c.name, n, c.events)
		}
	}
}

func TestGenerations(t *testing.T) {
	t.Parallel()
	b := logbook.NewBook(io.Discard)
	for _, c := range []struct {
		gen, got int
		want     error
	}{{0, 1, nil}, {0, 2, nil}, {2, 0, logbook.ErrGen}, {7, 7, nil}, {0, 8, nil}, {7, 0, logbook.ErrGen}} {
		var out bytes.Buffer
		err := b.Converse(strings.NewReader(`{"op":"hello","seq":1,"proc":"w","gen":`+strconv.Itoa(c.gen)+"}\n"), &out)
		var a logbook.Answer
		if e := json.NewDecoder(&out).Decode(&a); e != nil || !errors.Is(err, c.want) || a.Gen != c.got {
			t.Errorf("gen %d: %+v, %v; want gen %d, %v", c.gen, a, err, c.got, c.want)
		}
	}
}

// full is a disk with room for so many writes.
type full struct{ writes int }

func (f *full) Write(p []byte) (int, error) {
	if f.writes--; f.writes < 0 {
		return len(p) / 2, errors.New("no space left")
	}
	return len(p), nil
}

// Nothing is acknowledged that is not in the file, and after a failed write nothing is
// written behind the half line.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	b := logbook.NewBook(&full{writes: 1})
	var out bytes.Buffer
	err := b.Converse(strings.NewReader(hello+`{"op":"tick","seq":2}`+"\n"), &out)
	if err == nil || strings.Contains(out.String(), `"ack":2`) || b.Err() == nil || b.Events() != 1 {
		t.Errorf("%v, %q, %v, %d events", err, out.String(), b.Err(), b.Events())
	}
	if err := b.Converse(strings.NewReader(`{"op":"hello","seq":1,"proc":"w2"}`+"\n"), io.Discard); err == nil {
		t.Error("a member is admitted to a log that takes nothing")
	}
}

func TestMembersAreBounded(t *testing.T) {
	t.Parallel()
	b := logbook.NewBook(io.Discard)
	for i := range logbook.MaxMembers + 1 {
		err := b.Converse(strings.NewReader(`{"op":"hello","seq":1,"proc":"w`+strconv.Itoa(i)+`"}`+"\n"), io.Discard)
		if full := i == logbook.MaxMembers; errors.Is(err, logbook.ErrFull) != full || (err != nil) != full {
			t.Fatalf("member %d: %v", i, err)
		}
	}
}

// endless is a member that never ends its line.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	e.left -= len(p)
	for i := range p {
		p[i] = '['
	}
	return len(p), nil
}

// A hundred megabytes from a stranger cost a buffer.
func TestMemoryIsBounded(t *testing.T) { //nolint:paralleltest // measures allocation
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := logbook.NewBook(io.Discard)
	for range 10 {
		if err := b.Converse(io.MultiReader(strings.NewReader(hello), &endless{left: 10 << 20}), io.Discard); err == nil {
			t.Fatal("accepted")
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("%d bytes allocated for 10 conversations", got)
	}
}

// Serve ends with its context, whatever members do: one that says nothing, one that
// reads nothing.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- logbook.NewBook(io.Discard).Serve(ctx, ln) }()
	var conns []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	if _, err := conns[0].Write([]byte(hello)); err != nil {
		t.Fatal(err)
	}
	if _, err := conns[0].Read(make([]byte, 1)); err != nil { // it is being served
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-end:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve does not end")
	}
}

// Any bytes: no panic, the file stays readable, and what is in it obeys the rules.
func FuzzConverse(f *testing.F) {
	f.Add([]byte(hello + `{"op":"start","seq":2,"id":"a.1","key":"k","n":1,"t":-9}` + "\n" + `{"op":"bye","seq":3}` + "\n"))
	f.Add([]byte(`{"op":"hello","seq":1,"proc":"\ud800","gen":9223372036854775807}` + "\n" + `{"op":"x","seq":2}` + "\n"))
	f.Add([]byte(hello + `{"op":"log","seq":2,"class":"` + strings.Repeat(`\u0000`, 600) + `"}` + "\n"))
	f.Add([]byte(strings.Repeat("[", 5000)))
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var file, out bytes.Buffer
		_ = logbook.NewBook(&file).Converse(bytes.NewReader(in), &out)
		seq, last := 0, int64(0)
		for _, e := range read(t, file.Bytes()) {
			if e.T <= last || e.Eps != 0 || e.Proc == "" || e.Gen < 1 {
				t.Fatalf("%+v after time %d", e, last)
			}
			if last = e.T; e.Proc == logbook.Self {
				continue
			}
			if seq++; e.Seq != seq {
				t.Fatalf("event %d has seq %d", seq, e.Seq)
			}
		}
		if file.Len() > 8*len(in)+1024 {
			t.Fatalf("%d bytes in, %d bytes in the file", len(in), file.Len())
		}
		for _, line := range bytes.Split(file.Bytes(), []byte("\n")) {
			if len(line) >= history.MaxLine {
				t.Fatalf("a line of %d bytes", len(line))
			}
		}
		acked := 0
		for d := json.NewDecoder(&out); ; {
			var a logbook.Answer
			if d.Decode(&a) != nil {
				break
			}
			acked = max(acked, a.Ack)
		}
		if acked > seq {
			t.Fatalf("%d acknowledged, %d in the file", acked, seq)
		}
	})
}

// Decode alone: total, and a copy, so that a reused buffer changes nothing.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"op":"start","seq":2,"id":"a.1","key":"k","n":1,"fence":18446744073709551615}`))
	f.Add([]byte(`{"op":7}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := logbook.Decode(line)
		if err != nil {
			if e != (history.Event{}) {
				t.Fatalf("%+v with %v", e, err)
			}
			return
		}
		if size := len(e.Op) + len(e.ID) + len(e.Key) + len(e.Proc) + len(e.Dest) + len(e.Group) + len(e.Outcome) + len(e.Class) +
			len(e.Partition) + len(e.Position); e.Op == "" || size > 3*len(line) {
			t.Fatalf("%d bytes out of %d", size, len(line))
		}
		before := e
		for i := range line {
			line[i] = '#'
		}
		if e != before {
			t.Fatal("the event shares the buffer")
		}
	})
}
