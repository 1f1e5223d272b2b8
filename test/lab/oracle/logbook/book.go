// Package logbook is the log of the sequence oracle: one file that any number of
// members append events to, over loopback.
//
// The oracle is a process of its own, so that what a member has said outlives the
// member: an event is acknowledged after the write to the file returned, and neither
// a SIGKILL of the member nor one of the oracle takes it back. (Nothing is synced: a
// power cut may.)
//
// It is also the only clock. An event gets the time at which it is appended, and no
// two get the same. A member that waits for the acknowledgement of its start before
// it works, and says end when the work is done, can rely on it: the times of the log
// are then in an order that really happened, on one clock, without an error to
// allow for.
//
// # Wire
//
// JSON lines both ways, each at most history.MaxLine bytes. A member sends
// history.Events: first hello with Proc (and Gen, or 0 to be given the next), then
// events with Seq 2, 3, 4 …, last bye. It is answered {"gen":G}, then {"ack":SEQ}
// for everything up to SEQ, or {"error":"…"} and the end of the connection. Proc,
// Gen, T and Eps of an event are the oracle's to set. Unknown fields are ignored.
package logbook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/varal-go/varal/test/lab/history"
)

// Limits of what a member can make the oracle keep.
const (
	MaxProc    = 64      // bytes of a Proc
	MaxMembers = 1 << 12 // different Procs of one log
	MaxConns   = 512     // members connected at one time
	batch      = 64      // events of one write to the file
)

// Self is the Proc of what the oracle itself notes.
const Self = "oracle"

// Errors of a conversation; the member reads their text.
var (
	ErrLine  = errors.New("the line is not an event: one JSON object with op, at most 4096 bytes, ended by a newline")
	ErrHello = errors.New("the first event must be hello with proc: 1 to 64 printable bytes, not \"" + Self + "\"")
	ErrSeq   = errors.New("seq must count on by one: an event is missing, or was sent twice")
	ErrGen   = errors.New("this incarnation was here before: a process that starts again is a new gen (0 = the next)")
	ErrFull  = errors.New("the log has as many members as it can keep apart")
	ErrBye   = errors.New("hello comes first, once, and nothing comes after bye")
)

// Book appends events to a file. Safe for concurrent use.
type Book struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
	last  int64
	gens  map[string]int
	buf   bytes.Buffer
	err   error
	lines int
}

// NewBook returns a Book whose clock starts now. w gets whole lines, several a Write.
func NewBook(w io.Writer) *Book {
	return &Book{w: w, start: time.Now(), gens: map[string]int{}}
}

// Events is how many are in the file.
func (b *Book) Events() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines
}

// Err is why the file takes no more events, nil while it does.
func (b *Book) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// enter admits an incarnation and returns its number.
func (b *Book) enter(proc string, gen int) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, known := b.gens[proc]
	switch {
	case !known && len(b.gens) >= MaxMembers:
		return 0, ErrFull
	case gen == 0:
		gen = last + 1
	case gen <= last:
		return 0, ErrGen
	}
	b.gens[proc] = gen
	return gen, nil
}

// append stamps events and writes them with one Write. When it returns nil they are in
// the file, in this order and behind everything that was appended before.
func (b *Book) append(proc string, gen int, events ...history.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	b.buf.Reset()
	for i := range events {
		e := &events[i]
		e.Proc, e.Gen, e.Eps = proc, gen, 0
		// Strictly growing: readers sort by time, and must find the order of the file.
		b.last = max(b.last+1, int64(time.Since(b.start)))
		e.T = b.last
		line, err := json.Marshal(e)
		if err != nil || len(line) >= history.MaxLine {
			return fmt.Errorf("%w (seq %d is longer once it is stamped and escaped)", ErrLine, e.Seq)
		}
		b.buf.Write(append(line, '\n'))
	}
	if n, err := b.w.Write(b.buf.Bytes()); err != nil {
		// Part of a line may be in the file now; another behind it would be unreadable.
		b.err = fmt.Errorf("the log could not be written (%d of %d bytes): %w", n, b.buf.Len(), err)
		return b.err
	}
	b.lines += len(events)
	return nil
}

// Decode reads one line of a member, without its newline. It is total, keeps nothing of
// line, and what it returns is at most three times as long (a byte that is not UTF-8
// becomes U+FFFD).
func Decode(line []byte) (history.Event, error) {
	var e history.Event
	if len(line) >= history.MaxLine || json.Unmarshal(line, &e) != nil || e.Op == "" {
		return history.Event{}, ErrLine
	}
	return e, nil
}

// greeting reads hello.
func greeting(line []byte) (history.Event, error) {
	e, err := Decode(line)
	if err != nil {
		return e, err
	}
	if e.Op != history.OpHello || e.Gen < 0 || e.Proc == "" || e.Proc == Self || len(e.Proc) > MaxProc {
		return e, ErrHello
	}
	for _, r := range e.Proc {
		if !strconv.IsPrint(r) {
			return e, ErrHello
		}
	}
	if e.Seq != 1 {
		return e, ErrSeq
	}
	return e, nil
}
